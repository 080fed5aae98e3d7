//! Elicitations of MCP servers: authorised like calls, as part of the call that runs on that server.

use super::actor::Actor;
use super::turn_message::Authorization;
use crate::gate::Active;
use crate::permission::{CallFacts, Effect};
use crate::tool::mcp::Question;

/// Limit per turn for all servers together.
const MAX_QUESTIONS: u32 = 20;

impl Actor {
    pub(super) async fn question(&mut self, question: Question) {
        let Question { part, message, form, mut reply } = question;
        // The server may be gone, here and below.
        let active = match self.asking_call(&part) {
            Ok(active) => active,
            Err(why) => return drop(reply.send(Err(why.to_owned()))),
        };
        let facts = CallFacts::of_tool(format!("mcp_elicitation__{part}"), Effect::Session);
        match self.authorize(active.call.clone(), Some(facts), false).await {
            // Asking the user satisfies a rule to ask.
            Authorization::Granted { .. } | Authorization::Ask => {}
            Authorization::Denied { message, .. } | Authorization::Rejected { message, .. } => {
                return drop(reply.send(Err(message)));
            }
            Authorization::Cancelled => return drop(reply.send(Err("it was cancelled".into()))),
        }
        let client_io = self.client_io.for_call(&active.call);
        tokio::spawn(async move {
            let answer = tokio::select! {
                biased;
                () = active.over() => Err("the call has ended".to_owned()),
                // The server withdrew the question.
                () = reply.closed() => return,
                answer = Question::put(&client_io, &message, form) => answer.map_err(|error| error.to_string()),
            };
            let _ = reply.send(answer);
        });
    }

    fn asking_call(&mut self, part: &str) -> Result<Active, &'static str> {
        let prefix = format!("mcp__{part}__");
        let active = self.gate.active(|facts| facts.tool.starts_with(&prefix));
        let active = active.ok_or("a server may ask only while one of its tools is called")?;
        let (turn, count) = self.servers.questions;
        let count = if turn == self.log.turns { count } else { 0 };
        if count >= MAX_QUESTIONS {
            return Err("servers have asked too many questions in this turn");
        }
        self.servers.questions = (self.log.turns, count + 1);
        Ok(active)
    }
}
