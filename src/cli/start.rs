//! The first step of a process: its arguments, and for `modegate run` on a terminal the process that goes on with them.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::{Cli, CliCommand, run};

/// The next step after the arguments were read.
pub enum CliStart {
    Continue(Box<Cli>),
    /// The program of `modegate run` has ended in a terminal of its own, or could not begin there.
    Ended(ExitCode),
}

impl Cli {
    /// Parses the arguments of the process. For `modegate run` on a terminal, starts the process that goes on with
    /// them, and returns when that has ended.
    pub fn begin(mut arguments: Vec<OsString>, input: &io::Stdin, output: &io::Stdout) -> CliStart {
        let host = match run::take_host(&mut arguments, input, output) {
            Ok(host) => host,
            Err(code) => return CliStart::Ended(code),
        };
        let mut cli = Self::from_arguments(&arguments);
        if let Some(CliCommand::Wrap(wrap)) = &mut cli.command
            && let Some((limits, command)) = wrap.take_login()
        {
            cli.command = Some(CliCommand::Run(run::RunArguments::of_login(limits, command)));
        }
        let has_terminal = || input.is_terminal() && output.is_terminal();
        if let Some(CliCommand::Run(run)) = cli.command.as_ref().filter(|_| host.is_none() && has_terminal())
        {
            match run::host(&arguments, run, input, output) {
                run::Hosting::Ended(code) => return CliStart::Ended(code),
                run::Hosting::Here => {}
            }
        }
        cli.host = host;
        CliStart::Continue(Box::new(cli))
    }
}
