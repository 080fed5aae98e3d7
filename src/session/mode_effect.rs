//! What answers say of a mode change and of the record, in their `_meta`; and of mode ids that would have been valid. Pure.

use serde_json::{Value, json};

use crate::acp::{Meta, ToolCallId};
use crate::chain::Head;
use crate::gate::Ended;
use crate::mode::Modes;

/// What a mode change did, for the answer's `_meta["modegate/effect"]`.
#[derive(Debug, Default)]
pub struct ModeEffect {
    /// Something that was possible no longer is, or is now asked for.
    pub(super) tightened: bool,
    /// Calls that were ended.
    pub(super) ended: Ended,
    /// Permission requests that were closed as rejected.
    pub(super) closed: Vec<ToolCallId>,
}

/// Under this key of an answer's `_meta` stands where the chain of the session's record has come to.
pub const HEAD_META: &str = "modegate/head";

/// That, as an answer's `_meta` has it.
pub fn head_meta(head: &Head) -> Meta {
    Meta::from_iter([(HEAD_META.to_owned(), json!({ "length": head.length, "hash": head.hash }))])
}

impl ModeEffect {
    /// As it stands in the answer.
    pub(super) fn to_meta(&self, head: Option<&Head>) -> Meta {
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

/// What an error says of mode ids that would have been valid.
pub fn valid_modes(modes: &Modes) -> Value {
    json!({ "validModes": modes.iter().map(|mode| mode.id.as_str()).collect::<Vec<_>>() })
}
