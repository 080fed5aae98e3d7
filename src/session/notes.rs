//! Notes to the model and notices to the user that wait for their moment.
//!
//! A fact becomes an event only between turns or right before a request, so that later loads reproduce its
//! position. Reminders, which are never stored, describe the mode.

use super::event_log::EventLog;
use crate::acp::MessageId;
use crate::conversation::instructions::{Instructions, MAX_ALL};
use crate::event::{NoticeKind, SessionEvent};
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::text::counted;
use endings::Endings;

pub(super) mod endings;

/// Limits facts that recur without end.
const MAX_PENDING: usize = 20;

/// Requests left in a turn when the model is warned.
const LAST_REQUESTS: u32 = 5;

#[derive(Default)]
pub(super) struct Notes {
    for_model: Vec<String>,
    /// For the model; some may be in its context already.
    instructions: Vec<Instructions>,
    /// Notices for the start of the next turn.
    for_user: Vec<(NoticeKind, String)>,
    /// Notices about interrupted operations, unless a replay shows them anyway.
    pub(super) interruptions: Vec<SessionEvent>,
    /// Number of recorded warnings, for their ids.
    pub(super) recorded: u64,
    /// Ends of background work, for the model.
    pub(super) endings: Endings,
    /// Turn and limit of the last warning.
    warned: Option<(u64, u32)>,
    /// Turn of the last warning about jobs that end with the session.
    warned_of_jobs: Option<u64>,
}

impl Notes {
    pub(super) fn new(warnings: Vec<String>) -> Self {
        let for_user = warnings.into_iter().map(|text| (NoticeKind::Warning, text)).collect();
        Self { for_user, ..Self::default() }
    }

    /// In a message that every client shows and keeps. For facts about the mode: a client may drop a passing
    /// notice.
    pub(super) fn tell(&mut self, texts: impl IntoIterator<Item = String>) {
        for text in texts {
            self.add_for_user(NoticeKind::Message, text);
        }
    }

    pub(super) fn warn(&mut self, text: String) {
        self.add_for_user(NoticeKind::Warning, text);
    }

    pub(super) fn inform(&mut self, text: String) {
        self.add_for_user(NoticeKind::Info, text);
    }

    /// Tells the user at the start of the next turn, once.
    fn add_for_user(&mut self, kind: NoticeKind, text: String) {
        let notice = (kind, text);
        if !self.for_user.contains(&notice) {
            self.for_user.push(notice);
        }
    }

    pub(super) fn pending_for_user(&self) -> usize {
        self.for_user.len()
    }

    pub(super) fn record_pending(&mut self, log: &mut EventLog) {
        for (number, (kind, text)) in std::mem::take(&mut self.for_user).into_iter().enumerate() {
            let message_id = MessageId::new(format!("msg_{}_n{number}", log.turn()));
            log.record_notice(kind, message_id, text);
        }
    }

    /// Adds a fact for the model, immediately if no turn is running.
    pub(super) fn add(&mut self, text: String, is_turn_running: bool, decider: &mut Decider) {
        if !is_turn_running && decider.log.conversation().open_calls.is_empty() && has_model(&decider.policy)
        {
            decider.log.apply_new(SessionEvent::SystemNote { text, quotes: None });
            decider.log.post_unsaved();
        } else {
            self.add_later(text);
        }
    }

    pub(super) fn add_later(&mut self, text: String) {
        if self.for_model.len() < MAX_PENDING && !self.for_model.contains(&text) {
            self.for_model.push(text);
        }
    }

    pub(super) fn quote(&mut self, instructions: Vec<Instructions>) {
        self.instructions.extend(instructions);
    }

    /// Warns the model once, so that it can report before the turn ends.
    pub(super) fn warn_of_limit(&mut self, turn: u64, left: u32, limit: u32) {
        if left <= LAST_REQUESTS && self.warned != Some((turn, limit)) {
            self.warned = Some((turn, limit));
            self.add_later(format!(
                "This turn ends after {} (limit: {limit}). Finish what you can, leave the files in a working state, \
                 and report in the last reply what is done and what is left.",
                counted(left, "more reply of yours", "more replies of yours")
            ));
        }
    }

    /// Tells the user of their own messages that are shortened for the model.
    pub(super) fn warn_of_shortened(&mut self, prompts: usize, log: &mut EventLog) {
        if prompts > 0 {
            let messages = counted(prompts, "older message of yours was", "older messages of yours were");
            let text = format!(
                "The model's context is full, so {messages} shortened for it. Your record keeps the whole text.\n\n"
            );
            self.record_warning(text, log);
        }
    }

    /// Warns the model once in a turn about jobs that its answer ends. Returns true if it did.
    pub(super) fn warn_of_jobs(&mut self, turn: u64, jobs: &[String]) -> bool {
        if jobs.is_empty() || self.warned_of_jobs == Some(turn) {
            return false;
        }
        self.warned_of_jobs = Some(turn);
        self.add_later(format!(
            "This run ends with your answer, and so do its background jobs. Still running: {}. If you need a result, \
             wait for it with view_background (`wait` in seconds), and then answer. Otherwise, give your answer \
             again.",
            jobs.join(", ")
        ));
        true
    }

    /// Delivers the facts for the model. All earlier calls must have ended.
    pub(super) async fn deliver(&mut self, decider: &mut Decider) {
        for note in self.endings.take_notes().await {
            self.add_later(note);
        }
        let Decider { policy, log, .. } = decider;
        let pending = std::mem::take(&mut self.for_model);
        let instructions = std::mem::take(&mut self.instructions);
        if !has_model(policy) {
            return;
        }
        for text in pending {
            log.apply_new(SessionEvent::SystemNote { text, quotes: None });
        }
        for instructions in instructions {
            let history = &log.conversation().history;
            if !history.has_instructions(&instructions.source) {
                let remaining = MAX_ALL.saturating_sub(history.instruction_bytes());
                let (source, text) = instructions.note(remaining);
                log.apply_new(SessionEvent::SystemNote { text, quotes: Some(source) });
            }
        }
    }

    /// Records a warning for the user during a turn.
    pub(super) fn record_warning(&mut self, text: String, log: &mut EventLog) {
        self.recorded += 1;
        let message_id = MessageId::new(format!("msg_{}_s{}", log.turn(), self.recorded));
        log.record_notice(NoticeKind::Warning, message_id, text);
    }

    /// Shows notices that the client has not seen, because it did not load the session.
    pub(super) fn show_interruptions(&mut self, log: &mut EventLog) {
        for notice in std::mem::take(&mut self.interruptions) {
            log.show(&notice);
        }
    }
}

/// An external agent has its own conversation.
fn has_model(policy: &Policy) -> bool {
    policy.agent.external_agent.is_none()
}
