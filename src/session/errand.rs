//! A call that the session itself carries out: another agent works, here or in the background, or takes over.
//!
//! The call's permit stays with the other session until nothing of it goes on: a mode that denies delegating ends it.

use super::begun::Begun;
use super::turn::{After, Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::ToolCallId;
use crate::gate::Permit;
use crate::tool::background::Finished;
use crate::tool::{Errand, ToolContent, ToolOutput};

impl Turn {
    /// Has an errand done, and reports what came of it.
    pub(super) async fn run_errand(
        &self,
        id: ToolCallId,
        errand: Errand,
        permit: Permit,
    ) -> Result<After, TurnError> {
        let call = id.clone();
        let cancel = permit.cancel.clone();
        let begun = self.ask_actor(|reply| TurnMessage::Errand { call, errand, cancel, reply }).await?;
        let finished = match begun {
            Begun::Refused(text) => return self.failed(id, text).await,
            Begun::Done(text) => {
                drop(permit);
                Finished { text, ..Finished::default() }
            }
            Begun::Child(child) => {
                let (cancel, denied) = (permit.cancel.clone(), permit.denied.clone());
                let mut finished = child.work(cancel, |_| None).await;
                drop(permit);
                if denied.is_cancelled() && !self.cancel.is_cancelled() {
                    finished.text.push_str("\nThe session's mode has changed and does not allow this call.");
                }
                finished
            }
            Begun::Background(child, background, standing) if self.live => {
                let text = format!(
                    "{} is at work as {}. You are told when it has finished; view_background_agent shows its answer.",
                    background.agent, background.id
                );
                tokio::spawn(async move {
                    let cancel = permit.cancel.child_token();
                    let stop = async {
                        background.stop.cancelled().await;
                        cancel.cancel();
                    };
                    let mut done = std::pin::pin!(
                        child.work(cancel.clone(), |finished| { Some(Begun::note(&background, finished)) })
                    );
                    let finished = tokio::select! {
                        finished = &mut done => finished,
                        () = stop => done.await,
                    };
                    standing.send_modify(|standing| standing.end = Some(finished));
                    drop(permit);
                });
                Finished { text, ..Finished::default() }
            }
            // Where every run has to give the same bytes, nothing goes on beside anything else.
            Begun::Background(child, background, standing) => {
                let finished = child.work(permit.cancel.clone(), |_| None).await;
                standing.send_modify(|standing| standing.end = Some(finished.clone()));
                drop(permit);
                let text =
                    format!("{} has worked as {}:\n{}", background.agent, background.id, finished.text);
                Finished { text, ..finished }
            }
        };
        let Finished { text, has_failed, plan } = finished;
        if has_failed {
            return self.failed(id, text).await;
        }
        let shown = [plan.as_str(), &text].into_iter().filter(|text| !text.is_empty());
        let content = shown.map(ToolContent::text).collect();
        self.finish(id, ToolOutput { text, content, ..ToolOutput::default() }).await?;
        Ok(After::GoOn)
    }
}
