//! The call that an external agent asks about, in the agent's own words. These are no proof: its paths are
//! mentions, so no `allow` rule for files matches them. Pure.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::acp::{ToolCall, ToolCallContent, ToolCallLocation, ToolCallUpdateFields, ToolKind};
use crate::permission::{Address, CallFacts, CallSource, Commands, Effect};

/// Tool whose rules apply to edits.
pub const EDIT: &str = "edit_file";

/// Tools whose rules apply to requests of each kind, and the effects of these requests.
pub const TOOLS: [(ToolKind, &str, Effect); 7] = [
    (ToolKind::Read, "read_file", Effect::Read),
    (ToolKind::Search, "search_files", Effect::Read),
    (ToolKind::Fetch, "fetch", Effect::Network),
    (ToolKind::Edit, EDIT, Effect::Edit),
    (ToolKind::Delete, "delete_file", Effect::Edit),
    (ToolKind::Move, "move_file", Effect::Edit),
    (ToolKind::Execute, "shell", Effect::Execute),
];

/// Readers of the texts in an agent's arguments.
#[derive(Debug, Clone, Copy)]
pub struct Readers {
    pub command: fn(&str) -> Commands,
    /// Returns `None` if the text is no address.
    pub address: fn(&str) -> Option<Address>,
}

#[derive(Debug, Clone, Default)]
pub struct RequestedCall {
    kind: Option<ToolKind>,
    paths: Vec<PathBuf>,
    command: Option<String>,
    address: Option<String>,
}

impl RequestedCall {
    pub fn write(path: &Path) -> Self {
        Self { kind: Some(ToolKind::Edit), paths: vec![path.to_owned()], ..Self::default() }
    }

    pub fn announced(call: &ToolCall) -> Self {
        let mut requested = Self { kind: Some(call.kind), ..Self::default() };
        requested.add(Some(&call.locations), Some(&call.content), call.raw_input.as_ref());
        requested
    }

    pub fn apply(&mut self, fields: &ToolCallUpdateFields) {
        self.kind = fields.kind.or(self.kind);
        self.add(fields.locations.as_deref(), fields.content.as_deref(), fields.raw_input.as_ref());
    }

    fn add(
        &mut self,
        locations: Option<&[ToolCallLocation]>,
        content: Option<&[ToolCallContent]>,
        input: Option<&Value>,
    ) {
        let changed = content.unwrap_or_default().iter().filter_map(|content| match content {
            ToolCallContent::Diff(diff) => Some(&diff.path),
            _ => None,
        });
        let located = locations.unwrap_or_default().iter().map(|location| &location.path);
        for path in located.chain(changed) {
            if !self.paths.contains(path) {
                self.paths.push(path.clone());
            }
        }
        let Some(input) = input else { return };
        let text = |name: &str| input.get(name).and_then(Value::as_str).map(str::to_owned);
        let words = input.get("command").and_then(Value::as_array).map(|words| {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            words.join(" ")
        });
        self.command = text("command").or(words).or(self.command.take());
        self.address = text("url").or(self.address.take());
    }

    pub fn facts(&self, folders: &[&Path], readers: Readers) -> CallFacts {
        let tool_of_kind = TOOLS.iter().find(|(kind, ..)| self.kind == Some(*kind));
        let (tool, effect) = match tool_of_kind {
            Some((_, tool, effect)) => (*tool, *effect),
            None if self.kind == Some(ToolKind::Think) => ("", Effect::Session),
            None => ("", Effect::Unknown),
        };
        // Rules name paths below a folder or absolute ones.
        let mentions = self.paths.iter().flat_map(|path| {
            let plain = without_dots(path);
            let below = folders.iter().find_map(|folder| plain.strip_prefix(folder).ok());
            [below.map(PathBuf::from), Some(path.clone()), Some(plain)].into_iter().flatten()
        });
        CallFacts {
            source: CallSource::ExternalAgent,
            mentions: sorted(mentions.collect()),
            commands: self.command.as_deref().map(readers.command).unwrap_or_default(),
            address: self.address.as_deref().and_then(readers.address),
            ..CallFacts::of_tool(tool, effect)
        }
    }
}

/// Facts of an external agent's request for a call of one of Modegate's tools. `None` if no kind of request
/// corresponds to the tool.
pub fn same_request(call: CallFacts) -> Option<CallFacts> {
    let requested = if call.tool == "write_file" { EDIT } else { &call.tool };
    let (_, _, effect) = *TOOLS.iter().find(|(_, tool, _)| *tool == requested)?;
    let paths = call.targets.into_iter().flat_map(|target| [Some(target.path), target.inside]);
    Some(CallFacts {
        source: CallSource::ExternalAgent,
        mentions: sorted(paths.flatten().collect()),
        commands: call.commands,
        address: call.address,
        ..CallFacts::of_tool(call.tool, effect)
    })
}

fn sorted(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    paths.dedup();
    paths
}

/// Resolves `.` and `..` by name, without following links.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::mode::Modes;
    use crate::permission::{Ceilings, Grants, Verdict, decide};

    const READERS: Readers = Readers { command: |_| Commands::None, address: |_| None };

    fn fields(text: Value) -> ToolCallUpdateFields {
        serde_json::from_value(text).unwrap()
    }

    fn requested(kind: Option<ToolKind>) -> CallFacts {
        RequestedCall { kind, ..RequestedCall::default() }.facts(&[], READERS)
    }

    #[test]
    fn reads_are_allowed_and_other_kinds_follow_the_modes() {
        let built_in = Modes::built_in();
        let read = Some(ToolKind::Read);
        for (modes, kind, expected) in [
            (&["plan"][..], read, "allow"),
            (&["plan"], Some(ToolKind::Edit), "deny"),
            (&["plan"], Some(ToolKind::SwitchMode), "deny"),
            (&["plan"], None, "deny"),
            (&["plan"], Some(ToolKind::Fetch), "ask"),
            (&["ask"], Some(ToolKind::Execute), "ask"),
            (&["code"], Some(ToolKind::Execute), "allow"),
            (&["code", "ask"], None, "ask"),
            (&["code", "plan"], None, "deny"),
            (&[], read, "deny"),
        ] {
            let modes = modes.iter().map(|id| Arc::clone(&built_in.ceilings(id).unwrap()[0])).collect();
            let ceilings = Ceilings { modes, rules: vec![Arc::default()] };
            let verdict = match decide(&ceilings, &Grants::default(), &requested(kind)) {
                Verdict::Allow => "allow",
                Verdict::Ask(_) => "ask",
                Verdict::Deny(_) => "deny",
            };
            assert_eq!(verdict, expected, "{:?} {kind:?}", ceilings.modes);
        }
    }

    #[test]
    fn explained_call_has_the_facts_of_the_request() {
        let requested = RequestedCall::write(Path::new("/w/a")).facts(&[Path::new("/w")], READERS);
        let target = crate::permission::Target { path: "/w/a".into(), inside: Some("a".into()) };
        let own = CallFacts { targets: vec![target], ..CallFacts::of_tool(EDIT, Effect::Edit) };
        assert_eq!(format!("{:?}", same_request(own)), format!("{:?}", Some(requested)));
        assert!(same_request(CallFacts::of_tool("ask_user", Effect::Session)).is_none());
    }

    #[test]
    fn later_updates_add_paths_and_replace_the_command() {
        let mut call = RequestedCall::default();
        call.apply(&fields(json!({
            "kind": "execute",
            "rawInput": { "command": ["git", "status"] },
            "locations": [{ "path": "/w/a" }, { "path": "/elsewhere" }],
        })));
        assert_eq!(call.command.as_deref(), Some("git status"));
        let diff = json!({ "type": "diff", "path": "/w/c/../b", "newText": "x" });
        call.apply(&fields(json!({ "content": [diff], "rawInput": { "command": "git push" } })));
        assert_eq!((call.kind, call.command.as_deref()), (Some(ToolKind::Execute), Some("git push")));
        let facts = call.facts(&[Path::new("/w")], READERS);
        let mentions: Vec<_> =
            facts.mentions.iter().map(|path| path.to_str().unwrap().replace('\\', "/")).collect();
        assert_eq!(mentions, ["/elsewhere", "/w/a", "/w/b", "/w/c/../b", "a", "b"]);
        assert!(facts.targets.is_empty(), "an agent's word is no proof");
    }
}
