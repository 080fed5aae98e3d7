//! The limits of an organisation's policy for one session: ceilings, rules and lists. Pure.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::allowed_program::{AgentCommand, ProgramPattern};
use super::repository::RepositoryPattern;
use super::{AllowedServer, BY_POLICY, CheckedPolicy, ManagedPolicy, PlaceLimit, Requirements, UserChoices};
use crate::agents::{AgentOrigin, AgentRegistry, AgentSpec};
use crate::budget::Budgets;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::external_agent::known;
use crate::hooks::HookDefinition;
use crate::mode::{CeilingKind, DEFAULT, Mode, Modes, Network, canonical};
use crate::model::allowed::{AllowedModels, ModelPattern};
use crate::otlp::telemetry_settings::TelemetrySettings;
use crate::permission::rules::Rules;
use crate::platform::Platform;
use crate::policy::{Diagnostic, Layers};
use crate::process::AllowedHosts;
use crate::server::{ServerEntry, ServerTransport};

/// The folders of a session, and the repositories around them.
#[derive(Debug, Clone, Default)]
pub struct SessionPlace {
    /// All folders in which the session may change files, without links.
    pub folders: Vec<PathBuf>,
    /// HOST/PATH of each remote of the repositories around the folders. `None` if they cannot be known.
    pub remotes: Option<Vec<String>>,
}

/// The limits of one session. The default limits nothing.
#[derive(Debug, Clone, Default)]
pub struct ManagedLimits {
    /// The highest modes. A session exceeds none of them.
    pub ceilings: Vec<Arc<Mode>>,
    /// Rules that deny and ask.
    pub rules: Rules,
    pub models: AllowedModels,
    /// `None` allows all hosts.
    pub hosts: Option<AllowedHosts>,
    pub telemetry: Option<TelemetrySettings>,
    pub hooks: Vec<HookDefinition>,
    pub require: Requirements,
    pub user_may: UserChoices,
    budgets: Budgets,
    /// Says that the file is not believed, and why.
    pub fault: Option<String>,
    /// Modes that the policy defines.
    own_modes: Vec<Mode>,
    /// The only modes, with their definitions.
    allowed_modes: Option<Vec<Mode>>,
    agents: Option<Vec<String>>,
    programs: Option<Vec<ProgramPattern>>,
    servers: Option<Vec<AllowedServer>>,
}

impl CheckedPolicy {
    /// The limits of a session in these folders.
    pub fn limits(&self, place: &SessionPlace) -> ManagedLimits {
        let ManagedPolicy { max_mode, places, allowed, permissions, require, user_may, .. } =
            &self.definition;
        let here = places.iter().filter(|limit| limit.covers(place)).map(|limit| &limit.max_mode);
        let mut ceilings: Vec<Arc<Mode>> = Vec::new();
        for id in max_mode.iter().chain(here) {
            // Checked when the file was read.
            let Ok(mode) = self.modes.resolve(&id.value) else { continue };
            if ceilings.iter().all(|known| known.id != mode.id) {
                ceilings.push(Arc::new(Mode { kind: CeilingKind::Policy, ..mode.clone() }));
            }
        }
        let rules = permissions.translated().and_then(|texts| texts.compile(false)).unwrap_or_default();
        let built_in = Modes::built_in();
        let allowed_modes = allowed
            .modes
            .as_ref()
            .map(|ids| ids.iter().filter_map(|id| self.modes.resolve(&id.value).ok().cloned()).collect());
        ManagedLimits {
            ceilings,
            rules: rules.of_policy(),
            models: AllowedModels::new(allowed.models.as_ref().map(|texts| {
                texts.iter().filter_map(|text| ModelPattern::parse(&text.value).ok()).collect()
            })),
            hosts: allowed.hosts.as_ref().map(|texts| AllowedHosts {
                patterns: texts.iter().filter_map(|text| text.value.parse().ok()).collect(),
                ..AllowedHosts::default()
            }),
            telemetry: self.definition.telemetry.clone(),
            hooks: self.definition.hooks.clone(),
            require: *require,
            user_may: *user_may,
            budgets: self.definition.to_budgets().unwrap_or_default(),
            fault: None,
            own_modes: self.modes.iter().filter(|mode| self.is_own(mode, &built_in)).cloned().collect(),
            allowed_modes,
            agents: allowed.agents.as_ref().map(|ids| ids.iter().map(|id| id.to_ascii_lowercase()).collect()),
            programs: allowed.programs.as_ref().map(|texts| {
                texts.iter().filter_map(|text| ProgramPattern::parse(&text.value).ok()).collect()
            }),
            servers: allowed
                .servers
                .as_ref()
                .map(|servers| servers.iter().map(|server| server.value.clone()).collect()),
        }
    }
}

impl CheckedPolicy {
    /// True if the policy defines the mode, be it in place of a built-in one.
    fn is_own(&self, mode: &Mode, built_in: &Modes) -> bool {
        self.definition.modes.iter().any(|definition| definition.id.value == mode.id)
            || built_in.resolve(&mode.id).is_err()
    }
}

impl PlaceLimit {
    fn covers(&self, place: &SessionPlace) -> bool {
        self.paths.iter().any(|path| place.overlaps(&path.value))
            || self.repositories.iter().any(|text| place.has_remote(&text.value))
    }
}

impl SessionPlace {
    /// True if a repository has a remote that matches. Unknown remotes match.
    pub(super) fn has_remote(&self, pattern: &str) -> bool {
        let Ok(pattern) = RepositoryPattern::parse(pattern) else { return true };
        self.remotes.as_ref().is_none_or(|remotes| remotes.iter().any(|remote| pattern.matches(remote)))
    }

    /// True if a folder is inside of `path`, or contains it.
    pub(super) fn overlaps(&self, path: &Path) -> bool {
        let fold = |path: &Path| PathBuf::from(Platform::HERE.folded(&path.to_string_lossy()).into_owned());
        let path = fold(path);
        self.folders
            .iter()
            .map(|folder| fold(folder))
            .any(|folder| folder.starts_with(&path) || path.starts_with(&folder))
    }
}

impl ManagedLimits {
    /// The limits while a policy file exists that is not believed: Modegate reads and answers, with the models that need
    /// no server, and does nothing else.
    pub fn strictest(diagnostic: &Diagnostic) -> Self {
        let plan = Modes::built_in().most_restrictive().clone();
        let ceiling = Mode { kind: CeilingKind::Policy, network: Network::Deny, ..plan };
        Self {
            ceilings: vec![Arc::new(ceiling)],
            models: AllowedModels::new(Some(Vec::new())),
            hosts: Some(AllowedHosts::default()),
            require: Requirements { sandbox: true, broker: true, record: true, signatures: true },
            user_may: UserChoices {
                define_modes: false,
                define_agents: false,
                allow_calls: false,
                trust_projects: false,
                accept_all: false,
                choose_store: false,
                widen_agents: false,
            },
            fault: Some(format!(
                "{diagnostic}\nThis is the policy of your organisation, and Modegate does not believe it. Until the \
                 administrator repairs it, sessions change nothing, use no network, no MCP servers and no external agents, \
                 and only the offline model answers."
            )),
            programs: Some(Vec::new()),
            servers: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Modes beneath those of the user, who can extend them.
    pub fn base_layers(&self) -> Layers {
        let mut layers = Layers::default();
        self.own_modes.iter().for_each(|mode| layers.modes.put(mode.clone()));
        layers
    }

    /// Limits the definitions of the user and of projects.
    pub fn apply(&self, layers: &mut Layers) {
        if !self.user_may.define_modes {
            layers.modes = self.base_layers().modes;
        }
        self.own_modes.iter().for_each(|mode| layers.modes.put(mode.clone()));
        if let Some(allowed) = &self.allowed_modes {
            for mode in allowed {
                layers.modes.put(mode.clone());
            }
            layers.modes.retain(|mode| allowed.iter().any(|known| known.id == mode.id));
        }
        let configured = layers.default_mode.as_deref().unwrap_or(DEFAULT);
        if self.allowed_modes.is_some() && layers.modes.resolve(configured).is_err() {
            let first = layers.modes.iter().find(|mode| mode.id == DEFAULT).or(layers.modes.iter().next());
            layers.default_mode = first.map(|mode| mode.id.clone());
        }
        let users_rules = std::mem::take(&mut layers.rules);
        layers.rules = self.rules.clone();
        layers.rules.extend(if self.user_may.allow_calls {
            users_rules
        } else {
            users_rules.without_allow()
        });
    }

    /// In each figure, the stricter budget. The prices are the policy's where it limits a cost.
    pub fn limit_budgets(&self, users: &Budgets) -> Budgets {
        let limits = users.limits.stricter(&self.budgets.limits);
        let counted = if self.budgets.limits.limits_cost() { &self.budgets } else { users };
        Budgets { limits, prices: counted.prices.clone(), day_zone: self.budgets.day_zone }
    }

    /// Limits the agents of a session. `resolve` finds a program.
    pub fn limit_agents(
        &self,
        agents: &AgentRegistry,
        resolve: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> AgentRegistry {
        agents.limited(|agent| {
            let limited = self.limited_agent(agent, resolve);
            limited.inspect_err(|reason| tracing::debug!(agent = agent.id, "{reason}")).ok()
        })
    }

    fn limited_agent(
        &self,
        agent: &Arc<AgentSpec>,
        resolve: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Arc<AgentSpec>, String> {
        let id = &agent.id;
        if !self.allows_agent(id) {
            return Err(format!("the agent {id} is not available, {BY_POLICY}"));
        }
        let is_replaceable = self.agents.is_some() || !self.user_may.define_agents;
        if agent.origin != AgentOrigin::BuiltIn && is_replaceable {
            // An id of the list means the built-in agent.
            if let Ok(built_in) = AgentRegistry::default().resolve(id) {
                return Ok(Arc::clone(built_in));
            }
            if !self.user_may.define_agents {
                return Err(format!("users define no agents such as {id}, {BY_POLICY}"));
            }
        }
        let Some(definition) = &agent.external_agent else { return Ok(Arc::clone(agent)) };
        let definition = self.limit_external_agent(definition, resolve)?;
        Ok(Arc::new(AgentSpec { external_agent: Some(Arc::new(definition)), ..AgentSpec::clone(agent) }))
    }

    /// The error is a sentence.
    pub fn limit_external_agent(
        &self,
        definition: &ExternalAgentDefinition,
        resolve: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<ExternalAgentDefinition, String> {
        if let Some(widened) = known::beyond_profile(definition).filter(|_| !self.user_may.widen_agents) {
            return Err(format!(
                "the program {} is not started: users give external agents no {widened}, {BY_POLICY}",
                definition.command
            ));
        }
        let mut limited = definition.clone();
        let (program, arguments) = (definition.command.as_str(), definition.args.as_slice());
        let command = AgentCommand { program, arguments, place: resolve(program) };
        if let Some(place) = self.check_program(&command)? {
            // A variable of the agent cannot lead to another program then.
            limited.command = place;
        }
        limited.requires_broker = self.require.sandbox || self.require.broker;
        limited.host_limit.clone_from(&self.hosts);
        Ok(limited)
    }

    /// Returns the path to start, if the policy names the program by its path. The error is a sentence.
    pub fn check_program(&self, command: &AgentCommand<'_>) -> Result<Option<String>, String> {
        let none = Vec::new();
        // A list of agents names no programs, because users choose the ids of their external agents.
        let listed = self.programs.as_ref().or(self.agents.as_ref().map(|_| &none));
        let Some(patterns) = listed else { return Ok(None) };
        let Some(pattern) = patterns.iter().find(|pattern| pattern.matches(command)) else {
            let texts: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            let allowed = if texts.is_empty() { "none".to_owned() } else { texts.join(", ") };
            return Err(format!(
                "the program {} is not started, {BY_POLICY}, which allows {allowed}",
                command.program
            ));
        };
        let place = command.place.as_deref().filter(|_| pattern.is_path());
        Ok(place.and_then(Path::to_str).map(str::to_owned))
    }

    /// Returns the servers that the policy allows, and a sentence for each of the others.
    pub fn limit_servers(&self, entries: Vec<ServerEntry>) -> (Vec<ServerEntry>, Vec<String>) {
        let (allowed, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| self.allows_server(&entry.name, &entry.transport));
        let notices = others
            .iter()
            .map(|entry| format!("The MCP server {:?} was not started, {BY_POLICY}.", entry.name))
            .collect();
        (allowed, notices)
    }

    pub fn limits_servers(&self) -> bool {
        self.servers.is_some()
    }

    pub fn allows_server(&self, name: &str, transport: &ServerTransport) -> bool {
        let Some(servers) = &self.servers else { return true };
        servers.iter().filter(|server| server.name == name).any(|server| match transport {
            ServerTransport::Program { command, args, .. } => {
                server.command.as_ref() == Some(command) && server.args == *args
            }
            ServerTransport::Address { url, .. } => server.url.as_ref() == Some(url),
        })
    }

    /// True if a server at this address may be used under some name.
    pub fn allows_login(&self, url: &str) -> bool {
        let servers = self.servers.as_ref();
        servers.is_none_or(|servers| servers.iter().any(|server| server.url.as_deref() == Some(url)))
    }

    pub fn allows_agent(&self, id: &str) -> bool {
        self.agents.as_ref().is_none_or(|ids| ids.contains(&id.to_ascii_lowercase()))
    }

    /// True if a mode of the user's choice may be used.
    pub fn allows_mode(&self, id: &str) -> bool {
        let id = canonical(id);
        self.allowed_modes.as_ref().is_none_or(|modes| modes.iter().any(|mode| mode.id == id))
    }
}
