//! Checks for `modegate doctor`. Changes nothing permanently.

use std::path::Path;

use super::environment::Environment;
use super::policies::Policies;
use super::{Config, Flags, commands, location, providers, scratch_folder, user_file, working_folder};
use crate::model::ModelId;
use crate::model::catalog::PROVIDERS;
use crate::process::shell::Shell;
use crate::process::trial;
use crate::sandbox;
use crate::store::{Location, Store};

#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
}

#[derive(Debug, PartialEq, Eq)]
pub enum State {
    Fine(String),
    Absent(String),
    Wrong(String, &'static str),
}

pub async fn check(flags: &Flags, environment: &Environment) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what, state| findings.push(Finding { what, state });
    let read = user_file::read(environment.config_folder.as_deref());
    let is_readable = read.is_ok();
    add("settings", settings(environment, read.as_ref().err()));
    let file = read.unwrap_or_default();
    add("keys", keys(environment));
    if is_readable {
        add("command line, model", model(flags, environment));
    }
    add("modes", modes(flags, environment));
    add("store", store(flags, environment));
    let support = sandbox::support();
    match support.missing() {
        None => add("kernel", State::Fine(format!("Landlock rights of ABI {}, seccomp", support.landlock))),
        Some(reason) => {
            let advice = "shell_read_only is absent without it, and other commands are not sandboxed; use Linux 6.2 or newer with Landlock";
            add("kernel", State::Wrong(reason, advice));
        }
    }
    let settings = file.shell.unwrap_or_default();
    if let Some(obsolete) = settings.obsolete() {
        add("settings", State::Absent(obsolete.to_owned()));
    }
    match commands::shell(environment, &settings) {
        Ok(shell) => {
            add("shell", State::Fine(shell.program().to_owned()));
            add("read-only commands", read_only(&shell, environment, flags).await);
            add("other commands", other(&shell));
            for place in
                settings.read.iter().chain(&settings.write).filter(|place| is_missing(environment, place))
            {
                let reason = format!("{} in the settings of the shell does not exist", place.display());
                add("shell", State::Wrong(reason, "fix `shell` in config.yaml"));
            }
        }
        Err(error) => add("shell", State::Wrong(format!("{error:#}"), "fix `shell` in config.yaml")),
    }
    findings
}

fn is_missing(environment: &Environment, place: &Path) -> bool {
    let home = environment.user.home.as_deref();
    !commands::absolute(place, home).is_ok_and(|place| place.exists())
}

fn settings(environment: &Environment, error: Option<&anyhow::Error>) -> State {
    let Some(folder) = &environment.config_folder else {
        return State::Absent("there is no home directory".into());
    };
    if let Some(error) = error {
        return State::Wrong(
            format!("{error:#}"),
            "fix the file; docs/reference/config.md and docs/reference/modes-file.md have every key",
        );
    }
    let there = [user_file::CONFIG, user_file::SETUP].map(|name| folder.join(name));
    let there: Vec<String> =
        there.iter().filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    if there.is_empty() {
        return State::Absent(format!("none in {}", folder.display()));
    }
    State::Fine(there.join(", "))
}

/// Security: lists the variables, never the keys.
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
    if let Err(error) = Config::new(flags, environment.clone()) {
        return State::Wrong(format!("{error:#}"), "see `modegate --help`");
    }
    if named.is_some_and(|name| name.starts_with("scripted:")) {
        return State::Fine("a script; the settings are not read for it".into());
    }
    let requested = named.map(ModelId::new);
    let models = match providers::load(environment, requested.as_ref()) {
        Ok((_, remote)) => remote.catalog,
        Err(error) => return State::Wrong(format!("{error:#}"), "see `modegate --help`, --model"),
    };
    let model = models.default_model().clone();
    let name = model.as_str().to_owned();
    match models.check_key(model) {
        Ok(_) => State::Fine(name),
        Err(error) => State::Wrong(error.to_string(), "set the variable, or run `modegate setup`"),
    }
}

fn modes(flags: &Flags, environment: &Environment) -> State {
    let cwd = working_folder(flags).unwrap_or_default();
    let loaded = Policies::new(environment, None, false).load(&cwd);
    if let Some(diagnostic) = loaded.problems.first() {
        return State::Wrong(
            diagnostic.to_string(),
            "sessions can do no more than plan until it is fixed; see `modegate modes check`",
        );
    }
    let (modes, rules) = (loaded.layers.modes.iter().count(), loaded.layers.rules.iter().count());
    State::Fine(format!("{modes}, with {rules} rules"))
}

fn store(flags: &Flags, environment: &Environment) -> State {
    match location(flags.store.as_deref(), environment) {
        Ok(Location::Memory) if flags.store.is_none() => State::Wrong(
            "there is no home directory, so sessions are kept in memory only".into(),
            "set HOME or XDG_DATA_HOME, or name a file with --store",
        ),
        Ok(Location::Memory | Location::Reading(_)) => State::Absent("in memory only".into()),
        // An inaccessible store is not an absent one.
        Ok(Location::File(path)) if matches!(path.try_exists(), Ok(false)) => match check_creatable(&path) {
            Ok(()) => State::Absent(format!("{}: made with the first session", path.display())),
            Err(error) => {
                let reason = format!("{} cannot be made: {error}", path.display());
                State::Wrong(
                    reason,
                    "name another file with --store; until then sessions are kept in memory only",
                )
            }
        },
        Ok(Location::File(path)) => match Store::check(&path) {
            Ok(()) => State::Fine(path.display().to_string()),
            Err(error) => {
                State::Wrong(format!("{}: {error}", path.display()), "free it, or name another with --store")
            }
        },
        Err(error) => State::Wrong(format!("{error:#}"), "name a file with --store"),
    }
}

fn check_creatable(path: &Path) -> std::io::Result<()> {
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let probe = folder.join(format!(".modegate-doctor-{}", std::process::id()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(probe)
}

async fn read_only(shell: &Shell, environment: &Environment, flags: &Flags) -> State {
    if let Some(reason) = shell.support().missing() {
        return State::Absent(reason);
    }
    let scratch = match scratch_folder(environment) {
        Ok(scratch) => scratch,
        Err(error) => {
            return State::Wrong(format!("{error:#}"), "set TMPDIR to a folder that can be written");
        }
    };
    let tried = trial::try_read_only(shell, &scratch).await;
    if let Err(error) = std::fs::remove_dir_all(&scratch) {
        return State::Wrong(format!("{}: {error}", scratch.display()), "remove it");
    }
    let network = match tried {
        Ok(tried) if tried.network => "writing, chmod and the network",
        Ok(_) => "writing and chmod",
        Err(reason) => {
            return State::Wrong(reason, "do not rely on plan mode's commands here; please report it");
        }
    };
    let here = working_folder(flags).and_then(|cwd| Ok(std::fs::canonicalize(cwd)?));
    match here {
        Ok(here) if shell.read_only(std::slice::from_ref(&here)).is_none() => State::Wrong(
            format!(
                "they work, but not in {}: it is the home folder, the root, or a folder around them",
                here.display()
            ),
            "begin sessions in a project's folder",
        ),
        _ => State::Fine(format!("tested: reading works; {network} are denied")),
    }
}

fn other(shell: &Shell) -> State {
    if shell.workspace(&[]).is_off() {
        return State::Absent("not sandboxed: they can write any file that you can write".into());
    }
    let text = "they write in the session's folders, temporary folders, existing caches, and what `shell: {write}` names";
    State::Fine(text.into())
}
