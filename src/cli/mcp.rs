//! Implements `modegate mcp`: logins at MCP servers over HTTP.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Subcommand;
use tokio::sync::mpsc;

use super::{CliStreams, InputKind};
use crate::config::environment::Environment;
use crate::config::policies::Policies;
use crate::config::{self, Flags, managed_file};
use crate::managed_policy::BY_POLICY;
use crate::server::ServerDefinition;
use crate::text::visible;
use crate::tool::mcp::{LoginOptions, Logins};

#[derive(Debug, Subcommand)]
pub(super) enum McpAction {
    /// List your servers and whether you are logged in
    List,
    /// Log in at a server over HTTP (OAuth): prints an address to open in a browser
    Login {
        /// Name of a server in your modes.yaml, or the address of another
        server: String,
        /// Right to ask for; may be repeated [default: those that the server names]
        #[arg(long, value_name = "SCOPE")]
        scope: Vec<String>,
        /// Id of a client registered there, or the https address of a client id metadata document [default: register one]
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        /// Port on this machine for the browser's answer [default: any]
        #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
    /// Remove the stored login at a server
    Logout {
        /// Name of a server in your modes.yaml, or the address of another
        server: String,
    },
}

pub(super) async fn run(
    action: McpAction,
    flags: &Flags,
    environment: &Environment,
    streams: CliStreams<impl Read + Send + 'static, impl Write, impl Write>,
) -> anyhow::Result<ExitCode> {
    let CliStreams { input, input_kind, mut output, mut errors } = streams;
    let cwd = config::real_working_folder(flags)?;
    let servers = servers(environment, &cwd);
    let logins = config::logins(environment);
    match action {
        McpAction::List => list(&servers, &logins, output)?,
        McpAction::Login { server, scope, client_id, port } => {
            let url = address(&servers, &server)?;
            let scopes = scope.iter().flat_map(|scope| scope.split_whitespace()).map(str::to_owned).collect();
            if !managed_file::limits_everywhere().allows_login(&url) {
                bail!("no login at {}, {BY_POLICY}", visible(&server));
            }
            let options = LoginOptions { scopes, client_id, port };
            let pasted = lines(input, input_kind);
            let is_person = input_kind == InputKind::Terminal;
            let mut page_result: std::io::Result<()> = Ok(());
            let show = |page: &str| page_result = show_page(page, is_person, &mut errors);
            let done = logins.log_in(&url, &options, &Arc::default(), show, pasted).await;
            page_result?;
            if let Err(reason) = done {
                bail!("no login at {}: {}", visible(&server), visible(&reason));
            }
            writeln!(output, "Logged in at {}.", visible(&server))?;
        }
        McpAction::Logout { server } => {
            let url = address(&servers, &server)?;
            if logins.remove(&url).map_err(anyhow::Error::msg)? {
                writeln!(output, "Removed the login at {}.", visible(&server))?;
                writeln!(errors, "modegate: the server may accept the token until it expires")?;
            } else {
                writeln!(output, "There is no login at {}.", visible(&server))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn servers(environment: &Environment, cwd: &Path) -> BTreeMap<String, ServerDefinition> {
    Policies::new(environment, None, false).load(cwd).layers.servers
}

fn show_page(page: &str, is_person: bool, errors: &mut impl Write) -> std::io::Result<()> {
    writeln!(errors, "Open this address in a browser, and log in there:\n\n{}\n", visible(page))?;
    if is_person {
        writeln!(
            errors,
            "If the browser runs on another computer, paste the address at which it ends, and press Enter."
        )?;
    }
    errors.flush()
}

/// The address of a server by its name, or `server` if it is an address itself.
fn address(servers: &BTreeMap<String, ServerDefinition>, server: &str) -> anyhow::Result<String> {
    if server.starts_with("https://") || server.starts_with("http://") {
        return Ok(server.to_owned());
    }
    let definition = servers
        .get(server)
        .with_context(|| format!("there is no server {server:?}: `modegate mcp list` lists them"))?;
    match &definition.url {
        Some(url) => Ok(url.clone()),
        None if definition.is_for_client() => {
            bail!("{server:?} is a server of your editor: give its address instead of its name")
        }
        None => bail!("{server:?} is a program: only servers with a `url` have a login"),
    }
}

fn list(
    servers: &BTreeMap<String, ServerDefinition>,
    logins: &Logins,
    mut output: impl Write,
) -> anyhow::Result<()> {
    let mut others = logins.list().map_err(anyhow::Error::msg)?;
    for (name, definition) in servers {
        let Some(url) = &definition.url else {
            let kind = if definition.is_for_client() { "of the editor" } else { "program" };
            writeln!(output, "{:20} {kind}", visible(name))?;
            continue;
        };
        let login = others.iter().position(|login| login.url() == url).map(|at| others.remove(at));
        let has_key = definition.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        let state = match login {
            _ if has_key => "key in headers".to_owned(),
            Some(login) if login.is_usable() => logged_in(login.scopes()),
            Some(_) => "login refused; log in again".to_owned(),
            None => "no login".to_owned(),
        };
        writeln!(output, "{:20} {state}", visible(name))?;
    }
    for login in &others {
        let url = login.url().split(['?', '#']).next().unwrap_or_default();
        writeln!(output, "{:20} {}", visible(url), logged_in(login.scopes()))?;
    }
    if servers.is_empty() && others.is_empty() {
        writeln!(output, "There are no servers in your modes.yaml, and no logins.")?;
    }
    Ok(())
}

fn logged_in(scopes: &[String]) -> String {
    if scopes.is_empty() { "logged in".into() } else { format!("logged in ({})", visible(&scopes.join(" "))) }
}

/// Lines that a person types, read on a thread, which a blocking read keeps until the process ends. Ends at once if the
/// input is no terminal.
fn lines(input: impl Read + Send + 'static, kind: InputKind) -> mpsc::Receiver<String> {
    // A person pastes one address.
    let (sender, lines) = mpsc::channel(1);
    if kind == InputKind::Terminal {
        std::thread::spawn(move || {
            for line in BufReader::new(input).lines().map_while(Result::ok) {
                if !line.trim().is_empty() && sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
    }
    lines
}
