//! How a server is reached: its program is started with the hold of its entry, or its address is called.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::transport::worker::WorkerQuitReason;
use rmcp::{ServiceExt, service::ClientInitializeError};
use secrecy::{ExposeSecret, SecretString};

use super::handler::Handler;
use super::pace::Paced;
use super::program::Program;
use crate::client::Abilities;
use crate::http::Http;
use crate::process::shell::{Hold, Shell};
use crate::process::{Command, Errors};
use crate::server::{Entry, Reach, ServerSandbox};

/// Bytes of one message of a server's.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

type HttpFailure = StreamableHttpError<crate::http::LibraryError>;

/// What servers are reached with.
#[derive(Clone)]
pub struct Means {
    /// What starts programs, and holds them; none: there is nothing to start them with.
    pub shell: Option<Shell>,
    /// What calls addresses.
    pub http: Arc<Http>,
    /// What the client can do for servers.
    pub can: Abilities,
    /// The session's folders, the working directory first.
    pub roots: Arc<[PathBuf]>,
}

/// A server that answers.
pub struct Connection {
    /// What speaks to it. Dropped, it hangs up.
    pub running: RunningService<RoleClient, Handler>,
    /// Its program, if it has one.
    pub program: Option<Program>,
}

/// Reaches a server. `started` is told of its program before it answers.
///
/// # Errors
/// It cannot be reached, or does not speak MCP; one sentence, without its end.
pub async fn connect(
    entry: &Entry,
    means: &Means,
    handler: Handler,
    started: impl FnOnce(Program),
) -> Result<Connection, String> {
    match &entry.reach {
        Reach::Program { command, args, env, cwd } => {
            let shell = means.shell.as_ref().ok_or("there is nothing to start programs with")?;
            let named = || {
                let named =
                    [command].into_iter().chain(args).map(Path::new).filter(|path| path.is_absolute());
                named.flat_map(of_itself).chain(entry.read.iter().cloned()).collect()
            };
            let hold = hold(entry.sandbox, shell, &means.roots, named)?;
            let cwd = folder(cwd.as_deref(), &means.roots)?;
            let command = Command {
                program: command.clone(),
                arguments: args.clone(),
                cwd,
                environment: Some(environment(shell, env)),
                settings: &[],
                confinement: hold.confinement().clone(),
                errors: Errors::Apart,
                is_spoken_to: true,
                keeps_terminal: false,
            };
            let process = shell.processes().start(command).await;
            let mut process = process.map_err(|error| format!("it cannot be started: {error}"))?;
            let speech = process.take_speech().ok_or("it cannot be spoken to")?;
            let secrets = env.iter().map(|(_, value)| value.clone()).collect();
            let program = Program::keep(&entry.name, process, secrets);
            started(program.clone());
            let transport = AsyncRwTransport::new_client(Paced::new(speech.from), speech.to);
            let serving = handler.serve(transport.with_max_line_length(MAX_MESSAGE));
            let running = tokio::select! {
                running = serving => running.map_err(|error| said(&error)),
                over = program.over() => Err(over.how),
            };
            match running {
                Ok(running) => Ok(Connection { running, program: Some(program) }),
                Err(why) => Err(with_last_words(&why, &program).await),
            }
        }
        Reach::Address { url, headers } => {
            let unusable = |error: crate::http::HttpError| error.to_string();
            let client = means.http.client_for(url).await.map_err(unusable)?;
            let headers = crate::http::headers(headers).map_err(unusable)?;
            let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
            let transport = StreamableHttpClientTransport::with_client(client, config);
            let running = handler.serve(transport).await.map_err(|error| said(&error))?;
            Ok(Connection { running, program: None })
        }
    }
}

/// `besides` are paths that it can read where it is held to reading.
fn hold(
    sandbox: ServerSandbox,
    shell: &Shell,
    roots: &[PathBuf],
    besides: impl FnOnce() -> Vec<PathBuf>,
) -> Result<Hold, String> {
    let (what, hold) = match sandbox {
        ServerSandbox::Off => return Ok(Hold::none()),
        ServerSandbox::ReadOnly => ("reading", shell.reading(roots, &besides())),
        ServerSandbox::Workspace => ("the session's folders", shell.held_to_workspace(roots)),
    };
    hold.ok_or_else(|| {
        format!("it is to be held to {what}, which the system cannot do here (see modegate doctor)")
    })
}

/// What a program needs to read of itself, by a path that its command line names: what lies beside it, and the package that it
/// is a part of.
fn of_itself(path: &Path) -> Vec<PathBuf> {
    let mut places = vec![path.to_owned()];
    // The last link is followed: package managers put links where programs are looked for.
    let Ok(real) = std::fs::canonicalize(path) else { return places };
    let is_package = |above: &&Path| {
        above.ends_with("node_modules")
            || above.ends_with("site-packages")
            || above.join("pyvenv.cfg").is_file()
    };
    let beside = if real.is_dir() { Some(real.as_path()) } else { real.parent() };
    places.extend(real.ancestors().filter(is_package).last().or(beside).map(Path::to_owned));
    places.extend(path.parent().filter(|_| !path.is_dir()).map(Path::to_owned));
    places
}

fn folder(named: Option<&Path>, roots: &[PathBuf]) -> Result<PathBuf, String> {
    let root = roots.first().cloned().unwrap_or_default();
    let folder = named.map_or(root.clone(), |named| root.join(named));
    if folder.is_dir() { Ok(folder) } else { Err(format!("its cwd {} is not a directory", folder.display())) }
}

/// The usual, and what the entry says: nothing else of Modegate's own environment, where keys are.
fn environment(
    shell: &Shell,
    env: &[(String, SecretString)],
) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    let own = env.iter().map(|(name, value)| (name.into(), value.expose_secret().into()));
    shell.environment().iter().cloned().chain(own).collect()
}

/// What was wrong, without what the server sent.
fn said(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it hung up before it had answered".into(),
        ClientInitializeError::JsonRpcError(error) => {
            let message: String = error.message.chars().take(200).collect();
            format!("it answered with the error {}: {message}", error.code.0)
        }
        _ if error.is_authorization_required() => {
            "it wants its user to log in, which Modegate cannot do: give it a header with a key".into()
        }
        ClientInitializeError::TransportError { error, .. } => {
            let failure = match error.error.downcast_ref() {
                Some(WorkerQuitReason::Fatal { error, .. }) => Some(error),
                _ => error.error.downcast_ref::<HttpFailure>(),
            };
            let text = match failure {
                // Not as it is: it has the address, and there may be a key in that.
                Some(StreamableHttpError::Client(error)) => crate::http::root(error),
                Some(error) => error.to_string(),
                None => error.error.to_string(),
            };
            let text: String = text.chars().take(200).collect();
            format!("it cannot be reached: {text}")
        }
        _ => "what it answered is not MCP".into(),
    }
}

async fn with_last_words(why: &str, program: &Program) -> String {
    // It may be about to say why.
    let over = tokio::time::timeout(std::time::Duration::from_millis(100), program.over()).await;
    let why = over.map_or_else(|_| why.to_owned(), |over| over.how);
    let words = program.standing().last_words;
    match words.trim().lines().next_back() {
        Some(line) => format!("{why}; its last words: {line}"),
        None => why,
    }
}
