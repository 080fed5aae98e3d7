//! Lists the children of this process and kills them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{self, Pid, Signal};

/// Kept open, because a command may lower the limit on open files.
#[derive(Debug)]
pub(super) struct Children {
    /// `None` if the kernel has no such list.
    list: Option<File>,
    buffer: Vec<u8>,
}

impl Children {
    pub(super) fn open() -> io::Result<Self> {
        // The kernel gives adopted children to the main thread.
        let path = format!("/proc/self/task/{}/children", process::getpid());
        let list = File::open(path).ok();
        if list.is_none() {
            std::fs::read_dir("/proc")?;
        }
        Ok(Self { list, buffer: vec![0; 64 * 1024] })
    }

    /// Includes dead children that are not reaped yet.
    pub(super) fn list(&mut self) -> io::Result<Vec<Pid>> {
        let Some(list) = &self.list else { return scan() };
        let mut text = Vec::new();
        loop {
            let read = list.read_at(&mut self.buffer, text.len() as u64)?;
            if read == 0 {
                break;
            }
            text.extend_from_slice(&self.buffer[..read]);
        }
        let text = String::from_utf8_lossy(&text);
        Ok(text.split_ascii_whitespace().filter_map(parse).collect())
    }
}

/// A group dies in one step, so no member can fork away.
pub(super) fn kill(child: Pid) {
    if let Some(group) = process::getpgid(Some(child)).ok().filter(|group| *group != process::getpgrp()) {
        let _ = process::kill_process_group(group, Signal::KILL);
    }
    let _ = process::kill_process(child, Signal::KILL);
}

fn scan() -> io::Result<Vec<Pid>> {
    let own = process::getpid();
    let all = std::fs::read_dir("/proc")?;
    let pids = all.filter_map(|entry| parse(entry.ok()?.file_name().to_str()?));
    Ok(pids.filter(|pid| parent(*pid) == Some(own)).collect())
}

pub(super) fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, can contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1).and_then(parse)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}
