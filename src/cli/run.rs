//! Implements `modegate run -- COMMAND…`, which runs a terminal program under a mode.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
pub(super) use program::{HostDescriptor, host, run, take_host};

use super::wrap::ProgramLimits;
use crate::config::Flags;
use crate::config::environment::Environment;

#[cfg(target_os = "linux")]
mod program;

/// Where the program of `modegate run` runs.
pub(super) enum Hosting {
    /// It ran in a terminal of its own, and has ended.
    Ended(ExitCode),
    /// It will run in this process's terminal.
    Here,
}

const PLAN: &str = "plan";

/// Modegate itself failed, not the command.
const FAILED: u8 = 125;

#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// Mode of the program; the same option as before `run`
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Limit the program to what this mode permits; the same option as before `run`
    #[arg(long, value_name = "MODE")]
    max_mode: Option<String>,
    #[command(flatten)]
    limits: ProgramLimits,
    /// Key that opens the panel: ctrl- and a letter or one of \ ] ^ _ [default: `run.key` in config.yaml]
    #[arg(long, value_name = "KEY", conflicts_with = "no_key")]
    key: Option<String>,
    /// Leave all keys to the program
    #[arg(long)]
    no_key: bool,
    /// Effect of a question in the program's terminal: open the panel, or ring the bell [default: `run.questions` in config.yaml]
    #[arg(long, value_enum, value_name = "SIGNAL")]
    questions: Option<QuestionOption>,
    /// Leave the title of the window to the program
    #[arg(long)]
    no_title: bool,
    /// Print no line at the start and at the end, and none about the sandbox
    #[arg(long)]
    quiet: bool,
    /// Command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl RunArguments {
    /// An agent's login, which writes its own state and changes nothing else.
    pub(super) fn of_login(limits: ProgramLimits, command: Vec<String>) -> Self {
        Self {
            mode: Some(PLAN.to_owned()),
            max_mode: None,
            limits,
            key: None,
            no_key: false,
            questions: None,
            no_title: true,
            quiet: true,
            command,
        }
    }
}

pub(super) struct ProgramRun {
    pub arguments: RunArguments,
    pub flags: Flags,
    pub environment: Environment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum QuestionOption {
    /// Open the panel over the program
    Panel,
    /// Ring the bell; the key opens the panel
    Bell,
}

#[cfg(not(target_os = "linux"))]
mod program {
    use std::convert::Infallible;
    use std::ffi::OsString;
    use std::io::{self, Write};
    use std::process::ExitCode;

    use tokio_util::sync::CancellationToken;

    use super::{FAILED, Hosting, ProgramRun, RunArguments};

    pub(in crate::cli) type HostDescriptor = Infallible;

    pub(in crate::cli) fn take_host(
        _: &mut Vec<OsString>,
        _: &io::Stdin,
        _: &io::Stdout,
    ) -> Result<Option<HostDescriptor>, ExitCode> {
        Ok(None)
    }

    pub(in crate::cli) fn host(_: &[OsString], _: &RunArguments, _: &io::Stdin, _: &io::Stdout) -> Hosting {
        Hosting::Here
    }

    pub(in crate::cli) async fn run(
        _: ProgramRun,
        _: Option<HostDescriptor>,
        mut errors: impl Write,
        _: CancellationToken,
    ) -> anyhow::Result<ExitCode> {
        writeln!(errors, "modegate: `modegate run` needs the sandbox of Linux")?;
        Ok(ExitCode::from(FAILED))
    }
}
