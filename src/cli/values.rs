//! Values of options and arguments for the completion scripts, which call `modegate __values KIND`.

use std::io::Write;
use std::process::ExitCode;

use clap::ValueEnum;

use super::{permissions, sessions};
use crate::config::environment::Environment;
use crate::config::policies::Policies;
use crate::config::{self, Flags, session_policy};
use crate::model::catalog::PROVIDERS;
use crate::store::sessions::SessionQuery;

/// Sessions that a completion offers.
const SESSIONS: usize = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ValueKind {
    Modes,
    Agents,
    Models,
    Sessions,
    Rules,
}

/// The options with values of each kind, by their long names.
pub(super) const OPTIONS: [(&str, &str); 5] = [
    ("mode", "modes"),
    ("max-mode", "modes"),
    ("agent", "agents"),
    ("model", "models"),
    ("resume", "sessions"),
];

/// Commands whose first argument has values of each kind.
pub(super) const ARGUMENTS: [(&[&str], &str); 12] = [
    (&["modes", "show"], "modes"),
    (&["modes", "explain"], "modes"),
    (&["agents", "show"], "agents"),
    (&["sessions", "show"], "sessions"),
    (&["sessions", "export"], "sessions"),
    (&["sessions", "delete"], "sessions"),
    (&["sessions", "set-mode"], "sessions"),
    (&["sessions", "undo"], "sessions"),
    (&["audit"], "sessions"),
    (&["report"], "sessions"),
    (&["permissions", "revoke"], RULES),
    (&["policy", "explain", "mode"], "modes"),
];

/// Rules contain blanks.
pub(super) const RULES: &str = "rules";

/// Prints one value a line. A file that cannot be used offers nothing.
pub(super) async fn run(
    kind: ValueKind,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let cwd = config::real_working_folder(flags)?;
    let load = || Policies::new(environment, None, false).load(&cwd);
    let values: Vec<String> = match kind {
        ValueKind::Modes => load().layers.modes.iter().map(|mode| mode.id.clone()).collect(),
        ValueKind::Agents => {
            let agents = session_policy::limited_agents(&load(), environment, &cwd);
            agents.iter().map(|agent| agent.id.clone()).collect()
        }
        ValueKind::Models => {
            let models = PROVIDERS.iter().flat_map(|provider| {
                provider.models.iter().map(move |model| format!("{}/{model}", provider.id))
            });
            models.chain(["offline".to_owned()]).collect()
        }
        ValueKind::Sessions => {
            let store = sessions::open_to_read(flags, environment)?;
            let listing = SessionQuery { cwd: Some(cwd), limit: SESSIONS, ..SessionQuery::default() };
            let listed = store.sessions(listing).await?;
            listed.iter().map(|session| session.id.to_string()).chain(["last".to_owned()]).collect()
        }
        ValueKind::Rules => permissions::revocable(&Policies::new(environment, None, false)),
    };
    for value in values {
        writeln!(output, "{value}")?;
    }
    Ok(ExitCode::SUCCESS)
}
