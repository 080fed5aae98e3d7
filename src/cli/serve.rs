//! Serves a client on the standard streams: an editor, or one that is played from a file.

use std::io::{BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::{Cli, InputKind, sessions};
use crate::agent::Agent;
use crate::client;
use crate::config::{Config, Runtime};
use crate::ids::Source;
use crate::otlp::Telemetry;
use crate::platform::AsDescriptor;
use crate::rpc::{self, RpcServer};
use crate::store::retention;
use crate::transcript::{lockstep, recorder};
use crate::transport::Transport;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ServeFlags {
    /// Delay each input line until the agent is ready for it [default if stdin is a file]
    #[arg(long)]
    pub(super) lockstep: bool,
}

pub(super) async fn run<I, O>(
    cli: &Cli,
    config: Config,
    input: BufReader<I>,
    input_kind: InputKind,
    output: O,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + AsDescriptor + Send + 'static,
    O: Write + AsDescriptor + Send + 'static,
{
    let (client, end) = client::channel();
    let mut transport = Transport::start(input, output).context("starting the transport")?;
    let is_lockstep = cli.serve.lockstep || input_kind == InputKind::File;
    let config = if is_lockstep { config.without_user_store() } else { config };
    if let Some(path) = &cli.record {
        let file = sessions::new_file(path).context("--record")?;
        transport = recorder::start(transport, file, &config.launch_options())
            .with_context(|| format!("--record {}", path.display()))?;
    }
    let (first, grace) = (config.first.clone(), config.eof_grace);
    let Runtime { context, host, determinism, retention: limits, telemetry } =
        config.into_runtime().context("starting the record")?;
    if determinism.is_none() && !context.store.is_in_memory() {
        tokio::spawn(retention::apply_while_idle(context.store.clone(), limits, || Source::real().now_ms()));
    }
    if is_lockstep || determinism.is_some() {
        transport = lockstep::start(transport, determinism);
    }
    let agent = Arc::new(Agent::new(context, host, client.clone(), first));
    let server = RpcServer { transport, agent, client, outgoing: end };
    // A task: the runtime wakes the future that it runs on its thread by a system call.
    tokio::spawn(rpc::serve(server, grace, stop)).await.context("serving the client")?;
    finish(telemetry).await;
    Ok(ExitCode::SUCCESS)
}

/// Sends what waits. The client may be gone, so the log names the lost records.
async fn finish(telemetry: Option<Telemetry>) {
    let lost = match telemetry {
        Some(telemetry) => telemetry.finish().await,
        None => None,
    };
    if let Some(lost) = lost {
        tracing::error!("{lost}");
    }
}
