//! Lists the processes below this one and kills them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, Signal, WaitOptions};

/// How long the end of killed processes may take.
const DEADLINE: Duration = Duration::from_secs(1);

/// Kept open, because a command may lower the limit on open files.
#[derive(Debug)]
pub struct Children {
    /// `None` if the kernel has no such list.
    list: Option<File>,
    buffer: Vec<u8>,
}

impl Children {
    pub fn open() -> io::Result<Self> {
        // The kernel gives adopted children to the main thread.
        let path = format!("/proc/self/task/{}/children", process::getpid());
        let list = File::open(path).ok();
        if list.is_none() {
            std::fs::read_dir("/proc")?;
        }
        Ok(Self { list, buffer: vec![0; 64 * 1024] })
    }

    /// Includes dead children that are not reaped yet.
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

/// A group dies in one step, so no member can fork away. `spared` is the group of this process, or of Modegate.
pub fn kill(child: Pid, spared: Pid) {
    let group = process::getpgid(Some(child)).ok();
    if let Some(group) = group.filter(|group| *group != spared && *group != process::getpgrp()) {
        let _ = process::kill_process_group(group, Signal::KILL);
    }
    let _ = process::kill_process(child, Signal::KILL);
}

/// Kills the children that are not known, and all processes that become children by that. Returns true if none is
/// left. Blocks for about a second at most.
pub fn end_others(children: &mut Children, spared: Pid, is_known: impl Fn(Pid) -> bool) -> bool {
    let started = Instant::now();
    loop {
        let Ok(all) = children.list() else { return false };
        let others: Vec<Pid> = all.into_iter().filter(|pid| !is_known(*pid)).collect();
        if others.is_empty() {
            return true;
        }
        if started.elapsed() > DEADLINE {
            return false;
        }
        for other in others {
            kill(other, spared);
            let _ = process::waitpid(Some(other), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The children of another process, without zombies.
pub fn of(parent_of: Pid) -> Vec<Pid> {
    let path = format!("/proc/{parent_of}/task/{parent_of}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(parse).filter(|pid| !is_zombie(*pid)).collect()
}

fn is_zombie(pid: Pid) -> bool {
    stat_field(pid, 0).is_none_or(|state| state == "Z")
}

/// True for a process that a signal has stopped and none has continued, also if it is traced. Its first thread may have
/// ended.
pub fn is_stopped(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = threads.filter_map(|thread| stat_field(parse(thread.file_name().to_str()?)?, 0));
    states.into_iter().any(|state| state == "T" || state == "t")
}

fn scan() -> io::Result<Vec<Pid>> {
    let this = process::getpid();
    let all = std::fs::read_dir("/proc")?;
    let pids = all.filter_map(|entry| parse(entry.ok()?.file_name().to_str()?));
    Ok(pids.filter(|pid| parent(*pid) == Some(this.as_raw_pid())).collect())
}

/// Returns `None` if the process is gone. The parent of the first process is 0.
fn parent(pid: Pid) -> Option<i32> {
    stat_field(pid, 1)?.parse().ok()
}

/// When the process started, in the kernel's ticks.
pub fn start_time(pid: Pid) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// Returns a field of `/proc/PID/stat`. The first one behind the name has the number 0.
fn stat_field(pid: Pid, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, can contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number).map(str::to_owned)
}

/// All processes below this one.
pub fn descendants() -> Vec<Pid> {
    whole_family().0
}

/// Returns all processes below this one. False if one may be missing, because its parent was ending.
pub fn whole_family() -> (Vec<Pid>, bool) {
    let all: HashMap<Pid, i32> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = parse(entry.ok()?.file_name().to_str()?)?;
            Some((pid, parent(pid)?))
        })
        .collect();
    let mut family = vec![process::getpid()];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|(_, of)| **of == parent.as_raw_pid()).map(|(pid, _)| *pid));
        next += 1;
    }
    let is_whole = all.iter().all(|(pid, of)| {
        // A parent that lives and is not listed belongs to another user.
        Pid::from_raw(*of).is_none_or(|listed| all.contains_key(&listed)) || parent(*pid) == Some(*of)
    });
    (family.split_off(1), is_whole)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn wait_for_state(pid: Pid, expected: &str) {
        let started = Instant::now();
        while stat_field(pid, 0).as_deref() != Some(expected) {
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", stat_field(pid, 0));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_a_process_that_a_signal_has_stopped_is_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        for (signal, state, is_stopped_then) in
            [(Signal::STOP, "T", true), (Signal::CONT, "S", false), (Signal::KILL, "Z", false)]
        {
            process::kill_process(pid, signal).unwrap();
            wait_for_state(pid, state);
            assert_eq!(is_stopped(pid), is_stopped_then, "{state}");
        }
        child.wait().unwrap();
        assert!(!is_stopped(pid));
    }
}
