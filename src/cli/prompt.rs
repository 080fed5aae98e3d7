//! Runs one prompt without an editor, for `modegate -p`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::{LimitFlags, Output, sessions};
use crate::agent::Agent;
use crate::client;
use crate::config::{Config, HEADLESS_SERVER_TIMEOUT, Runtime};
use crate::headless::{self, Format, Job, Outcome, StoredTarget};

pub(super) enum Which {
    New,
    Newest,
    Stored(String),
}

/// Prints the JSON result of a run that did not start, and returns its error.
pub(super) fn failed(
    error: anyhow::Error,
    output_format: Output,
    output: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match output_format {
        // The output is the error.
        _ if error.is::<std::io::Error>() => {}
        Output::Text => {}
        Output::Json | Output::StreamJson => headless::print_failure(output, &format!("{error:#}"))?,
    }
    Err(error)
}

pub(super) async fn run<O: Write, E: Write>(
    prompt: (String, Which),
    (output_format, limits): (Output, LimitFlags),
    config: Config,
    mut output: O,
    errors: E,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let ended = run_prompt(prompt, (output_format, limits), config, &mut output, errors, stop).await;
    ended.or_else(|error| failed(error, output_format, &mut output))
}

async fn run_prompt<O: Write, E: Write>(
    (prompt, which): (String, Which),
    (output_format, limits): (Output, LimitFlags),
    config: Config,
    output: &mut O,
    mut errors: E,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let (client, end) = client::channel();
    let has_chosen_model = config.has_chosen_model();
    let (cwd, first) = (config.cwd.clone(), config.first.clone());
    let Runtime { mut context, host, .. } = config.into_runtime().context("starting the record")?;
    context.server_timeout = context.server_timeout.map(|_| HEADLESS_SERVER_TIMEOUT);
    context.max_steps = limits.max_steps;
    let stored = match which {
        Which::New => None,
        Which::Newest => Some(sessions::newest(&context.store, cwd.clone(), host.wraps.clone()).await?),
        Which::Stored(part) => Some(sessions::to_resume(&context.store, &part).await?),
    };
    let wanted_mode = first.mode.clone();
    let store = context.store.clone();
    let agent = Agent::new(context, host, client, first);
    let format = match output_format {
        Output::Text => Format::Text,
        Output::Json => Format::Json,
        Output::StreamJson => Format::StreamJson,
    };
    let limits = headless::Limits { max_tokens: limits.max_tokens, timeout: limits.timeout };
    let session = stored.map(|id| StoredTarget { id, mode: wanted_mode });
    let job = Job {
        cwd: &cwd,
        prompt,
        format,
        limits,
        session,
        has_chosen_model,
        is_stored: &|| !store.is_in_memory(),
    };
    let outcome = headless::run(&agent, end, job, output, &mut errors, stop).await?;
    Ok(ExitCode::from(match outcome {
        Outcome::Done => 0,
        Outcome::Failed => 1,
        Outcome::Denied => 3,
        Outcome::StepLimit => 4,
        Outcome::TokenLimit => 5,
        Outcome::TimedOut => 6,
        Outcome::Interrupted => 130,
    }))
}
