//! Connects to a server: starts its program in the configured sandbox, or calls its URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use rmcp::{ServiceExt, service::ClientInitializeError};

use super::fault::{has_own_key, start_error};
use super::handler::Handler;
use super::login::Logins;
use super::message_limit::MessageLimit;
use super::rate_limit::{MonitoredWriter, RateLimited, ReadMonitor};
use crate::client::ClientCapabilities;
use crate::http::{self, Http};
use crate::platform::files::real_path;
use crate::process::program::Program;
use crate::process::shell::{CommandSandbox, Shell};
use crate::process::{Command, Streams, TerminalAccess};
use crate::server::{ServerEntry, ServerSandbox, ServerTransport};

const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Grace period for a program's last output.
const EXIT_GRACE: Duration = Duration::from_millis(100);

/// Maximum attempts to resume an HTTP event stream.
const MAX_RESUMES: usize = 3;

#[derive(Clone)]
pub struct ConnectOptions {
    pub shell: Option<Shell>,
    pub http: Arc<Http>,
    pub logins: Logins,
    pub capabilities: ClientCapabilities,
    pub roots: Arc<[PathBuf]>,
}

pub(super) struct ServerConnection {
    /// Hangs up when dropped.
    pub running: RunningService<RoleClient, Handler>,
    pub program: Option<Program>,
    pub monitor: ReadMonitor,
}

/// `started` gets the program before the server answers. The error is a sentence without a full stop.
pub(super) async fn connect(
    entry: &ServerEntry,
    options: &ConnectOptions,
    handler: Handler,
    started: impl FnOnce(Program),
) -> Result<ServerConnection, String> {
    match &entry.transport {
        ServerTransport::Program { command, args, env, cwd } => {
            let shell = options.shell.as_ref().ok_or("programs cannot be started here")?;
            let sandbox = server_sandbox(entry.sandbox, shell, &options.roots, || {
                let absolute_paths =
                    [command].into_iter().chain(args).map(Path::new).filter(|path| path.is_absolute());
                absolute_paths.flat_map(installation_paths).chain(entry.read.iter().cloned()).collect()
            })?;
            let cwd = folder(cwd.as_deref(), &options.roots)?;
            // Passes only the usual environment: Modegate's own may contain keys.
            let mut environment = shell.environment().to_vec();
            if entry.sandbox != ServerSandbox::ReadOnly {
                environment.extend(shell.network_variables().iter().cloned());
            }
            let command = Command {
                program: command.clone(),
                arguments: args.clone(),
                cwd,
                environment: Some(environment),
                settings: &[],
                confinement: sandbox.confinement().clone(),
                streams: Streams::Piped,
                waits: false,
                own: env.clone(),
                terminal: TerminalAccess::None,
            };
            let process = shell.processes().start(command).await;
            let mut process = process.map_err(|error| format!("it cannot be started: {error}"))?;
            let stdio = process.take_stdio().ok_or("it has no standard input and output")?;
            let program = Program::start(&entry.name, process, handler.secrets.clone());
            started(program.clone());
            let monitor = ReadMonitor::default();
            let from = MessageLimit::new(RateLimited::new(stdio.from, monitor.clone()), MAX_MESSAGE);
            let to = MonitoredWriter::new(stdio.to, monitor.clone());
            let transport = AsyncRwTransport::new_client(from, to);
            let serving = handler.serve(transport.with_max_line_length(MAX_MESSAGE));
            let mut serving = std::pin::pin!(serving);
            let running = tokio::select! {
                biased;
                running = &mut serving => running.map_err(|error| {
                    use ClientInitializeError::{ConnectionClosed, TransportError};
                    (start_error(&error, entry, &options.http), matches!(error, ConnectionClosed(_) | TransportError { .. }))
                }),
                // The last output may still arrive.
                over = program.over() => match tokio::time::timeout(EXIT_GRACE, serving).await {
                    Ok(Err(error @ ClientInitializeError::JsonRpcError(_))) => Err((start_error(&error, entry, &options.http), false)),
                    _ => Err((over.how, false)),
                },
            };
            match running {
                Ok(running) => Ok(ServerConnection { running, program: Some(program), monitor }),
                Err((why, is_disconnect)) => {
                    // A program that ends closes its pipes first, and may be about to report the reason.
                    let over = tokio::time::timeout(EXIT_GRACE, program.over()).await;
                    let why = over.ok().filter(|_| is_disconnect).map_or(why, |over| over.how);
                    Err(format!("{}{}", program.with_last_error(&why), sandbox_hint(entry.sandbox)))
                }
            }
        }
        ServerTransport::Address { url, headers } => {
            let client = options.http.client_for(url).await.map_err(|error| error.to_string())?;
            let headers = http::headers(headers).map_err(|error| error.to_string())?;
            let mut config =
                StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
            let mut resumes = ExponentialBackoff::default();
            resumes.max_times = Some(MAX_RESUMES);
            config.retry_config = Arc::new(resumes);
            // A key of the user's own takes the place of a login.
            let login =
                if has_own_key(entry) { None } else { options.logins.open(url, &options.http).await? };
            let running = match login {
                Some(login) => {
                    let client = AuthClient::new(client, login);
                    handler.serve(StreamableHttpClientTransport::with_client(client, config)).await
                }
                None => handler.serve(StreamableHttpClientTransport::with_client(client, config)).await,
            };
            let running = running.map_err(|error| start_error(&error, entry, &options.http))?;
            Ok(ServerConnection { running, program: None, monitor: ReadMonitor::default() })
        }
    }
}

/// The sandbox often prevents a start, which the program's own words do not show.
fn sandbox_hint(sandbox: ServerSandbox) -> &'static str {
    match sandbox {
        ServerSandbox::Off => "",
        ServerSandbox::ReadOnly => {
            " (it runs with `sandbox: read_only`, without network; `read` lists further paths that it may read)"
        }
        ServerSandbox::Workspace => {
            " (it runs with `sandbox: workspace` and cannot write outside the session's folders)"
        }
    }
}

fn server_sandbox(
    sandbox: ServerSandbox,
    shell: &Shell,
    roots: &[PathBuf],
    besides: impl FnOnce() -> Vec<PathBuf>,
) -> Result<CommandSandbox, String> {
    let (limits, command_sandbox) = match sandbox {
        ServerSandbox::Off => return Ok(CommandSandbox::none()),
        ServerSandbox::ReadOnly => ("read-only access", shell.read_only_with(roots, &besides())),
        ServerSandbox::Workspace => {
            ("writes limited to the session's folders", shell.workspace_sandbox(roots))
        }
    };
    command_sandbox
        .ok_or_else(|| format!("this system cannot sandbox it with {limits} (run modegate doctor)"))
}

/// Paths a program reads of its own installation: the path in the command line, its link target, and the
/// package around it.
fn installation_paths(path: &Path) -> Vec<PathBuf> {
    let mut places = vec![path.to_owned()];
    // Package managers install links in the search path.
    let Ok(real) = real_path(path) else { return places };
    let packages = real
        .ancestors()
        .filter(|above| above.ends_with("node_modules") || above.ends_with("site-packages"))
        .last();
    let package = packages.or_else(|| {
        real.ancestors().skip(1).find(|above| {
            ["package.json", "pyproject.toml", "pyvenv.cfg"].iter().any(|name| has_file(above, name))
        })
    });
    places.extend(package.map(Path::to_owned));
    places.push(real.clone());
    places
}

fn has_file(above: &Path, name: &str) -> bool {
    above.join(name).is_file()
}

fn folder(named: Option<&Path>, roots: &[PathBuf]) -> Result<PathBuf, String> {
    let root = roots.first().cloned().unwrap_or_default();
    let folder = named.map_or(root.clone(), |named| root.join(named));
    if folder.is_dir() { Ok(folder) } else { Err(format!("its cwd {} is not a directory", folder.display())) }
}
