//! What modes come to together, and whether some allow more than others. Pure.

use std::borrow::Borrow;

use super::{CallFacts, Effect, denied_by_nature, must_ask};
use crate::mode::{Access, Consent, Mode, ShellUse};

/// What modes come to together, in a few words for a person who is to choose.
pub fn nature_of(modes: &[impl Borrow<Mode>]) -> String {
    let modes: Vec<&Mode> = modes.iter().map(Borrow::borrow).collect();
    let access = modes.iter().map(|mode| mode.access).min().unwrap_or(Access::ReadOnly);
    let shell = modes.iter().map(|mode| mode.shell).min().unwrap_or_default();
    let how = if modes.iter().any(|mode| mode.permission == Consent::Ask) {
        "after asking each time"
    } else {
        "without asking"
    };
    match (access, shell) {
        (Access::ReadOnly, _) => "changes nothing".into(),
        (Access::Edit, _) => format!("changes files {how}"),
        (Access::Full, ShellUse::Full) => format!("changes files and runs commands {how}"),
        (Access::Full, _) => format!("changes things {how}"),
    }
}

/// The tools that a mode has, and those that it takes away.
type Tools<'a> = (Option<&'a [String]>, &'a [String]);

fn tools(mode: &Mode) -> Tools<'_> {
    (mode.tools.allow.as_ref().map(|globs| globs.patterns.as_slice()), &mode.tools.deny.patterns)
}

fn paths(mode: &Mode) -> Option<&[String]> {
    mode.write_paths.as_ref().map(|globs| globs.patterns.as_slice())
}

/// Whether something is possible, or need not be asked for, under the first list of modes that is not so under the second.
/// Lists of tools and paths are not compared by what they match: each that held has to hold still.
pub fn allows_more(new: &[impl Borrow<Mode>], old: &[impl Borrow<Mode>]) -> bool {
    let new: Vec<&Mode> = new.iter().map(Borrow::borrow).collect();
    let old: Vec<&Mode> = old.iter().map(Borrow::borrow).collect();
    let of_new: Vec<_> = new.iter().map(|mode| tools(mode)).collect();
    let lost_tools =
        old.iter().map(|mode| tools(mode)).any(|list| list != (None, &[][..]) && !of_new.contains(&list));
    let edits = new.iter().all(|mode| mode.access >= Access::Edit);
    let of_new: Vec<_> = new.iter().map(|mode| paths(mode)).collect();
    let lost_paths = old.iter().map(|mode| paths(mode)).any(|list| list.is_some() && !of_new.contains(&list));
    let probes = [
        CallFacts::of_tool("", Effect::Network),
        CallFacts::of_tool("", Effect::Edit),
        CallFacts::of_tool("", Effect::Execute),
        CallFacts { shell: ShellUse::ReadOnly, ..CallFacts::of_tool("", Effect::Read) },
        CallFacts { shell: ShellUse::Full, ..CallFacts::of_tool("", Effect::Execute) },
    ];
    let looser = |probe: &CallFacts| strictness(&new, probe) < strictness(&old, probe);
    lost_tools || (edits && lost_paths) || probes.iter().any(looser)
}

/// 0: allowed, 1: asked for, 2: denied; whatever the tool is called.
fn strictness(modes: &[&Mode], call: &CallFacts) -> u8 {
    if modes.iter().any(|mode| denied_by_nature(mode, call).is_some()) {
        2
    } else {
        u8::from(modes.iter().any(|mode| must_ask(mode, call.effect)))
    }
}
