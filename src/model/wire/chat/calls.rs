//! Puts the calls of a reply together from their pieces. Pure.
//!
//! A documented stream numbers the calls, and the first piece of each has its id and name. Servers also leave
//! out or change the number or the id, repeat or divide the name, and send either of them late. Two rules
//! decide: a piece without a name continues a call, and a piece with a name begins one, unless the call with
//! its number or id waits for that name or for the rest of its arguments.

use std::collections::VecDeque;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::chunk::CallPiece;
use crate::model::ModelEvent;
use crate::model::wire::id_or_new;
use crate::model::wire::lenient::{call_arguments, is_blank};

#[derive(Debug, Default)]
pub(super) struct CallAssembly {
    calls: Vec<AssembledCall>,
}

#[derive(Debug)]
struct AssembledCall {
    index: Option<u64>,
    /// Id from the server; empty until it sends one.
    server_id: String,
    /// Id for the session.
    id: Option<String>,
    name: String,
    json: String,
}

impl CallAssembly {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.iter().all(AssembledCall::is_void)
    }

    /// Adds a piece. A call is announced once its name is complete: with its first argument, or with the next
    /// call.
    pub(super) fn push(&mut self, piece: CallPiece, events: &mut VecDeque<ModelEvent>) {
        let CallPiece { index, id, function } = piece;
        let (id, name) = (id.unwrap_or_default(), function.name.unwrap_or_default());
        let json = match function.arguments {
            Some(Value::String(text)) => text,
            // An empty object stands for arguments that follow as text.
            Some(value) if !is_blank(&value) => value.to_string(),
            _ => String::new(),
        };
        let at = self.place_of(index, &id, &name, &json);
        let at = at.unwrap_or_else(|| {
            self.announce(events);
            self.calls.push(AssembledCall {
                index,
                server_id: String::new(),
                id: None,
                name: String::new(),
                json: String::new(),
            });
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        call.index = index.or(call.index);
        if !id.is_empty() {
            call.server_id = id;
        }
        call.add_name(&name);
        call.json.push_str(&json);
        if !call.json.is_empty() {
            call.announce(events);
        }
    }

    /// The call that a piece continues; `None` if the piece begins a call.
    fn place_of(&self, index: Option<u64>, id: &str, name: &str, json: &str) -> Option<usize> {
        let has_id = |call: &AssembledCall| !id.is_empty() && call.server_id == id;
        let by_both = self.calls.iter().rposition(|call| has_id(call) && call.index == index);
        if let Some(at) = by_both.or_else(|| self.calls.iter().rposition(has_id)) {
            let call = &self.calls[at];
            let is_elsewhere = matches!((index, call.index), (Some(new), Some(old)) if new != old);
            let is_repeated = json.is_empty() || json == call.json;
            // Some servers give several calls the same id.
            let is_named = !name.is_empty() && !call.name.is_empty();
            let is_other = is_named && (is_elsewhere || (call.is_over() && !is_repeated));
            return (!is_other).then_some(at);
        }
        let by_index = self.calls.iter().rposition(|call| index.is_some() && call.index == index);
        if let Some(at) = by_index {
            return self.calls[at].is_continued_by(id, name).then_some(at);
        }
        let (at, last) = self.calls.iter().enumerate().next_back()?;
        let continues = if name.is_empty() {
            // Without a name, only a call whose arguments are complete is followed by another.
            json.is_empty() || !(if index.is_some() { last.is_complete() } else { last.is_over() })
        } else if index.is_some() {
            // A number that occurs for the first time, with a name.
            last.name.is_empty() && (id.is_empty() || last.server_id.is_empty())
        } else if id.is_empty() {
            last.name.is_empty() || (last.name == name && last.is_unfinished())
        } else {
            last.name.is_empty() && last.server_id.is_empty()
        };
        continues.then_some(at)
    }

    /// Announces all calls with a name.
    pub(super) fn announce(&mut self, events: &mut VecDeque<ModelEvent>) {
        self.calls.iter_mut().for_each(|call| call.announce(events));
    }

    /// Ends the calls. A limit cut off the calls whose arguments are incomplete, if `is_cut`.
    pub(super) fn finish(&mut self, is_cut: bool, events: &mut VecDeque<ModelEvent>) {
        for call in self.calls.drain(..).filter(|call| !call.is_void()) {
            if is_cut && !call.is_complete() {
                continue;
            }
            let AssembledCall { id, server_id, name, json, .. } = call;
            let id = id.unwrap_or_else(|| id_or_new(Some(server_id), "call_"));
            events.push_back(ModelEvent::ToolCall { id, name, arguments: call_arguments(&json) });
        }
    }
}

impl AssembledCall {
    /// True if no call came of the pieces.
    fn is_void(&self) -> bool {
        self.name.is_empty() && self.json.trim().is_empty()
    }

    fn is_complete(&self) -> bool {
        serde_json::from_str::<IgnoredAny>(&self.json).is_ok()
    }

    /// True if no argument follows. Some servers send `{}` before the arguments.
    fn is_over(&self) -> bool {
        self.json.trim() != "{}" && self.is_complete()
    }

    /// True after the first argument, until the last.
    fn is_unfinished(&self) -> bool {
        !self.json.is_empty() && !self.is_over()
    }

    /// True if a piece with the number of this call belongs to it.
    fn is_continued_by(&self, id: &str, name: &str) -> bool {
        let is_other = !id.is_empty() && !self.server_id.is_empty();
        if name.is_empty() {
            return !(is_other && self.is_over());
        }
        if self.name.is_empty() {
            return true;
        }
        if is_other || !self.json.is_empty() {
            return self.is_unfinished() && (is_other || name == self.name);
        }
        true
    }

    /// Adds a piece of the name. Some servers repeat the whole name, or all of it so far.
    fn add_name(&mut self, name: &str) {
        if self.id.is_some() || self.name == name {
            return;
        }
        if name.starts_with(&self.name) {
            name.clone_into(&mut self.name);
        } else {
            self.name.push_str(name);
        }
    }

    fn announce(&mut self, events: &mut VecDeque<ModelEvent>) {
        if self.id.is_some() || self.name.is_empty() {
            return;
        }
        let id = id_or_new(Some(self.server_id.clone()), "call_");
        events.push_back(ModelEvent::ToolCallStarted { id: id.clone(), name: self.name.clone() });
        self.id = Some(id);
    }
}
