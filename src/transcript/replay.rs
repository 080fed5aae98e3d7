//! `modegate replay`: plays a recorded client against this binary and shows where the output diverges.
//!
//! A transcript is `NAME.in.jsonl` with the expected bytes in `NAME.out.jsonl`. `NAME.model.jsonl` (a script
//! for the model) and `NAME.files` (the working directory) are optional. Recordings are normalised first. A
//! replay never runs where it was recorded and calls no provider unless the command line names one.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use super::compare::{self, TranscriptComparison};
use super::launch_options::{LaunchOptions, StoreKind};
use super::normalise::normalise;
use super::recording;
use crate::bounded_file;
use crate::platform::files::{copy_link, real_path};

const MAX_FILE: u64 = 1024 * 1024 * 1024;

/// Longest silence of an agent. A provider's model may think for minutes.
const SILENCE: Duration = Duration::from_mins(15);

const CHUNK: usize = 64 * 1024;

const OFFLINE: &str = "offline";

const SCRIPTED: &str = "scripted";

pub struct TranscriptReplay {
    pub binary: PathBuf,
    /// Folder for the working directories, which each replay creates and removes.
    pub scratch: PathBuf,
    /// Write the actual output as the expected output.
    pub update: bool,
    /// Initial working directory of recordings; empty if `None`.
    pub files: Option<PathBuf>,
    /// Override the options of recordings.
    pub options: LaunchOptions,
    pub environment: Vec<(String, OsString)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    pub played: usize,
    pub diverged: usize,
    /// Nothing was expected, so nothing was checked.
    pub unchecked: usize,
}

struct Transcript {
    name: String,
    input: String,
    expected: Expected,
    options: LaunchOptions,
    files: Option<PathBuf>,
}

enum Expected {
    Bytes { file: PathBuf, text: Option<String> },
    Messages { messages: Vec<Value>, model: String },
}

enum ReplayVerdict {
    Same,
    Reordered(usize),
    Updated,
    Unchecked(String),
    Diverged(String),
}

impl TranscriptReplay {
    /// # Errors
    /// Returns an error if `path` contains no transcript or a replay cannot run.
    pub fn run(&self, path: &Path, out: &mut impl Write) -> io::Result<ReplayOutcome> {
        let mut outcome = ReplayOutcome::default();
        let transcripts = self.find(path)?;
        if transcripts.is_empty() {
            let text = format!("{}: there is no NAME.in.jsonl", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        for transcript in &transcripts {
            let actual = self.play(transcript)?;
            outcome.played += 1;
            let name = &transcript.name;
            match self.check(transcript, &actual)? {
                ReplayVerdict::Same => writeln!(out, "ok       {name}")?,
                ReplayVerdict::Reordered(number) => writeln!(
                    out,
                    "ok       {name} (concurrent messages in another order, from line {number} on)"
                )?,
                ReplayVerdict::Updated => writeln!(out, "updated  {name}")?,
                ReplayVerdict::Unchecked(why) => {
                    outcome.unchecked += 1;
                    writeln!(out, "NOTHING  {name}: {why}: nothing was checked")?;
                }
                ReplayVerdict::Diverged(difference) => {
                    outcome.diverged += 1;
                    writeln!(out, "DIVERGED {name}\n{difference}")?;
                }
            }
        }
        // Fails if another process uses the folder.
        let _ = fs::remove_dir(&self.scratch);
        let ReplayOutcome { played, diverged, unchecked } = outcome;
        let nothing = if unchecked > 0 { format!(", {unchecked} unchecked") } else { String::new() };
        writeln!(out, "{played} transcripts, {diverged} diverged{nothing}")?;
        Ok(outcome)
    }

    fn check(&self, transcript: &Transcript, actual: &str) -> io::Result<ReplayVerdict> {
        let diverged = |difference: &dyn std::fmt::Display| ReplayVerdict::Diverged(difference.to_string());
        Ok(match &transcript.expected {
            Expected::Bytes { text: Some(text), .. } if text.is_empty() && actual.is_empty() => {
                ReplayVerdict::Unchecked("no lines are expected, and none came".into())
            }
            Expected::Bytes { text: Some(text), .. } if text == actual => ReplayVerdict::Same,
            Expected::Bytes { file, .. } if self.update => {
                fs::write(file, actual)?;
                ReplayVerdict::Updated
            }
            Expected::Bytes { text: Some(text), .. } => match compare::lines(text, actual) {
                Some(difference) => diverged(&difference),
                None => diverged(&"the lines are the same, but their line endings differ"),
            },
            Expected::Bytes { file, text: None } => {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                ReplayVerdict::Unchecked(format!("there is no {name} (--update writes it)"))
            }
            Expected::Messages { messages, .. } if messages.is_empty() => {
                ReplayVerdict::Unchecked("the recording has no expected lines".into())
            }
            Expected::Messages { messages, model } => {
                let actual: Vec<Value> = actual
                    .lines()
                    .map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line)))
                    .collect();
                let with_model = self.model_of(transcript)?.split(':').next() == Some(model.as_str());
                let (expected, actual) = (normalise(messages, with_model), normalise(&actual, with_model));
                match compare::conversations(&expected, &actual) {
                    TranscriptComparison::Same => ReplayVerdict::Same,
                    TranscriptComparison::Reordered(number) => ReplayVerdict::Reordered(number),
                    TranscriptComparison::Different(difference) => diverged(&difference),
                }
            }
        })
    }

    fn model_of(&self, transcript: &Transcript) -> io::Result<String> {
        if let Some(model) = &self.options.model {
            return Ok(model.clone());
        }
        match transcript.options.model.as_deref() {
            None | Some(OFFLINE) => Ok(OFFLINE.into()),
            Some(script) if script.starts_with("scripted:") => Ok(script.into()),
            Some(SCRIPTED) => Err(invalid(
                &transcript.name,
                "it was recorded with a script: name it with --model scripted:FILE",
            )),
            Some(provider) => Err(invalid(
                &transcript.name,
                &format!(
                    "it was recorded with {provider}, which a replay calls only if named: use --model scripted:FILE with \
                     replies of its kind, --model offline, or name a provider's model"
                ),
            )),
        }
    }

    fn play(&self, transcript: &Transcript) -> io::Result<String> {
        let cwd = self.scratch.join(&transcript.name);
        if cwd.exists() {
            fs::remove_dir_all(&cwd)?;
        }
        fs::create_dir_all(&cwd)?;
        let is_recording = matches!(transcript.expected, Expected::Messages { .. });
        if let Some(files) = transcript.files.as_ref().or(self.files.as_ref().filter(|_| is_recording)) {
            copy(files, &cwd)?;
        }
        let store = self.scratch.join(format!("{}.db", transcript.name));
        let LaunchOptions { mode, max_mode, agent, .. } = &self.options;
        let recorded = &transcript.options;
        let mut command = Command::new(&self.binary);
        command.current_dir(&cwd).arg("--deterministic").arg("--model").arg(self.model_of(transcript)?);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        match recorded.store {
            Some(StoreKind::File) => command.arg("--store").arg(&store),
            Some(StoreKind::Memory) | None => command.args(["--store", "memory"]),
        };
        for (flag, value) in [
            ("--mode", mode.as_ref().or(recorded.mode.as_ref())),
            ("--max-mode", max_mode.as_ref().or(recorded.max_mode.as_ref())),
            ("--agent", agent.as_ref().or(recorded.agent.as_ref())),
        ] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        if self.options.no_exit || recorded.no_exit {
            command.arg("--no-exit");
        } else if self.options.accept_all || recorded.accept_all {
            command.arg("--accept-all");
        }
        let mut subagent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = subagent.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let input = transcript.input.clone();
        // On another thread, because a long transcript fills both pipes.
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = output_of(&mut subagent)?;
        let status = subagent.wait()?;
        // The agent may exit early; only its output counts.
        let _ = writer.join();
        let Some(output) = output else {
            let text =
                format!("the agent was silent for {} minutes, so it was ended", SILENCE.as_secs() / 60);
            return Err(invalid(&transcript.name, &text));
        };
        if !status.success() {
            return Err(invalid(&transcript.name, &format!("the agent ended with {status}")));
        }
        fs::remove_dir_all(&cwd)?;
        if recorded.store == Some(StoreKind::File) {
            remove_store(&store)?;
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    fn find(&self, path: &Path) -> io::Result<Vec<Transcript>> {
        if path.is_file() {
            return Ok(vec![self.read(path)?]);
        }
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(".in.jsonl") {
                files.push(path);
            }
        }
        files.sort();
        files.iter().map(|path| self.read(path)).collect()
    }

    fn read(&self, path: &Path) -> io::Result<Transcript> {
        let text = text_of(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match recording::read(&text, &real_folder) {
            Some(Ok(_)) if self.update => Err(invalid(
                &name,
                "--update writes what transcripts expect; a recording stays as it was made",
            )),
            Some(Ok(recording)) => {
                let model = recording.options.model.clone().unwrap_or_else(|| OFFLINE.into());
                Ok(Transcript {
                    name,
                    input: recording.input,
                    expected: Expected::Messages { messages: recording.expected, model },
                    options: recording.options,
                    files: None,
                })
            }
            Some(Err(error)) => Err(invalid(&name, &error)),
            None => match name.strip_suffix(".in.jsonl") {
                Some(stem) if !text.trim().is_empty() => written(path, stem, text),
                Some(_) => Err(invalid(&name, "the file is empty: there is nothing to play")),
                None if text.trim().is_empty() => {
                    Err(invalid(&name, "the file is empty: it is no recording (--record FILE makes one)"))
                }
                None => Err(invalid(
                    &name,
                    "no recording: its first line is no header; a transcript is called NAME.in.jsonl",
                )),
            },
        }
    }
}

/// Reads the whole output of an agent. `None`, and the agent is killed, if it writes nothing for [`SILENCE`].
fn output_of(agent: &mut Child) -> io::Result<Option<Vec<u8>>> {
    let mut stdout = agent.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // As many as the pipe gives.
    let (chunks, received) = channel();
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        while let Ok(length @ 1..) = stdout.read(&mut chunk) {
            if chunks.send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut output = Vec::new();
    loop {
        match received.recv_timeout(SILENCE) {
            Ok(chunk) => output.extend(chunk),
            Err(RecvTimeoutError::Disconnected) => return Ok(Some(output)),
            Err(RecvTimeoutError::Timeout) => {
                agent.kill()?;
                return Ok(None);
            }
        }
    }
}

/// `None` if the folder does not exist on this machine.
fn real_folder(folder: &str) -> Option<String> {
    Some(real_path(folder).ok()?.to_str()?.to_owned())
}

/// # Errors
/// Returns an error that names the file, if it cannot be read or has more than 1 GiB.
pub fn text_of(path: &Path) -> io::Result<String> {
    let text = bounded_file::read_own_text(path, MAX_FILE);
    text.map_err(|error| io::Error::other(format!("{} {error}", path.display())))
}

fn written(path: &Path, stem: &str, input: String) -> io::Result<Transcript> {
    let beside = |ending: &str| path.with_file_name(format!("{stem}.{ending}"));
    let file = beside("out.jsonl");
    let text = existing(file.clone()).map(|file| text_of(&file)).transpose()?;
    let script = existing(beside("model.jsonl")).map(real_path).transpose()?;
    let model = script.map(|script| format!("{SCRIPTED}:{}", script.display()));
    Ok(Transcript {
        name: stem.to_owned(),
        input,
        expected: Expected::Bytes { file, text },
        options: LaunchOptions { model, ..LaunchOptions::default() },
        files: existing(beside("files")),
    })
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.exists().then_some(path)
}

fn invalid(name: &str, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {text}"))
}

fn remove_store(store: &Path) -> io::Result<()> {
    let Some((folder, name)) = store.parent().zip(store.file_name()) else { return Ok(()) };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    Ok(())
}

/// Copies links as links, which lead where the originals lead.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        } else if kind.is_symlink() {
            copy_link(&entry.path(), &target)?;
        } else {
            let text = format!("{} is neither a file nor a folder nor a link", entry.path().display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    }
    Ok(())
}
