//! The policy of an organisation: the file that an administrator writes, and its limits for one session. Pure.
//!
//! The policy narrows the choices of users, projects and models, and widens nothing. Its modes are built in or its own, so
//! that no file of a user changes their meaning. [`crate::config`] reads the file and decides whether to believe it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::budget::prices::{ModelPrice, Prices};
use crate::budget::{BudgetSettings, Budgets, Period};
use crate::hooks::{self, HookDefinition};
use crate::ids::DayZone;
use crate::mode::Modes;
use crate::mode::definition::{Fault, ModeDefinition};
use crate::model::allowed::ModelPattern;
use crate::otlp::telemetry_settings::{self, TelemetrySettings};
use crate::permission::rules::RuleTexts;
use crate::policy::{self, Diagnostic, LayerOwner};
use crate::process::HostPattern;
use allowed_program::ProgramPattern;
pub use limits::{ManagedLimits, SessionPlace};
pub use repository::{RepositoryPattern, remotes};

pub mod allowed_program;
pub mod explain;
mod limits;
mod repository;

/// Largest file, in bytes.
pub const MAX_FILE: u64 = 256 * 1024;

/// Reason for a limit, at the end of a sentence.
pub const BY_POLICY: &str = "by your organisation's policy";

// `docs/reference/managed-policy.md` is made from the comments of the fields; a default is the last sentence.
/// The policy of an organisation, which limits what users of a machine may choose.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ManagedPolicy {
    /// Mode that no session exceeds: `ask`, `plan`, `code` as built in, or one of `modes`. Default: no limit.
    #[schemars(with = "Option<String>")]
    pub max_mode: Option<Spanned<String>>,
    /// Lower limits for folders and repositories. All that match a session count. Default: none.
    pub places: Vec<PlaceLimit>,
    /// Modes of the organisation, as in a modes file. Users can choose them and cannot replace them. Default: none.
    pub modes: Vec<ModeDefinition>,
    /// Lists of modes, agents and other things that may be used. An absent list allows all.
    pub allowed: Allowed,
    /// Rules that come before those of users. `allow` is not possible here.
    pub permissions: RuleTexts,
    /// Budgets, as in config.yaml. In each figure, the stricter one counts. Those of a day are for the sessions of one
    /// store. Default: none.
    pub budgets: Option<BudgetSettings>,
    /// Prices of models for `budgets`, by PROVIDER/NAME or NAME. Where the policy limits a cost, prices of users do not
    /// count. Default: the list prices that Modegate knows.
    pub prices: BTreeMap<String, ModelPrice>,
    /// Export of traces, metrics and the audit log, as in config.yaml. With `required`, no setting of a user changes it,
    /// and nothing starts without an address. Users can read the file, and with it the headers. Default: none.
    pub telemetry: Option<TelemetrySettings>,
    /// Hooks, as in config.yaml, that come before those of users. Read at the start of Modegate. Default: none.
    pub hooks: Vec<HookDefinition>,
    /// Requirements without which sessions, commands or agents do not start.
    pub require: Requirements,
    /// Choices that users keep.
    pub user_may: UserChoices,
}

/// A limit for some folders or repositories.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceLimit {
    /// Folders, absolute. A session is in such a place if one of its folders is in the folder or contains it. Default:
    /// none.
    #[serde(default)]
    #[schemars(with = "Vec<PathBuf>")]
    pub paths: Vec<Spanned<PathBuf>>,
    /// Remotes of git repositories as HOST/PATH, where `*` matches anything: `github.com/acme/*`. Default: none.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub repositories: Vec<Spanned<String>>,
    /// Mode that no session in this place exceeds.
    #[schemars(with = "String")]
    pub max_mode: Spanned<String>,
}

/// Things that may be used.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Allowed {
    /// Ids of modes, with the meaning that this file or Modegate gives them. Default: all.
    #[schemars(with = "Option<Vec<String>>")]
    pub modes: Option<Vec<Spanned<String>>>,
    /// Ids of agents. That of a built-in agent means this agent, not one of a user's file. Default: all.
    pub agents: Option<Vec<String>>,
    /// Programs of external agents, of `wrap` and `run`, each with its first arguments: `/usr/bin/gemini --acp`. A name
    /// without a folder is looked up in the user's PATH. Default: all.
    #[schemars(with = "Option<Vec<String>>")]
    pub programs: Option<Vec<Spanned<String>>>,
    /// Models as PROVIDER/NAME, where `*` matches anything. The models without a server are always allowed. Default:
    /// all.
    #[schemars(with = "Option<Vec<String>>")]
    pub models: Option<Vec<Spanned<String>>>,
    /// Servers of model providers, their proxies, `fetch` and brokered agents: `example.com`, `*.example.com`, an IP
    /// address or `*`, each with `:PORT` or without. Default: all.
    #[schemars(with = "Option<Vec<String>>")]
    pub hosts: Option<Vec<Spanned<String>>>,
    /// MCP servers, of users and clients. Default: all.
    #[schemars(with = "Option<Vec<AllowedServer>>")]
    pub servers: Option<Vec<Spanned<AllowedServer>>>,
}

impl Allowed {
    /// The lists that the file has, by key.
    pub fn lists(&self) -> Vec<(&'static str, Vec<&str>)> {
        let Self { modes, agents, programs, models, hosts, servers } = self;
        let agents = agents.as_ref().map(|ids| ids.iter().map(String::as_str).collect());
        let servers = servers.as_ref();
        let servers = servers.map(|all| all.iter().map(|server| server.value.name.as_str()).collect());
        let lists = [
            ("modes", modes.as_deref().map(values)),
            ("agents", agents),
            ("programs", programs.as_deref().map(values)),
            ("models", models.as_deref().map(values)),
            ("hosts", hosts.as_deref().map(values)),
            ("servers", servers),
        ];
        lists.into_iter().filter_map(|(key, list)| Some((key, list?))).collect()
    }
}

fn values(texts: &[Spanned<String>]) -> Vec<&str> {
    texts.iter().map(|text| text.value.as_str()).collect()
}

/// MCP server that may be used: its name, and its program or its address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowedServer {
    /// Name of the server.
    pub name: String,
    /// Program, exactly as users write it. Default: none.
    pub command: Option<String>,
    /// All arguments of the program. Default: none.
    #[serde(default)]
    pub args: Vec<String>,
    /// Address, exactly as users write it. Default: none.
    pub url: Option<String>,
}

/// Requirements of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "independent keys of the file")]
pub struct Requirements {
    /// Commands run in a sandbox, whatever the user's settings; external agents run with the broker. Default: false.
    pub sandbox: bool,
    /// The broker carries out the changes of commands, too. Default: false.
    pub broker: bool,
    /// Sessions are stored in a file, and changes that cannot be recorded are refused. There are no deterministic runs
    /// and replays. Default: false.
    pub record: bool,
    /// Audit logs are signed, whatever the user's settings. A missing key of the user is created. Default: false.
    pub signatures: bool,
}

impl Requirements {
    /// The keys, each true if it is set.
    pub fn names(self) -> [(&'static str, bool); 4] {
        let Self { sandbox, broker, record, signatures } = self;
        [("sandbox", sandbox), ("broker", broker), ("record", record), ("signatures", signatures)]
    }
}

/// Choices that users keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "independent keys of the file")]
pub struct UserChoices {
    /// Modes of their own, and of projects. Default: true.
    pub define_modes: bool,
    /// Agents of their own, and of projects. Default: true.
    pub define_agents: bool,
    /// Rules that allow calls without asking. Default: true.
    pub allow_calls: bool,
    /// Projects whose modes file counts as their own (`modegate trust`). Default: true.
    pub trust_projects: bool,
    /// `--accept-all`: the client accepts questions about leaving a mode. Default: true.
    pub accept_all: bool,
    /// Another store than that in their data folder, or none: `--store`, `--deterministic`. Default: true.
    pub choose_store: bool,
    /// Folders, hosts and sockets of external agents beside those that Modegate knows: `--state-dir` and its like, their
    /// own profiles, and `sandbox` in a modes file. An agent writes in its state directories in every mode. Default: true.
    pub widen_agents: bool,
}

impl Default for UserChoices {
    fn default() -> Self {
        Self {
            define_modes: true,
            define_agents: true,
            allow_calls: true,
            trust_projects: true,
            accept_all: true,
            choose_store: true,
            widen_agents: true,
        }
    }
}

impl UserChoices {
    /// The keys, each true if users may choose.
    pub fn names(self) -> [(&'static str, bool); 7] {
        let Self { define_modes, define_agents, allow_calls, trust_projects, .. } = self;
        let Self { accept_all, choose_store, widen_agents, .. } = self;
        [
            ("define_modes", define_modes),
            ("define_agents", define_agents),
            ("allow_calls", allow_calls),
            ("trust_projects", trust_projects),
            ("accept_all", accept_all),
            ("choose_store", choose_store),
            ("widen_agents", widen_agents),
        ]
    }
}

/// A policy whose names and patterns were checked.
#[derive(Debug, Clone)]
pub struct CheckedPolicy {
    /// Built-in modes, and those of the file.
    modes: Modes,
    definition: ManagedPolicy,
}

/// The organisation's policy, as it was read.
#[derive(Debug, Clone, Default)]
pub enum PolicyState {
    /// There is no file.
    #[default]
    Absent,
    Valid(Box<CheckedPolicy>),
    /// The file is not believed. Sessions get [`ManagedLimits::strictest`].
    Unusable(Diagnostic),
}

impl PolicyState {
    /// The limits of a session in these folders.
    pub fn limits(&self, place: &SessionPlace) -> ManagedLimits {
        match self {
            Self::Absent => ManagedLimits::default(),
            Self::Valid(policy) => policy.limits(place),
            Self::Unusable(diagnostic) => ManagedLimits::strictest(diagnostic),
        }
    }
}

impl PolicyState {
    /// The settings of telemetry. `None` for a file that is not believed: it names no collector.
    pub fn telemetry(&self) -> Option<&TelemetrySettings> {
        match self {
            Self::Valid(policy) => policy.definition.telemetry.as_ref(),
            Self::Absent | Self::Unusable(_) => None,
        }
    }
}

impl ManagedPolicy {
    /// The rules by kind.
    pub fn rules(&self) -> [(&'static str, Vec<&str>); 2] {
        [("deny", values(&self.permissions.deny)), ("ask", values(&self.permissions.ask))]
    }

    /// Reads and checks the text of a policy file. `name` is the file's, for the error. An empty file is an error,
    /// because a file that was cut off may be empty.
    pub fn parse(name: &str, text: &str) -> Result<CheckedPolicy, Diagnostic> {
        if text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}').is_empty() {
            let text = "the file is empty: write `{}` for a policy without limits, or remove the file";
            return Err(Diagnostic::of_file(name, text));
        }
        // A key that follows a second document would be lost.
        let mut documents: Vec<Self> =
            serde_saphyr::from_multiple(text).map_err(|error| Diagnostic::unreadable(name, text, &error))?;
        let definition = match (documents.pop(), documents.is_empty()) {
            (Some(definition), true) => definition,
            (Some(_), false) => {
                return Err(Diagnostic::of_file(name, "it has several documents, divided by ---: write one"));
            }
            (None, _) => return Err(Diagnostic::of_file(name, "it has no keys: write `{}` for no limits")),
        };
        if let Some(key) = serde_saphyr::from_str(text).ok().and_then(|value| key_without_value("", &value)) {
            // A list that lost its entries would allow all.
            let text = format!("`{key}` has no value: write one, or remove the key");
            return Err(Diagnostic::of_file(name, text));
        }
        definition.check().map_err(|fault| Diagnostic::at(name, text, fault))
    }

    /// Returns an error that names the key whose value is no amount.
    fn to_budgets(&self) -> Result<Budgets, String> {
        let limits = self.budgets.clone().unwrap_or_default().limits()?;
        let day_zone = if limits.has(Period::Day) { DayZone::Utc } else { DayZone::Local };
        Ok(Budgets { limits, prices: Prices::new(self.prices.clone())?, day_zone })
    }

    fn check(self) -> Result<CheckedPolicy, Fault> {
        let mut modes = Modes::built_in();
        policy::add_modes(&mut modes, &self.modes, LayerOwner::User)?;
        let is_mode = |id: &Spanned<String>| {
            modes.resolve(&id.value).map(drop).map_err(|error| Fault::at(id, error.to_string()))
        };
        self.max_mode.iter().try_for_each(is_mode)?;
        for place in &self.places {
            place.check()?;
            is_mode(&place.max_mode)?;
        }
        let Allowed { modes: mode_ids, agents, programs, models, hosts, servers } = &self.allowed;
        mode_ids.iter().flatten().try_for_each(is_mode)?;
        if mode_ids.as_ref().is_some_and(Vec::is_empty) || agents.as_ref().is_some_and(Vec::is_empty) {
            let text = "a list of allowed modes or agents names at least one";
            return Err(Fault { line: 1, column: 1, text: text.into() });
        }
        check_patterns(programs.as_ref(), |text| ProgramPattern::parse(text).map(drop))?;
        check_patterns(models.as_ref(), |text| ModelPattern::parse(text).map(drop))?;
        check_patterns(hosts.as_ref(), |text| text.parse::<HostPattern>().map(drop))?;
        for server in servers.iter().flatten() {
            server.value.fault().map_or(Ok(()), |text| Err(Fault::at(server, text)))?;
        }
        let whole = |text: String| Fault { line: 1, column: 1, text };
        self.to_budgets().map_err(whole)?;
        hooks::complete(&self.hooks, &[]).map_err(whole)?;
        // Users choose their PATH.
        if let Some(hook) = self.hooks.iter().find(|hook| !Path::new(&hook.command[0]).is_absolute()) {
            let text = format!("hooks: {}: `command` begins with the absolute path of a program", hook.id);
            return Err(whole(text));
        }
        if let Some(Err(text)) = self.telemetry.as_ref().map(telemetry_settings::check) {
            return Err(whole(format!("telemetry: {text}")));
        }
        if let Some(rule) = self.permissions.allow.first() {
            let text = "a policy allows nothing that users do not allow: it has `deny` and `ask`";
            return Err(Fault::at(rule, text));
        }
        self.permissions.translated()?.compile(false)?;
        Ok(CheckedPolicy { modes, definition: self })
    }
}

/// The path of the first key without a value.
fn key_without_value(path: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(path.to_owned()),
        Value::Object(members) => members.iter().find_map(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            key_without_value(&path, value)
        }),
        Value::Array(items) => items.iter().find_map(|item| key_without_value(path, item)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn check_patterns(
    patterns: Option<&Vec<Spanned<String>>>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), Fault> {
    patterns.into_iter().flatten().try_for_each(|pattern| {
        check(&pattern.value).map_err(|reason| Fault::at(pattern, format!("{:?}: {reason}", pattern.value)))
    })
}

impl PlaceLimit {
    fn check(&self) -> Result<(), Fault> {
        if self.paths.is_empty() && self.repositories.is_empty() {
            return Err(Fault::at(&self.max_mode, "a place has `paths` or `repositories`"));
        }
        if let Some(path) = self.paths.iter().find(|path| !path.value.is_absolute()) {
            return Err(Fault::at(path, format!("{:?} is not an absolute path", path.value.display())));
        }
        check_patterns(Some(&self.repositories), |text| RepositoryPattern::parse(text).map(drop))
    }
}

impl AllowedServer {
    fn fault(&self) -> Option<&'static str> {
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => Some("an allowed server has either a `command` or a `url`"),
            (None, None) => {
                Some("an allowed server needs a `command` or a `url`: the name alone proves nothing")
            }
            (None, Some(_)) if !self.args.is_empty() => Some("`args` go with a `command`"),
            _ => None,
        }
    }
}

impl CheckedPolicy {
    pub fn definition(&self) -> &ManagedPolicy {
        &self.definition
    }

    /// Adds to each path the one that `real_place` returns, without links.
    #[must_use]
    pub fn with_real_paths(mut self, real_place: impl Fn(&Path) -> PathBuf) -> Self {
        for place in &mut self.definition.places {
            let real = |path: &Spanned<PathBuf>| Spanned { value: real_place(&path.value), ..path.clone() };
            place.paths.extend(place.paths.iter().map(real).collect::<Vec<_>>());
        }
        self
    }

    /// True if the file names repositories, so that the remotes of a session's folders have to be known.
    pub fn names_repositories(&self) -> bool {
        self.definition.places.iter().any(|place| !place.repositories.is_empty())
    }
}

#[cfg(test)]
mod tests;
