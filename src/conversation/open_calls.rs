//! Tracks forwarded calls that have not ended. Pure.
//!
//! If the maker of a call ends before its call, the forwarding side ends the call, so that none seems to run
//! forever.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::acp_updates::text_content;
use crate::acp::{SessionUpdate, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields};

#[derive(Debug, Default)]
pub struct OpenCalls(BTreeMap<Arc<str>, OpenCall>);

#[derive(Debug, Default)]
struct OpenCall {
    tool: Option<String>,
    title: String,
}

#[derive(Debug)]
pub struct CutOff {
    pub update: SessionUpdate,
    pub tool: Option<String>,
    pub title: String,
}

pub fn is_end(status: ToolCallStatus) -> bool {
    matches!(status, ToolCallStatus::Completed | ToolCallStatus::Failed)
}

impl OpenCalls {
    pub fn apply(&mut self, update: &SessionUpdate) {
        match update {
            SessionUpdate::ToolCall(call) if !is_end(call.status) => {
                let open_call = OpenCall { tool: call.name.clone(), title: call.title.clone() };
                self.0.insert(Arc::clone(&call.tool_call_id.0), open_call);
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.status.is_some_and(is_end) => {
                self.0.remove(&update.tool_call_id.0);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                if update.fields.status.is_some() {
                    // A call may resume after its end, and then ends again.
                    self.0.entry(Arc::clone(&update.tool_call_id.0)).or_default();
                }
                if let (Some(shown), Some(title)) =
                    (self.0.get_mut(&update.tool_call_id.0), &update.fields.title)
                {
                    shown.title.clone_from(title);
                }
            }
            _ => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends all open calls, innermost first. `text` replaces their content; `None` leaves it.
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
    fn open_calls_end_innermost_first_and_only_once() {
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
        assert!(open.is_empty(), "a title does not reopen a call");
        open.apply(&update("a/d", ToolCallUpdateFields::new().status(ToolCallStatus::InProgress)));
        assert_eq!(ids(&open.end(None)), ["a/d"]);
    }
}
