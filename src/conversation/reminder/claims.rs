//! Claims of a reminder, computed with `decide()` from the ceilings before and after a switch. Pure.
//!
//! A claim keeps its tools, so that tests can check it against `decide()`.

use std::fmt::{self, Write};

use crate::mode::ShellUse;
use crate::permission::{self, CallFacts, Ceilings, Effect, Grants, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Free,
    Asked,
    Denied,
}

/// Level of each tool except the exit tool, because a mode without an exit restricts nothing.
pub struct Levels<'a> {
    tools: Vec<(&'a CallFacts, Level)>,
    /// Path patterns, with a list per ceiling; a writable path matches every list.
    write_paths: Vec<&'a [String]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTools {
    text: String,
    pub tools: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReminderClaim {
    /// No call that this previous mode denied is denied now.
    Lifted(String),
    NoLongerRefused(NamedTools),
    /// All changing tools are denied, some of them newly.
    NothingFromNowOn,
    RefusedFromNowOn(NamedTools),
    NoLongerAsked(NamedTools),
    SameAsBefore,
    NothingChanges,
    /// Read-only only according to their MCP servers.
    ClaimedToRead(NamedTools),
    /// Path patterns, as in [`Levels`].
    FilesOnly(Vec<Vec<String>>),
    NothingElseChanges,
    Refused(NamedTools),
    Asked(NamedTools),
    /// Needs an answer, and is refused, because no user is there.
    Unanswered(NamedTools),
    /// Allowed within the session's folders, whatever the arguments.
    NotAsked(NamedTools),
}

type IsOfKind = fn(&CallFacts) -> bool;

const KINDS: [(IsOfKind, &str); 4] = [
    (|tool| tool.effect == Effect::Edit, "changing files"),
    (|tool| tool.effect == Effect::State, "changing memories"),
    (|tool| tool.effect == Effect::Unknown, "MCP tools that may change something"),
    (
        |tool| tool.effect == Effect::Read && tool.shell == ShellUse::Off && tool.claim.is_none(),
        "reading and searching",
    ),
];

/// Maximum number of tools named one by one.
const MAX_NAMES: usize = 8;

impl<'a> Levels<'a> {
    pub fn of(ceilings: &'a Ceilings, grants: &Grants, tools: &'a [CallFacts]) -> Self {
        let tools = tools.iter().filter(|tool| !tool.is_exit).map(|tool| {
            let level = match permission::decide(ceilings, grants, tool) {
                Verdict::Allow => Level::Free,
                Verdict::Ask(_) => Level::Asked,
                Verdict::Deny(_) => Level::Denied,
            };
            (tool, level)
        });
        let mut write_paths: Vec<&[String]> = ceilings
            .modes
            .iter()
            .filter_map(|mode| mode.write_paths.as_ref().map(|globs| &*globs.patterns))
            .collect();
        write_paths.dedup();
        Self { tools: tools.collect(), write_paths }
    }

    pub fn restricts(&self) -> bool {
        self.tools.iter().any(|(_, level)| *level == Level::Denied) || !self.write_paths.is_empty()
    }

    pub fn refuses_more_than(&self, those: &Self) -> bool {
        self.write_paths.iter().any(|list| !those.write_paths.contains(list))
            || self.with(those).any(|(_, here, there)| here == Level::Denied && there != Level::Denied)
    }

    fn named(&self, is_selected: impl Fn(&CallFacts, Level) -> bool) -> Option<NamedTools> {
        self.name(|at| is_selected(self.tools[at].0, self.tools[at].1))
    }

    fn name(&self, is_selected: impl Fn(usize) -> bool) -> Option<NamedTools> {
        let selected: Vec<bool> = (0..self.tools.len()).map(is_selected).collect();
        let each = || self.tools.iter().map(|(tool, _)| *tool).zip(&selected);
        let whole: Vec<_> = KINDS
            .iter()
            .filter(|(is_kind, _)| each().all(|(tool, selected)| *selected || !is_kind(tool)))
            .collect();
        let (mut words, mut more): (Vec<&str>, usize) = (Vec::new(), 0);
        let chosen: Vec<_> = each().filter(|(_, selected)| **selected).map(|(tool, _)| tool).collect();
        for tool in &chosen {
            match whole.iter().find(|(is_kind, _)| is_kind(tool)) {
                Some((_, kind)) if words.contains(kind) => {}
                Some((_, kind)) => words.push(kind),
                // Always name built-in tools that change something.
                None if words.len() < MAX_NAMES || (tool.effect.is_change() && tool.server.is_none()) => {
                    words.push(&tool.tool);
                }
                None => more += 1,
            }
        }
        let mut text = words.join(", ");
        match more {
            0 => {}
            1 => text.push_str(" and one other tool"),
            _ => write!(text, " and {more} other tools").expect("writing to a string cannot fail"),
        }
        let tools: Vec<String> = chosen.iter().map(|tool| tool.tool.clone()).collect();
        (!tools.is_empty()).then_some(NamedTools { text, tools })
    }

    fn with<'b>(&'b self, before: &'b Self) -> impl Iterator<Item = (&'b CallFacts, Level, Level)> {
        let pairs = self.tools.iter().zip(&before.tools);
        pairs.map(|((tool, now), (_, then))| (*tool, *now, *then))
    }

    pub fn since(&self, before: &Self, from: &str) -> Vec<ReminderClaim> {
        let levels: Vec<(&CallFacts, Level, Level)> = self.with(before).collect();
        let name =
            |is_selected: fn(Level, Level) -> bool| self.name(|at| is_selected(levels[at].1, levels[at].2));
        let any = |is_selected: fn(&CallFacts, Level, Level) -> bool| {
            levels.iter().any(|(tool, now, then)| is_selected(tool, *now, *then))
        };
        // With path limits before, a denied file tool was already denied outside those paths.
        let had_write_paths = !before.write_paths.is_empty();
        let stays = any(|_, now, then| now == Level::Denied && then == Level::Denied)
            || (had_write_paths && any(|tool, now, _| now == Level::Denied && tool.effect == Effect::Edit));
        let mut claims = Vec::new();
        if before.restricts() && !stays && self.write_paths.is_empty() {
            claims.push(ReminderClaim::Lifted(from.to_owned()));
        } else {
            let freed = name(|now, then| now != Level::Denied && then == Level::Denied);
            claims.extend(freed.map(ReminderClaim::NoLongerRefused));
        }
        let newly_denied = name(|now, then| now == Level::Denied && then != Level::Denied);
        let loses_a_change =
            any(|tool, now, then| tool.effect.is_change() && now == Level::Denied && then != Level::Denied);
        if loses_a_change && self.changes_nothing() {
            claims.push(ReminderClaim::NothingFromNowOn);
        } else {
            claims.extend(newly_denied.clone().map(ReminderClaim::RefusedFromNowOn));
        }
        let no_longer_asked = name(|now, then| now == Level::Free && then == Level::Asked);
        claims.extend(no_longer_asked.map(ReminderClaim::NoLongerAsked));
        let is_same =
            newly_denied.is_none() && !any(|_, now, then| now != Level::Denied && then == Level::Denied);
        if is_same && self.restricts() && self.write_paths == before.write_paths {
            claims.push(ReminderClaim::SameAsBefore);
        }
        claims
    }

    pub fn refusals(&self) -> Vec<ReminderClaim> {
        if self.changes_nothing() {
            let claimed = self.named(|tool, level| level != Level::Denied && tool.claim.is_some());
            return std::iter::once(ReminderClaim::NothingChanges)
                .chain(claimed.map(ReminderClaim::ClaimedToRead))
                .collect();
        }
        let is_denied = |is_selected: fn(&CallFacts) -> bool| {
            self.tools
                .iter()
                .filter(move |(tool, _)| is_selected(tool))
                .map(|(_, level)| *level == Level::Denied)
        };
        let mut edits = is_denied(|tool| tool.effect == Effect::Edit);
        let mut claims = Vec::new();
        if !self.write_paths.is_empty() && edits.clone().any(|denied| !denied) {
            claims
                .push(ReminderClaim::FilesOnly(self.write_paths.iter().map(|list| list.to_vec()).collect()));
        }
        let mut others = is_denied(|tool| tool.effect.is_change() && tool.effect != Effect::Edit);
        let only_edits = edits.all(|denied| !denied) && others.all(|denied| denied);
        if only_edits {
            claims.push(ReminderClaim::NothingElseChanges);
        }
        // For other read-only tools, the list of available tools suffices.
        let refused = self.named(|tool, level| {
            let is_covered = only_edits && tool.effect.is_change();
            level == Level::Denied
                && !is_covered
                && (tool.effect.is_change() || tool.effect == Effect::Network)
        });
        claims.extend(refused.map(ReminderClaim::Refused));
        claims
    }

    /// The calls that need the user's permission. `is_attended` is false if no user can be asked.
    pub fn asked(&self, is_attended: bool) -> Option<ReminderClaim> {
        let claim = if is_attended { ReminderClaim::Asked } else { ReminderClaim::Unanswered };
        self.named(|_, level| level == Level::Asked).map(claim)
    }

    /// Returns read-only tools that never ask, if changing tools ask. Omits tools of which rules single out
    /// some calls.
    pub fn not_asked(&self, ceilings: &Ceilings) -> Option<ReminderClaim> {
        if !self.tools.iter().any(|(tool, level)| *level == Level::Asked && tool.effect.is_change()) {
            return None;
        }
        let has_no_pattern_rule =
            |tool: &CallFacts| !ceilings.rules.iter().any(|rules| rules.has_pattern_rule(&tool.tool));
        self.named(|tool, level| {
            level == Level::Free && tool.effect == Effect::Read && has_no_pattern_rule(tool)
        })
        .map(ReminderClaim::NotAsked)
    }

    pub fn misses_a_tool(&self) -> bool {
        self.tools.iter().any(|(_, level)| *level == Level::Denied)
    }

    fn changes_nothing(&self) -> bool {
        let mut changing = self.tools.iter().filter(|(tool, _)| tool.effect.is_change());
        changing.all(|(_, level)| *level == Level::Denied)
    }
}

impl fmt::Display for ReminderClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lifted(mode) => write!(f, "The restrictions of {mode} mode no longer hold."),
            Self::NoLongerRefused(these) => write!(f, "No longer refused: {}.", these.text),
            Self::NothingFromNowOn => f.write_str("From now on nothing may be changed."),
            Self::RefusedFromNowOn(these) => write!(f, "From now on refused: {}.", these.text),
            Self::NoLongerAsked(these) => write!(f, "The user is no longer asked before: {}.", these.text),
            Self::SameAsBefore => f.write_str("The same calls are refused as before."),
            Self::NothingChanges => f.write_str(
                "only read-only tools are available this turn, and calls that would change anything are refused.",
            ),
            Self::ClaimedToRead(these) => write!(f, "Read-only only according to their MCP servers: {}.", these.text),
            Self::FilesOnly(lists) => {
                let lists: Vec<String> = lists.iter().map(|list| list.join(", ")).collect();
                write!(f, "Files may be changed only where they match {}.", lists.join(", and also "))
            }
            Self::NothingElseChanges => {
                f.write_str("Calls that would change anything other than files are refused.")
            }
            Self::Refused(these) => write!(f, "Refused: {}.", these.text),
            Self::Asked(these) => write!(f, "Unless already allowed, the user is asked before: {}.", these.text),
            Self::Unanswered(these) => write!(
                f,
                "Nobody can be asked in this run, so these are refused: {}. Do what you can without them, and say what is left.",
                these.text
            ),
            Self::NotAsked(these) => {
                write!(f, "Allowed in the session's folders without asking: {}.", these.text)
            }
        }
    }
}
