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
use super::inert::neutralise;
use super::turn_message::Authorization;
use crate::gate::Active;
use crate::model::{Block, Message, Model, ModelEvent, ModelRequest, ModelStop, Role};
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
    /// Decides whether a server gets its answer, and if so has the model give it. It ends with the call that it belongs to.
    pub(super) async fn sample(&mut self, sampling: Sampling) {
        let Sampling { part, server, system, messages, mut reply } = sampling;
        let active = match self.call_that_wants(&part) {
            Ok(active) => active,
            // The server may be gone by the time it is answered; so below.
            Err(why) => return drop(reply.send(Err(why.to_owned()))),
        };
        let call = active.call.clone();
        let facts = CallFacts::of_tool(format!("mcp_sampling__{part}"), Effect::Network);
        let (authorized, authorization) = oneshot::channel();
        match self.authorize(call.clone(), Some(facts.clone()), false).await {
            Authorization::Ask => {
                let preview = ToolContent::text(&shown(&server, &system, &messages));
                self.ask(call.clone(), facts, &[preview], false, authorized).await;
            }
            decided => drop(authorized.send(decided)),
        }
        let ordinal = self.session.requests;
        self.session.requests += 1;
        let say = |(role, text): (Role, String)| {
            Arc::new(Message { role, blocks: vec![Block::Text(neutralise(&text).into_owned())] })
        };
        let request = ModelRequest {
            session: self.session.id.clone(),
            ordinal,
            model: self.session.active.model.clone(),
            effort: self.session.active.effort,
            system: neutralise(&system).into(),
            tools: Arc::default(),
            allowed: None,
            messages: messages.into_iter().map(say).collect(),
        };
        let model = Arc::clone(&self.shared.model);
        tokio::spawn(async move {
            let work = async {
                match authorization.await {
                    // The call's own permit counts; this one was to be had.
                    Ok(Authorization::Granted { .. }) => {
                        let answer = tokio::time::timeout(TIMEOUT, answer(&*model, request)).await;
                        answer.unwrap_or_else(|_| Err("the model took too long".into()))
                    }
                    Ok(Authorization::Denied { message, .. } | Authorization::Rejected { message, .. }) => {
                        Err(message)
                    }
                    Ok(Authorization::Ask | Authorization::Cancelled) | Err(_) => {
                        Err("it was cancelled".into())
                    }
                }
            };
            let answer = tokio::select! {
                biased;
                () = active.over() => Err("the call is over".into()),
                // The server does not want it any more.
                () = reply.closed() => return,
                answer = work => answer,
            };
            let _ = reply.send(answer);
        });
    }

    /// The call that runs at a server which wants something. Counts what servers want.
    pub(super) fn call_that_wants(&mut self, part: &str) -> Result<Active, &'static str> {
        let prefix = format!("mcp__{part}__");
        let active = self.gate.active(|facts| facts.tool.starts_with(&prefix));
        let active = active.ok_or("that is heard only while one of the server's tools is called")?;
        let (turn, count) = self.wanted;
        let count = if turn == self.session.turns { count } else { 0 };
        if count >= IN_A_TURN {
            return Err("servers have wanted too much in this turn");
        }
        self.wanted = (self.session.turns, count + 1);
        Ok(active)
    }
}

/// All that would be sent, for whoever is asked.
fn shown(server: &str, system: &str, messages: &[(Role, String)]) -> String {
    let mut text =
        format!("The MCP server {server:?} wants the model to answer this, and will see the answer:\n");
    if !system.trim().is_empty() {
        text = format!("{text}\nSystem: {system}\n");
    }
    for (role, said) in messages {
        let who = if *role == Role::User { "User" } else { "Model" };
        text = format!("{text}\n{who}: {said}\n");
    }
    text
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
