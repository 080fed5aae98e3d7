//! `_meta` of answers about mode changes and the event log. Pure.

use serde_json::{Value, json};

use crate::acp::{Meta, ToolCallId};
use crate::chain::Head;
use crate::gate::Ended;
use crate::mode::Modes;

/// Sent as `_meta["modegate/effect"]`.
#[derive(Debug, Default)]
pub struct ModeEffect {
    /// True if something is newly denied or asked.
    pub(crate) tightened: bool,
    pub(crate) ended: Ended,
    /// Permission requests closed as rejected.
    pub(crate) closed: Vec<ToolCallId>,
}

/// `_meta` key for the head of the hash chain.
pub const HEAD_META: &str = "modegate/head";

pub fn head_meta(head: &Head) -> Meta {
    Meta::from_iter([(HEAD_META.to_owned(), json!({ "length": head.length, "hash": head.hash }))])
}

impl ModeEffect {
    /// False if something that the mode denies may still go on.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.ended.unconfirmed.is_empty()
    }

    pub(crate) fn to_meta(&self, head: Option<&Head>) -> Meta {
        let applies = if self.tightened { "immediate" } else { "next_request" };
        let effect = json!({
            "applies": applies,
            "ended": self.ended.confirmed,
            "unconfirmed": self.ended.unconfirmed,
            "closedRequests": self.closed,
        });
        let mut meta = head.map(head_meta).unwrap_or_default();
        meta.insert("modegate/effect".to_owned(), effect);
        meta
    }
}

pub fn valid_modes(modes: &Modes) -> Value {
    json!({ "validModes": modes.iter().map(|mode| mode.id.as_str()).collect::<Vec<_>>() })
}
