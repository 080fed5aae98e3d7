//! Describes what modes allow together, and compares it. Pure.

use std::borrow::Borrow;
use std::sync::Arc;

use super::{CallFacts, Effect, SERVER_TOOLS, denied_by, denied_by_settings, must_ask};
use crate::mode::{Access, Consent, Mode, Modes, ShellUse};

/// Modegate's own changing tools. A test compares them with the registered tools.
pub const CHANGING: [(&str, Effect, ShellUse); 7] = [
    ("write_file", Effect::Edit, ShellUse::Off),
    ("edit_file", Effect::Edit, ShellUse::Off),
    ("apply_patch", Effect::Edit, ShellUse::Off),
    ("move_file", Effect::Edit, ShellUse::Off),
    ("delete_file", Effect::Edit, ShellUse::Off),
    ("shell", Effect::Execute, ShellUse::Full),
    ("save_memory", Effect::State, ShellUse::Off),
];

pub fn describe_effects(modes: &[impl Borrow<Mode>]) -> String {
    let modes: Vec<&Mode> = modes.iter().map(Borrow::borrow).collect();
    let has = |effect: Effect| {
        CHANGING.iter().filter(|(_, its, _)| *its == effect).any(|(name, effect, shell)| {
            let tool = CallFacts { shell: *shell, ..CallFacts::of_tool(*name, *effect) };
            modes.iter().all(|mode| denied_by(mode, &tool).is_none())
        })
    };
    let lists: Vec<&[String]> =
        modes.iter().filter_map(|mode| mode.write_paths.as_ref()).map(|globs| &*globs.patterns).collect();
    let mut parts = Vec::new();
    if has(Effect::Edit) && lists.iter().all(|list| !list.is_empty()) {
        let places: Vec<String> = lists.iter().map(|list| list.join(", ")).collect();
        let places = places.join(" and ");
        parts.push(if places.is_empty() {
            "changes files".into()
        } else {
            format!("changes files ({places})")
        });
    }
    if has(Effect::Execute) {
        parts.push("runs commands".to_owned());
    }
    if parts.is_empty() && (has(Effect::State) || may_have_servers_tools(&modes)) {
        parts.push("changes things".to_owned());
    }
    if parts.is_empty() {
        let is_empty =
            |mode: &&Mode| mode.tools.allow.as_ref().is_some_and(|allow| allow.patterns.is_empty());
        return if modes.iter().any(is_empty) { "uses no tools" } else { "changes nothing" }.into();
    }
    let how = if modes.iter().any(|mode| mode.permission == Consent::Ask) {
        "after asking each time"
    } else {
        "without asking"
    };
    format!("{} {how}", parts.join(" and "))
}

fn may_have_servers_tools(modes: &[&Mode]) -> bool {
    modes.iter().all(|mode| {
        let allow = mode.tools.allow.as_ref();
        allow.is_none_or(|allow| allow.patterns.iter().any(|pattern| may_match_servers_tools(pattern)))
            && denied_by_settings(mode, &CallFacts::of_tool("", Effect::Unknown)).is_none()
    })
}

fn may_match_servers_tools(pattern: &str) -> bool {
    let plain = pattern.split(['*', '?', '[', '{']).next().unwrap_or_default();
    plain.starts_with(SERVER_TOOLS) || (plain.len() < pattern.len() && SERVER_TOOLS.starts_with(plain))
}

pub fn changes_nothing(modes: &[impl Borrow<Mode>]) -> bool {
    modes.iter().any(|mode| mode.borrow().access == Access::ReadOnly)
}

type ToolLists<'a> = (Option<&'a [String]>, &'a [String]);

fn tools(mode: &Mode) -> ToolLists<'_> {
    (mode.tools.allow.as_ref().map(|globs| globs.patterns.as_slice()), &mode.tools.deny.patterns)
}

fn paths(mode: &Mode) -> Option<&[String]> {
    mode.write_paths.as_ref().map(|globs| globs.patterns.as_slice())
}

/// True if `new` allows something, or skips a permission request, that `old` does not. Lists of tools and
/// paths are compared as text: a list of `old` that `new` lacks counts as more.
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
    lost_tools
        || (edits && lost_paths)
        || probes.iter().any(|probe| strictness(&new, probe) < strictness(&old, probe))
}

/// Returns `default`, or the first mode of `limit` if `limit` allows strictly less.
pub fn tighter_of<'a>(modes: &'a Modes, default: &'a Mode, limit: &[Arc<Mode>]) -> &'a Mode {
    let of_default = modes.ceilings(&default.id).unwrap_or_default();
    let is_tighter = allows_more(&of_default, limit) && !allows_more(limit, &of_default);
    let limiting_mode = limit.first().filter(|_| is_tighter).and_then(|mode| modes.resolve(&mode.id).ok());
    limiting_mode.unwrap_or(default)
}

/// True if, under `limits`, some mode allows more than a mode with `exits_to`.
pub fn has_exit(modes: &Modes, limits: &[Arc<Mode>]) -> bool {
    let under_limits = |mode: &Mode| {
        let mut all = modes.ceilings(&mode.id).unwrap_or_default();
        all.extend(limits.iter().cloned());
        all
    };
    let with_exit = modes.iter().filter(|mode| mode.exits_to.is_some());
    with_exit.map(under_limits).any(|from| modes.iter().any(|to| allows_more(&under_limits(to), &from)))
}

/// 0 if allowed, 1 if asked, 2 if denied, ignoring tool lists.
fn strictness(modes: &[&Mode], call: &CallFacts) -> u8 {
    if modes.iter().any(|mode| denied_by_settings(mode, call).is_some()) {
        2
    } else {
        u8::from(modes.iter().any(|mode| must_ask(mode, call)))
    }
}
