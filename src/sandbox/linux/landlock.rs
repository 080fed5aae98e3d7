//! Landlock rules for files and signals. Rights of ABI 3 are required; newer ones are optional. Landlock has
//! no deny rules, so readable paths form a list.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

const OLDEST: ABI = ABI::V3;

/// Newest ABI whose rights were tested.
const NEWEST: ABI = ABI::V7;

/// Writable devices that store nothing.
const NULL_DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

pub(super) fn abi() -> u32 {
    let known = [ABI::V1, ABI::V2, ABI::V3, ABI::V4, ABI::V5, ABI::V6, ABI::V7];
    let supported = |abi: &&ABI| handles(**abi);
    known.iter().rev().find(supported).map_or(0, |abi| *abi as u32)
}

/// Creates a ruleset without enforcing it.
fn handles(abi: ABI) -> bool {
    let ruleset = match abi {
        ABI::V4 => required().handle_access(AccessNet::from_all(abi)),
        ABI::V6 => required().scope(Scope::from_all(abi)),
        // ABI 7 adds no right, only a flag for the audit log.
        ABI::V7 => return false,
        abi => required().handle_access(AccessFs::from_all(abi)),
    };
    ruleset.and_then(Ruleset::create).is_ok()
}

/// Returns true if signals are restricted too.
pub(super) fn restrict_to_reading(read: &[PathBuf], own_folder: Option<&Path>) -> Result<bool, String> {
    let ruleset = required()
        .handle_access(AccessFs::from_all(OLDEST))
        .map(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort))
        .and_then(|ruleset| ruleset.handle_access(AccessFs::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(read, AccessFs::from_read(OLDEST))))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own_folder, AccessFs::from_all(OLDEST))))
        .and_then(|ruleset| {
            ruleset.add_rules(path_beneath_rules(NULL_DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))
        });
    let status = restrict(ruleset)?;
    Ok(matches!(status.landlock, LandlockStatus::Available { effective_abi, .. } if effective_abi >= ABI::V6))
}

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

/// Denies new device nodes. With ABI 6, signals and abstract Unix sockets stay within the sandbox.
pub(super) fn restrict_agent(write: &[PathBuf], own_folder: Option<&Path>) -> Result<(), String> {
    let handled = AccessFs::from_write(OLDEST);
    let writing = handled & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let ruleset = required()
        .handle_access(handled)
        .map(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(write, writing)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(own_folder, writing)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(NULL_DEVICES, AccessFs::WriteFile)));
    restrict(ruleset).map(drop)
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
