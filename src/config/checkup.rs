//! What `modegate doctor` looks at: what the environment, the files and the kernel come to. Nothing is changed.

use std::path::Path;

use super::environment::Environment;
use super::{Flags, commands, location, providers, user_file};
use crate::model::ModelId;
use crate::model::catalogue::PROVIDERS;
use crate::process::shell::Shell;
use crate::process::trial;
use crate::sandbox;
use crate::store::{Location, Store};

/// One line: what was looked at, and what came of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// What came of it.
    pub state: State,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// It works; this is what there is.
    Fine(String),
    /// It is not there, and need not be.
    Absent(String),
    /// It does not work: why, and what to do.
    Wrong(String, &'static str),
}

/// Looks at everything. A command is tried in `scratch`, which is empty.
pub async fn check(flags: &Flags, environment: &Environment, scratch: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what, state| findings.push(Finding { what, state });
    let read = user_file::read(environment.config_folder.as_deref());
    add("settings", settings(environment, read.as_ref().err()));
    let file = read.unwrap_or_default();
    add("keys", keys(environment));
    add("model", model(flags, environment));
    add("store", store(flags, environment));
    let support = sandbox::support();
    match support.missing() {
        None => add("kernel", State::Fine(format!("Landlock rights of ABI {}, seccomp", support.landlock))),
        Some(reason) => {
            let advice = "shell_read_only is absent without it, and other commands are not held; use Linux 6.2 or newer with Landlock";
            add("kernel", State::Wrong(reason, advice));
        }
    }
    match commands::shell(environment, &file.shell.unwrap_or_default()) {
        Ok(shell) => {
            add("shell", State::Fine(shell.program().to_owned()));
            add("read-only commands", read_only(&shell, scratch).await);
            add("other commands", other(&shell, scratch));
        }
        Err(error) => add("shell", State::Wrong(format!("{error:#}"), "mend config.yaml")),
    }
    findings
}

fn settings(environment: &Environment, error: Option<&anyhow::Error>) -> State {
    let Some(folder) = &environment.config_folder else {
        return State::Absent("there is no home directory".into());
    };
    if let Some(error) = error {
        return State::Wrong(format!("{error:#}"), "mend the file; docs/models.md has every key");
    }
    let there = [user_file::CONFIG, user_file::SETUP].map(|name| folder.join(name));
    let there: Vec<String> =
        there.iter().filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    if there.is_empty() {
        return State::Absent(format!("none in {}", folder.display()));
    }
    State::Fine(there.join(", "))
}

/// By name: a key is never shown.
fn keys(environment: &Environment) -> State {
    let all = PROVIDERS.iter().flat_map(|provider| provider.key_variables);
    let mut names: Vec<&str> = all.filter(|name| environment.key(&[name]).is_some()).copied().collect();
    names.dedup();
    if names.is_empty() {
        return State::Absent("none in the environment".into());
    }
    State::Fine(names.join(", "))
}

fn model(flags: &Flags, environment: &Environment) -> State {
    let named = flags.model.as_deref().or(environment.model.as_deref());
    if named.is_some_and(|name| name.starts_with("scripted:")) {
        return State::Fine("a script".into());
    }
    let asked = named.map(ModelId::new);
    let catalogue = match providers::load(environment, asked.as_ref()) {
        Ok((_, remote)) => remote.catalogue,
        Err(error) => return State::Wrong(format!("{error:#}"), "see `modegate --help`, --model"),
    };
    let model = catalogue.default_model().clone();
    let name = model.as_str().to_owned();
    match catalogue.check_key(model) {
        Ok(_) => State::Fine(name),
        Err(error) => State::Wrong(error.to_string(), "set the variable, or run `modegate setup`"),
    }
}

fn store(flags: &Flags, environment: &Environment) -> State {
    match location(flags.store.as_deref(), environment) {
        Ok(Location::Memory) => State::Absent("in memory only".into()),
        Ok(Location::File(path)) if !path.exists() => {
            State::Absent(format!("{}: made with the first session", path.display()))
        }
        Ok(Location::File(path)) => match Store::check(&path) {
            Ok(()) => State::Fine(path.display().to_string()),
            Err(error) => {
                State::Wrong(format!("{}: {error}", path.display()), "free it, or name another with --store")
            }
        },
        Err(error) => State::Wrong(format!("{error:#}"), "name a file with --store"),
    }
}

async fn read_only(shell: &Shell, scratch: &Path) -> State {
    if let Some(reason) = shell.support().missing() {
        return State::Absent(reason);
    }
    match trial::try_read_only(shell, scratch).await {
        Ok(tried) => {
            let network = if tried.network { "writing, chmod and the network" } else { "writing and chmod" };
            State::Fine(format!("tried: it reads; {network} are refused"))
        }
        Err(reason) => State::Wrong(reason, "do not rely on plan mode's commands here; please report it"),
    }
}

fn other(shell: &Shell, scratch: &Path) -> State {
    if shell.workspace(&[scratch.to_owned()]).is_off() {
        return State::Absent("not held: they can write whatever you can".into());
    }
    State::Fine("write in the session's folders, temporary folders and caches".into())
}
