//! Pseudo-terminals of a brokered command. Landlock cannot tell them from the user's terminals, so the supervisor
//! opens them: new ones, and the ends of those that it opened before.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::pty;

use super::attributes;
use super::operation::{AttributeChange, FileReference};
use super::resolve::is_same;
use super::tracee::{Tracee, own_path};
use crate::sandbox::controlling_terminal;

/// Terminals of one command at the same time.
const MAX_TERMINALS: usize = 256;

/// Flags of the caller that apply to terminals.
const FLAGS: OFlags = OFlags::ACCMODE.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

#[derive(Debug, Default)]
pub(super) struct Terminals {
    /// The command's ends, by their numbers. Each is a path descriptor, which opens nothing any more after its
    /// terminal is gone, also if a new one has its number.
    ends: Mutex<HashMap<u32, OwnedFd>>,
}

/// A path that names a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminal {
    New,
    Numbered(u32),
    /// The controlling terminal of the caller.
    Own,
}

impl Terminal {
    pub(super) fn named(path: &Path) -> Option<Self> {
        match path.to_str()? {
            "/dev/ptmx" | "/dev/pts/ptmx" => Some(Self::New),
            "/dev/tty" => Some(Self::Own),
            text => {
                let number = text.strip_prefix("/dev/pts/")?;
                let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
                is_number.then(|| number.parse().ok().map(Self::Numbered))?
            }
        }
    }
}

impl Terminals {
    /// Opens a terminal of the command. `None` if it is another one.
    pub(super) fn open(
        &self,
        terminal: Terminal,
        flags: OFlags,
        tracee: &Tracee<'_>,
    ) -> Option<Result<OwnedFd, Errno>> {
        // Otherwise it could become the terminal of the supervisor.
        let flags = flags & FLAGS | OFlags::NOCTTY;
        match terminal {
            Terminal::New => Some(self.open_new(flags)),
            Terminal::Numbered(number) => self.open_end(number, flags),
            Terminal::Own => {
                let stat = fs::read_to_string(format!("/proc/{}/stat", tracee.call.thread)).ok()?;
                let number = controlling_terminal(&stat).filter(|_| tracee.is_suspended())?;
                self.open_end(number, flags)
            }
        }
    }

    /// Adds the controlling terminal of this process, if it is a pseudo-terminal.
    pub(super) fn add_own(&self) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let Some(number) = controlling_terminal(&stat) else { return };
        let name = format!("/dev/pts/{number}");
        // In a container, the terminal may have no name.
        if let Ok(end) = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(number, end);
        }
    }

    /// Returns true for a change that gives a terminal of the command the owner or the mode that it has.
    pub(super) fn has_attributes(
        &self,
        object: &FileReference,
        change: &AttributeChange,
        tracee: &Tracee<'_>,
    ) -> bool {
        self.stat(object, tracee).is_some_and(|stat| attributes::matches(change, &stat))
    }

    /// `None` if it is no terminal of the command.
    fn stat(&self, object: &FileReference, tracee: &Tracee<'_>) -> Option<Stat> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let mut existing = ends.iter().filter(|(_, end)| exists(end));
        match object {
            FileReference::Path { place, .. } => {
                let Terminal::Numbered(named) = Terminal::named(&place.path)? else { return None };
                let (_, end) = existing.find(|(number, _)| **number == named)?;
                rustix::fs::fstat(end).ok()
            }
            FileReference::Descriptor(number) => {
                let stat = rustix::fs::fstat(tracee.descriptor(*number).ok()?).ok()?;
                let is_end = |end: &OwnedFd| rustix::fs::fstat(end).is_ok_and(|end| is_same(&end, &stat));
                existing.any(|(_, end)| is_end(end)).then_some(stat)
            }
        }
    }

    fn open_new(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|_, end| exists(end));
        if ends.len() >= MAX_TERMINALS {
            return Err(Errno::NOSPC);
        }
        let terminal = rustix::fs::open("/dev/ptmx", flags, Mode::empty())?;
        // Cannot be the end of another terminal, because this one exists.
        let name = pty::ptsname(&terminal, Vec::new())?;
        let number = name.to_str().ok().and_then(|name| name.rsplit('/').next()?.parse().ok());
        let end = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        ends.insert(number.ok_or(Errno::NODEV)?, end);
        Ok(terminal)
    }

    fn open_end(&self, number: u32, flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let end = ends.get(&number).filter(|end| exists(end))?;
        Some(rustix::fs::open(own_path(end), flags, Mode::empty()))
    }
}

/// Returns false if the terminal is gone.
fn exists(end: &OwnedFd) -> bool {
    rustix::fs::fstat(end).is_ok_and(|found| found.st_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_terminals_are_recognised() {
        for (path, expected) in [
            ("/dev/ptmx", Some(Terminal::New)),
            ("/dev/pts/ptmx", Some(Terminal::New)),
            ("/dev/tty", Some(Terminal::Own)),
            ("/dev/pts/0", Some(Terminal::Numbered(0))),
            ("/dev/pts/12", Some(Terminal::Numbered(12))),
            ("/dev/pts/", None),
            ("/dev/pts/+1", None),
            ("/dev/pts/99999999999", None),
            ("/dev/tty1", None),
            ("dev/ptmx", None),
            ("/dev/../dev/tty", None),
        ] {
            assert_eq!(Terminal::named(Path::new(path)), expected, "{path}");
        }
    }
}
