//! The tools of one server, with their effects as far as the server is trusted.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::call::RemoteTool;
use super::names;
use super::server::WeakServer;
use crate::permission::Effect;
use crate::permission::hints::{self, Belief, HintContext, Hints, Trust};
use crate::server::{Entry, ServerSandbox};
use crate::tool::content::is_unseen;
use crate::tool::{Tool, ToolSpec};

pub(super) const MAX_TOOLS: usize = 500;

/// Maximum bytes of one schema, and of all schemas of a server.
const MAX_SCHEMA: usize = 64 * 1024;
const MAX_LIST: usize = 1024 * 1024;

/// Maximum names in `ever_changing`. Beyond, every new name counts as contained.
const MAX_EVER_CHANGING: usize = 5000;

const MAX_NOTES: usize = 20;

#[derive(Default)]
pub(super) struct Listing {
    tools: Vec<Arc<RemoteTool>>,
    pub notes: Vec<String>,
    /// Notes about errors in the user's configuration.
    pub config_warnings: Vec<String>,
    /// Listings in which a tool newly claimed to read.
    flips: u64,
    /// Tools that may change something, or could earlier.
    ever_changing: HashSet<String>,
}

impl Listing {
    /// The errors say why a tool cannot be read.
    pub(super) fn new(tools: Vec<Result<rmcp::model::Tool, String>>, server: &WeakServer) -> Self {
        let entry = &server.entry;
        let mut listing = Self::default();
        let (mut seen, mut budget) = (HashSet::new(), MAX_LIST);
        for tool in tools {
            let tool = match tool {
                Ok(tool) => tool,
                Err(error) => {
                    listing.leave_out(&format!("omitted: {error}"));
                    continue;
                }
            };
            let schema = Value::Object((*tool.input_schema).clone());
            let size = schema.to_string().len();
            let name = names::of_tool(&server.part, &tool.name);
            let reason = match size {
                _ if listing.tools.len() >= MAX_TOOLS => "there are more than 500",
                _ if !seen.insert(name.clone()) => "its name is used twice",
                _ if schema["type"] != "object" => "its schema is not of type object",
                MAX_SCHEMA.. => "its schema is larger than 64 KiB",
                _ if size > budget => "the schemas of its server are larger than 1 MiB together",
                _ => "",
            };
            if !reason.is_empty() {
                listing.leave_out(&format!("omitted: {}: {reason}", tool.name));
                continue;
            }
            budget -= size;
            let annotations = tool.annotations.as_ref();
            let hints = Hints {
                read_only: annotations.and_then(|it| it.read_only_hint),
                destructive: annotations.and_then(|it| it.destructive_hint),
            };
            let tool_override = entry.tools.get(&*tool.name).copied();
            let only_reads = entry.sandbox == ServerSandbox::ReadOnly;
            let word = HintContext { trust: entry.trust.as_ref(), tool_override, only_reads };
            let belief = hints::belief(&tool.name, hints, &word);
            listing.tools.push(Arc::new(RemoteTool::new(name, tool, &schema, belief, server.clone())));
        }
        listing.check_names(entry);
        listing
    }

    /// Notes configured tools that do not exist: a typo may leave the wrong tool trusted.
    fn check_names(&mut self, entry: &Entry) {
        let believed = match &entry.trust {
            Some(Trust::Of(names)) => names.as_slice(),
            Some(Trust::All(_)) | None => &[],
        };
        for name in entry.tools.keys().chain(believed) {
            if !self.tools.iter().any(|tool| tool.own_name() == name) {
                let text =
                    format!("the configuration names the tool {name:?}, which the server does not have");
                self.leave_out(&text);
                self.config_warnings.push(text);
            }
        }
    }

    fn leave_out(&mut self, text: &str) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(plain(text, 200));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Arc<dyn Tool>> {
        self.tools.iter().map(|tool| Arc::clone(tool) as Arc<dyn Tool>)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Counts the listing if a tool newly claims to read, because earlier consent does not cover the new
    /// claim. A claim is also new if the tool could once change something and was missing from the last
    /// listing.
    pub(super) fn count_flips(&mut self, before: &Self) -> bool {
        let name = |tool: &RemoteTool| tool.spec().name.to_string();
        let may_change = |tool: &&Arc<RemoteTool>| tool.spec().effect != Effect::Read;
        self.ever_changing = self.tools.iter().filter(may_change).map(|tool| name(tool)).collect();
        let is_full = before.ever_changing.len() > MAX_EVER_CHANGING;
        let has_flipped = |tool: &&Arc<RemoteTool>| {
            let name = &*tool.spec().name;
            !may_change(tool)
                && before.effect_of(name) != Some(Effect::Read)
                && (is_full || before.ever_changing.contains(name))
        };
        let has_flipped = self.tools.iter().any(|tool| has_flipped(&tool));
        // One listing is one claim, for any number of tools.
        self.flips = before.flips + u64::from(has_flipped);
        self.ever_changing.extend(before.ever_changing.iter().take(MAX_EVER_CHANGING + 1).cloned());
        for tool in &mut self.tools {
            Arc::get_mut(tool).expect("the list is new, and nobody else has its tools").set_flips(self.flips);
        }
        has_flipped
    }

    pub(super) fn names(&self) -> Vec<(String, Belief)> {
        self.tools.iter().map(|tool| (tool.spec().name.to_string(), tool.belief())).collect()
    }

    pub(super) fn effect_of(&self, name: &str) -> Option<Effect> {
        self.spec_of(name).map(|spec| spec.effect)
    }

    pub(super) fn spec_of(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.iter().map(|tool| tool.spec()).find(|spec| spec.name == name)
    }

    pub(super) fn differences(&self, before: &Self) -> Vec<(String, Effect, Effect)> {
        let changed = |tool: &Arc<RemoteTool>| {
            let spec = tool.spec();
            let from = before.effect_of(&spec.name)?;
            (from != spec.effect).then(|| (spec.name.to_string(), from, spec.effect))
        };
        self.tools.iter().filter_map(changed).collect()
    }
}

pub(super) fn read_tool(value: Value) -> Result<rmcp::model::Tool, String> {
    let name = plain(value["name"].as_str().unwrap_or("a tool without a name"), 100);
    serde_json::from_value(value).map_err(|error| format!("{name}: {error}"))
}

/// Cleans untrusted text: one line without invisible or control characters.
pub fn plain(text: &str, most: usize) -> String {
    let line = text.chars().map(|c| if c == '\n' { ' ' } else { c });
    line.filter(|c| !is_unseen(*c)).take(most).collect()
}
