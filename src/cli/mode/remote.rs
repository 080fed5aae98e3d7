//! A terminal that controls a running program, on Linux.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

use super::ModeArguments;
use crate::config::environment::Environment;
use crate::terminal_run::control::{self, Controller, Order, TerminalQuestion, TerminalReport};
use crate::terminal_run::short;

/// Time in which a running program tells its state.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);

/// The folder of the sockets of running programs.
pub(in crate::cli) fn sockets(environment: &Environment) -> anyhow::Result<PathBuf> {
    let data = environment.data_folder.as_ref();
    let data = data.context("there is no home directory, where other terminals could find the program")?;
    Ok(data.join("run"))
}

pub(in crate::cli) async fn run(
    arguments: ModeArguments,
    environment: &Environment,
    input: impl Read + Send + 'static,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let folder = sockets(environment)?;
    let ModeArguments { session, mode, json } = arguments;
    let running = running(&folder).await?;
    if json && mode.is_none() && session.is_none() {
        for program in &running {
            writeln!(output, "{}", program.json()?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (session, mode) = choose(&running, session, mode)?;
    let mut controller =
        Controller::connect(&folder, &session).await.with_context(|| format!("session {session}"))?;
    let Some(mode) = mode else {
        if json {
            if let Some(program) = running.iter().find(|program| program.session == session) {
                writeln!(output, "{}", program.json()?)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let attached = Attached { controller, output, questions: Vec::new(), keys: 1, shown_at: None };
        return attached.follow(input).await;
    };
    controller.send(&Order::SetMode(mode)).await?;
    while let Some(report) = controller.next().await? {
        match report {
            TerminalReport::Mode(mode) => {
                if json {
                    let program = running.into_iter().find(|program| program.session == session);
                    if let Some(program) = program {
                        writeln!(output, "{}", RunningProgram { mode, ..program }.json()?)?;
                    }
                } else {
                    writeln!(output, "{mode}")?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            TerminalReport::Unconfirmed(mode) => bail!("{}", unconfirmed(&mode)),
            TerminalReport::Refused(reason) => bail!("{reason}"),
            TerminalReport::State { .. }
            | TerminalReport::Asked(_)
            | TerminalReport::Closed(_)
            | TerminalReport::Notice(_)
            | TerminalReport::Refusal(_)
            | TerminalReport::Changes(_)
            | TerminalReport::Undone { .. }
            | TerminalReport::HostAllowed(_)
            | TerminalReport::Message(_)
            | TerminalReport::Stopped
            | TerminalReport::Continued
            | TerminalReport::ContinueDone
            | TerminalReport::Ended => {}
        }
    }
    bail!("the program has ended")
}

fn unconfirmed(mode: &str) -> String {
    format!(
        "The change to {mode} mode is not confirmed: a process of the program may still write. End the program, or set the \
         mode again"
    )
}

/// A line of `modegate mode --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct RunningProgram {
    session: String,
    program: String,
    folder: String,
    mode: String,
    /// Ids of the modes that the session may switch to.
    modes: Vec<String>,
    /// Open questions.
    questions: Vec<TerminalQuestion>,
}

impl RunningProgram {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// The programs that run now. Fails if they refuse this process.
async fn running(folder: &Path) -> anyhow::Result<Vec<RunningProgram>> {
    let (mut programs, mut refusal) = (Vec::new(), None);
    for session in control::running(folder) {
        match tokio::time::timeout(STATE_TIMEOUT, state(folder, &session)).await {
            Ok(Ok(Some(Ok(program)))) => programs.push(program),
            Ok(Ok(Some(Err(reason)))) => refusal = Some(reason),
            // The program has just ended, or does not answer.
            Ok(Ok(None) | Err(_)) | Err(_) => {}
        }
    }
    match refusal.filter(|_| programs.is_empty()) {
        Some(reason) => bail!("{reason}"),
        None => Ok(programs),
    }
}

/// The error is why the program refuses this process. `None` if it has just ended.
async fn state(folder: &Path, session: &str) -> std::io::Result<Option<Result<RunningProgram, String>>> {
    let mut controller = Controller::connect(folder, session).await?;
    let (session, program, folder, mode, modes, open_questions) = match controller.next().await? {
        Some(TerminalReport::State { session, program, folder, mode, modes, open_questions, .. }) => {
            (session, program, folder, mode, modes, open_questions)
        }
        Some(TerminalReport::Refused(reason)) => return Ok(Some(Err(reason))),
        _ => return Ok(None),
    };
    let mut questions = Vec::new();
    while questions.len() < open_questions
        && let Some(TerminalReport::Asked(question)) = controller.next().await?
    {
        questions.push(question);
    }
    Ok(Some(Ok(RunningProgram { session, program, folder, mode, modes, questions })))
}

/// Returns the session and the mode that the arguments mean. A single argument is a mode if it is no running session.
fn choose(
    running: &[RunningProgram],
    part: Option<String>,
    mode: Option<String>,
) -> anyhow::Result<(String, Option<String>)> {
    let matches = |part: &str| running.iter().filter(|program| program.session.ends_with(part)).count();
    let (part, mode) = match (part, mode) {
        (Some(only), None) if matches(&only) == 0 && running.len() == 1 => (None, Some(only)),
        arguments => arguments,
    };
    let mut sessions =
        running.iter().filter(|program| part.as_ref().is_none_or(|part| program.session.ends_with(part)));
    let list = running.iter().map(|program| {
        format!(
            "{} ({} in {}, {} mode)",
            short(&program.session),
            program.program,
            program.folder,
            program.mode
        )
    });
    let list = list.collect::<Vec<_>>().join(", ");
    match (sessions.next(), sessions.next(), part) {
        (Some(program), None, _) => Ok((program.session.clone(), mode)),
        (None, _, Some(part)) if !list.is_empty() => {
            bail!("no program of `modegate run` runs in the session {part:?}: running are {list}")
        }
        (None, ..) => bail!(
            "no program of `modegate run` is running, whose mode could change; for a session: modegate sessions set-mode; \
             for a list of modes: modegate modes list"
        ),
        _ => bail!("several programs are running: name one of the sessions {list}"),
    }
}

/// A terminal that follows a program.
struct Attached<W> {
    controller: Controller,
    output: W,
    /// Open questions, the one that is shown first.
    questions: Vec<TerminalQuestion>,
    /// The number of the first answer to the question that is shown. No number stands for two answers, so one that was
    /// meant for another question counts for none.
    keys: usize,
    shown_at: Option<Instant>,
}

/// A line that comes sooner after a question appeared was not typed for the question.
const READING_TIME: Duration = Duration::from_secs(1);

impl<W: Write> Attached<W> {
    async fn follow(mut self, input: impl Read + Send + 'static) -> anyhow::Result<ExitCode> {
        // The state comes first, also if the input has ended.
        match self.controller.next().await? {
            Some(TerminalReport::Refused(reason)) => bail!("{reason}"),
            Some(state) => self.report(state)?,
            None => {}
        }
        let mut lines = lines(input);
        loop {
            tokio::select! {
                report = self.controller.next() => {
                    let Some(report) = report? else { break };
                    if report == TerminalReport::Ended {
                        break;
                    }
                    self.report(report)?;
                }
                line = lines.recv() => {
                    let Some(line) = line else { return Ok(ExitCode::SUCCESS) };
                    if let Some(order) = self.order(line.trim(), Instant::now())? {
                        self.controller.send(&order).await?;
                    }
                }
            }
        }
        writeln!(self.output, "The program has ended.")?;
        Ok(ExitCode::SUCCESS)
    }

    fn report(&mut self, report: TerminalReport) -> std::io::Result<()> {
        match report {
            TerminalReport::State { session, program, folder, mode, is_confirmed, modes, .. } => {
                if is_confirmed {
                    writeln!(self.output, "{program} runs in {mode} mode in {folder} (session {session}).")?;
                } else {
                    writeln!(
                        self.output,
                        "{program} runs in {folder} (session {session}). {}.",
                        unconfirmed(&mode)
                    )?;
                }
                let modes = modes.join(", ");
                writeln!(
                    self.output,
                    "Type a mode to change it: {modes}.\nCtrl-C stops following; the program keeps running."
                )
            }
            TerminalReport::Mode(mode) => writeln!(self.output, "The mode is {mode}."),
            TerminalReport::Unconfirmed(mode) => writeln!(self.output, "{}.", unconfirmed(&mode)),
            TerminalReport::Refused(reason) => writeln!(self.output, "Refused: {reason}."),
            TerminalReport::Notice(text) => writeln!(self.output, "{text}"),
            TerminalReport::Asked(question) => {
                self.questions.push(question);
                if self.questions.len() == 1 { self.show() } else { Ok(()) }
            }
            TerminalReport::Closed(number) => {
                let first_question = self.questions.first().filter(|shown| shown.number == number);
                let Some(count) = first_question.map(|shown| shown.options.len()) else {
                    self.questions.retain(|question| question.number != number);
                    return Ok(());
                };
                self.questions.remove(0);
                self.keys += count;
                self.show()
            }
            TerminalReport::Stopped => writeln!(self.output, "The program is stopped."),
            TerminalReport::Continued => writeln!(self.output, "The program continues."),
            TerminalReport::Message(_)
            | TerminalReport::Ended
            | TerminalReport::ContinueDone
            | TerminalReport::Refusal(_)
            | TerminalReport::Changes(_)
            | TerminalReport::Undone { .. }
            | TerminalReport::HostAllowed(_) => Ok(()),
        }
    }

    fn show(&mut self) -> std::io::Result<()> {
        let Some(question) = self.questions.first() else { return Ok(()) };
        writeln!(self.output, "{}?", question.title)?;
        for line in question.text.lines() {
            writeln!(self.output, "  | {line}")?;
        }
        for (index, choice) in question.options.iter().enumerate() {
            writeln!(self.output, "  {} {}", self.keys + index, choice.name)?;
        }
        self.shown_at = Some(Instant::now());
        writeln!(self.output, "Type the number of an answer.")?;
        self.output.flush()
    }

    /// Reads a line of the user: the number of an answer, or a mode.
    fn order(&mut self, line: &str, now: Instant) -> std::io::Result<Option<Order>> {
        if line.is_empty() {
            return Ok(None);
        }
        let Ok(choice) = line.parse::<usize>() else { return Ok(Some(Order::SetMode(line.to_owned()))) };
        let Some(question) = self.questions.first() else {
            writeln!(self.output, "There is no question.")?;
            return Ok(None);
        };
        let Some(option) = choice.checked_sub(self.keys).and_then(|index| question.options.get(index)) else {
            let last = self.keys + question.options.len() - 1;
            writeln!(
                self.output,
                "Type a number from {} to {last}, for the question that is shown.",
                self.keys
            )?;
            return Ok(None);
        };
        if self.shown_at.is_none_or(|shown_at| now.saturating_duration_since(shown_at) < READING_TIME) {
            writeln!(self.output, "The question has just appeared. Read it, and type the number again.")?;
            return Ok(None);
        }
        Ok(Some(Order::Answer { number: question.number, option: option.id.clone() }))
    }
}

/// Reads lines on a thread, which a blocking read keeps until the process ends.
fn lines(input: impl Read + Send + 'static) -> mpsc::UnboundedReceiver<String> {
    let (to, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal_run::control::ControlSocket;

    fn state() -> TerminalReport {
        TerminalReport::State {
            session: "abc".into(),
            program: "vim".into(),
            folder: "/work".into(),
            mode: "ask".into(),
            limit: None,
            is_confirmed: true,
            modes: Vec::new(),
            mode_descriptions: Vec::new(),
            is_read_only: false,
            open_questions: 0,
        }
    }

    fn program(session: &str) -> RunningProgram {
        let text = String::from;
        let (program, folder, mode) = (text("vim"), text("/work"), text("ask"));
        RunningProgram {
            session: session.into(),
            program,
            folder,
            mode,
            modes: Vec::new(),
            questions: Vec::new(),
        }
    }

    #[test]
    fn single_argument_is_a_session_or_a_mode() {
        let choose = |running: &[&str], part: Option<&str>, mode: Option<&str>| {
            let running: Vec<_> = running.iter().map(|session| program(session)).collect();
            super::choose(&running, part.map(Into::into), mode.map(Into::into))
                .map_err(|error| error.to_string())
        };
        let one = |mode: Option<&str>| Ok(("s-abc".to_owned(), mode.map(str::to_owned)));
        assert_eq!(choose(&["s-abc"], None, None), one(None));
        assert_eq!(choose(&["s-abc"], Some("abc"), None), one(None));
        assert_eq!(choose(&["s-abc"], Some("plan"), None), one(Some("plan")));
        assert_eq!(choose(&["s-abc", "s-def"], Some("abc"), Some("plan")), one(Some("plan")));
        let list = "abc (vim in /work, ask mode), s-def (vim in /work, ask mode)";
        let several = choose(&["s-abc", "s-def"], None, None).unwrap_err();
        assert_eq!(several, format!("several programs are running: name one of the sessions s-{list}"));
        assert!(
            choose(&["s-abc", "s-def"], Some("plan"), None).unwrap_err().contains("in the session \"plan\"")
        );
        assert!(
            choose(&[], Some("list"), None)
                .unwrap_err()
                .ends_with("for a list of modes: modegate modes list")
        );
    }

    /// Returns what a mode change prints, and its error.
    async fn change(answer: fn(String) -> TerminalReport) -> (String, Option<String>) {
        let dir = tempfile::tempdir().unwrap();
        let mut environment = Environment::default();
        environment.data_folder = Some(dir.path().to_owned());
        let mut socket = ControlSocket::open(&sockets(&environment).unwrap(), "abc").unwrap();
        let serve = async {
            while let Some((terminal, order)) = socket.next().await {
                match order {
                    Some(Order::SetMode(mode)) => socket.send(terminal, answer(mode)),
                    Some(_) => {}
                    None => socket.send(terminal, state()),
                }
            }
        };
        let arguments = ModeArguments { session: Some("plan".into()), mode: None, json: false };
        let mut output = Vec::new();
        let done = tokio::select! {
            () = serve => unreachable!("the socket is open"),
            done = run(arguments, &environment, std::io::empty(), &mut output) => done,
        };
        (String::from_utf8(output).unwrap(), done.err().map(|error| error.to_string()))
    }

    #[tokio::test]
    async fn mode_is_printed_only_if_it_is_confirmed() {
        assert_eq!(change(TerminalReport::Mode).await, ("plan\n".to_owned(), None));
        let (output, error) = change(TerminalReport::Unconfirmed).await;
        assert_eq!(output, "");
        assert!(error.unwrap().starts_with("The change to plan mode is not confirmed"));
    }
}
