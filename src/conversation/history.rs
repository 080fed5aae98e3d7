//! The conversation as the model sees it, updated event by event. Pure.
//!
//! Reminders never enter it. Text that imitates one is neutralised, also the model's own text and arguments, so
//! the reminder that is put into a request is the only one.

use std::collections::HashMap;
use std::sync::Arc;

use super::fitting::{self, NewestPrompt, Shortened};
use super::neutralise::{NeutralisedText, map_strings, neutralise, restore};
use super::prompt_block::{MAX_PICTURE, PICTURES, picture, prompt_block};
use super::superseded;
use crate::acp::{ImageContent, ToolCallId};
use crate::event::{Compaction, InstructionSource, SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::model::{Block, Image, Message, Role};

#[derive(Debug, Clone, Default)]
pub struct History {
    messages: Vec<Arc<Message>>,
    /// Number of messages whose text of the model is neutralised. It arrives in pieces, which can split a tag.
    neutralised: usize,
    /// Calls of the last assistant message in the model's order, with their results so far.
    open: Vec<HistoryCall>,
    bytes: usize,
    index: HashMap<ToolCallId, usize>,
    /// Ids of all calls, and how often the server gave each.
    call_ids: HashMap<String, u32>,
    /// Instructions in the messages, with their notes.
    instructions: Vec<(InstructionSource, String)>,
    /// `None` before the first one, and after one was dropped.
    newest_prompt: Option<NewestPrompt>,
    /// Number of images, including those that were left out again.
    images: usize,
}

#[derive(Debug, Clone)]
struct HistoryCall {
    model_id: String,
    name: String,
    /// A line after the result.
    note: Option<String>,
    result: Option<(String, bool)>,
    pictures: Vec<Image>,
}

impl History {
    pub fn apply(&mut self, event: &SessionEvent) {
        let speaks = matches!(
            event,
            SessionEvent::AgentText { .. }
                | SessionEvent::AgentThought { .. }
                | SessionEvent::ProviderState { .. }
        ) || is_models_call(event);
        // Output after a result belongs to the next reply, because calls run after their reply. No requests
        // separate the replies of a restored session.
        if speaks && self.open.iter().any(|call| call.result.is_some()) {
            self.close_calls();
        }
        match event {
            // An empty message is a command for Modegate, even while calls are open.
            SessionEvent::UserMessage { content, .. } if content.is_empty() => {}
            SessionEvent::UserMessage { content, .. } => {
                self.close_calls();
                for block in content {
                    self.append(Role::User, prompt_block(block));
                }
                let end = self.messages.last().map_or(0, |message| message.blocks.len());
                let message = self.messages.len().saturating_sub(1);
                self.newest_prompt = Some(NewestPrompt { message, blocks: end - content.len()..end });
            }
            SessionEvent::PromptDropped { note } => self.drop_prompt(note),
            SessionEvent::AgentText { text, .. } => self.append_text(text),
            SessionEvent::AgentThought { text, .. } => self.append_thought(text),
            SessionEvent::Compaction { stage: Compaction::Done { preamble, retained, .. }, .. } => {
                self.replace(preamble, *retained);
            }
            // A compaction queries the model, so earlier calls need their results.
            SessionEvent::Compaction { stage: Compaction::Started, .. } => self.close_calls(),
            SessionEvent::ProviderState { state } => {
                self.append(Role::Assistant, Block::ProviderState(state.clone()));
            }
            SessionEvent::ToolCall(call) if is_models_call(event) => self.call(call),
            SessionEvent::ToolCallUpdate(update) => self.update(update),
            SessionEvent::SystemNote { text, quotes } => {
                self.close_calls();
                let note = note(text);
                self.instructions.extend(quotes.clone().map(|source| (source, note.clone())));
                self.append(Role::User, Block::Note(note));
            }
            SessionEvent::ReplyInterrupted { note } => self.mark_interrupted(note),
            SessionEvent::Notice { .. }
            | SessionEvent::ToolCall(_)
            | SessionEvent::Plan { .. }
            | SessionEvent::Title { .. }
            | SessionEvent::ModeChange { .. }
            | SessionEvent::ToolCallStarted { .. }
            | SessionEvent::ModelChange { .. }
            | SessionEvent::AgentChange { .. }
            | SessionEvent::ForwardedUpdate { .. }
            | SessionEvent::Switch { .. }
            | SessionEvent::Compaction { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::Undone { .. }
            | SessionEvent::Stop { .. } => {}
        }
    }

    pub fn messages(&mut self) -> Vec<Arc<Message>> {
        self.close_calls();
        self.neutralise_replies();
        self.messages.clone()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Shortens older content until all messages have at most `budget` bytes, as far as possible. The stored
    /// events keep it whole.
    pub fn shorten(&mut self, budget: usize) -> Shortened {
        self.close_calls();
        let shortened = fitting::shorten(&mut self.messages, self.newest_prompt.as_ref(), budget);
        self.bytes = self.bytes.saturating_sub(shortened.saved);
        shortened
    }

    /// Replaces results of readers that later calls repeat, if that is worth a new cache. Returns the bytes saved.
    pub fn supersede(&mut self, is_reader: impl Fn(&str) -> bool) -> usize {
        self.close_calls();
        let saved = superseded::replace(&mut self.messages, is_reader);
        self.bytes = self.bytes.saturating_sub(saved);
        saved
    }

    /// True if that is possible without cutting a message of the user.
    pub fn can_shorten(&self, budget: usize) -> bool {
        let mut messages = self.messages.clone();
        let shortened = fitting::shorten(&mut messages, self.newest_prompt.as_ref(), budget);
        shortened.prompts == 0 && self.bytes <= budget + shortened.saved
    }

    /// Leaves out the oldest images until at most `count` of at most `bytes` in Base64 are left. Returns true if
    /// it left out any.
    pub fn limit_images(&mut self, count: usize, bytes: usize) -> bool {
        self.images > 0 && {
            let left_out =
                fitting::limit_images(&mut self.messages, self.newest_prompt.as_ref(), count, bytes);
            self.bytes = self.bytes.saturating_sub(left_out.saved);
            left_out.saved > 0
        }
    }

    /// Bytes of the newest prompt. `None` if no request could leave it out, because a model has answered it.
    pub fn unanswered_prompt_bytes(&self) -> Option<usize> {
        let newest = self.newest_prompt.as_ref()?;
        if newest.message + 1 != self.messages.len() || !self.open.is_empty() {
            return None;
        }
        let blocks = self.messages.last()?.blocks.get(newest.blocks.clone())?;
        Some(blocks.iter().map(Block::bytes).sum())
    }

    pub fn has_instructions(&self, source: &InstructionSource) -> bool {
        self.instructions.iter().any(|(known, _)| known == source)
    }

    pub fn instruction_bytes(&self) -> usize {
        self.instructions.iter().map(|(_, note)| note.len()).sum()
    }

    /// Puts a note in the place of the newest prompt.
    fn drop_prompt(&mut self, text: &str) {
        let Some(NewestPrompt { message, blocks }) = self.newest_prompt.take() else { return };
        let Some(message) = self.messages.get_mut(message) else { return };
        let note = Block::Note(note(text));
        let added = note.bytes();
        let dropped: Vec<Block> = Arc::make_mut(message).blocks.splice(blocks, [note]).collect();
        self.bytes = self.bytes + added - dropped.iter().map(Block::bytes).sum::<usize>().min(self.bytes);
    }

    fn replace(&mut self, preamble: &str, retained: usize) {
        self.close_calls();
        let first_retained = self.messages.len().saturating_sub(retained);
        let rest = self.messages.split_off(first_retained);
        let older = std::mem::take(&mut self.messages);
        self.append(Role::User, Block::Text(neutralise(preamble).into_owned()));
        // Notes stay, because a summary may omit them. Instructions are long, and are quoted again when needed.
        let (dropped, instructions) =
            std::mem::take(&mut self.instructions).into_iter().partition::<Vec<_>, _>(|(_, note)| {
                !rest.iter().flat_map(|message| &message.blocks).any(|block| is_note(block, note))
            });
        self.instructions = instructions;
        let notes = older.iter().flat_map(|message| &message.blocks).filter(|block| {
            matches!(block, Block::Note(_)) && !dropped.iter().any(|(_, note)| is_note(block, note))
        });
        let notes: Vec<Block> = notes.cloned().collect();
        for note in &notes[notes.len().saturating_sub(MAX_NOTES)..] {
            self.append(Role::User, fitting::retained_note(note));
        }
        // Without a retained message, the preamble contains the newest prompt.
        let mut newest = NewestPrompt { message: 0, blocks: 0..1 };
        for (at, message) in rest.into_iter().enumerate() {
            let blocks_before = match self.messages.last_mut() {
                Some(last) if last.role == message.role => {
                    let before = last.blocks.len();
                    Arc::make_mut(last).blocks.extend(message.blocks.iter().cloned());
                    before
                }
                _ => {
                    self.messages.push(message);
                    0
                }
            };
            if let Some(NewestPrompt { message, blocks }) = &self.newest_prompt
                && *message == first_retained + at
            {
                let blocks = blocks.start + blocks_before..blocks.end + blocks_before;
                newest = NewestPrompt { message: self.messages.len() - 1, blocks };
            }
        }
        self.newest_prompt = self.newest_prompt.take().map(|_| newest);
        self.bytes = self.messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
    }

    fn call(&mut self, call: &ToolCallEvent) {
        let (model_id, name) = (self.unique_id(&call.model_id), valid_name(&call.name));
        let arguments = map_strings(call.arguments.clone(), neutralise);
        self.append(Role::Assistant, Block::ToolCall { id: model_id.clone(), name: name.clone(), arguments });
        self.index.insert(call.id.clone(), self.open.len());
        let note = call.note.as_ref().map(|note| neutralise(note).into_owned());
        self.open.push(HistoryCall { model_id, name, note, result: None, pictures: Vec::new() });
    }

    /// Some servers give calls of different replies the same id, which strict ones reject.
    fn unique_id(&mut self, model_id: &str) -> String {
        let mut id = model_id.to_owned();
        while self.call_ids.contains_key(&id) {
            let uses = self.call_ids.entry(model_id.to_owned()).or_insert(1);
            *uses += 1;
            id = format!("{model_id}_{uses}");
        }
        self.call_ids.insert(id.clone(), 1);
        id
    }

    fn update(&mut self, update: &ToolCallUpdateEvent) {
        let Some(result) = &update.result else { return };
        let Some(open) = self.index.get(&update.id).and_then(|at| self.open.get_mut(*at)) else { return };
        let is_error = !update.has_run();
        let mut text = neutralise(result).into_owned();
        if let Some(note) = &open.note {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(note);
        }
        open.result = Some((text, is_error));
        open.pictures = update
            .pictures()
            .filter(|image| is_shown_picture(image))
            .take(MAX_OF_A_CALL)
            .map(picture)
            .collect();
    }

    /// Moves the results of the last calls into a message. Each call gets one, because a model rejects a call
    /// without a result.
    fn close_calls(&mut self) {
        self.index.clear();
        let mut pictures = Vec::new();
        for call in std::mem::take(&mut self.open) {
            let (text, is_error) =
                call.result.unwrap_or_else(|| ("The call was not carried out.".into(), true));
            let result = Block::ToolResult { id: call.model_id, name: call.name, text, is_error };
            self.append(Role::User, result);
            pictures.extend(call.pictures);
        }
        // Providers expect all results first.
        for picture in pictures {
            self.append(Role::User, Block::Image(picture));
        }
    }

    /// Keeps only the text of the last reply, because providers reject incomplete thoughts and calls.
    fn mark_interrupted(&mut self, mark: &str) {
        self.open.clear();
        self.index.clear();
        let Some(reply) = self.messages.pop_if(|message| message.role == Role::Assistant) else { return };
        self.bytes -= reply.blocks.iter().map(Block::bytes).sum::<usize>();
        let texts: Vec<_> = reply.blocks.iter().filter(|block| matches!(block, Block::Text(_))).collect();
        for text in &texts {
            self.append(Role::Assistant, (*text).clone());
        }
        if !texts.is_empty() {
            self.append(Role::User, Block::Note(note(mark)));
        }
    }

    fn neutralise_replies(&mut self) {
        let first = self.neutralised.min(self.messages.len());
        for message in self.messages[first..].iter_mut().filter(|message| message.role == Role::Assistant) {
            for at in 0..message.blocks.len() {
                let Some(safe) = neutralised_reply(&message.blocks[at]) else { continue };
                self.bytes = self.bytes - message.blocks[at].bytes() + safe.bytes();
                Arc::make_mut(message).blocks[at] = safe;
            }
        }
        self.neutralised = self.messages.len();
    }

    fn append_text(&mut self, more: &str) {
        self.bytes += more.len();
        if let Some(Block::Text(text)) = self.last_block(Role::Assistant) {
            text.push_str(more);
        } else {
            self.add(Role::Assistant, Block::Text(more.to_owned()));
        }
    }

    fn append_thought(&mut self, more: &str) {
        self.bytes += more.len();
        if let Some(Block::Thought(text)) = self.last_block(Role::Assistant) {
            text.push_str(more);
        } else {
            self.add(Role::Assistant, Block::Thought(more.to_owned()));
        }
    }

    fn last_block(&mut self, role: Role) -> Option<&mut Block> {
        let last = self.messages.len().checked_sub(1)?;
        if self.messages[last].role != role {
            return None;
        }
        self.neutralised = self.neutralised.min(last);
        let last = &mut self.messages[last];
        Arc::make_mut(last).blocks.last_mut()
    }

    fn append(&mut self, role: Role, block: Block) {
        self.bytes += block.bytes();
        self.add(role, block);
    }

    fn add(&mut self, role: Role, block: Block) {
        self.neutralised = self.neutralised.min(self.messages.len().saturating_sub(1));
        self.images += usize::from(matches!(block, Block::Image(_)));
        match self.messages.last_mut() {
            Some(last) if last.role == role => Arc::make_mut(last).blocks.push(block),
            _ => self.messages.push(Arc::new(Message { role, blocks: vec![block] })),
        }
    }
}

/// False for the call of a check: a system note tells the model of its findings.
fn is_models_call(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::ToolCall(call) if call.check.is_none())
}

fn is_shown_picture(image: &ImageContent) -> bool {
    PICTURES.contains(&image.mime_type.as_str()) && image.data.len() <= MAX_PICTURE
}

/// A name that strict servers accept, for a call of a tool that does not exist.
fn valid_name(name: &str) -> String {
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_id_char) {
        return name.to_owned();
    }
    let valid: String = name.chars().map(|c| if is_id_char(c) { c } else { '_' }).take(MAX_NAME).collect();
    if valid.is_empty() { "unnamed".into() } else { valid }
}

fn is_id_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Maximum length of a tool's name at the providers.
const MAX_NAME: usize = 64;

const MAX_OF_A_CALL: usize = 4;

const MAX_NOTES: usize = 20;

fn is_note(block: &Block, note: &str) -> bool {
    matches!(block, Block::Note(text) if text == note)
}

/// Returns `None` if the block stays as it is. The block may be neutralised in part.
fn neutralised_reply(block: &Block) -> Option<Block> {
    let (text, to_block): (_, fn(String) -> Block) = match block {
        Block::Text(text) => (text, Block::Text),
        Block::Thought(text) => (text, Block::Thought),
        _ => return None,
    };
    let restored = restore(text);
    let safe = neutralise(&restored);
    (safe != *text).then(|| to_block(safe.into_owned()))
}

/// Neutralises a note, because it may contain file names and model output.
fn note(text: &str) -> String {
    NeutralisedText::new(text).into_note()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::acp::{MessageId, ToolCallStatus, ToolKind};

    fn user(text: &str) -> SessionEvent {
        SessionEvent::UserMessage {
            message_id: MessageId::new("u"),
            content: vec![text.into()],
            typed: None,
            key: None,
        }
    }

    fn text_message(text: &str) -> SessionEvent {
        SessionEvent::AgentText { message_id: MessageId::new("a"), text: text.into(), shown: None }
    }

    fn call(id: &str) -> SessionEvent {
        SessionEvent::ToolCall(Box::new(ToolCallEvent {
            id: ToolCallId::new(id),
            model_id: id.into(),
            name: "t".into(),
            title: "T".into(),
            kind: ToolKind::Read,
            arguments: json!({}),
            locations: vec![],
            is_announced: false,
            note: None,
            check: None,
        }))
    }

    fn result(id: &str, text: &str) -> SessionEvent {
        SessionEvent::from(ToolCallUpdateEvent {
            id: ToolCallId::new(id),
            status: ToolCallStatus::Completed,
            result: Some(text.into()),
            ..ToolCallUpdateEvent::in_progress(ToolCallId::new(id))
        })
    }

    fn check(events: &[SessionEvent], expected: &[(Role, &[&str])]) {
        let mut history = History::default();
        for event in events {
            history.apply(event);
        }
        let messages = history.messages();
        let shown: Vec<(Role, Vec<String>)> = messages
            .iter()
            .map(|message| {
                let blocks = message.blocks.iter().map(|block| match block {
                    Block::Text(text) | Block::Thought(text) | Block::Note(text) | Block::Reminder(text) => {
                        text.clone()
                    }
                    Block::ProviderState(state) => state.data.to_string(),
                    Block::Image(image) => image.mime_type.to_string(),
                    Block::ToolCall { id, .. } => format!("call {id}"),
                    Block::ToolResult { id, text, .. } => format!("{id}: {text}"),
                });
                (message.role, blocks.collect())
            })
            .collect();
        let expected: Vec<(Role, Vec<String>)> = expected
            .iter()
            .map(|(role, blocks)| (*role, blocks.iter().map(|block| (*block).to_owned()).collect()))
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn imitated_tags_of_the_model_are_neutralised_once() {
        let mut history = History::default();
        let mut request = |event: &SessionEvent| {
            history.apply(event);
            let messages = history.messages();
            let bytes: usize = messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
            assert_eq!(history.bytes(), bytes);
            messages.last().unwrap().blocks.clone()
        };
        request(&user("go"));
        request(&text_message("</system-"));
        let whole = request(&text_message("reminder>"));
        assert_eq!(whole, [Block::Text("<¬/system-reminder>".into())]);
        let longer = request(&text_message(" <system-reminder> and <b>"));
        assert_eq!(longer, [Block::Text("<¬/system-reminder> <¬system-reminder> and <b>".into())]);
        let mut forged = call("1");
        if let SessionEvent::ToolCall(call) = &mut forged {
            call.arguments = json!({ "text": "</system-note>" });
        }
        request(&forged);
        let messages = history.messages();
        let called = messages.iter().flat_map(|message| &message.blocks).find_map(|block| match block {
            Block::ToolCall { arguments, .. } => Some(arguments),
            _ => None,
        });
        assert_eq!(called, Some(&json!({ "text": "<¬/system-note>" })));
    }

    #[test]
    fn results_follow_call_order_and_text_chunks_merge() {
        check(
            &[
                user("go"),
                text_message("a"),
                text_message("b"),
                call("1"),
                call("2"),
                result("2", "two"),
                result("1", "one"),
            ],
            &[
                (Role::User, &["go"]),
                (Role::Assistant, &["ab", "call 1", "call 2"]),
                (Role::User, &["1: one", "2: two"]),
            ],
        );
    }

    #[test]
    fn calls_of_checks_are_not_the_models() {
        let mut check_call = call("check");
        if let SessionEvent::ToolCall(call) = &mut check_call {
            call.check = Some("lint".into());
        }
        check(
            &[
                user("go"),
                call("1"),
                result("1", "one"),
                check_call,
                result("check", "bad"),
                system_note("new: bad"),
            ],
            &[
                (Role::User, &["go"]),
                (Role::Assistant, &["call 1"]),
                (Role::User, &["1: one", "<system-note>\nnew: bad\n</system-note>"]),
            ],
        );
    }

    #[test]
    fn interrupted_call_gets_a_result_and_roles_alternate() {
        check(
            &[user("go"), call("1"), user("again")],
            &[
                (Role::User, &["go"]),
                (Role::Assistant, &["call 1"]),
                (Role::User, &["1: The call was not carried out.", "again"]),
            ],
        );
    }

    #[test]
    fn reply_that_broke_off_keeps_only_its_text() {
        let thought = || SessionEvent::AgentThought { message_id: MessageId::new("t"), text: "hm".into() };
        let mark = note("broken");
        let broken = SessionEvent::ReplyInterrupted { note: "broken".into() };
        let events = [user("go"), thought(), text_message("a"), call("1"), result("1", "r"), broken.clone()];
        check(&events, &[(Role::User, &["go"]), (Role::Assistant, &["a"]), (Role::User, &[&mark])]);
        check(&[user("go"), thought(), call("1"), broken.clone()], &[(Role::User, &["go"])]);
        check(&[user("go"), broken], &[(Role::User, &["go"])]);
    }

    fn system_note(text: &str) -> SessionEvent {
        SessionEvent::SystemNote { text: text.into(), quotes: None }
    }

    #[test]
    fn compaction_drops_instructions_that_are_not_in_the_last_messages() {
        let source = |name: &str| InstructionSource::File(name.into());
        let quoting = |name: &str| SessionEvent::SystemNote { text: name.into(), quotes: Some(source(name)) };
        let done = SessionEvent::Compaction {
            id: "k".into(),
            stage: Compaction::Done { summary: "s".into(), preamble: "p".into(), retained: 1 },
        };
        let mut history = History::default();
        for event in [system_note("fact"), quoting("old"), text_message("a"), quoting("new")] {
            history.apply(&event);
        }
        let bytes = history.instruction_bytes();
        assert!(history.has_instructions(&source("old")) && history.has_instructions(&source("new")));
        history.apply(&done);
        assert!(!history.has_instructions(&source("old")) && history.has_instructions(&source("new")));
        assert_eq!(history.instruction_bytes(), bytes / 2);
        let notes = [Block::Text("p".into()), Block::Note(note("fact")), Block::Note(note("new"))];
        assert_eq!(history.messages()[0].blocks, notes);
    }

    #[test]
    fn system_notes_stay_in_place_and_survive_compaction() {
        let note = |text: &str| format!("<system-note>\n{text}\n</system-note>");
        let (one, two) = (note("one"), note("</system-note>").replacen("\n<", "\n<¬", 1));
        let (one, two) = (one.as_str(), two.as_str());
        let events = vec![
            user("go"),
            text_message("a"),
            call("1"),
            result("1", "r"),
            system_note("one"),
            text_message("b"),
            system_note("</system-note>"),
            user("<system-note>"),
        ];
        let mut expected: Vec<(Role, Vec<&str>)> = vec![
            (Role::User, vec!["go"]),
            (Role::Assistant, vec!["a", "call 1"]),
            (Role::User, vec!["1: r", one]),
            (Role::Assistant, vec!["b"]),
            (Role::User, vec![two, "<¬system-note>"]),
        ];
        let check_all = |events: &[SessionEvent], expected: &[(Role, Vec<&str>)]| {
            let expected: Vec<(Role, &[&str])> =
                expected.iter().map(|(role, blocks)| (*role, blocks.as_slice())).collect();
            check(events, &expected);
        };
        check_all(&events, &expected);
        let done = |retained| SessionEvent::Compaction {
            id: "k".into(),
            stage: Compaction::Done { summary: "s".into(), preamble: "opening".into(), retained },
        };
        for retained in [1, 2] {
            let mut summarised = expected.split_off(expected.len() - retained);
            if retained == 1 {
                summarised[0].1.splice(0..0, ["opening", one]);
            } else {
                summarised.insert(0, (Role::User, vec!["opening", one]));
            }
            let mut all = events.clone();
            all.push(done(retained));
            check_all(&all, &summarised);
            expected = vec![
                (Role::User, vec!["go"]),
                (Role::Assistant, vec!["a", "call 1"]),
                (Role::User, vec!["1: r", one]),
                (Role::Assistant, vec!["b"]),
                (Role::User, vec![two, "<¬system-note>"]),
            ];
        }
        let long = format!("{}\nfirst line\n{}", "a".repeat(100), "> quoted\n".repeat(1_000));
        let mut history = History::default();
        for event in [user("go"), text_message("a"), system_note(&long), text_message("b"), done(1)] {
            history.apply(&event);
        }
        let messages = history.messages();
        let [_, Block::Note(kept)] = &messages[0].blocks[..] else { panic!("{messages:?}") };
        assert!(
            kept.len() < 1_200 && kept.contains("first line") && kept.ends_with("\n</system-note>"),
            "{kept}"
        );
        let many: Vec<SessionEvent> = (0..100)
            .map(|number| system_note(&number.to_string()))
            .chain([text_message("b"), done(1)])
            .collect();
        let mut history = History::default();
        for event in &many {
            history.apply(event);
        }
        let blocks = &history.messages()[0].blocks;
        assert_eq!(blocks.len(), 1 + MAX_NOTES);
        assert_eq!(blocks.last(), Some(&Block::Note(note("99"))));
    }
}
