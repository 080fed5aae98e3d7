//! A server that wants the model to answer something (`sampling/createMessage`): decided on like a call, asked for like a
//! call, and bounded.
//!
//! It is a question of the call that is running at that server; without one there is none. What is asked for goes to the
//! model's provider and comes back to the server, so it counts as use of the network.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::actor::Actor;
use super::history::neutralise;
use super::turn_message::Authorization;
use crate::acp::ToolCallId;
use crate::model::{Block, Message, Model, ModelEvent, ModelRequest, ModelStop};
use crate::permission::{CallFacts, Effect};
use crate::tool::ToolContent;
use crate::tool::mcp::{Sampled, Sampling};

/// What servers may want in one turn.
const IN_A_TURN: u32 = 20;

/// Bytes of an answer.
const MAX_ANSWER: usize = 256 * 1024;

/// How long the model may take.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Actor {
    /// Decides whether a server gets its answer, and if so has the model give it.
    pub(super) async fn sample(&mut self, sampling: Sampling) {
        let Sampling { part, server, system, messages, reply } = sampling;
        // The server may be gone by the time it is answered; so below.
        let refuse = |reply: oneshot::Sender<_>, why: &str| drop(reply.send(Err(why.to_owned())));
        let call = match self.call_that_wants(&part) {
            Ok(call) => call,
            Err(why) => return refuse(reply, why),
        };
        let facts = CallFacts::of_tool(format!("mcp_sampling__{part}"), Effect::Network);
        let (authorized, authorization) = oneshot::channel();
        match self.authorize(call.clone(), Some(facts.clone()), false).await {
            Authorization::Ask => {
                let asked = messages.last().map(|(_, text)| text.as_str()).unwrap_or_default();
                let preview = ToolContent::text(&format!(
                    "The MCP server {server:?} wants the model to answer this, and will see the answer:\n\n{asked}"
                ));
                self.ask(call, facts, &[preview], false, authorized).await;
            }
            decided => drop(authorized.send(decided)),
        }
        let ordinal = self.session.requests;
        self.session.requests += 1;
        let request = ModelRequest {
            session: self.session.id.clone(),
            ordinal,
            model: self.session.active.model.clone(),
            effort: self.session.active.effort,
            system: neutralise(&system).into(),
            tools: Arc::default(),
            allowed: None,
            messages: messages
                .into_iter()
                .map(|(role, text)| {
                    Arc::new(Message { role, blocks: vec![Block::Text(neutralise(&text).into_owned())] })
                })
                .collect(),
        };
        let model = Arc::clone(&self.shared.model);
        tokio::spawn(async move {
            let answer = match authorization.await {
                Ok(Authorization::Granted { permit, .. }) => tokio::select! {
                    () = permit.cancel.cancelled() => Err("the call was cancelled".to_owned()),
                    answer = tokio::time::timeout(TIMEOUT, answer(&*model, request)) => {
                        answer.unwrap_or_else(|_| Err("the model took too long".to_owned()))
                    }
                },
                Ok(Authorization::Denied { message, .. } | Authorization::Rejected { message, .. }) => {
                    Err(message)
                }
                Ok(Authorization::Ask | Authorization::Cancelled) | Err(_) => Err("it was cancelled".into()),
            };
            let _ = reply.send(answer);
        });
    }

    /// The call that runs at a server which wants something; of several the first by its id. Counts what servers want.
    pub(super) fn call_that_wants(&mut self, part: &str) -> Result<ToolCallId, &'static str> {
        let prefix = format!("mcp__{part}__");
        let calls = self.session.open_calls.values().filter(|call| call.name.starts_with(&prefix));
        let call = calls.map(|call| call.id.clone()).min_by(|a, b| a.0.cmp(&b.0));
        let call = call.ok_or("that is heard only while one of the server's tools is called")?;
        let (turn, count) = self.wanted;
        let count = if turn == self.session.turns { count } else { 0 };
        if count >= IN_A_TURN {
            return Err("servers have wanted too much in this turn");
        }
        self.wanted = (self.session.turns, count + 1);
        Ok(call)
    }
}

/// Has the model answer, in text.
async fn answer(model: &dyn Model, request: ModelRequest) -> Result<Sampled, String> {
    let name = request.model.as_str().to_owned();
    let mut reply = model.reply(request);
    let mut text = String::new();
    while let Some(event) = reply.next().await {
        match event {
            Ok(ModelEvent::Text(more)) => text.push_str(&more),
            Ok(ModelEvent::Stop(stop)) => {
                return Ok(Sampled { model: name, text, is_whole: stop == ModelStop::Done });
            }
            Ok(_) => {}
            Err(error) => return Err(error.text),
        }
        if text.len() > MAX_ANSWER {
            return Ok(Sampled { model: name, text, is_whole: false });
        }
    }
    Err("the model's answer ended early".into())
}
