//! The command line: clap types, and one short function per way of running.

use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::config::environment::Environment;
use crate::config::{Config, Flags};
use crate::headless::{HeadlessPrompt, ProgressTerminal};
use crate::platform::AsDescriptor;
use limit_flags::LimitFlags;
pub use manual::VARIABLES;
use piped::Piped;
use progress::{Progress, ProgressFlags};
use prompt::{PromptRun, Which};
pub use start::CliStart;

mod agents;
mod audit;
mod confirmation;
mod doctor;
mod from_plan;
mod generated;
mod hints;
mod limit_flags;
mod managed_policy;
mod manual;
mod mcp;
mod memories;
mod mode;
mod mode_import;
mod modes;
mod permissions;
mod piped;
mod progress;
mod prompt;
mod replay;
mod report;
mod run;
mod schemas;
mod scripts;
mod serve;
mod sessions;
mod setup;
mod skills;
mod start;
mod store;
mod trust;
mod unused;
mod values;
mod wrap;

/// Wrong usage, which ends the process with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// Keeps all causes in the message.
    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    fn of(error: anyhow::Error) -> anyhow::Error {
        Self(format!("{error:#}")).into()
    }
}

/// An ACP coding agent whose modes hold.
///
/// Without -p, modegate speaks the Agent Client Protocol over stdin and stdout, as editors expect. With -p, it runs one
/// prompt and prints the answer.
#[derive(Debug, Parser)]
#[command(name = "modegate", version = env!("MODEGATE_VERSION"), after_help = EXIT_CODES)]
#[allow(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
    /// Run one prompt and exit; piped text is appended to it, and `-` reads the whole prompt from stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Mode of the session: ask, plan, code or one of your own [default: ask]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Agent of new sessions: general, explore or one of your own [default: general]
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// Limit all sessions to what this mode permits, whatever their own mode
    #[arg(long, value_name = "MODE")]
    max_mode: Option<String>,
    /// Keep the model from proposing to leave a mode, so that only you change modes
    #[arg(long)]
    no_exit: bool,
    /// Let the client accept questions about leaving a mode without asking you
    #[arg(long, conflicts_with = "no_exit")]
    accept_all: bool,
    /// Model: PROVIDER/NAME, offline or scripted:FILE [default: the provider with a key, else offline; with -p, offline only in read-only modes]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Continue the most recent session in this directory [with -p]
    #[arg(long = "continue", conflicts_with = "resume")]
    resume_latest: bool,
    /// Continue the session with this id; its last six characters are enough [with -p]
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// Working directory: of a headless prompt, or the one whose project counts [default: the current directory]
    #[arg(long, value_name = "DIR", global = true)]
    cwd: Option<PathBuf>,
    /// Output format of a headless prompt [default: text]
    #[arg(long, value_enum)]
    output: Option<OutputFormat>,
    /// Carry out this plan: a text, or the JSON result of a run in plan mode [like -p]
    #[arg(long, value_name = "FILE")]
    from_plan: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    progress: ProgressFlags,
    /// Session store: a file, or memory [default: a file in your data directory]
    #[arg(long, value_name = "PATH", global = true)]
    store: Option<String>,
    /// Record every protocol line with its time to this new file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    serve: serve::ServeFlags,
    /// Make the output reproducible; implies --lockstep
    #[arg(long)]
    deterministic: bool,
    /// Seconds that turns may continue after the end of the input [default: 1]
    #[arg(long, value_name = "SECONDS")]
    eof_grace: Option<f64>,
    #[arg(skip)]
    host: Option<run::HostDescriptor>,
    /// The terminal behind stderr, if there is one.
    #[arg(skip)]
    terminal: Option<ProgressTerminal>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Choose a model provider and store its key, readable by you alone
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Setup(setup::SetupArguments),
    /// List, show, check, explain and import modes, and list mode changes
    #[command(subcommand, after_help = FILE_CODES)]
    Modes(modes::ModesCommand),
    /// List, add and revoke permission rules
    #[command(subcommand, after_help = FILE_CODES, arg = unused::argument("store"))]
    Permissions(permissions::PermissionsCommand),
    /// List, show, export and delete sessions, change their mode, and undo turns
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Write a session as one page of HTML: modes, turns, calls with their decisions, changes and tokens
    Report(report::ReportArguments),
    /// Run a terminal program under a mode: modegate run --mode plan -- COMMAND
    #[command(after_help = RUN_CODES)]
    Run(run::RunArguments),
    /// Change the mode of a program of `modegate run` from another terminal, and answer its questions
    #[command(after_help = MODE_CODES, args = [unused::argument("cwd"), unused::argument("store")])]
    Mode(mode::ModeArguments),
    /// Run another ACP agent in an editor, under modes that hold: modegate wrap -- gemini --acp
    Wrap(wrap::WrapArguments),
    /// List, show and check agents
    #[command(subcommand, after_help = FILE_CODES, arg = unused::argument("store"))]
    Agents(agents::AgentsCommand),
    /// List, show and check skills: yours and the current project's
    #[command(subcommand, after_help = FILE_CODES, arg = unused::argument("store"))]
    Skills(skills::SkillsCommand),
    /// List and delete memories, which models keep about a directory
    #[command(subcommand)]
    Memories(memories::MemoriesCommand),
    /// List MCP servers, and log in and out at those over HTTP
    #[command(subcommand, arg = unused::argument("store"))]
    Mcp(mcp::McpAction),
    /// Trust a project's modes file in its current content, as if it were your own
    #[command(arg = unused::argument("store"))]
    Trust(trust::TrustArguments),
    /// Show, check and explain the policy of your organisation
    #[command(subcommand, after_help = FILE_CODES, arg = unused::argument("store"))]
    Policy(managed_policy::PolicyCommand),
    /// Verify a session's audit log and that each call was allowed
    #[command(after_help = AUDIT_CODES)]
    Audit(audit::AuditArguments),
    /// Check the session store, save what can be read of a damaged one, or set it aside
    #[command(subcommand, after_help = STORE_CODES, arg = unused::argument("cwd"))]
    Store(store::StoreAction),
    /// Check settings, keys, the session store, the kernel and commands
    #[command(after_help = DOCTOR_CODES)]
    Doctor(doctor::DoctorArguments),
    /// Print a JSON Schema of a file or of an output
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Schema(schemas::SchemaArguments),
    /// Print values of an option, for completion scripts
    #[command(name = "__values", hide = true)]
    Values {
        /// Kind of the values
        kind: values::ValueKind,
    },
    /// Print the completion script of a shell: modegate completions bash > ~/.local/share/bash-completion/completions/modegate
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: modegate man | man -l -
    #[command(args = [unused::argument("cwd"), unused::argument("store")])]
    Man,
    /// For client developers: play scripts to a client, as an agent with exact behaviour
    #[command(subcommand)]
    Scripts(scripts::ScriptsCommand),
    /// For client developers: replay transcripts and recordings, and show the first difference, or play a recorded agent to a client
    #[command(after_help = REPLAY_CODES, args = [unused::argument("cwd"), unused::argument("store")])]
    Replay(replay::ReplayArguments),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OutputFormat {
    /// Print the text of the answer
    Text,
    /// Print one JSON object at the end
    Json,
    /// Print one JSON object at the start, one per update and one at the end
    StreamJson,
}

impl Cli {
    /// Ends the process with a message if the arguments are invalid, or ask for help.
    fn from_arguments(arguments: &[OsString]) -> Self {
        let matches = Self::command().try_get_matches_from(arguments);
        let matches = matches.unwrap_or_else(|error| hints::exit(error, arguments));
        let cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| hints::exit(error, arguments));
        if let Some(message) = unused::option_of(&cli, &matches) {
            hints::exit(Self::command().error(ErrorKind::ArgumentConflict, message), arguments);
        }
        cli
    }

    /// Shows progress and colours on this terminal, as far as its user's environment wants them.
    pub fn show_progress_on(&mut self, terminal: ProgressTerminal) {
        self.terminal = Some(terminal);
    }

    /// Returns true if the process may speak with a client.
    pub fn may_serve(&self) -> bool {
        matches!(self.command, None | Some(CliCommand::Wrap(_) | CliCommand::Scripts(_)))
            && self.prompt.is_none()
            && self.from_plan.is_none()
            && self.output.is_none()
    }

    /// Returns true if a program shares the terminal, and the keys of its user that interrupt.
    pub fn shares_terminal(&self) -> bool {
        matches!(self.command, Some(CliCommand::Run(_)))
    }
}

/// Writes an error of Modegate to stderr.
pub fn write_error(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stderr(), "modegate: {text}")
}

const EXIT_CODES: &str = "Exit codes with -p: 0 done, 1 error, 2 usage, 3 denied (in plan: an empty answer), 4 step limit, 5 token limit, 6 timeout, 7 repeated calls, 8 checks failed, 9 a budget, 130 interrupted";

const FILE_CODES: &str = "Exit codes: 0 done, 1 error or a file that cannot be used, 2 usage";

const RUN_CODES: &str = "Exit codes: 2 usage, 125 error, 126 the command cannot be executed, 127 there is no such command; otherwise that of the command, or 128 and the number of the signal that ended it";

const MODE_CODES: &str = "Exit codes: 0 done, 1 error, 2 usage, 130 interrupted";

const AUDIT_CODES: &str = "Exit codes: 0 the record is valid, 1 error or a finding, 2 usage";

const STORE_CODES: &str = "Exit codes: 0 done or sound, 1 error or a damaged store, 2 usage";

const DOCTOR_CODES: &str = "Exit codes: 0 no fault found, 1 error or a failed check, 2 usage";

const REPLAY_CODES: &str =
    "Exit codes: 0 identical or played to the end, 1 error or a difference, 2 usage, 3 nothing to compare";

const ON_A_TERMINAL: &str =
    "modegate speaks the Agent Client Protocol with an editor; there is nothing to type here.

In an editor   set its agent command to: modegate
Headless       modegate --mode plan -p \"where is the retry logic?\"
More           modegate --help
";

const WRAPPED_ON_A_TERMINAL: &str =
    "modegate wrap speaks the Agent Client Protocol with an editor; there is nothing to type here.

In an editor   set its agent command to: modegate --mode plan wrap -- AGENT
Headless       modegate --mode plan -p \"where is the retry logic?\" wrap -- AGENT
To log in      run AGENT itself
More           modegate wrap --help
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    Terminal,
    File,
    Other,
}

pub struct CliStreams<I, O, E> {
    pub input: I,
    pub input_kind: InputKind,
    pub output: O,
    pub errors: E,
}

/// Cancelling `stop` ends the run immediately.
pub async fn run<I, O, E>(
    mut cli: Cli,
    environment: Environment,
    streams: CliStreams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + AsDescriptor + Send + 'static,
    O: Write + AsDescriptor + Send + 'static,
    E: Write,
{
    let CliStreams { input, input_kind, mut output, mut errors } = streams;
    warn_of_relative_home(&environment, &mut errors)?;
    match cli.command.take() {
        Some(CliCommand::Replay(arguments)) => {
            let streams = CliStreams { input, input_kind, output, errors };
            return replay::run(cli, arguments, &environment, streams, stop).await;
        }
        Some(CliCommand::Setup(arguments)) => {
            let streams = CliStreams { input, input_kind, output, errors };
            return setup::run(arguments, &environment, streams).await;
        }
        Some(CliCommand::Completions { shell }) => return generated::completions(shell, output),
        Some(CliCommand::Man) => return generated::man(output),
        Some(CliCommand::Schema(arguments)) => return schemas::run(&arguments, output),
        rest => cli.command = rest,
    }
    let mut flags = take_flags(&mut cli);
    match cli.command.take() {
        Some(CliCommand::Doctor(arguments)) => {
            return doctor::run(&arguments, &flags, &environment, output).await;
        }
        Some(CliCommand::Modes(ask)) => return modes::run(ask, &flags, &environment, output, errors).await,
        Some(CliCommand::Agents(ask)) => return agents::run(ask, &flags, &environment, output, errors),
        Some(CliCommand::Sessions(ask)) => {
            let streams = CliStreams { input, input_kind, output, errors };
            return sessions::run(ask, &flags, environment, streams).await;
        }
        Some(CliCommand::Store(ask)) => return store::run(ask, &flags, &environment, output),
        Some(CliCommand::Memories(ask)) => return memories::run(ask, &flags, &environment, output).await,
        Some(CliCommand::Skills(ask)) => return skills::run(ask, &flags, &environment, output, errors),
        Some(CliCommand::Mcp(action)) => {
            return mcp::run(action, &flags, &environment, CliStreams { input, input_kind, output, errors })
                .await;
        }
        Some(CliCommand::Values { kind }) => return values::run(kind, &flags, &environment, output).await,
        Some(CliCommand::Report(asked)) => return report::run(asked, &flags, &environment, output).await,
        Some(CliCommand::Audit(asked)) => return audit::run(asked, &flags, &environment, output).await,
        Some(CliCommand::Permissions(ask)) => return permissions::run(ask, &flags, &environment, output),
        Some(CliCommand::Policy(ask)) => return managed_policy::run(ask, &flags, &environment, output).await,
        Some(CliCommand::Trust(asked)) => {
            let ask = (input_kind == InputKind::Terminal).then_some(input);
            return trust::run(asked, &flags, &environment, ask, output);
        }
        Some(CliCommand::Run(arguments)) => {
            return run::run(run::ProgramRun { arguments, flags, environment }, cli.host, errors, stop).await;
        }
        Some(CliCommand::Mode(ask)) => return mode::run(ask, &environment, input, output, stop).await,
        Some(CliCommand::Scripts(action)) => {
            if let Some(code) = scripts::run(&action, &mut flags, &mut output)? {
                return Ok(code);
            }
        }
        Some(CliCommand::Wrap(arguments)) => {
            let ended = wrap::prepare(arguments, &mut flags, &environment, &mut output, &mut errors).await?;
            if let Some(code) = ended {
                return Ok(code);
            }
        }
        Some(
            CliCommand::Replay(_)
            | CliCommand::Setup(_)
            | CliCommand::Completions { .. }
            | CliCommand::Man
            | CliCommand::Schema(_),
        )
        | None => {}
    }
    prompt_or_serve(cli, flags, environment, CliStreams { input, input_kind, output, errors }, stop).await
}

/// Runs a headless prompt, or speaks with a client.
async fn prompt_or_serve(
    mut cli: Cli,
    flags: Flags,
    environment: Environment,
    streams: CliStreams<
        impl Read + AsDescriptor + Send + 'static,
        impl Write + AsDescriptor + Send + 'static,
        impl Write,
    >,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let CliStreams { input, input_kind, mut output, mut errors } = streams;
    let output_format = cli.output.unwrap_or(OutputFormat::Text);
    let mut input = BufReader::new(input);
    let prepared = Config::new(&flags, environment).map_err(UsageError::of).and_then(|config| {
        let is_read = prompt::prepare(&mut cli, &flags, &mut input, input_kind)?;
        Ok((config, is_read))
    });
    let (config, is_read) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return prompt::failed(error, output_format, &mut output),
    };
    match cli.prompt.take() {
        Some(text) => {
            let prompt = if is_read {
                piped::warn_of_command(&text, &mut errors)?;
                HeadlessPrompt { typed: String::new(), piped: Some(text) }
            } else if input_kind == InputKind::Terminal {
                HeadlessPrompt { typed: text, piped: None }
            } else {
                let errors: &mut dyn Write =
                    if cli.progress.is_quiet() { &mut std::io::sink() } else { &mut errors };
                HeadlessPrompt { typed: text, piped: read_piped(input, errors, &stop).await? }
            };
            let which = Which::take(&mut cli);
            let progress = Progress { terminal: cli.terminal, verbosity: cli.progress.verbosity() };
            let run = PromptRun { prompt, which, output_format, limits: cli.limits, progress };
            prompt::run(run, config, output, errors, stop).await
        }
        None if input_kind == InputKind::Terminal => {
            let text = if flags.wrapped.is_some() { WRAPPED_ON_A_TERMINAL } else { ON_A_TERMINAL };
            errors.write_all(text.as_bytes())?;
            Ok(ExitCode::from(2))
        }
        None => serve::run(&cli, config, input, input_kind, output, stop).await,
    }
}

fn warn_of_relative_home(environment: &Environment, errors: &mut impl Write) -> anyhow::Result<()> {
    if let Some(home) = &environment.relative_home {
        let home = home.display();
        writeln!(errors, "modegate: HOME is ignored, because \"{home}\" is not an absolute path")?;
    }
    Ok(())
}

fn usage_error(errors: &mut impl Write, message: &str) -> anyhow::Result<ExitCode> {
    writeln!(errors, "modegate: {message}")?;
    Ok(ExitCode::from(2))
}

fn take_flags(cli: &mut Cli) -> Flags {
    Flags {
        record: cli.record.clone(),
        wrapped: None,
        mode: cli.mode.take(),
        agent: cli.agent.take(),
        max_mode: cli.max_mode.take(),
        no_exit: cli.no_exit,
        accept_all: cli.accept_all,
        model: cli.model.take(),
        store: cli.store.take(),
        cwd: cli.cwd.take(),
        eof_grace: cli.eof_grace,
        deterministic: cli.deterministic,
    }
}

/// Returns the text to append to the prompt.
async fn read_piped(
    input: impl Read + Send + 'static,
    errors: &mut dyn Write,
    stop: &CancellationToken,
) -> anyhow::Result<Option<String>> {
    match piped::read(input, piped::WAIT, stop).await.context("reading what is piped to stdin")? {
        Piped::Text(text) => {
            writeln!(errors, "modegate: {} bytes from stdin are appended to the prompt", text.len())?;
            return Ok(Some(format!("\n\n{text}")));
        }
        Piped::Nothing => {}
        Piped::TimedOut => writeln!(
            errors,
            "modegate: nothing came from stdin within {} s, and it is still open: the prompt is used alone; with \
             `< /dev/null` there is no wait",
            piped::WAIT.as_secs()
        )?,
    }
    Ok(None)
}
