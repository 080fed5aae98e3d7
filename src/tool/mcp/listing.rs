//! What a server says of its tools, and what they do as far as it is believed.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::call::RemoteTool;
use super::names;
use super::server::WeakServer;
use crate::permission::Effect;
use crate::permission::hints::{self, Hints};
use crate::server::Entry;
use crate::tool::Tool;

/// Tools of one server.
pub const MAX_TOOLS: usize = 500;

/// Characters of a description.
const MAX_DESCRIPTION: usize = 4000;

/// Bytes of a schema.
const MAX_SCHEMA: usize = 64 * 1024;

/// The tools of a server, in its own order.
#[derive(Default)]
pub struct Listing {
    tools: Vec<Arc<RemoteTool>>,
    /// Tools that cannot be offered, and why.
    pub left_out: Vec<String>,
}

impl Listing {
    /// Reads what a server says.
    pub fn new(said: Vec<rmcp::model::Tool>, entry: &Entry, part: &str, server: &WeakServer) -> Self {
        let mut listing = Self::default();
        let mut seen = HashSet::new();
        for tool in said {
            let reason = if listing.tools.len() >= MAX_TOOLS {
                Some("there are more than 500")
            } else if !seen.insert(tool.name.clone()) {
                Some("it is there twice")
            } else {
                None
            };
            let schema = Value::Object((*tool.input_schema).clone());
            let is_large = schema.to_string().len() > MAX_SCHEMA;
            if let Some(reason) = reason.or_else(|| is_large.then_some("its schema is larger than 64 KiB")) {
                listing.left_out.push(format!("{}: {reason}", tool.name));
                if listing.tools.len() >= MAX_TOOLS {
                    break;
                }
                continue;
            }
            let annotations = tool.annotations.as_ref();
            let hints = Hints {
                read_only: annotations.and_then(|it| it.read_only_hint),
                destructive: annotations.and_then(|it| it.destructive_hint),
            };
            let effect =
                hints::effect(&tool.name, hints, &entry.trust, entry.tools.get(&*tool.name).copied());
            let title = tool.title.clone().or_else(|| annotations.and_then(|it| it.title.clone()));
            let about: String =
                tool.description.as_deref().unwrap_or_default().chars().take(MAX_DESCRIPTION).collect();
            let name = names::of_tool(part, &tool.name);
            listing.tools.push(Arc::new(RemoteTool::new(
                (name, tool.name.into_owned()),
                title,
                about,
                schema,
                effect,
                entry,
                server.clone(),
            )));
        }
        listing
    }

    /// The tools.
    pub fn iter(&self) -> impl Iterator<Item = Arc<dyn Tool>> {
        self.tools.iter().map(|tool| Arc::clone(tool) as Arc<dyn Tool>)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// What a tool does, by the name under which models call it.
    pub fn effect_of(&self, name: &str) -> Option<Effect> {
        self.tools.iter().map(|tool| tool.spec()).find(|spec| spec.name == name).map(|spec| spec.effect)
    }

    /// The tools that do something else than before, and what.
    pub fn differences(&self, before: &Self) -> Vec<(String, Effect, Effect)> {
        let changed = |tool: &Arc<RemoteTool>| {
            let spec = tool.spec();
            let from = before.effect_of(&spec.name)?;
            (from != spec.effect).then(|| (spec.name.to_string(), from, spec.effect))
        };
        self.tools.iter().filter_map(changed).collect()
    }
}

/// A folder as an address.
pub fn address(folder: &Path) -> String {
    let mut text = String::from("file://");
    for byte in folder.to_string_lossy().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            _ => {
                use std::fmt::Write;
                write!(text, "%{byte:02X}").expect("writing to a string cannot fail");
            }
        }
    }
    text
}
