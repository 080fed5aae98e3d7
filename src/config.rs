//! Combines flags, environment and the user's files into a validated [`Config`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::mpsc;

use crate::agent::{First, HostSettings, ModelCatalogLoader};
use crate::budget::Budgets;
use crate::busy;
use crate::client::ClientCapabilities;
use crate::conversation::system_prompt::Sources;
use crate::external_agent::WrappedAgent;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::file_lock::FileLocks;
use crate::hooks::runner::Hooks;
use crate::hooks::{self, Hook};
use crate::http::fetch_client::FetchClient;
use crate::ids::Source;
use crate::memory::Memories;
use crate::mode::{Mode, Modes};
use crate::model::catalog::{OFFLINE, SCRIPTED};
use crate::model::router::{Remote, Router};
use crate::model::scripted::Scripted;
use crate::model::{Model, ModelId};
use crate::otlp::Telemetry;
use crate::own_files::OwnFiles;
use crate::platform::files::real_path;
use crate::process::shell::Shell;
use crate::session::IDLE_TIMEOUT;
use crate::session::{ExitSettings, OptionalUpdates, SessionContext};
use crate::signing::SigningKey;
use crate::store::memories::StoredMemories;
use crate::store::retention::Retention;
use crate::store::{Store, StoreLocation, Sync};
use crate::tool::web::fetch::FetchLimits;
use crate::tool::{DiskTexts, Toolset};
use crate::transcript::launch_options::{LaunchOptions, StoreKind};
use crate::transcript::lockstep::Determinism;
use connections::Connections;
use environment::Environment;
use evidence_key::EvidenceSettings;
use first_choice::FirstChoice;
use policies::Policies;
use providers::Providers;
use session_policy::{check_flags, policy_of, write_folders};
use telemetry::TelemetryConfig;
use user_file::UnrecordedChanges;

pub use places::{
    find_store, logins, provider_variables, real_working_folder, replay_places, scratch_folder,
    working_folder,
};

pub mod agent_checks;
pub mod commands;
mod connections;
pub mod doctor_checks;
mod embedded;
pub mod environment;
pub mod evidence_key;
mod first_choice;
pub mod managed_file;
pub mod online;
mod places;
pub mod policies;
pub mod project;
pub mod providers;
pub mod servers;
pub mod session_policy;
mod skill_files;
mod telemetry;
mod user_commands;
pub mod user_file;

const PARALLEL: usize = 8;

/// A faster acceptance of a mode switch does not count, because no person can read the request in that time.
const READING_TIME: Duration = Duration::from_millis(500);

/// Time that a session's first model request waits for starting MCP servers.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);

/// Longer than in an editor: a headless run may have one turn.
pub const HEADLESS_SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence of a deterministic run after which an answer will not come, for a model in this process.
const EMBEDDED_SILENCE: Duration = Duration::from_secs(10);

/// The same for a provider, which may think for minutes.
const PROVIDER_SILENCE: Duration = Duration::from_mins(10);

/// Options of the command line as they were typed, unchecked. No defaults, and nothing from files or the environment:
/// [`Config`] has the result.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct Flags {
    pub mode: Option<String>,
    pub agent: Option<String>,
    pub max_mode: Option<String>,
    pub no_exit: bool,
    pub accept_all: bool,
    pub model: Option<String>,
    pub store: Option<String>,
    pub cwd: Option<PathBuf>,
    /// Seconds that turns may continue after the end of the input.
    pub eof_grace: Option<f64>,
    pub deterministic: bool,
    pub wrapped: Option<(String, ExternalAgentDefinition)>,
    /// The file of `--record`.
    pub record: Option<PathBuf>,
}

/// Settings of a run, checked. Consumed when the run starts: a session never holds one, and nothing that changes while
/// Modegate runs belongs here.
#[allow(clippy::struct_excessive_bools, reason = "independent settings of the run")]
pub struct Config {
    pub first: First,
    pub cwd: PathBuf,
    pub eof_grace: Duration,
    pub require_checks: bool,
    pub budgets: Budgets,
    hooks: Vec<Hook>,
    deterministic: bool,
    exits: ExitSettings,
    steering: Option<bool>,
    max_modes: Vec<Arc<Mode>>,
    policies: Policies,
    environment: Environment,
    asked: Option<ModelId>,
    script: Option<Scripted>,
    /// The model runs in this process, so that the user's settings are not read.
    is_embedded: bool,
    /// `default_mode` of the files at startup, or `--max-mode` if that allows less.
    default_mode: Option<String>,
    remote: Remote,
    store: StoreLocation,
    store_origin: StoreOrigin,
    may_choose_store: bool,
    sync: Sync,
    retention: Retention,
    unrecorded_changes: Option<UnrecordedChanges>,
    evidence: EvidenceSettings,
    requires_signatures: bool,
    signer: Option<SigningKey>,
    shell: Shell,
    fetch_client: Arc<FetchClient>,
    connections: Connections,
    telemetry: TelemetryConfig,
    wrapped: Option<(String, ExternalAgentDefinition)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreOrigin {
    /// By `--store`.
    Named,
    Default,
    /// In memory for lack of a home directory.
    NoHome,
}

pub struct Runtime {
    pub context: SessionContext,
    pub host: HostSettings,
    pub determinism: Option<Determinism>,
    pub retention: Retention,
    /// `None` while telemetry is off.
    pub telemetry: Option<Telemetry>,
}

impl Config {
    pub fn new(flags: &Flags, environment: Environment) -> anyhow::Result<Self> {
        let mut config = Self::without_store(flags, environment)?;
        // Neither a deterministic run nor a script uses the user's files, unless the policy requires it.
        if config.requires_signatures || (!config.deterministic && !config.is_embedded) {
            config.signer = evidence_key::for_signing(&config.evidence, &config.environment)?;
        }
        if let (Some(_), StoreLocation::File(path)) = (&flags.store, &config.store) {
            Store::create_or_open(path).with_context(|| format!("--store {}", path.display()))?;
        }
        Ok(config)
    }

    /// As [`Self::new`], but does not try to open the store, which could create or migrate it, and neither reads nor
    /// creates the key that signs.
    fn without_store(flags: &Flags, mut environment: Environment) -> anyhow::Result<Self> {
        let eof_grace = Duration::try_from_secs_f64(flags.eof_grace.unwrap_or(1.0)).context("--eof-grace")?;
        let model_name = flags.model.as_deref().or(environment.model.as_deref());
        let script = model_name.map(embedded::script).transpose()?.flatten();
        let requested = model_name.map(|name| ModelId::new(if script.is_some() { SCRIPTED } else { name }));
        // Neither scripts nor deterministic offline runs may depend on this machine's settings.
        let is_embedded =
            script.is_some() || (flags.deterministic && flags.model.as_deref() == Some(OFFLINE));
        let (file, remote) = match &requested {
            Some(requested) if is_embedded => {
                (user_file::UserFile::default(), embedded::remote(requested.clone()))
            }
            _ => providers::load(&environment, requested.as_ref())?,
        };
        let budgets = file.to_budgets()?;
        let managed = managed_file::limits_everywhere();
        let hooks = hooks::complete(&managed.hooks, &file.hooks).map_err(anyhow::Error::msg)?;
        let commands = file.shell.unwrap_or_default();
        if let Some(obsolete) = commands.obsolete() {
            tracing::warn!("{obsolete}");
        }
        let fetch_client = Arc::new(file.fetch.unwrap_or_default().to_fetch_client()?);
        let connections = Connections::new(&file.network.unwrap_or_default(), &environment)?;
        let keys = file.providers.values().filter_map(|settings| settings.api_key.clone());
        let telemetry =
            TelemetryConfig::new(managed.telemetry.as_ref(), file.telemetry.as_ref(), &environment)?;
        let telemetry = telemetry.with_secrets(keys);
        let is_without_data_folder = environment.data_folder.is_none();
        // A deterministic run gives the same bytes each time, so it neither reads nor writes the user's store.
        let default_store = if flags.deterministic { Some("memory") } else { None };
        let store = places::location(flags.store.as_deref().or(default_store), &environment)?;
        let mut evidence = file.evidence.unwrap_or_default();
        if managed.require.signatures {
            evidence.sign = Some(true);
        }
        let key_file = evidence_key::place(&evidence, &environment);
        environment.protect(store.files().into_iter().chain(flags.record.clone()).chain(key_file));
        let shell = commands::shell(&environment, &commands)?;
        let cwd = working_folder(flags)?;
        let policies = Policies::new(&environment, file.tool_list, flags.deterministic)
            .with_write_folders(write_folders(flags, &commands, environment.user.home.as_deref())?);
        let loaded = policies.load(&real_path(&cwd).unwrap_or_else(|_| cwd.clone()));
        check_flags(flags, &loaded.managed, &store)?;
        let FirstChoice { first, max_modes, default_mode } = FirstChoice::new(flags, &loaded)?;
        if !cwd.is_dir() {
            bail!("--cwd: {} is not a directory", cwd.display());
        }
        let deterministic = flags.deterministic;
        let store_settings = file.store.unwrap_or_default();
        let reading_time = file.fast_answer_ms.map_or(READING_TIME, Duration::from_millis);
        // A deterministic run answers as soon as its input says so.
        let reading_time = if deterministic { Duration::ZERO } else { reading_time };
        Ok(Self {
            exits: ExitSettings { is_off: flags.no_exit, reading_time, accepts_all: flags.accept_all },
            steering: file.steering,
            require_checks: file.require_checks.unwrap_or_default(),
            budgets,
            hooks,
            first,
            cwd,
            eof_grace,
            deterministic,
            max_modes,
            policies,
            environment,
            asked: requested,
            script,
            is_embedded,
            default_mode,
            remote,
            store_origin: match (&flags.store, is_without_data_folder && !flags.deterministic) {
                (Some(_), _) => StoreOrigin::Named,
                (None, true) => StoreOrigin::NoHome,
                (None, false) => StoreOrigin::Default,
            },
            may_choose_store: managed.user_may.choose_store,
            store,
            wrapped: flags.wrapped.clone(),
            sync: store_settings.sync,
            retention: Retention { keeps_unexported: telemetry.is_required(), ..store_settings.retention() },
            unrecorded_changes: store_settings.unrecorded_changes,
            evidence,
            requires_signatures: managed.require.signatures,
            signer: None,
            shell,
            fetch_client,
            connections,
            telemetry,
        })
    }

    /// Refuses changes that cannot be recorded, unless the user's settings allow them, and limits the waits for a busy
    /// provider: no person reads the notices of a headless run, or cancels its waits.
    #[must_use]
    pub fn without_editor(mut self) -> Self {
        self.unrecorded_changes.get_or_insert(UnrecordedChanges::Refuse);
        self.connections.limit_busy_waits();
        self
    }

    /// Keeps sessions in memory unless `--store` names a store or the policy requires the usual one: a client that is
    /// played from a file is no user.
    #[must_use]
    pub fn without_user_store(mut self) -> Self {
        if self.may_choose_store && self.store_origin != StoreOrigin::Named {
            (self.store, self.store_origin) = (StoreLocation::Memory, StoreOrigin::Default);
        }
        self
    }

    /// True if `--model` or `MODEGATE_MODEL` names a model.
    pub fn has_chosen_model(&self) -> bool {
        self.asked.is_some()
    }

    pub fn launch_options(&self) -> LaunchOptions {
        let model = match &self.script {
            Some(_) => SCRIPTED,
            None => self.remote.catalog.default_model().as_str(),
        };
        let is_file = matches!(self.store, StoreLocation::File(_) | StoreLocation::Reading(_));
        LaunchOptions {
            mode: self.first.mode.as_ref().map(ToString::to_string).or_else(|| self.default_mode.clone()),
            max_mode: self.max_modes.first().map(|mode| mode.id.clone()),
            agent: self.first.agent.clone().filter(|_| self.wrapped.is_none()),
            no_exit: self.exits.is_off,
            accept_all: self.exits.accepts_all,
            model: Some(model.to_owned()),
            store: Some(if is_file { StoreKind::File } else { StoreKind::Memory }),
            wraps: self.wrapped.as_ref().map(|(id, _)| id.clone()),
        }
    }

    pub fn into_runtime(self) -> std::io::Result<Runtime> {
        let store = Store::open(self.store, self.sync)?;
        if self.store_origin == StoreOrigin::NoHome {
            store.substitute("there is no home directory to keep the store in".into());
        }
        let (scripted_pauses, pauses) = mpsc::unbounded_channel();
        let is_embedded = self.is_embedded;
        let determinism = self.deterministic.then(|| {
            let store = store.clone();
            let cwd = serde_json::Value::from(self.cwd.to_string_lossy()).to_string();
            Determinism {
                cwd: cwd.trim_matches('"').to_owned(),
                pauses,
                is_busy: Box::new(move || store.is_busy() || busy::is_busy()),
                max_silence: if is_embedded { EMBEDDED_SILENCE } else { PROVIDER_SILENCE },
            }
        });
        let models = Arc::clone(&self.remote.catalog);
        let pauses = self.deterministic.then_some(scripted_pauses);
        let router = Router::new(embedded::in_process(self.script, pauses), self.remote);
        let router = Arc::new(self.connections.apply(router));
        let sources = Sources {
            user_folder: self.environment.config_folder.clone().filter(|_| !is_embedded),
            platform: format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH),
        };
        let model: Arc<dyn Model> = Arc::clone(&router) as Arc<dyn Model>;
        let source = if self.deterministic { Source::counted() } else { Source::real() };
        let memories: Arc<dyn Memories> = Arc::new(StoredMemories::new(store.clone(), source.clone()));
        // Deterministic runs leave the data folder alone. Without a home folder, it is relative.
        let data_folder = self.environment.data_folder.as_deref();
        let data_folder = data_folder.filter(|folder| folder.is_absolute() && !self.deterministic);
        let file_locks = data_folder.map(FileLocks::in_folder).unwrap_or_default();
        let telemetry = self.telemetry.start(&store, &self.connections.http());
        let context = SessionContext {
            modes: Arc::new(Modes::built_in()),
            rules: Arc::default(),
            unsupported_modes: Arc::default(),
            agents: Arc::default(),
            idle_timeout: IDLE_TIMEOUT,
            commands: Arc::default(),
            skills: Arc::default(),
            checks: Arc::default(),
            max_modes: self.max_modes,
            managed_modes: Vec::new(),
            ends_with_turn: false,
            requires_checks: false,
            max_steps: None,
            budgets: Arc::new(self.budgets),
            hooks: Hooks::new(self.hooks, self.shell.processes().clone(), environment::inherited()),
            fallback_ceiling: None,
            exits: self.exits,
            signer: self.signer.map(Arc::new),
            refuses_unrecorded: self.unrecorded_changes == Some(UnrecordedChanges::Refuse),
            // In a replay, it depends on time whether a prompt joins a turn.
            steering: self.steering.unwrap_or(!self.deterministic),
            tools: if self.exits.is_off { Toolset::built_in().without_exit() } else { Toolset::built_in() }
                .with_fetch(self.fetch_client, FetchLimits::default())
                .with_memories(&memories)
                .with_http(self.connections.http())
                .with_shell(self.shell.with_file_locks(data_folder))
                .with_logins(logins(&self.environment)),
            model,
            models: Arc::clone(&models),
            updates: OptionalUpdates::default(),
            capabilities: ClientCapabilities::default(),
            sources: Arc::new(sources),
            client_prompt: None,
            store,
            traced: telemetry.as_ref().map(telemetry::traced),
            disk_texts: DiskTexts::default(),
            file_locks,
            own_files: OwnFiles::new(&self.environment.user.own, &self.environment.user.private),
            source,
            parallel: if self.deterministic { 1 } else { PARALLEL },
            live: !self.deterministic,
            server_timeout: (!self.deterministic).then_some(SERVER_TIMEOUT),
            server_notices: Arc::default(),
        };
        let binary = std::env::current_exe().ok();
        let wrapped_agent = self.wrapped.as_ref().map(|(id, definition)| WrappedAgent {
            id: id.clone(),
            definition: definition.clone(),
            cwd: self.cwd.clone(),
        });
        let policy = policy_of(self.policies, &self.environment, self.wrapped);
        let load_models: ModelCatalogLoader = if is_embedded {
            Arc::new(move || Ok(Arc::clone(&models)))
        } else {
            let providers = Providers::new(self.environment, self.asked, router, models);
            Arc::new(move || providers.catalog())
        };
        let host = HostSettings { policy, load_models, binary, wrapped: wrapped_agent };
        Ok(Runtime { context, host, determinism, retention: self.retention, telemetry })
    }
}

#[cfg(test)]
mod tests;
