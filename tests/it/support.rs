//! `TestClient`: an agent on an in-memory connection. The client checks every message of the agent against
//! the protocol's schema.
//!
//! Dropping the client with unread messages fails the test.

pub(crate) mod binary_client;
pub(crate) mod editor_client;
pub(crate) mod headless_output;
pub(crate) mod over_version_2;
pub(crate) mod requirements;
mod schema_v2;
pub(crate) mod scripted_model;
pub(crate) mod tool_calls;
#[cfg(target_os = "linux")]
pub(crate) mod user_terminal;
pub(crate) mod waiting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use agent_client_protocol_schema::v1 as schema;
use modegate::acp::SessionModeId;
use modegate::agent::{Agent, First, HostSettings, LoadedPolicy};
use modegate::agents::{AgentOrigin, AgentRegistry};
use modegate::budget::Budgets;
use modegate::client;
use modegate::client::ClientCapabilities;
use modegate::file_lock::FileLocks;
use modegate::hooks::runner::Hooks;
use modegate::ids::Source;
use modegate::memory::Memories;
use modegate::mode::Modes;
use modegate::model::Model;
use modegate::model::catalog::ModelCatalog;
use modegate::own_files::OwnFiles;
use modegate::permission::rules::Rules;
use modegate::policy::Layers;
use modegate::process::Processes;
use modegate::process::sandbox_paths::User;
use modegate::process::shell::{Sandbox, Shell};
use modegate::rpc::{self, RpcServer};
use modegate::server::ServerDefinition;
use modegate::session::UserCommand;
use modegate::session::{ExitSettings, OptionalUpdates, SessionContext, Traced};
use modegate::skill::Skills;
use modegate::store::memories::StoredMemories;
use modegate::store::{Store, StoreLocation, Sync};
use modegate::tool::{DiskTexts, Toolset};
use modegate::transport::{Line, Transport};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::support::over_version_2::Translator;
use crate::support::scripted_model::ScriptedModel;

/// Longest wait of a test. A passing test never waits this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// An agent and the client's side of its connection.
pub(crate) struct TestClient {
    pub dir: Arc<tempfile::TempDir>,
    pub model: ScriptedModel,
    pub agent: Arc<Agent>,
    to_agent: Option<mpsc::Sender<Line>>,
    from_agent: mpsc::Receiver<String>,
    server: tokio::task::JoinHandle<()>,
    /// The methods of requests without an answer, by id.
    methods: HashMap<String, String>,
    /// True once version 2 of the protocol is negotiated.
    is_v2: bool,
    next_id: i64,
    /// Present if a test for version 1 runs over version 2.
    translator: Option<Translator>,
    /// Translated messages that the test has not taken.
    translated: VecDeque<Value>,
}

/// Settings of a `TestClient`.
pub(crate) struct Setup {
    pub mode: &'static str,
    pub store: StoreLocation,
    pub model: Option<Arc<dyn Model>>,
    pub grace: Duration,
    pub tools: Toolset,
    pub parallel: usize,
    pub live: bool,
    /// The time that the first request waits for MCP servers. `None` if there are no servers.
    pub server_timeout: Option<Duration>,
    /// Idle timeout of sub-agents.
    pub idle_timeout: Duration,
    /// The user's agents, in YAML.
    pub agents: &'static str,
    /// The user's servers, in YAML.
    pub servers: &'static str,
    pub models: Arc<ModelCatalog>,
    pub modes: Modes,
    pub rules: Rules,
    pub max_mode: Option<&'static str>,
    pub budgets: Arc<Budgets>,
    pub hooks: Hooks,
    pub exits: ExitSettings,
    pub steering: bool,
    /// Configuration files that a test changes while it runs. Their modes and rules apply.
    pub files: Option<Arc<Mutex<Layers>>>,
    /// The user's commands.
    pub commands: Vec<UserCommand>,
    /// The skills, which a test may change while it runs.
    pub skills: Arc<Mutex<Arc<Skills>>>,
    /// The folder of an earlier client.
    pub dir: Option<Arc<tempfile::TempDir>>,
    /// Shared by clients that stand for processes of one user.
    pub file_locks: FileLocks,
    /// The source of ids and times. A clone continues those of an earlier client.
    pub source: Source,
    /// Records spans. `None` while telemetry is off.
    pub traced: Option<Traced>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mode: "ask",
            store: StoreLocation::Memory,
            model: None,
            grace: Duration::ZERO,
            tools: Toolset::built_in(),
            parallel: 1,
            live: false,
            server_timeout: None,
            idle_timeout: modegate::session::IDLE_TIMEOUT,
            agents: "",
            servers: "",
            models: Arc::new(ModelCatalog::offline()),
            modes: Modes::built_in(),
            rules: Rules::default(),
            max_mode: None,
            budgets: Arc::default(),
            hooks: Hooks::default(),
            exits: ExitSettings::default(),
            steering: false,
            files: None,
            commands: Vec::new(),
            skills: Arc::default(),
            dir: None,
            file_locks: FileLocks::default(),
            source: Source::counted(),
            traced: None,
        }
    }
}

/// A transport whose messages are never waited for.
fn already_flushed() -> oneshot::Receiver<()> {
    let (done, flushed) = oneshot::channel();
    done.send(()).unwrap();
    flushed
}

impl TestClient {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    #[allow(clippy::too_many_lines, reason = "one line for each setting")]
    pub(crate) fn with(setup: Setup) -> Self {
        let dir = setup.dir.unwrap_or_else(|| Arc::new(tempfile::tempdir().unwrap()));
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        let model = ScriptedModel::default();
        let max_modes =
            setup.max_mode.into_iter().map(|id| Arc::new(setup.modes.resolve(id).unwrap().clone()));
        let store = Store::open(setup.store, Sync::Normal).unwrap();
        let memories: Arc<dyn Memories> = Arc::new(StoredMemories::new(store.clone(), setup.source.clone()));
        let context = SessionContext {
            modes: Arc::new(setup.modes.clone()),
            rules: Arc::default(),
            unsupported_modes: Arc::default(),
            agents: Arc::default(),
            idle_timeout: setup.idle_timeout,
            commands: Arc::default(),
            skills: Arc::default(),
            checks: Arc::default(),
            max_modes: max_modes.collect(),
            managed_modes: Vec::new(),
            ends_with_turn: false,
            requires_checks: false,
            max_steps: None,
            budgets: setup.budgets,
            hooks: setup.hooks,
            fallback_ceiling: None,
            tools: setup.tools.with_memories(&memories),
            exits: setup.exits,
            signer: None,
            refuses_unrecorded: false,
            steering: setup.steering,
            model: setup.model.unwrap_or_else(|| Arc::new(model.clone())),
            models: Arc::clone(&setup.models),
            updates: OptionalUpdates::default(),
            capabilities: ClientCapabilities::default(),
            sources: Arc::default(),
            client_prompt: None,
            store,
            traced: setup.traced,
            file_locks: setup.file_locks,
            own_files: OwnFiles::default(),
            disk_texts: DiskTexts::default(),
            source: setup.source,
            parallel: setup.parallel,
            live: setup.live,
            server_timeout: setup.server_timeout,
            server_notices: Arc::default(),
        };
        let models = setup.models;
        let servers = setup.servers.replace("{dir}", &dir.path().to_string_lossy());
        let servers: BTreeMap<String, ServerDefinition> =
            if servers.is_empty() { BTreeMap::new() } else { serde_saphyr::from_str(&servers).unwrap() };
        let commands: Arc<[UserCommand]> = setup.commands.into();
        let (rules, agents, skills) = (Arc::new(setup.rules), setup.agents, setup.skills);
        let (client, end) = client::channel();
        let agent = Arc::new(Agent::new(
            context,
            HostSettings {
                policy: Arc::new(move |_| {
                    let layers = setup.files.as_ref().map(|files| files.lock().unwrap().clone());
                    let checks = layers.as_ref().map(|layers| layers.checks.clone()).unwrap_or_default();
                    let (available, rules, agents) = match layers {
                        Some(layers) if layers.agents.has_own() => {
                            (layers.modes, Arc::new(layers.rules), Arc::new(layers.agents))
                        }
                        Some(layers) => (layers.modes, Arc::new(layers.rules), agent_registry(agents)),
                        None => (setup.modes.clone(), Arc::clone(&rules), agent_registry(agents)),
                    };
                    LoadedPolicy {
                        modes: Arc::new(available),
                        rules,
                        commands: commands.clone(),
                        skills: skills.lock().unwrap().clone(),
                        servers: servers.clone(),
                        checks: checks.into(),
                        agents,
                        notices: Vec::new(),
                        default_mode: None,
                        problems: Vec::new(),
                        managed: Arc::default(),
                        refusal: None,
                    }
                }),
                load_models: Arc::new(move || Ok(Arc::clone(&models))),
                binary: None,
                wrapped: None,
            },
            client.clone(),
            First { mode: Some(SessionModeId::new(setup.mode)), agent: None },
        ));
        let (to_agent, incoming) = mpsc::channel(64);
        let (outgoing, from_agent) = mpsc::channel(256);
        let agent_end = Transport { incoming, outgoing, flushed: already_flushed() };
        let server = RpcServer { transport: agent_end, agent: Arc::clone(&agent), client, outgoing: end };
        let server = tokio::spawn(rpc::serve(server, setup.grace, CancellationToken::new()));
        Self {
            dir,
            model,
            agent,
            to_agent: Some(to_agent),
            from_agent,
            server,
            methods: HashMap::new(),
            is_v2: false,
            next_id: 0,
            translator: over_version_2::is_on().then(Translator::default),
            translated: VecDeque::new(),
        }
    }

    pub(crate) fn cwd(&self) -> std::path::PathBuf {
        self.dir.path().canonicalize().unwrap().join("work")
    }

    /// Sends a line unchanged.
    pub(crate) async fn send_line(&mut self, line: &str) {
        let translated = match (&mut self.translator, serde_json::from_str(line)) {
            (Some(translator), Ok(message)) => translator.outgoing(message).to_string(),
            _ => line.to_owned(),
        };
        let line = translated.as_str();
        if let Ok(message) = serde_json::from_str::<Value>(line)
            && let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str())
        {
            self.methods.insert(id.to_string(), method.to_owned());
        }
        let line = Line::Bytes(line.as_bytes().to_vec());
        self.to_agent.as_ref().expect("the input has not ended").send(line).await.unwrap();
    }

    /// Sends a request with the next id, and returns the id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> i64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send_line(
            &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string(),
        )
        .await;
        id
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.send_line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()).await;
    }

    /// Returns the next message after checking it. Fails if none arrives.
    pub(crate) async fn next(&mut self) -> Value {
        self.next_within(TIMEOUT).await.expect("no message came, or the connection has ended")
    }

    /// Returns the next message, if one arrives within this time.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Value> {
        loop {
            if let Some(message) = self.translated.pop_front() {
                return Some(message);
            }
            let line = tokio::time::timeout(time, self.from_agent.recv()).await.ok()??;
            let message = self.check(&line);
            match &mut self.translator {
                Some(translator) => self.translated.extend(translator.incoming(message)),
                None => return Some(message),
            }
        }
    }

    /// Returns the messages up to and including the answer to a request.
    pub(crate) async fn until_answer(&mut self, id: i64) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next().await);
            let last = messages.last().unwrap();
            if last["id"] == id && last.get("method").is_none() {
                return messages;
            }
        }
    }

    /// Sends a request and returns the answer, which must be the next message.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// True after the first request.
    pub(crate) fn is_initialized(&self) -> bool {
        self.next_id > 0
    }

    /// Initializes the connection and opens a session. Returns the session's id.
    pub(crate) async fn session(&mut self) -> String {
        if self.next_id == 0 {
            let answer = self.call("initialize", json!({ "protocolVersion": 1 })).await;
            assert_eq!(answer["result"]["protocolVersion"], 1);
        }
        let cwd = self.cwd();
        let answer = self.call("session/new", json!({ "cwd": cwd, "mcpServers": [] })).await;
        let commands = self.next().await;
        assert_eq!(commands["params"]["update"]["sessionUpdate"], "available_commands_update", "{commands}");
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Sends a text prompt. Returns the request's id.
    pub(crate) async fn prompt(&mut self, session: &str, text: &str) -> i64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", json!({ "sessionId": session, "prompt": prompt })).await
    }

    /// Ends the input, as a client does when it exits.
    pub(crate) fn close_input(&mut self) {
        self.to_agent = None;
    }

    /// Ends the input and waits for the end of the connection. Returns the remaining messages.
    pub(crate) async fn end(mut self) -> Vec<Value> {
        self.close_input();
        let mut rest = Vec::new();
        while let Some(message) = self.next_within(TIMEOUT).await {
            rest.push(message);
        }
        let server = std::mem::replace(&mut self.server, tokio::spawn(async {}));
        tokio::time::timeout(TIMEOUT, server).await.expect("the connection did not end").unwrap();
        rest
    }

    /// Checks that a line is one complete message of the protocol, short enough and valid.
    fn check(&mut self, line: &str) -> Value {
        let mut validate: fn(&str, &Value) = if self.is_v2 { schema_v2::validate } else { validate };
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "not one line: {line:?}");
        assert!(line.len() < 60 * 1024, "a line of {} bytes", line.len());
        let message: Value = serde_json::from_str(line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        let members: Vec<_> = message.as_object().unwrap().keys().map(String::as_str).collect();
        match members.as_slice() {
            ["jsonrpc", "method", "params"] | ["jsonrpc", "id", "method", "params"] => {
                validate(message["method"].as_str().unwrap(), &message["params"]);
            }
            ["jsonrpc", "id", "result"] => {
                let method = self.methods.remove(&message["id"].to_string()).expect("an answer to nothing");
                if method == "initialize" && message["result"]["protocolVersion"] == 2 {
                    (self.is_v2, validate) = (true, schema_v2::validate);
                }
                validate(&format!("answer to {method}"), &message["result"]);
            }
            ["jsonrpc", "id", "error"] => {
                self.methods.remove(&message["id"].to_string());
                validate("error", &message["error"]);
                assert!(!message["error"]["message"].as_str().unwrap().contains('\n'));
            }
            _ => panic!("no message of the protocol: {line}"),
        }
        message
    }
}

impl Drop for TestClient {
    fn drop(&mut self) {
        while !std::thread::panicking()
            && let Ok(line) = self.from_agent.try_recv()
        {
            let message = self.check(&line);
            match &mut self.translator {
                Some(translator) => self.translated.extend(translator.incoming(message)),
                None => panic!("a message was left unread: {message}"),
            }
        }
        if !std::thread::panicking() {
            assert!(self.translated.is_empty(), "a message was left unread: {:?}", self.translated);
        }
    }
}

fn agent_registry(agents: &str) -> Arc<AgentRegistry> {
    let mut all = AgentRegistry::default();
    if !agents.is_empty() {
        all.add(&serde_saphyr::from_str::<Vec<_>>(agents).unwrap(), AgentOrigin::User).unwrap();
    }
    Arc::new(all)
}

/// A temporary folder in memory, if this system has a place for it. On a disk, SQLite waits for it several times for
/// each store, which matters in tests with hundreds of stores.
pub(crate) fn folder_for_stores() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A shell for tests: the binary as the supervisor, and a folder as the home.
pub(crate) fn shell(home: &Path, sandbox: Sandbox) -> Shell {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    let path: Vec<_> = std::env::split_paths(&variable("PATH")).collect();
    // The toolchain is in the real home.
    let real = std::path::PathBuf::from(variable("HOME"));
    let toolchains = [".rustup", ".cargo/bin", ".cargo/registry", ".cargo/git", ".pyenv"]
        .map(|name| real.join(name))
        .to_vec();
    let user = User {
        home: Some(home.to_owned()),
        path,
        temporary: std::env::temp_dir(),
        scratch: Vec::new(),
        read: toolchains,
        ..User::default()
    };
    let seen = vec![
        ("PATH".into(), variable("PATH")),
        ("HOME".into(), home.as_os_str().to_owned()),
        ("RUSTUP_HOME".into(), real.join(".rustup").into_os_string()),
        ("CARGO_HOME".into(), real.join(".cargo").into_os_string()),
    ];
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
    Shell::new(processes, Some("/bin/bash".into()), user, seen, sandbox, modegate::sandbox::support())
}

fn validate(what: &str, value: &Value) {
    static SCHEMAS: LazyLock<HashMap<&str, CompiledSchema>> = LazyLock::new(|| {
        let make = |schema: schemars::Schema| CompiledSchema::new(schema.to_value());
        HashMap::from([
            ("session/update", make(schemars::schema_for!(schema::SessionNotification))),
            ("session/request_permission", make(schemars::schema_for!(schema::RequestPermissionRequest))),
            ("fs/read_text_file", make(schemars::schema_for!(schema::ReadTextFileRequest))),
            ("fs/write_text_file", make(schemars::schema_for!(schema::WriteTextFileRequest))),
            ("terminal/create", make(schemars::schema_for!(schema::CreateTerminalRequest))),
            ("terminal/output", make(schemars::schema_for!(schema::TerminalOutputRequest))),
            ("terminal/wait_for_exit", make(schemars::schema_for!(schema::WaitForTerminalExitRequest))),
            ("terminal/kill", make(schemars::schema_for!(schema::KillTerminalRequest))),
            ("terminal/release", make(schemars::schema_for!(schema::ReleaseTerminalRequest))),
            ("elicitation/create", make(schemars::schema_for!(schema::CreateElicitationRequest))),
            ("elicitation/complete", make(schemars::schema_for!(schema::CompleteElicitationNotification))),
            ("$/cancel_request", make(schemars::schema_for!(schema::CancelRequestNotification))),
            ("answer to initialize", make(schemars::schema_for!(schema::InitializeResponse))),
            ("answer to authenticate", make(schemars::schema_for!(schema::AuthenticateResponse))),
            ("answer to logout", make(schemars::schema_for!(schema::LogoutResponse))),
            ("answer to session/new", make(schemars::schema_for!(schema::NewSessionResponse))),
            ("answer to session/prompt", make(schemars::schema_for!(schema::PromptResponse))),
            ("answer to session/set_mode", make(schemars::schema_for!(schema::SetSessionModeResponse))),
            (
                "answer to session/set_config_option",
                make(schemars::schema_for!(schema::SetSessionConfigOptionResponse)),
            ),
            ("answer to session/load", make(schemars::schema_for!(schema::LoadSessionResponse))),
            ("answer to session/resume", make(schemars::schema_for!(schema::ResumeSessionResponse))),
            ("answer to session/fork", make(schemars::schema_for!(schema::ForkSessionResponse))),
            ("answer to session/list", make(schemars::schema_for!(schema::ListSessionsResponse))),
            ("answer to session/close", make(schemars::schema_for!(schema::CloseSessionResponse))),
            ("answer to session/delete", make(schemars::schema_for!(schema::DeleteSessionResponse))),
            ("error", make(schemars::schema_for!(schema::Error))),
        ])
    });
    let schema = SCHEMAS.get(what).unwrap_or_else(|| panic!("no schema for {what}: {value}"));
    if let Err(errors) = schema.validate(value) {
        panic!("{what} does not fit its schema: {errors}\n{value}");
    }
}

/// A JSON Schema that values can be checked against.
pub(crate) struct CompiledSchema {
    schemas: boon::Schemas,
    root: boon::SchemaIndex,
}

impl CompiledSchema {
    pub(crate) fn new(schema: Value) -> Self {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("schema.json", schema).unwrap();
        let root = compiler.compile("schema.json", &mut schemas).unwrap();
        Self { schemas, root }
    }

    /// The error lists all differences.
    pub(crate) fn validate(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.root).map_err(|error| error.to_string())
    }
}

/// Returns the content of a file below the working directory, or `None` if there is no such file.
pub(crate) fn read(cwd: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(cwd.join(path)).ok()
}

pub(crate) fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}
