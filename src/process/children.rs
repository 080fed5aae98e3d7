//! The children of this process, as the kernel lists them, and how one is killed with its group.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{self, Pid, Signal};

/// The list. It is opened once: a command may take away the right to open more.
#[derive(Debug)]
pub struct Children {
    /// None where the kernel has no such list.
    list: Option<File>,
    buffer: Vec<u8>,
}

impl Children {
    /// Opens the list.
    ///
    /// # Errors
    /// There is none, and `/proc` is not there either.
    pub fn open() -> io::Result<Self> {
        // That of the main thread: nobody else here has children.
        let path = format!("/proc/self/task/{}/children", process::getpid());
        let list = File::open(path).ok();
        if list.is_none() {
            std::fs::read_dir("/proc")?;
        }
        Ok(Self { list, buffer: vec![0; 64 * 1024] })
    }

    /// All of them, those that are dead and not buried included.
    pub fn list(&mut self) -> io::Result<Vec<Pid>> {
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

/// Kills a child and its process group: a group dies in one step, so none of it can fork away.
pub fn kill(child: Pid) {
    // Any of them may be gone by now.
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

fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1).and_then(parse)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}
