//! Passes the events of a session to the client, the conversation and the store.
//!
//! Events before a message or a call are durable before the client sees it, and so is the end of a call
//! (invariant 14).

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use self::chain_end::ChainEnd;
use super::trace::SessionTrace;
use super::{OptionalUpdates, SessionContext, head_meta};
use crate::acp::{
    MessageId, PermissionOption, RequestPermissionRequest, RequestPermissionResponse, SessionConfigOption,
    SessionId, SessionModeId, SessionUpdate, ToolCallId, ToolCallStatus, ToolCallUpdate,
};
use crate::chain::{Head, Link};
use crate::client::{Client, ClientError, SessionSignal, TurnOutcome};
use crate::conversation::message_breaks::MessageBreaks;
use crate::conversation::open_calls::is_end;
use crate::conversation::{Conversation, acp_updates, cost_after};
use crate::event::{NoticeKind, SessionEvent, ToolCallEvent};
use crate::ids::Source;
use crate::mode::ModeText;
use crate::model::Message;
use crate::session::insertion::InsertedPrompt;
use crate::store::entry::ChainEntry;
use crate::store::events::StoredEvent;
use crate::store::{ChangeReason, ModeChange, Row, Store, StoreError};

mod chain_end;
mod unrecorded;

/// Number of events per query.
const PAGE: usize = 256;

/// Rows since the last [`EventLog::save`].
#[derive(PartialEq, Eq)]
enum Posted {
    Nothing,
    Rows,
    /// The client's channel waits until they are stored.
    HeldRows,
}

/// The one way by which events reach the client, the conversation and the store, in one order. Decides nothing: no
/// mode, rule, ceiling or answer of the user belongs here.
pub(super) struct EventLog {
    id: SessionId,
    client: Client,
    store: Store,
    source: Source,
    turns: u64,
    conversation: Conversation,
    chain: ChainEnd,
    unsaved: Vec<SessionEvent>,
    saved: u64,
    posted: Posted,
    has_told_failure: bool,
    /// Why the session is not being recorded, as a clause.
    failure: Option<String>,
    updates: OptionalUpdates,
    /// `None` if the client separates messages.
    breaks: Option<MessageBreaks>,
    /// Working directory of terminals. `None` if the client does not show them.
    terminals_in: Option<PathBuf>,
    /// `None` while telemetry is off.
    trace: Option<Box<SessionTrace>>,
}

impl EventLog {
    pub(super) fn new(id: SessionId, client: Client, context: &SessionContext, cwd: &Path) -> Self {
        let trace = context.traced.clone().map(|traced| {
            let (store, source) = (context.store.clone(), context.source.clone());
            Box::new(SessionTrace::new(id.clone(), traced, store, source))
        });
        Self {
            chain: ChainEnd::new(&id, context.signer.clone()),
            trace,
            id,
            client,
            store: context.store.clone(),
            source: context.source.clone(),
            turns: 0,
            conversation: Conversation::default(),
            unsaved: Vec::new(),
            saved: 0,
            posted: Posted::Nothing,
            has_told_failure: false,
            failure: None,
            updates: context.updates,
            breaks: (!context.updates.display.separate_messages).then(MessageBreaks::default),
            terminals_in: context.capabilities.shows_output.then(|| cwd.to_owned()),
        }
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    pub(super) fn conversation_mut(&mut self) -> &mut Conversation {
        &mut self.conversation
    }

    /// The conversation as a model gets it.
    pub(super) fn messages(&mut self) -> Vec<Arc<Message>> {
        self.conversation.history.messages()
    }

    /// Passes a fact to the span records of the session. Returns `None` while telemetry is off.
    pub(super) fn traced<T>(&mut self, fact: impl FnOnce(&mut SessionTrace) -> T) -> Option<T> {
        self.trace.as_deref_mut().map(fact)
    }

    /// A call that the client has seen and that has not ended.
    pub(super) fn open_call(&self, call: &ToolCallId) -> Option<&ToolCallEvent> {
        self.conversation.open_calls.get(call)
    }

    pub(super) fn accepted(&self) -> OptionalUpdates {
        self.updates
    }

    /// Number of the current turn, or of the last one.
    pub(super) fn turn(&self) -> u64 {
        self.turns
    }

    /// Returns the number of the new turn.
    pub(super) fn begin_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    pub(super) fn continue_turns_after(&mut self, turns: u64) {
        self.turns = turns;
    }

    /// Number of stored events.
    pub(super) fn saved(&self) -> u64 {
        self.saved
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.source.now_ms()
    }

    /// Applies a new event and queues it for the store, merging chunks of one message.
    pub(super) fn apply_new(&mut self, event: SessionEvent) {
        self.conversation.apply(&event);
        match self.unsaved.last_mut() {
            Some(last) if last.can_merge(&event) => last.append(event),
            _ => self.unsaved.push(event),
        }
    }

    /// Posts a row that the next [`Self::save`] waits for.
    pub(super) fn post(&mut self, row: Row) {
        self.queue(row);
        self.mark_posted();
    }

    /// Posts a row for which nothing has to wait.
    pub(super) fn queue(&self, row: Row) {
        self.store.post(row);
    }

    /// Makes the next [`Self::save`] wait for rows that others have posted.
    pub(super) fn mark_posted(&mut self) {
        self.posted = Posted::Rows;
    }

    /// Builds a mode change. The caller adds it to the chain with [`Self::follow`]. `text` has the hash and
    /// the text of the new mode.
    pub(super) fn mode_change(
        &self,
        from: Option<SessionModeId>,
        to: SessionModeId,
        why: impl Into<ChangeReason>,
        text: Arc<ModeText>,
    ) -> ModeChange {
        let (turn, at, why) = (self.turns, self.now_ms(), why.into());
        let entry = ChainEntry::Mode {
            turn,
            from: from.as_ref().map(ToString::to_string),
            to: to.to_string(),
            source: why.source.as_str().to_owned(),
            text: text.hash.clone(),
            plan: why.plan.clone(),
            at,
        };
        let link = self.chain.next(&entry);
        ModeChange { session: self.id.clone(), turn, from, to, why, text, link, at }
    }

    /// Adds a mode change to the chain. The caller posts the row.
    pub(super) fn link_mode_change(&mut self, change: ModeChange) -> Row {
        self.follow(&change.link);
        self.mark_posted();
        Row::ModeChange(Box::new(change))
    }

    /// Returns the link for a row that is written together with the entry.
    pub(super) fn link(&mut self, entry: &ChainEntry) -> Link {
        let link = self.chain.add(entry);
        self.mark_posted();
        self.traced(|trace| trace.ring());
        link
    }

    pub(super) fn chain(&mut self, entry: &ChainEntry) {
        let link = self.link(entry);
        self.store.post(Row::Link { session: self.id.clone(), link });
    }

    /// Head of the session's hash chain.
    pub(super) fn head(&self) -> &Head {
        self.chain.head()
    }

    /// Adds a link that is stored already.
    pub(super) fn follow(&mut self, link: &Link) {
        self.chain.follow(link);
    }

    /// Returns the head of the chain if it is new to the client.
    pub(super) fn unacked_head(&mut self) -> Option<Head> {
        self.chain.unacked()
    }

    /// Continues the chain of a stored session. The client knows its head.
    pub(super) fn resume(&mut self, head: Head) {
        self.traced(|trace| trace.export_after(head.length));
        self.chain.resume(head);
    }

    /// Records an event and sends its updates. Where the client may see it only after a commit (invariant 14), a
    /// barrier in the client's channel waits.
    pub(super) fn record(&mut self, event: SessionEvent, send_permit: Option<OwnedSemaphorePermit>) {
        debug_assert!(!event.changes_options(), "the client needs the new options");
        self.record_all(event, Vec::new(), send_permit);
    }

    /// Records a message of the user. Those who wait for its insertion are told once the client gets nothing more
    /// before the message is stored.
    pub(super) fn record_prompt(&mut self, prompt: InsertedPrompt) {
        let InsertedPrompt { message_id, content, typed, insertion } = prompt;
        let key = insertion.as_ref().and_then(|insertion| insertion.key.clone());
        let shown = insertion.is_some().then(|| typed.as_ref().unwrap_or(&content).clone());
        self.record(SessionEvent::UserMessage { message_id: message_id.clone(), content, typed, key }, None);
        if let (Some(insertion), Some(content)) = (insertion, shown) {
            self.hold_for_unsaved();
            let signal = SessionSignal::PromptInserted { message_id: message_id.clone(), content };
            self.signal(signal);
            insertion.tell(&message_id);
        }
    }

    /// Records an event that changes the session's config options, which are `options` from now on.
    pub(super) fn record_with_options(&mut self, event: SessionEvent, options: Vec<SessionConfigOption>) {
        self.record_all(event, options, None);
    }

    fn record_all(
        &mut self,
        event: SessionEvent,
        options: Vec<SessionConfigOption>,
        mut send_permit: Option<OwnedSemaphorePermit>,
    ) {
        self.traced(|trace| trace.observe(&event));
        if self.begins_message_or_call(&event) {
            self.hold_for_unsaved();
        }
        let stored = ends_call(&event).then(|| self.client.barrier());
        // External agents and sub-agents announce their own terminals.
        let terminals_in = match event {
            SessionEvent::ForwardedUpdate { .. } => None,
            _ => self.terminals_in.as_deref(),
        };
        let id = &self.id;
        let cost = cost_after(self.conversation.cost, &event);
        let title = self.conversation.title.as_deref();
        if let (Some(breaks), SessionEvent::UserMessage { .. }) = (&mut self.breaks, &event) {
            breaks.begin_turn();
        }
        // External agents separate their own messages.
        let mut breaks = match event {
            SessionEvent::ForwardedUpdate { .. } => None,
            _ => self.breaks.as_mut(),
        };
        acp_updates::encode(
            &event,
            self.updates,
            || options,
            |mut update| {
                if let Some(cwd) = terminals_in {
                    acp_updates::announce_terminal(&mut update, id, cwd);
                }
                acp_updates::set_cost(&mut update, cost);
                acp_updates::repeat_title(&mut update, title);
                if let Some(breaks) = &mut breaks {
                    breaks.separate(&mut update);
                }
                self.client.update(id.clone(), update, send_permit.take());
            },
        );
        self.apply_new(event);
        if let Some(stored) = stored {
            let rows = self.take_unsaved();
            self.posted = Posted::HeldRows;
            self.store.flush_then(rows, stored);
        }
    }

    /// Posts the unsaved events, and delays later messages to the client until all posted rows are stored.
    fn hold_for_unsaved(&mut self) {
        let rows = self.take_unsaved();
        if self.posted == Posted::Rows {
            self.posted = Posted::HeldRows;
            self.store.flush_then(rows, self.client.barrier());
        } else {
            self.store.post_all(rows);
        }
    }

    fn begins_message_or_call(&self, event: &SessionEvent) -> bool {
        match event {
            SessionEvent::ForwardedUpdate { update } => match &**update {
                SessionUpdate::ToolCall(_) => true,
                SessionUpdate::ToolCallUpdate(update) => {
                    update.fields.status == Some(ToolCallStatus::InProgress)
                }
                _ => false,
            },
            SessionEvent::ToolCallUpdate(_)
            | SessionEvent::Plan { .. }
            | SessionEvent::Title { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::ProviderState { .. }
            | SessionEvent::ModelChange { .. }
            | SessionEvent::AgentChange { .. }
            | SessionEvent::Switch { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::SystemNote { .. }
            | SessionEvent::ReplyInterrupted { .. }
            | SessionEvent::PromptDropped { .. }
            | SessionEvent::ModeChange { .. }
            // Not shown: the response to the prompt waits for the store anyway.
            | SessionEvent::Stop { .. } => false,
            event => !self.unsaved.last().is_some_and(|last| last.can_merge(event)),
        }
    }

    pub(super) fn record_notice(&mut self, kind: NoticeKind, message_id: MessageId, text: String) {
        self.record(SessionEvent::Notice { message_id, kind, text }, None);
    }

    pub(super) async fn page(&self, from: u64) -> Result<Vec<StoredEvent>, StoreError> {
        self.store.events(&self.id, from, PAGE).await
    }

    /// Applies the stored events before `end`. `note` gets each before the conversation does.
    pub(super) async fn read_stored(
        &mut self,
        end: u64,
        mut note: impl FnMut(&SessionEvent),
    ) -> Result<(), StoreError> {
        while self.saved < end {
            let page = self.page(self.saved).await?;
            let Some(last) = page.last() else { break };
            self.saved = last.seq + 1;
            for StoredEvent { event, .. } in page {
                note(&event);
                self.conversation.apply(&event);
            }
        }
        Ok(())
    }

    /// Asks the user about a call. Returns the request's id and the answer.
    pub(super) fn request_permission(
        &self,
        call: ToolCallUpdate,
        options: Vec<PermissionOption>,
    ) -> (u64, impl Future<Output = Result<RequestPermissionResponse, ClientError>> + use<>) {
        self.client.request_permission(RequestPermissionRequest::new(self.id.clone(), call, options))
    }

    /// Tells the client of the end of a turn, whose answer is sent after it.
    pub(super) fn signal_end(&self, outcome: TurnOutcome) {
        let is_new = matches!(outcome, TurnOutcome::Stopped(_)) && !self.chain.is_acked();
        let meta = is_new.then(|| head_meta(self.chain.head()));
        self.signal(SessionSignal::TurnEnded { outcome, meta });
    }

    pub(super) fn signal(&self, signal: SessionSignal) {
        self.client.signal(self.id.clone(), signal);
    }

    pub(super) fn post_unsaved(&mut self) {
        let rows = self.take_unsaved();
        self.store.post_all(rows);
    }

    /// Returns rows that the caller posts. The next [`Self::save`] waits for those of events.
    pub(super) fn take_unsaved(&mut self) -> Vec<Row> {
        let spans = self.traced(SessionTrace::take_rows).unwrap_or_default();
        if self.unsaved.is_empty() {
            return spans;
        }
        let (at, turn) = (self.now_ms(), self.turns);
        let mut rows = Vec::with_capacity(self.unsaved.len() + spans.len());
        for event in std::mem::take(&mut self.unsaved) {
            rows.push(Row::Event { session: self.id.clone(), seq: self.saved, turn, event, at });
            self.saved += 1;
        }
        rows.extend(spans);
        self.mark_posted();
        rows
    }

    /// Why the session was not being recorded at the last [`Self::save`], as a clause.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The reason for which nothing can be recorded now, as a clause.
    pub(super) async fn unrecordable(&mut self) -> Option<String> {
        match self.store.flush().await {
            Ok(()) => self.store.substituted().filter(|_| self.store.has_failed_to_open()).map(str::to_owned),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Reports a failure to the user once; the session continues.
    pub(super) async fn save(&mut self) {
        let mut rows = self.take_unsaved();
        if let Some(head) = self.chain.sign(&self.id, || self.source.now_ms()) {
            rows.push(Row::SignedHead { session: self.id.clone(), head });
        }
        if std::mem::replace(&mut self.posted, Posted::Nothing) == Posted::Nothing {
            return self.store.post_all(rows);
        }
        let problem = match self.store.flush_with(rows).await {
            Ok(()) => match self.store.substituted() {
                None => {
                    (self.failure, self.has_told_failure) = (None, false);
                    return;
                }
                Some(reason) => {
                    self.failure = self.store.has_failed_to_open().then(|| reason.to_owned());
                    format!(
                        "This session is stored in memory only and is lost when Modegate ends, because {reason}. `--store \
                         FILE` sets another file.\n"
                    )
                }
            },
            Err(error) => {
                tracing::info!(%error, "a session is not being recorded");
                self.failure = Some(error.to_string());
                format!("This session is not being recorded: {error}.\n")
            }
        };
        if !std::mem::replace(&mut self.has_told_failure, true) {
            let message_id = MessageId::new(format!("msg_{}_r", self.turns));
            let notice = SessionEvent::Notice { message_id, kind: NoticeKind::Error, text: problem };
            self.show(&notice);
            self.apply_new(notice);
        }
    }
}

/// True also for calls of sub-agents and external agents.
fn ends_call(event: &SessionEvent) -> bool {
    let status = match event {
        SessionEvent::ToolCallUpdate(update) => Some(update.status),
        SessionEvent::ForwardedUpdate { update } => match &**update {
            SessionUpdate::ToolCall(call) => Some(call.status),
            SessionUpdate::ToolCallUpdate(update) => update.fields.status,
            _ => None,
        },
        _ => None,
    };
    status.is_some_and(is_end)
}
