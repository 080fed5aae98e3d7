//! A server that wants to ask the user something: decided on like a call, and put to the user as the server's question. It is
//! a question of the call that is running at that server.

use tokio::sync::oneshot;

use super::actor::Actor;
use super::turn_message::Authorization;
use crate::permission::{CallFacts, Effect};
use crate::tool::mcp::Question;

impl Actor {
    /// Decides whether a server may ask, and if so asks.
    pub(super) async fn question(&mut self, question: Question) {
        let Question { part, message, form, reply } = question;
        // The server may be gone by the time it is answered; so below.
        let refuse = |reply: oneshot::Sender<_>, why: &str| drop(reply.send(Err(why.to_owned())));
        let call = match self.call_that_wants(&part) {
            Ok(call) => call,
            Err(why) => return refuse(reply, why),
        };
        let facts = CallFacts::of_tool(format!("mcp_elicitation__{part}"), Effect::Session);
        let Some(cancel) = self.turn.as_ref().map(|turn| turn.cancel.clone()) else {
            return refuse(reply, "no turn is running");
        };
        match self.authorize(call.clone(), Some(facts.clone()), false).await {
            // A rule that has it asked for is met by asking.
            Authorization::Granted { .. } | Authorization::Ask => {}
            Authorization::Denied { message, .. } | Authorization::Rejected { message, .. } => {
                return refuse(reply, &message);
            }
            Authorization::Cancelled => return refuse(reply, "it was cancelled"),
        }
        let editor = self.editor.for_call(&call);
        let permit = self.gate.admit(call, facts, self.session.turns, &cancel);
        tokio::spawn(async move {
            let answer = tokio::select! {
                () = permit.cancel.cancelled() => Err("it was cancelled".to_owned()),
                answer = Question::put(&editor, &message, form) => answer.map_err(|error| error.to_string()),
            };
            let _ = reply.send(answer);
        });
    }
}
