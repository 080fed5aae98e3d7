//! A server that wants to ask the user something: decided on like a call, and put to the user as the server's question. It is
//! a question of the call that is running at that server.

use super::actor::Actor;
use super::turn_message::Authorization;
use crate::permission::{CallFacts, Effect};
use crate::tool::mcp::Question;

impl Actor {
    /// Decides whether a server may ask, and if so asks.
    pub(super) async fn question(&mut self, question: Question) {
        let Question { part, message, form, mut reply } = question;
        // The server may be gone by the time it is answered; so below.
        let active = match self.call_that_wants(&part) {
            Ok(active) => active,
            Err(why) => return drop(reply.send(Err(why.to_owned()))),
        };
        let facts = CallFacts::of_tool(format!("mcp_elicitation__{part}"), Effect::Session);
        match self.authorize(active.call.clone(), Some(facts), false).await {
            // A rule that has it asked for is met by asking.
            Authorization::Granted { .. } | Authorization::Ask => {}
            Authorization::Denied { message, .. } | Authorization::Rejected { message, .. } => {
                return drop(reply.send(Err(message)));
            }
            Authorization::Cancelled => return drop(reply.send(Err("it was cancelled".into()))),
        }
        let editor = self.editor.for_call(&active.call);
        tokio::spawn(async move {
            let answer = tokio::select! {
                biased;
                () = active.over() => Err("the call is over".to_owned()),
                // The server does not want it any more.
                () = reply.closed() => return,
                answer = Question::put(&editor, &message, form) => answer.map_err(|error| error.to_string()),
            };
            let _ = reply.send(answer);
        });
    }
}
