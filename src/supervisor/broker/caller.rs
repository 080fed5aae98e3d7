//! The program that makes a suspended call, for questions and reports. What is read here belongs to the caller only if
//! the call is still suspended afterwards.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::resolve::Roots;
use crate::supervisor::protocol::Executable;

/// Most bytes of a command line.
const MAX_COMMAND_LINE: usize = 400;

/// Most processes above the caller that are looked at.
const MAX_DEPTH: usize = 32;

/// Name of the caller's program, in its own words.
pub(super) fn name(thread: u32) -> String {
    let name = fs::read(format!("/proc/{thread}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}

/// The file that the caller executes. `None` if the command may change the file, or it has no name any more.
pub(super) fn executable(thread: u32, roots: &Roots) -> Option<Executable> {
    let path = program_file(thread)?;
    if roots.contains_path(&path) || !path.exists() {
        return None;
    }
    let mut process = Process::of(thread)?;
    // A command starts itself again for parts of its work.
    for _ in 0..MAX_DEPTH {
        match Process::of(process.parent) {
            Some(parent) if program_file(process.parent).as_deref() == Some(&*path) => process = parent,
            _ => break,
        }
    }
    let command_line = command_line(process.number);
    Some(Executable { path, process: process.number, started: process.started, command_line })
}

fn program_file(process: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/exe")).ok().filter(|path| path.is_absolute())
}

fn command_line(process: u32) -> String {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut words = bytes.split(|byte| *byte == 0);
    let program = words.next().map(|word| Path::new(std::ffi::OsStr::from_bytes(word)));
    let name = program.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let words = words.filter(|word| !word.is_empty()).map(|word| String::from_utf8_lossy(word).into_owned());
    let line = std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_COMMAND_LINE).collect()
}

#[derive(Debug, Clone, Copy)]
struct Process {
    number: u32,
    parent: u32,
    /// In clock ticks since the start of the machine.
    started: u64,
}

impl Process {
    fn of(process: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in parentheses, can contain any character. The third field follows it.
        let (_, rest) = stat.rsplit_once(')')?;
        let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
        Some(Self { number: process, parent: field(4)?.parse().ok()?, started: field(22)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_known_unless_the_command_can_change_it() {
        let own = std::process::id();
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let elsewhere = tempfile::tempdir().unwrap();
        let elsewhere = Roots::open(&[elsewhere.path().to_owned()], &[], &[], &[]).unwrap();
        let found = executable(own, &elsewhere).unwrap();
        assert_eq!(found.path, std::env::current_exe().unwrap());
        assert_eq!(found.process, own);
        assert_eq!(found.started, Process::of(own).unwrap().started);
        assert_eq!(
            executable(own, &Roots::open(std::slice::from_ref(&folder), &[], &[], &[]).unwrap()),
            None
        );
        assert_eq!(executable(own, &Roots::open(&[], &[], &[folder], &[]).unwrap()), None);
    }
}
