//! The tools of one server, with their effects as far as the server is trusted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::names::ServerIdentity;
use super::schema_repair::{self, RepairedSchema};
use crate::acp::ToolKind;
use crate::mode::ShellUse;
use crate::permission::hints::{self, Belief, HintContext, Hints, Trust};
use crate::permission::{Claim, Effect};
use crate::server::{ServerEntry, ServerSandbox};
use crate::text::{counted, plain, shorten};
use crate::tool::ToolSpec;
use crate::tool::agent::background::BackgroundRole;

pub(super) const MAX_TOOLS: usize = 500;

/// Maximum bytes of one schema, and of all schemas of a server.
const MAX_SCHEMA: usize = 64 * 1024;
const MAX_LIST: usize = 1024 * 1024;

/// Maximum names in `ever_changing`. Beyond, every new name counts as contained.
const MAX_EVER_CHANGING: usize = 5000;

const MAX_NOTES: usize = 20;

const MAX_DESCRIPTION: usize = 4000;

#[derive(Default)]
pub(super) struct ToolListing {
    tools: Vec<Arc<ServerTool>>,
    pub notes: Vec<String>,
    /// Notes about errors in the user's configuration.
    pub config_warnings: Vec<String>,
    /// Listings in which a tool newly claimed to read.
    flips: u64,
    /// Tools that may change something, or could earlier.
    ever_changing: HashSet<String>,
}

impl ToolListing {
    /// The errors say why a tool cannot be read.
    pub(super) fn new(tools: Vec<Result<ListedTool, String>>, server: &ServerIdentity) -> Self {
        let entry = &server.entry;
        let mut listing = Self::default();
        let (mut seen, mut budget) = (HashSet::new(), MAX_LIST);
        let mut repaired = Vec::new();
        for tool in tools {
            let ListedTool { tool, schema } = match tool {
                Ok(tool) => tool,
                Err(error) => {
                    listing.note(&format!("omitted: {error}"));
                    continue;
                }
            };
            let size = schema.as_ref().map_or(0, |schema| schema.to_string().len());
            let name = server.tool_name(&tool.name);
            let reason = match size {
                _ if listing.tools.len() >= MAX_TOOLS => "there are more than 500",
                _ if !seen.insert(name.clone()) => "its name is used twice",
                MAX_SCHEMA.. => "its schema is larger than 64 KiB",
                _ if size > budget => "the schemas of its server are larger than 1 MiB together",
                _ => "",
            };
            if !reason.is_empty() {
                listing.note(&format!("omitted: {}: {reason}", tool.name));
                continue;
            }
            let schema = match schema_repair::repair(schema.as_ref()) {
                Ok(schema) => schema,
                Err(reason) => {
                    listing.note(&format!("omitted: {}: {reason}", tool.name));
                    continue;
                }
            };
            budget -= size;
            repaired.extend(repair_note(&tool.name, &schema.faults));
            let annotations = tool.annotations.as_ref();
            let hints = Hints {
                read_only: annotations.and_then(|it| it.read_only_hint),
                destructive: annotations.and_then(|it| it.destructive_hint),
            };
            let tool_override = entry.tools.get(&*tool.name).copied();
            let only_reads = entry.sandbox == ServerSandbox::ReadOnly;
            let word = HintContext { trust: entry.trust.as_ref(), tool_override, only_reads };
            let belief = hints::belief(&tool.name, hints, &word);
            listing.tools.push(Arc::new(ServerTool::new(tool, schema, belief, server)));
        }
        for note in &repaired {
            listing.note(note);
        }
        listing.check_names(entry);
        listing
    }

    /// Notes configured tools that do not exist: a typo may leave the wrong tool trusted.
    fn check_names(&mut self, entry: &ServerEntry) {
        let believed = match &entry.trust {
            Some(Trust::Of(names)) => names.as_slice(),
            Some(Trust::All(_)) | None => &[],
        };
        for name in entry.tools.keys().chain(believed) {
            if !self.tools.iter().any(|tool| tool.own_name == *name) {
                let text =
                    format!("the configuration names the tool {name:?}, which the server does not have");
                self.note(&text);
                self.config_warnings.push(text);
            }
        }
    }

    fn note(&mut self, text: &str) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(plain(text, 200));
        }
    }

    pub(super) fn tools(&self) -> &[Arc<ServerTool>] {
        &self.tools
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Counts the listing if a tool newly claims to read, because earlier consent does not cover the new
    /// claim. A claim is also new if the tool could once change something and was missing from the last
    /// listing.
    pub(super) fn count_flips(&mut self, before: &Self) -> bool {
        let changing = self.tools.iter().filter(|tool| may_change(tool));
        self.ever_changing = changing.map(|tool| tool.spec.name.to_string()).collect();
        let is_full = before.ever_changing.len() > MAX_EVER_CHANGING;
        let has_flipped = self.tools.iter().any(|tool| {
            let name = &*tool.spec.name;
            !may_change(tool)
                && before.effect_of(name) != Some(Effect::Read)
                && (is_full || before.ever_changing.contains(name))
        });
        // One listing is one claim, for any number of tools.
        self.flips = before.flips + u64::from(has_flipped);
        self.ever_changing.extend(before.ever_changing.iter().take(MAX_EVER_CHANGING + 1).cloned());
        for tool in &mut self.tools {
            Arc::get_mut(tool).expect("the list is new, and nobody else has its tools").set_flips(self.flips);
        }
        has_flipped
    }

    pub(super) fn names(&self) -> Vec<(String, Belief)> {
        self.tools.iter().map(|tool| (tool.spec.name.to_string(), tool.belief())).collect()
    }

    pub(super) fn effect_of(&self, name: &str) -> Option<Effect> {
        self.spec_of(name).map(|spec| spec.effect)
    }

    pub(super) fn spec_of(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.iter().map(|tool| &tool.spec).find(|spec| spec.name == name)
    }

    pub(super) fn differences(&self, before: &Self) -> Vec<(String, Effect, Effect)> {
        let changes = self.tools.iter().filter_map(|tool| {
            let spec = &tool.spec;
            let from = before.effect_of(&spec.name)?;
            (from != spec.effect).then(|| (spec.name.to_string(), from, spec.effect))
        });
        changes.collect()
    }
}

fn may_change(tool: &ServerTool) -> bool {
    tool.spec.effect != Effect::Read
}

/// A tool of a server as models see it.
pub(super) struct ServerTool {
    pub spec: ToolSpec,
    /// The server's own name for the tool.
    pub own_name: String,
    pub title: String,
    /// Arguments with another name for the model, to the server's.
    pub renamed: BTreeMap<String, String>,
}

impl ServerTool {
    fn new(tool: rmcp::model::Tool, schema: RepairedSchema, belief: Belief, server: &ServerIdentity) -> Self {
        let title = tool.title.or_else(|| tool.annotations.and_then(|annotations| annotations.title));
        let title = title.filter(|title| !title.trim().is_empty());
        let shown_name = plain(title.as_deref().unwrap_or(&tool.name), 80);
        let about = shorten(tool.description.as_deref().unwrap_or_default(), MAX_DESCRIPTION);
        let claim =
            (belief == Belief::ClaimsToRead).then(|| Claim { server: server.part.to_string(), flips: 0 });
        let spec = ToolSpec {
            name: server.tool_name(&tool.name).into(),
            description: about.into_owned().into(),
            // Clients may trust the kind, so an unverified hint must not set it.
            kind: if belief == Belief::Reads { ToolKind::Read } else { ToolKind::Other },
            effect: belief.effect(),
            claim,
            server: Some(Arc::clone(&server.part)),
            shell: ShellUse::Off,
            is_exit: false,
            background: BackgroundRole::None,
            schema: (&schema.schema).into(),
            timeout: server.entry.timeout,
        };
        let title = format!("{}: {shown_name}", plain(&server.entry.name, 60));
        Self { spec, own_name: tool.name.into_owned(), title, renamed: schema.renamed }
    }

    fn belief(&self) -> Belief {
        match self.spec.effect {
            Effect::Read if self.spec.claim.is_some() => Belief::ClaimsToRead,
            Effect::Read => Belief::Reads,
            _ => Belief::MayChange,
        }
    }

    fn set_flips(&mut self, flips: u64) {
        if let Some(claim) = &mut self.spec.claim {
            claim.flips = flips;
        }
    }
}

/// A tool as the server lists it.
pub(super) struct ListedTool {
    tool: rmcp::model::Tool,
    /// Anything; `None` if there is none.
    schema: Option<Value>,
}

impl ListedTool {
    pub(super) fn new(tool: rmcp::model::Tool) -> Self {
        let schema = Some(Value::Object((*tool.input_schema).clone()));
        Self { tool, schema }
    }

    /// Reads a tool that the library cannot read. Its schema may be wrong; the rest must be right.
    pub(super) fn read(mut value: Value) -> Result<Self, String> {
        let name = plain(value["name"].as_str().unwrap_or("a tool without a name"), 100);
        let schema =
            value.as_object_mut().and_then(|members| members.insert("inputSchema".into(), json!({})));
        let tool = serde_json::from_value(value).map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { tool, schema })
    }
}

/// `None` if nothing was repaired.
fn repair_note(tool: &str, faults: &[String]) -> Option<String> {
    let first = faults.first()?;
    let more = match faults.len() - 1 {
        0 => String::new(),
        more => format!(" (and {})", counted(more, "more fault", "more faults")),
    };
    Some(format!("repaired the schema of {}: {first}{more}", plain(tool, 60)))
}
