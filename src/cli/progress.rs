//! How a headless run shows its progress: options, and the terminal.

use crate::headless::{ProgressTerminal, Verbosity};

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ProgressFlags {
    /// Print only the answer, errors, and the denials that decide the exit code [with -p]
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print also the arguments and results of calls, and the tokens of each request [with -p]
    #[arg(short, long)]
    verbose: bool,
}

impl ProgressFlags {
    pub(super) fn is_given(self) -> bool {
        self.quiet || self.verbose
    }

    pub(super) fn is_quiet(self) -> bool {
        self.quiet
    }

    pub(super) fn verbosity(self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub terminal: Option<ProgressTerminal>,
    pub verbosity: Verbosity,
}
