//! Checks for `modegate doctor`. Creates only temporary files, and neither creates nor changes a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::connections::Connections;
use super::environment::Environment;
use super::evidence_key::{self, EvidenceSettings};
use super::managed_file::{self, PLACE};
use super::policies::Policies;
use super::user_file::UserFile;
use super::{
    Config, Flags, commands, places::location, real_working_folder, scratch_folder, telemetry, user_file,
};
use crate::managed_policy::PolicyState;
use crate::model::ModelId;
use crate::model::catalog::PROVIDERS;
use crate::process;
use crate::process::shell::Shell;
use crate::process::trial::{self, Tried};
use crate::sandbox;
use crate::store::check::{self, Condition, Soundness};
use crate::store::{Store, StoreLocation};
use crate::text::{counted, megabytes};

mod file_rules;

/// Maximum time for reading the store.
const STORE_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: &'static str,
    pub state: CheckState,
}

#[derive(Debug, PartialEq, Eq)]
pub enum CheckState {
    Fine(String),
    /// A remark about something that is absent or off, which is no fault.
    Note(String),
    Wrong {
        reason: String,
        advice: &'static str,
    },
}

impl CheckState {
    pub(super) fn wrong(reason: impl Into<String>, advice: &'static str) -> Self {
        Self::Wrong { reason: reason.into(), advice }
    }
}

pub async fn check(flags: &Flags, environment: &Environment) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what, state| findings.push(Finding { what, state });
    let cwd = real_working_folder(flags);
    if let Err(error) = &cwd {
        add("working folder", CheckState::wrong(format!("{error:#}"), "name an existing folder with --cwd"));
    }
    let cwd = cwd.ok();
    let read = user_file::read(environment.config_folder.as_deref());
    let is_readable = read.is_ok();
    add("settings", settings(environment, read.as_ref().err()));
    let file = read.unwrap_or_default();
    add("policy", managed_policy());
    add("keys", keys(environment));
    if is_readable {
        match Config::without_store(flags, environment.clone()) {
            Ok(config) => of_config(&config, &mut add),
            Err(error) => {
                let remedy = "correct it where it is set; `modegate --help` lists the options";
                add("command line, model", CheckState::wrong(format!("{error:#}"), remedy));
            }
        }
    }
    if let Some(cwd) = &cwd {
        add("modes", modes(cwd, environment));
    }
    add("store", store(flags, environment));
    add("audit log", signatures(file.evidence.as_ref(), environment));
    add("telemetry", telemetry(flags, environment, &file).await);
    let support = sandbox::support();
    match support.missing() {
        None => add("kernel", CheckState::Fine(support.to_string())),
        Some(reason) => {
            let advice = "without this support, shell_read_only is unavailable and other commands are not sandboxed; \
                          use Linux 6.2 or newer with Landlock enabled";
            add("kernel", CheckState::wrong(reason, advice));
        }
    }
    add("ends of commands", CheckState::Fine(process::ENDING.into()));
    let settings = file.shell.unwrap_or_default();
    if let Some(obsolete) = settings.obsolete() {
        add("obsolete settings", CheckState::Note(obsolete.to_owned()));
    }
    match commands::shell(environment, &settings) {
        Ok(shell) => {
            if let Some(cwd) = &cwd {
                file_rules::check(&shell, cwd, environment, &mut add).await;
            }
            let Some(program) = shell.program() else {
                let reason = "there is no bash, so models have no commands";
                add("shell", CheckState::wrong(reason, "install Git for Windows, or put bash.exe on PATH"));
                return findings;
            };
            add("shell", CheckState::Fine(program.to_owned()));
            add("read-only commands", read_only(&shell, environment, cwd.as_deref()).await);
            add("other commands", other(&shell));
            add("broker", broker(&shell, environment).await);
            for place in
                settings.read.iter().chain(&settings.write).filter(|place| is_missing(environment, place))
            {
                let reason = format!("{} in shell.read or shell.write does not exist", place.display());
                add("shell folders", CheckState::wrong(reason, "fix `shell` in config.yaml"));
            }
        }
        Err(error) => add("shell", CheckState::wrong(format!("{error:#}"), "fix `shell` in config.yaml")),
    }
    findings
}

/// Adds the findings about the checked settings of a run.
fn of_config(config: &Config, add: &mut impl FnMut(&'static str, CheckState)) {
    let (model, small_model) = models(config);
    add("command line, model", model);
    let others = [("small model", small_model), ("budgets", budgets(config)), ("hooks", hooks(config))];
    for (what, state) in others.into_iter().filter_map(|(what, state)| Some((what, state?))) {
        add(what, state);
    }
}

fn is_missing(environment: &Environment, place: &Path) -> bool {
    let home = environment.user.home.as_deref();
    !commands::absolute(place, home).is_ok_and(|place| place.exists())
}

fn settings(environment: &Environment, error: Option<&anyhow::Error>) -> CheckState {
    let Some(folder) = &environment.config_folder else {
        return CheckState::Note("there is no home directory".into());
    };
    if let Some(error) = error {
        return CheckState::wrong(
            format!("{error:#}"),
            "fix the file; the page on config.yaml in Modegate's documentation lists every key",
        );
    }
    let candidates = [user_file::CONFIG, user_file::SETUP].map(|name| folder.join(name));
    let existing: Vec<String> =
        candidates.iter().filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    if existing.is_empty() {
        return CheckState::Note(format!("none in {}", folder.display()));
    }
    CheckState::Fine(existing.join(", "))
}

fn signatures(settings: Option<&EvidenceSettings>, environment: &Environment) -> CheckState {
    match evidence_key::existing(settings.unwrap_or(&EvidenceSettings::default()), environment) {
        Ok(Some(key)) => CheckState::Fine(format!("signed with {}", key.public())),
        Ok(None) => CheckState::Note("not signed".into()),
        Err(error) => CheckState::wrong(
            format!("{error:#}"),
            "fix the file, or remove it: the next signature creates a key",
        ),
    }
}

/// The organisation's policy.
fn managed_policy() -> CheckState {
    match managed_file::read() {
        PolicyState::Absent => CheckState::Note(format!("none: {PLACE} does not exist")),
        PolicyState::Valid(_) => CheckState::Fine(format!("{PLACE}; see `modegate policy show`")),
        PolicyState::Unusable(diagnostic) => CheckState::wrong(
            diagnostic.to_string(),
            "until the administrator repairs it, sessions change nothing and use no network; see `modegate policy check`",
        ),
    }
}

/// Security: lists the variables, never the keys.
fn keys(environment: &Environment) -> CheckState {
    let mut names: Vec<&str> = Vec::new();
    for name in PROVIDERS.iter().flat_map(|provider| provider.key_variables) {
        if environment.key(&[name]).is_some() && !names.contains(name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return CheckState::Note("none in the environment".into());
    }
    CheckState::Fine(names.join(", "))
}

/// Returns `None` without hooks. Programs without a folder are searched for when they start.
fn hooks(config: &Config) -> Option<CheckState> {
    let Config { hooks, .. } = config;
    let programs = hooks.iter().map(|hook| (&hook.id, Path::new(&hook.command[0])));
    let missing: Vec<String> = programs
        .filter(|(_, program)| program.is_absolute() && !program.is_file())
        .map(|(id, program)| format!("the program of the hook {id}, {}, does not exist", program.display()))
        .collect();
    if !missing.is_empty() {
        let advice =
            "fix `hooks` in config.yaml: a `deny` hook whose program cannot be started refuses every call";
        return Some(CheckState::wrong(missing.join("; "), advice));
    }
    let ids: Vec<&str> = hooks.iter().map(|hook| hook.id.as_str()).collect();
    (!ids.is_empty()).then(|| CheckState::Fine(ids.join(", ")))
}

/// Returns `None` without budgets.
fn budgets(config: &Config) -> Option<CheckState> {
    let Config { budgets, remote, .. } = config;
    let limits = budgets.limits.to_string();
    if limits.is_empty() {
        return None;
    }
    let model = remote.catalog.default_model();
    if budgets.limits.limits_cost() && !budgets.prices.knows(model) {
        let reason =
            format!("{limits}; the price of {model} is unknown, so its requests count in tokens and time");
        return Some(CheckState::wrong(reason, "set its price under `prices` in config.yaml"));
    }
    let price = budgets.prices.noted(model).map(|day| format!("; list price of {model} of {day}"));
    Some(CheckState::Fine(limits + &price.filter(|_| budgets.limits.limits_cost()).unwrap_or_default()))
}

/// Also returns the small model, if one is set.
fn models(config: &Config) -> (CheckState, Option<CheckState>) {
    if config.script.is_some() {
        return (CheckState::Fine("a script; the settings are not read for it".into()), None);
    }
    let models = &config.remote.catalog;
    let state = |model: &ModelId| match models.check_key(model.clone()) {
        Ok(model) => CheckState::Fine(model.to_string()),
        Err(error) => CheckState::wrong(error.to_string(), "set the variable, or run `modegate setup`"),
    };
    (state(models.default_model()), models.small_model().map(state))
}

fn modes(cwd: &Path, environment: &Environment) -> CheckState {
    let loaded = Policies::new(environment, None, false).load(cwd);
    if let Some(diagnostic) = loaded.problems.first() {
        let reason = match loaded.problems.len() {
            1 => diagnostic.to_string(),
            all => format!("{diagnostic} (and {} more)", all - 1),
        };
        return CheckState::wrong(
            reason,
            "until it is fixed, no session can do more than in plan mode; see `modegate modes check`",
        );
    }
    let (modes, rules) = (loaded.layers.modes.iter().count(), loaded.layers.rules.iter().count());
    CheckState::Fine(format!("{modes}, with {}", counted(rules, "rule", "rules")))
}

async fn telemetry(flags: &Flags, environment: &Environment, file: &UserFile) -> CheckState {
    let network = file.network.clone().unwrap_or_default();
    let http = match Connections::new(&network, environment) {
        Ok(connections) => connections.http(),
        Err(error) => return CheckState::wrong(format!("{error:#}"), "fix `network` in config.yaml"),
    };
    let path = match location(flags.store.as_deref(), environment) {
        Ok(StoreLocation::File(path)) => Some(path),
        Ok(StoreLocation::Memory | StoreLocation::Reading(_)) | Err(_) => None,
    };
    telemetry::check(file.telemetry.as_ref(), environment, path, &http).await
}

fn store(flags: &Flags, environment: &Environment) -> CheckState {
    match location(flags.store.as_deref(), environment) {
        Ok(StoreLocation::Memory) if flags.store.is_none() => CheckState::wrong(
            "there is no home directory, so sessions are kept in memory only",
            "set HOME or XDG_DATA_HOME, or name a file with --store",
        ),
        Ok(StoreLocation::Memory | StoreLocation::Reading(_)) => CheckState::Note("in memory only".into()),
        Ok(StoreLocation::File(path)) => store_file(&path),
        Err(error) => CheckState::wrong(format!("{error:#}"), "name a file with --store"),
    }
}

fn store_file(path: &Path) -> CheckState {
    let is_creatable = check_creatable(path);
    // Only if the file is certainly absent: the inspection names the reason why another cannot be used.
    if matches!(path.try_exists(), Ok(false)) {
        return match is_creatable {
            Ok(()) => CheckState::Note(format!("{}: will be created by the first session", path.display())),
            Err(error) => CheckState::wrong(
                format!("{} cannot be created: {error}", path.display()),
                "name another file with --store; until then sessions are kept in memory only",
            ),
        };
    }
    let name = path.display();
    let inspected = Store::inspect(path).map_err(|error| error.to_string());
    match inspected
        .and_then(|()| is_creatable.map_err(|error| format!("its folder cannot be written: {error}")))
        .and_then(|()| check::examine(path, Some(STORE_TIME)).map_err(|error| error.to_string()))
    {
        Ok(Condition { soundness: Soundness::Damaged(finding), .. }) => CheckState::wrong(
            format!("{name} is damaged: {finding}"),
            "run `modegate store salvage`, which saves what can be read in a new store and keeps the old file",
        ),
        Ok(Condition { soundness, bytes, .. }) => {
            let size = megabytes(bytes);
            CheckState::Fine(match soundness {
                Soundness::Unfinished => {
                    format!("{name} ({size}; only a part was checked, `modegate store check` reads all)")
                }
                Soundness::Sound | Soundness::Damaged(_) => format!("{name} ({size}, checked)"),
            })
        }
        Err(reason) => CheckState::wrong(
            format!("{name}: {reason}"),
            "correct the file or its rights, or name another file with --store",
        ),
    }
}

/// Tries to create a file in the nearest existing folder.
fn check_creatable(path: &Path) -> std::io::Result<()> {
    let path = std::path::absolute(path)?;
    let folder = path
        .ancestors()
        .skip(1)
        .find(|folder| !matches!(folder.try_exists(), Ok(false)))
        .unwrap_or(Path::new("/"));
    let probe: PathBuf = folder.join(format!(".modegate-doctor-{}", std::process::id()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(probe)
}

async fn read_only(shell: &Shell, environment: &Environment, cwd: Option<&Path>) -> CheckState {
    if let Some(reason) = shell.support().missing() {
        return CheckState::Note(reason);
    }
    let scratch = match scratch_folder(environment) {
        Ok(scratch) => scratch,
        Err(error) => {
            return CheckState::wrong(format!("{error:#}"), "set TMPDIR to a folder that can be written");
        }
    };
    let tried = trial::try_read_only(shell, &scratch).await;
    let removed =
        std::fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()));
    let unusable = cwd.filter(|cwd| shell.read_only(&[cwd.to_path_buf()]).is_none());
    read_only_state(tried, removed, unusable)
}

async fn broker(shell: &Shell, environment: &Environment) -> CheckState {
    match try_broker(shell, environment).await {
        Ok(Ok(())) => CheckState::Fine(
            "tested: `wrap` changes modes without a restart, and limits the network in plan mode".into(),
        ),
        Ok(Err(reason)) => CheckState::Note(format!(
            "tested: `wrap` changes modes without a restart; the network stays open in plan mode: {reason}"
        )),
        Err(reason) => {
            CheckState::Note(format!("the broker is not available, so `wrap` restarts agents: {reason}"))
        }
    }
}

/// Whether the network of a brokered agent can be limited, or the reason why not.
type NetworkLimit = Result<(), String>;

/// Tries the broker with the user's settings. The error is a sentence.
pub async fn check_broker(environment: &Environment) -> Result<NetworkLimit, String> {
    let file = user_file::read(environment.config_folder.as_deref()).map_err(|error| format!("{error:#}"))?;
    let shell = commands::shell(environment, &file.shell.unwrap_or_default());
    try_broker(&shell.map_err(|error| format!("{error:#}"))?, environment).await
}

async fn try_broker(shell: &Shell, environment: &Environment) -> Result<NetworkLimit, String> {
    in_scratch(environment, async |scratch: &Path| {
        trial::try_broker(shell, scratch).await?;
        Ok(trial::try_network(shell, scratch).await)
    })
    .await
}

/// Runs a trial in a folder that is then removed.
async fn in_scratch<T>(
    environment: &Environment,
    trial: impl AsyncFnOnce(&Path) -> Result<T, String>,
) -> Result<T, String> {
    let scratch = scratch_folder(environment).map_err(|error| format!("{error:#}"))?;
    let tried = trial(&scratch).await;
    let removed = std::fs::remove_dir_all(&scratch);
    let trial_result = tried?;
    removed.map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(trial_result)
}

/// A failed trial is reported even if the scratch folder could not be removed, which it may have caused.
fn read_only_state(
    tried: Result<Tried, String>,
    removed: Result<(), String>,
    unsuitable_cwd: Option<&Path>,
) -> CheckState {
    let denied = match tried {
        Ok(tried) if tried.network => "writing, chmod and the network",
        Ok(_) => "writing and chmod",
        Err(reason) => {
            return CheckState::wrong(reason, "do not rely on shell_read_only here, and please report this");
        }
    };
    if let Err(reason) = removed {
        return CheckState::wrong(reason, "remove this temporary folder");
    }
    match unsuitable_cwd {
        Some(cwd) => CheckState::wrong(
            format!("no read-only commands in {}: it is the home folder or contains it", cwd.display()),
            "begin sessions in a project's folder",
        ),
        None => CheckState::Fine(format!("tested: reading works; {denied} are denied")),
    }
}

fn other(shell: &Shell) -> CheckState {
    if shell.workspace(&[]).is_off() {
        return CheckState::Note("not sandboxed: they can write any file that you can write".into());
    }
    if shell.brokers_commands() {
        return CheckState::Fine(
            "brokered: their changes in the session's folders are recorded exactly; they also write in temporary folders, \
             caches, and the folders in `shell.write`"
                .into(),
        );
    }
    let text =
        "they write in the session's folders, temporary folders, caches, and the folders in `shell.write`";
    CheckState::Fine(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_wrong(state: &CheckState, text: &str) -> bool {
        matches!(state, CheckState::Wrong { reason, .. } if reason.contains(text))
    }

    #[test]
    fn small_model_is_reported_if_it_is_set() {
        let small = |name: Option<&str>| {
            let mut environment = Environment::default();
            environment.small_model = name.map(str::to_owned);
            models(&Config::without_store(&Flags::default(), environment).unwrap()).1
        };
        assert_eq!(small(None), None);
        assert_eq!(small(Some("ollama/x")), Some(CheckState::Fine("ollama/x".into())));
        assert!(is_wrong(&small(Some("gemini/y")).unwrap(), "Google Gemini needs a key"));
    }

    #[test]
    fn failed_trial_is_reported_even_if_its_folder_remains() {
        let remains = || Err("/tmp/x: Permission denied".to_owned());
        let failed = || Err("a command could do this: chmod".to_owned());
        assert!(is_wrong(&read_only_state(failed(), remains(), None), "chmod"));
        assert!(is_wrong(&read_only_state(failed(), Ok(()), None), "chmod"));
        assert!(is_wrong(&read_only_state(Ok(Tried { network: true }), remains(), None), "/tmp/x"));
        let fine = read_only_state(Ok(Tried { network: true }), Ok(()), None);
        assert!(matches!(fine, CheckState::Fine(_)), "{fine:?}");
    }

    #[cfg(unix)]
    #[test]
    fn checks_neither_create_nor_change_a_store() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/a.db");
        let flags = Flags { store: Some(path.display().to_string()), ..Flags::default() };
        let checked = || {
            let environment = Environment::default();
            let _ = Config::without_store(&flags, environment.clone());
            store(&flags, &environment)
        };
        assert!(matches!(checked(), CheckState::Note(text) if text.contains("will be created")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

        Store::create_or_open(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            matches!(checked(), CheckState::Fine(text) if text.contains("a.db (0.") && text.ends_with("checked)"))
        );
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

        std::fs::write(&path, "no database, but long enough to have a header".repeat(9)).unwrap();
        assert!(is_wrong(&checked(), "not a database"));

        std::fs::remove_file(&path).unwrap();
        Store::create_or_open(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4096 * 3..4096 * 9].fill(0);
        std::fs::write(&path, bytes).unwrap();
        assert!(is_wrong(&checked(), "is damaged: "));
    }

    #[test]
    fn relative_store_is_tried_in_the_working_folder() {
        check_creatable(Path::new("modegate-doctor-test.db")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        check_creatable(&file.path().join("a/b.db")).unwrap_err();
    }
}
