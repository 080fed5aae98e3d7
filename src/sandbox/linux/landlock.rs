//! Landlock rules for files and signals. Rights of ABI 3 are required; newer ones are optional. Landlock has
//! no deny rules, so readable paths form a list.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};

const OLDEST: ABI = ABI::V3;

/// Newest ABI whose rights were tested.
const NEWEST: ABI = ABI::V7;

/// Writable devices that store nothing.
const NULL_DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// Devices that agents may read: none has input or files of the user.
pub const READABLE_DEVICES: [&str; 5] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Stands for the controlling terminal of the process that opens it.
const OWN_TERMINAL: &str = "/dev/tty";

const SHARED_MEMORY: &str = "/dev/shm";

pub(super) fn abi() -> u32 {
    // ABI 7 adds no right, only a flag for the audit log, so it counts as 6.
    let newest_first = [ABI::V6, ABI::V5, ABI::V4, ABI::V3, ABI::V2, ABI::V1];
    newest_first.into_iter().find(|abi| handles(*abi)).map_or(0, |abi| abi as u32)
}

/// Creates a ruleset without enforcing it.
fn handles(abi: ABI) -> bool {
    let ruleset = match abi {
        ABI::V4 => required().handle_access(AccessNet::from_all(abi)),
        ABI::V6 => required().scope(Scope::from_all(abi)),
        abi => required().handle_access(AccessFs::from_all(abi)),
    };
    ruleset.and_then(Ruleset::create).is_ok()
}

/// Reads below `read` only, and writes below `own_folders` only. Ports are free in a network of its own. Returns true
/// if signals are restricted too.
pub(super) fn restrict_to_reading(
    read: &[PathBuf],
    own_folders: &[&Path],
    has_network: bool,
) -> Result<bool, String> {
    let ruleset = required()
        .handle_access(AccessFs::from_all(OLDEST))
        .map(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort))
        .and_then(|ruleset| ruleset.handle_access(AccessFs::from_all(NEWEST)))
        .and_then(
            |ruleset| {
                if has_network { Ok(ruleset) } else { ruleset.handle_access(AccessNet::from_all(NEWEST)) }
            },
        )
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(read, AccessFs::from_read(OLDEST))))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own_folders, AccessFs::from_all(OLDEST))))
        .and_then(|ruleset| {
            ruleset.add_rules(path_beneath_rules(NULL_DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))
        });
    let status = restrict(ruleset)?;
    Ok(matches!(status.landlock, LandlockStatus::Available { effective_abi, .. } if effective_abi >= ABI::V6))
}

/// Reads everything, and writes below `write` only.
pub(super) fn restrict_writes(write: &[PathBuf]) -> Result<(), String> {
    let writing = AccessFs::from_write(OLDEST);
    let ruleset = required()
        .handle_access(writing)
        .map(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort))
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(write, writing)));
    restrict(ruleset).map(drop)
}

/// Writes below `write` and `own_folder` only, without new device nodes. Reads everything but devices, which give
/// input and settings of a terminal. With ABI 6, signals and abstract Unix sockets stay within the sandbox.
pub(super) fn restrict_agent(write: &[PathBuf], own_folder: Option<&Path>) -> Result<(), String> {
    let handled = AccessFs::from_write(OLDEST);
    let writing = handled & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let ruleset = required()
        .handle_access(handled | AccessFs::ReadFile)
        .map(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(write, writing)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own_folder, writing)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(NULL_DEVICES, AccessFs::WriteFile)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(readable_by_agents(), AccessFs::ReadFile)));
    restrict(ruleset).map(drop)
}

/// From here on, the calling thread makes sockets below this folder only, wherever a path leads.
pub fn restrict_new_sockets(folder: BorrowedFd<'_>) -> Result<(), String> {
    let below = PathBeneath::new(folder, AccessFs::MakeSock);
    let ruleset = required()
        .handle_access(AccessFs::MakeSock)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rule(below));
    restrict(ruleset).map(drop)
}

/// All but devices. Rules only add, so the folders beside `/dev` are listed.
fn readable_by_agents() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/").into_iter().flatten().flatten().map(|entry| entry.path());
    let devices = READABLE_DEVICES.iter().chain(&[OWN_TERMINAL, SHARED_MEMORY]).map(PathBuf::from);
    entries.filter(|path| path != Path::new("/dev")).chain(devices).chain(own_terminals()).collect()
}

/// The terminals that the command gets as its streams, and its controlling terminal.
fn own_terminals() -> Vec<PathBuf> {
    let mut terminals: Vec<_> =
        (0..3).filter_map(|stream| std::fs::read_link(format!("/proc/self/fd/{stream}")).ok()).collect();
    terminals.retain(|path| path.starts_with("/dev/pts"));
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    terminals.extend(controlling_terminal(&stat).map(|number| PathBuf::from(format!("/dev/pts/{number}"))));
    terminals
}

/// Major device number of pseudo-terminals.
const MAJOR: u32 = 136;

/// The number of a process's controlling terminal, from its `stat` file in `/proc`. `None` if it has none, or one
/// that is no pseudo-terminal.
pub fn controlling_terminal(stat: &str) -> Option<u32> {
    // The second field, the name of the program, can have spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let device: u32 = fields.split_ascii_whitespace().nth(4)?.parse().ok()?;
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
    (major == MAJOR).then_some(minor)
}

fn required() -> Ruleset {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
}

fn restrict(ruleset: Result<RulesetCreated, RulesetError>) -> Result<RestrictionStatus, String> {
    let status = ruleset
        .and_then(RulesetCreated::restrict_self)
        .map_err(|error| format!("Landlock cannot be used: {error}"))?;
    if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
        return Err("the kernel does not enforce Landlock".into());
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controlling_terminal_is_read() {
        let stat = |device: &str| format!("12 (a) b (c) S 1 12 12 {device} 12 4194304 0");
        assert_eq!(controlling_terminal(&stat("34816")), Some(0));
        assert_eq!(controlling_terminal(&stat("34819")), Some(3));
        assert_eq!(controlling_terminal(&stat("1083393")), Some(257));
        assert_eq!(controlling_terminal(&stat("0")), None);
        assert_eq!(controlling_terminal(&stat("1025")), None, "a console");
        assert_eq!(controlling_terminal("12 (a"), None);
    }
}
