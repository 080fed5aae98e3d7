//! `modegate replay`: plays a client's side of a conversation against this binary and shows where it diverges.
//!
//! A transcript is `NAME.in.jsonl`, the client's lines, with `NAME.out.jsonl`, what is expected; beside them may stand
//! `NAME.model.jsonl`, a script for the model, and `NAME.files`, what the working directory holds. A file that was
//! made with `--record` is one, too; it is played in a directory of its own, never where it was recorded.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use similar::TextDiff;

use super::record::{VERSION, VERSION_KEY};

/// Where replays find their binary and put their working directories.
pub struct Replay {
    /// The binary to play against.
    pub binary: PathBuf,
    /// A folder for working directories; it is created and emptied.
    pub scratch: PathBuf,
    /// Write what came as what is expected.
    pub update: bool,
    /// What the working directory of a recording holds; nothing without it.
    pub files: Option<PathBuf>,
    /// Who answers in a recording; the embedded default without it.
    pub model: Option<String>,
}

/// A conversation to play.
struct Transcript {
    name: String,
    input: String,
    expected: String,
    /// Where the expectation is written when it is updated; recordings have none.
    output: Option<PathBuf>,
    model: Option<PathBuf>,
    files: Option<PathBuf>,
}

impl Replay {
    /// Replays a file or all of a folder; says how many diverged. Reports to `out`.
    pub fn run(&self, path: &Path, out: &mut impl Write) -> io::Result<usize> {
        let mut diverged = 0;
        let transcripts = find(path)?;
        if transcripts.is_empty() {
            let text = format!("{}: there is no NAME.in.jsonl", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        for transcript in &transcripts {
            let actual = self.play(transcript)?;
            if actual == transcript.expected && !actual.is_empty() {
                writeln!(out, "ok       {}", transcript.name)?;
            } else if let (true, Some(output)) = (self.update, &transcript.output) {
                fs::write(output, &actual)?;
                writeln!(out, "updated  {}", transcript.name)?;
            } else {
                diverged += 1;
                writeln!(
                    out,
                    "DIVERGED {}\n{}",
                    transcript.name,
                    first_difference(&transcript.expected, &actual)
                )?;
            }
        }
        // Empty by now; if not, somebody else uses it.
        let _ = fs::remove_dir(&self.scratch);
        writeln!(out, "{} transcripts, {diverged} diverged", transcripts.len())?;
        Ok(diverged)
    }

    fn play(&self, transcript: &Transcript) -> io::Result<String> {
        let cwd = self.scratch.join(&transcript.name);
        if cwd.exists() {
            fs::remove_dir_all(&cwd)?;
        }
        fs::create_dir_all(&cwd)?;
        if let Some(files) =
            transcript.files.as_ref().or(self.files.as_ref().filter(|_| transcript.output.is_none()))
        {
            copy(files, &cwd)?;
        }
        let mut command = Command::new(&self.binary);
        command.current_dir(&cwd).args(["--deterministic", "--store", "memory"]);
        if let Some(model) = &transcript.model {
            command.arg("--model").arg(format!("scripted:{}", fs::canonicalize(model)?.display()));
        } else if let (Some(model), None) = (&self.model, &transcript.output) {
            command.arg("--model").arg(model);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let input = transcript.input.clone();
        // Written beside the reading: a long transcript fills both pipes.
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        // The agent may end before it has read everything; what it said is what counts.
        let _ = writer.join();
        if !output.status.success() {
            let text = format!("{}: the agent ended with {}", transcript.name, output.status);
            return Err(io::Error::other(text));
        }
        fs::remove_dir_all(&cwd)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn find(path: &Path) -> io::Result<Vec<Transcript>> {
    if path.is_file() {
        return Ok(vec![read(path)?]);
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".in.jsonl") {
            files.push(path);
        }
    }
    files.sort();
    files.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> io::Result<Transcript> {
    let text = fs::read_to_string(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let header: Value = serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_default();
    if let Some(version) = header.get(VERSION_KEY) {
        if *version == VERSION {
            return Ok(recording(&name, &text));
        }
        let text = format!("{name}: a recording of version {version}; this one knows {VERSION}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let stem = name.strip_suffix(".in.jsonl").unwrap_or(&name).to_owned();
    let beside = |ending: &str| path.with_file_name(format!("{stem}.{ending}"));
    let output = beside("out.jsonl");
    let expected = if output.exists() { fs::read_to_string(&output)? } else { String::new() };
    let existing = |path: PathBuf| path.exists().then_some(path);
    Ok(Transcript {
        input: text,
        expected,
        model: existing(beside("model.jsonl")),
        files: existing(beside("files")),
        output: Some(output),
        name: stem,
    })
}

/// The two sides of a recording, with session ids counted as a deterministic run counts them, and its working directory
/// under the name of whatever directory it is played in: what was allowed then is not done again where it was done.
fn recording(name: &str, text: &str) -> Transcript {
    let mut ids = Ids::default();
    // The client's calls that were not answered yet, and how much the agent had said.
    let (mut open, mut sent) = (Vec::<String>::new(), 0_u64);
    let (mut input, mut expected, mut cwd) = (String::new(), String::new(), String::new());
    for line in text.lines().skip(1) {
        let entry: Value = serde_json::from_str(line).unwrap_or_default();
        let Some(line) = entry["line"].as_str() else { continue };
        let mut message: Value = serde_json::from_str(line).unwrap_or_default();
        let id = message.get("id").map(ToString::to_string);
        let is_call = message.get("method").is_some();
        let mut line = line.to_owned();
        if entry["dir"] == "in" {
            if is_call && !open.is_empty() && message["params"].is_object() {
                // It was said while something was under way: it goes at the same place again.
                message["params"]["_meta"]["modegate/after"] = sent.into();
                line = message.to_string();
            }
            open.extend(id.filter(|_| is_call));
        } else {
            sent += 1;
            open.retain(|open| is_call || Some(open) != id.as_ref());
        }
        if let (true, Some(named)) = (entry["dir"] == "in", message["params"]["cwd"].as_str()) {
            let quoted = Value::from(named).to_string();
            cwd = quoted[1..quoted.len() - 1].into();
        }
        let line = if cwd.is_empty() { line } else { line.replace(&cwd, "${CWD}") };
        let side = if entry["dir"] == "in" { &mut input } else { &mut expected };
        side.push_str(&ids.count(&line));
        side.push('\n');
    }
    Transcript { name: name.to_owned(), input, expected, output: None, model: None, files: None }
}

/// Session ids in the order in which they appear.
#[derive(Default)]
struct Ids(HashMap<String, usize>);

impl Ids {
    fn count(&mut self, line: &str) -> String {
        let mut counted = String::new();
        let mut rest = line;
        while let Some(at) = rest.find("sess_") {
            let (before, id) = rest.split_at(at);
            let end = id[5..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(id.len(), |end| end + 5);
            let next = self.0.len() + 1;
            let number = self.0.entry(id[..end].to_owned()).or_insert(next);
            counted.push_str(before);
            counted.push_str("sess_");
            counted.push_str(&number.to_string());
            rest = &id[end..];
        }
        counted + rest
    }
}

fn first_difference(expected: &str, actual: &str) -> String {
    let at = expected.lines().zip(actual.lines()).take_while(|(left, right)| left == right).count();
    let diff = TextDiff::from_lines(expected, actual)
        .unified_diff()
        .context_radius(1)
        .header("expected", "actual")
        .to_string();
    let shown: Vec<&str> = diff.lines().take(12).collect();
    format!("first difference at line {}:\n{}\n", at + 1, shown.join("\n"))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
