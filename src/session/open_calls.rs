//! Calls of somebody else's that were shown: which of them have no end yet. Pure.
//!
//! Whoever makes such a call ends it; where that did not come about, because the process or the session ended first, it is
//! ended by whoever has shown it, so that nothing is shown to be at work for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::encoder::text_content;
use crate::acp::{SessionUpdate, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields};

/// The calls that are open.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(BTreeMap<Arc<str>, OpenCall>);

/// What the client was shown of a call.
#[derive(Debug, Default)]
struct OpenCall {
    tool: Option<String>,
    title: String,
}

/// A call that is ended from above.
#[derive(Debug)]
pub(super) struct CutOff {
    /// What is shown of its end.
    pub update: SessionUpdate,
    /// The tool.
    pub tool: Option<String>,
    /// Its title.
    pub title: String,
}

/// Whether it is the end of a call.
pub(super) fn is_end(status: ToolCallStatus) -> bool {
    matches!(status, ToolCallStatus::Completed | ToolCallStatus::Failed)
}

impl OpenCalls {
    /// Takes up what was shown.
    pub fn apply(&mut self, update: &SessionUpdate) {
        match update {
            SessionUpdate::ToolCall(call) if !is_end(call.status) => {
                let shown = OpenCall { tool: call.name.clone(), title: call.title.clone() };
                self.0.insert(Arc::clone(&call.tool_call_id.0), shown);
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.status.is_some_and(is_end) => {
                self.0.remove(&update.tool_call_id.0);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                if update.fields.status.is_some() {
                    // It may go on after its end, and then has another one.
                    self.0.entry(Arc::clone(&update.tool_call_id.0)).or_default();
                }
                if let (Some(shown), Some(title)) =
                    (self.0.get_mut(&update.tool_call_id.0), &update.fields.title)
                {
                    shown.title.clone_from(title);
                }
            }
            // Only calls have an end.
            _ => {}
        }
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends all that are open, the innermost first. `text` says why, in the place of what they have shown; without one, that stays.
    pub fn end(&mut self, text: Option<&str>) -> Vec<CutOff> {
        let open = std::mem::take(&mut self.0);
        let ended = open.into_iter().rev().map(|(id, OpenCall { tool, title })| {
            let fields = ToolCallUpdateFields::new()
                .status(ToolCallStatus::Failed)
                .content(text.map(|text| vec![text_content(text)]));
            CutOff { update: SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)), tool, title }
        });
        ended.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::ToolCall;

    #[test]
    fn what_has_no_end_is_ended_from_the_inside_and_once() {
        let mut open = OpenCalls::default();
        for id in ["a/b", "a/b/c", "a/d"] {
            open.apply(&SessionUpdate::ToolCall(
                ToolCall::new(id.to_owned(), "x: shell").name("shell".to_owned()),
            ));
        }
        let update =
            |id: &str, fields| SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.to_owned(), fields));
        open.apply(&update("a/d", ToolCallUpdateFields::new().status(ToolCallStatus::InProgress)));
        open.apply(&update("a/d", ToolCallUpdateFields::new().status(ToolCallStatus::Completed)));
        open.apply(&update("a/b", ToolCallUpdateFields::new().title("x: make".to_owned())));
        let ids = |ended: &[CutOff]| -> Vec<String> {
            let id = |it: &CutOff| match &it.update {
                SessionUpdate::ToolCallUpdate(update) => update.tool_call_id.to_string(),
                other => panic!("{other:?}"),
            };
            ended.iter().map(id).collect()
        };
        let ended = open.end(None);
        assert_eq!(ids(&ended), ["a/b/c", "a/b"]);
        assert_eq!((ended[1].tool.as_deref(), ended[1].title.as_str()), (Some("shell"), "x: make"));
        assert!(open.is_empty() && open.end(None).is_empty());
        open.apply(&update("a/d", ToolCallUpdateFields::new().title("x: late".to_owned())));
        assert!(open.is_empty(), "a title is no sign of work");
        open.apply(&update("a/d", ToolCallUpdateFields::new().status(ToolCallStatus::InProgress)));
        assert_eq!(ids(&open.end(None)), ["a/d"]);
    }
}
