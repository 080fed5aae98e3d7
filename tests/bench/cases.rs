//! The cases. Inputs are constant. No case reads a clock or makes random values itself.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use modegate::acp::{MessageId, SessionId, SessionModeId};
use modegate::chain::Link;
use modegate::client::{self, Outgoing};
use modegate::conversation::acp_updates::{self, OptionalUpdates};
use modegate::conversation::history::History;
use modegate::conversation::reminder::placement::Placement;
use modegate::conversation::reminder::{self, Inputs, ReminderReader};
use modegate::event::SessionEvent;
use modegate::mode::{ModeText, Modes, ReminderPosition, ShellUse};
use modegate::model::known::{ModelFacts, facts_of};
use modegate::model::wire::anthropic::Anthropic;
use modegate::model::wire::chat::Chat;
use modegate::model::wire::framing::{FrameReader, Framing, Unreadable};
use modegate::model::wire::{Ask, Wire};
use modegate::model::{Effort, EncodedHistory, Message, ModelId, ModelRequest, ToolOffer};
use modegate::permission::rules::RuleTexts;
use modegate::permission::{CallFacts, Ceilings, Effect, Grants, Target, Verdict, decide};
use modegate::rpc;
use modegate::store::sessions::{ListedRuns, SessionQuery};
use modegate::store::{ModeChange, ModeSource, Row, Store, StoreLocation, Sync};
use modegate::tool::{Toolset, commands_of};

use crate::valgrind::Editor;

pub(crate) struct Case {
    pub name: &'static str,
    /// 0 measures the whole process.
    pub iterations: u64,
    pub run: Run,
}

pub(crate) enum Run {
    /// The case runs in this program.
    Inside(fn(u64)),
    /// The case runs in the binary, which an editor drives.
    Binary(fn(&mut Editor, u64)),
    /// As above, and each prompt reads a file.
    Reading,
}

/// Sessions of the cases about a store that has many.
const STORED: i64 = 2_000;

const PAGE: usize = 50;

/// Each with enough iterations for a small spread.
pub(crate) const CASES: [Case; 14] = [
    Case { name: "decide", iterations: 1_000, run: Run::Inside(decide_calls) },
    Case { name: "splice", iterations: 200, run: Run::Inside(splice_reminders) },
    Case { name: "request", iterations: 50, run: Run::Inside(encode_requests) },
    Case { name: "next_request", iterations: 100, run: Run::Inside(encode_next_requests) },
    Case { name: "decode", iterations: 1_000, run: Run::Inside(decode_chunks) },
    Case { name: "encode", iterations: 1_000, run: Run::Inside(encode_updates) },
    Case { name: "record", iterations: 2_000, run: Run::Inside(record_events) },
    Case { name: "list", iterations: 200, run: Run::Inside(list_sessions) },
    Case { name: "change_mode", iterations: 500, run: Run::Inside(change_modes) },
    Case { name: "relay", iterations: 5_000, run: Run::Binary(|editor, _| editor.prompt()) },
    Case { name: "dispatch", iterations: 200, run: Run::Binary(set_modes) },
    Case { name: "read_turn", iterations: 50, run: Run::Reading },
    Case { name: "session_new", iterations: 100, run: Run::Binary(open_sessions) },
    Case { name: "start", iterations: 0, run: Run::Binary(|_, _| ()) },
];

pub(crate) fn run_inside(name: &str, iterations: u64) {
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let Run::Inside(run) = case.run else { panic!("{name} runs in the binary") };
    run(iterations);
}

fn set_modes(editor: &mut Editor, iterations: u64) {
    for index in 0..iterations {
        editor.set_mode(if index % 2 == 0 { "plan" } else { "ask" });
    }
}

fn open_sessions(editor: &mut Editor, iterations: u64) {
    for _ in 0..iterations {
        editor.new_session();
    }
}

fn plan_ceilings() -> Ceilings {
    let texts: RuleTexts = serde_saphyr::from_str(
        "deny: ['read_file(**/.env)', 'shell(rm *)', 'fetch(https://*.test/**)']\n\
         ask: ['shell(git push *)', 'read_file(secrets/**)']\n\
         allow: ['shell(cargo test *)', 'edit_file(docs/**)']\n",
    )
    .unwrap();
    let modes = Modes::built_in().ceilings("plan").unwrap();
    Ceilings { modes, rules: vec![Arc::new(texts.compile(true).unwrap())] }
}

/// An iteration decides about a read and a command line that are allowed, and an edit that is denied.
fn decide_calls(iterations: u64) {
    let ceilings = plan_ceilings();
    let target =
        |path: &str| Target { path: PathBuf::from("/project").join(path), inside: Some(path.into()) };
    let call =
        |tool, effect, path| CallFacts { targets: vec![target(path)], ..CallFacts::of_tool(tool, effect) };
    let line = CallFacts {
        shell: ShellUse::ReadOnly,
        commands: commands_of("git log --oneline | head -5 && cargo test --lib"),
        ..CallFacts::of_tool("shell_read_only", Effect::Read)
    };
    let calls =
        [call("read_file", Effect::Read, "src/lib.rs"), line, call("edit_file", Effect::Edit, "src/lib.rs")];
    let grants = Grants::default();
    let verdicts = calls.each_ref().map(|call| decide(&ceilings, &grants, call));
    assert!(matches!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Deny(_)]), "{verdicts:?}");
    for _ in 0..iterations {
        for call in &calls {
            black_box(decide(black_box(&ceilings), &grants, black_box(call)));
        }
    }
}

/// A conversation of 40 messages.
fn history() -> History {
    let mut history = History::default();
    for turn in 0..20 {
        history.apply(&SessionEvent::UserMessage {
            message_id: MessageId::new(format!("msg_{turn}_u")),
            content: vec![format!("Question {turn}: {}", "how does this part work? ".repeat(4)).into()],
            typed: None,
            key: None,
        });
        history.apply(&SessionEvent::AgentText {
            message_id: MessageId::new(format!("msg_{turn}_a")),
            text: format!("Answer {turn}: {}", "it reads the line and passes it on. ".repeat(20)),
            shown: None,
        });
    }
    assert_eq!(history.messages().len(), 40);
    history
}

/// An iteration composes the reminder of plan mode, and splices it into the messages of a request.
fn splice_reminders(iterations: u64) {
    let (mut history, ceilings, grants) = (history(), plan_ceilings(), Grants::default());
    let tools: Vec<CallFacts> = Toolset::built_in().iter().map(|tool| tool.spec().facts()).collect();
    for _ in 0..iterations {
        let reminder = reminder::compose(&Inputs {
            mode: &ceilings.modes[0],
            reader: ReminderReader::Agent,
            transition: None,
            is_attended: true,
            notes: &[],
            ceilings: black_box(&ceilings),
            grants: &grants,
            tools: &tools,
            modes: &["ask", "plan", "code"],
        });
        assert!(reminder.is_some());
        black_box(Placement::default().splice(history.messages(), reminder, ReminderPosition::Stay));
    }
}

/// An iteration encodes a request with 40 messages and all tools for a provider.
fn encode_requests(iterations: u64) {
    let messages = history().messages();
    for _ in 0..iterations {
        encode(&Anthropic, &request(messages.clone(), &Arc::default()));
    }
}

/// An iteration adds a question and an answer to a conversation, and encodes the next request in two formats.
fn encode_next_requests(iterations: u64) {
    let messages = history().messages();
    let (mut sent, encoded) = (Vec::new(), [Arc::default(), Arc::default()]);
    for index in 0..iterations {
        let turn = usize::try_from(index).unwrap() % 20;
        sent.extend(messages[2 * turn..2 * turn + 2].iter().map(|message| Arc::new(Message::clone(message))));
        encode(&Anthropic, &request(sent.clone(), &encoded[0]));
        encode(&Chat, &request(sent.clone(), &encoded[1]));
    }
}

fn request(messages: Vec<Arc<Message>>, encoded: &Arc<EncodedHistory>) -> ModelRequest {
    static TOOLS: LazyLock<Arc<[ToolOffer]>> =
        LazyLock::new(|| Toolset::built_in().iter().map(|tool| tool.spec().to_offer()).collect());
    static SYSTEM: LazyLock<Arc<str>> = LazyLock::new(|| "You are a coding agent. ".repeat(100).into());
    ModelRequest {
        session: SessionId::new("sess_1"),
        ordinal: 1,
        model: ModelId::new("anthropic/claude-sonnet-4-5"),
        effort: Effort::Default,
        system: Arc::clone(&SYSTEM),
        tools: Arc::clone(&TOOLS),
        lasting_tools: 0,
        allowed: None,
        trace: None,
        encoded: Arc::clone(encoded),
        messages,
    }
}

fn encode(wire: &dyn Wire, request: &ModelRequest) {
    static FACTS: LazyLock<ModelFacts> = LazyLock::new(|| facts_of("claude-sonnet-4-5"));
    black_box(wire.body(&Ask {
        request: black_box(request),
        name: "claude-sonnet-4-5",
        facts: &FACTS,
        is_official: true,
        without: &[],
        left_out_images: &[],
    }));
}

/// An iteration decodes one text chunk from the bytes of a provider's stream.
fn decode_chunks(iterations: u64) {
    const BEGIN: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\
        \"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\
        \"stop_sequence\":null,\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
        event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":\
        {\"type\":\"text\",\"text\":\"\"}}\n\n";
    const CHUNK: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
        \"delta\":{\"type\":\"text_delta\",\"text\":\"Three words and a few more. \"}}\n\n";
    let (mut frames, mut decoder) = (FrameReader::new(Framing::Events), Anthropic.decoder());
    let mut events = VecDeque::new();
    let mut push = |bytes: &str| {
        let outcome = frames.push::<Unreadable>(black_box(bytes.as_bytes()), |frame| {
            decoder.frame(frame, &mut events).unwrap();
            Ok(())
        });
        outcome.unwrap();
        black_box(events.drain(..).count())
    };
    push(BEGIN);
    assert_eq!(push(CHUNK), 1);
    for _ in 0..iterations {
        push(CHUNK);
    }
}

fn chunk() -> SessionEvent {
    SessionEvent::AgentText {
        message_id: MessageId::new("msg_1_1"),
        text: "Three words and a few more. ".into(),
        shown: None,
    }
}

/// An iteration converts one text chunk to an update, passes it through the client's channel and encodes it.
fn encode_updates(iterations: u64) {
    let (client, mut end) = client::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (session, event) = (SessionId::new("sess_1"), chunk());
    runtime.block_on(async {
        for _ in 0..iterations {
            acp_updates::encode(black_box(&event), OptionalUpdates::default(), Vec::new, |update| {
                client.update(session.clone(), update, None);
            });
            let Some(Outgoing::Update(notification, _)) = end.recv().await else { panic!("no update") };
            black_box(rpc::update_line(&notification));
        }
    });
}

/// An iteration commits one event to a store in memory.
fn record_events(iterations: u64) {
    let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
    store.post(session(0));
    for seq in 0..iterations {
        store.post_and_wait(event(0, seq)).unwrap();
    }
}

fn session(number: i64) -> Row {
    Row::Session {
        id: SessionId::new(format!("sess_{number}")),
        cwd: "/project".into(),
        directories: Vec::new(),
        parent: None,
        agent: "general".into(),
        mode: SessionModeId::new("ask"),
        at: number,
    }
}

fn row_of(session: i64, seq: u64, event: SessionEvent) -> Row {
    Row::Event { session: SessionId::new(format!("sess_{session}")), seq, turn: 1, event, at: session }
}

fn event(session: i64, seq: u64) -> Row {
    row_of(session, seq, chunk())
}

/// A store in memory with sessions of two events, one of them a title, and a system prompt of 8,000 bytes. Those of the
/// newest page have 40 events each.
fn store_with_sessions() -> Store {
    let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
    let prompt: Arc<str> = "Use tabs. ".repeat(800).into();
    let prompt_of = |number| Row::SystemPrompt {
        session: SessionId::new(format!("sess_{number}")),
        text: Arc::clone(&prompt),
    };
    let title = || SessionEvent::Title { title: "Fix the retry".into() };
    let rows = (0..STORED).flat_map(|number| {
        [session(number), event(number, 0), row_of(number, 1, title()), prompt_of(number)]
    });
    store.post_all(rows.collect());
    let newest = STORED - i64::try_from(PAGE).unwrap()..STORED;
    store.post_all(newest.flat_map(|number| (2..40).map(move |seq| event(number, seq))).collect());
    store
}

/// An iteration reads a page of the list of 2,000 sessions, as a client gets it.
fn list_sessions(iterations: u64) {
    let store = store_with_sessions();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..iterations {
        let page = SessionQuery { limit: PAGE, runs: ListedRuns::LeftOut, ..SessionQuery::default() };
        assert_eq!(runtime.block_on(store.sessions(page)).unwrap().len(), PAGE);
    }
}

/// An iteration commits a mode change of one of 2,000 sessions.
fn change_modes(iterations: u64) {
    let store = store_with_sessions();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = Arc::new(ModeText { hash: "hash".into(), text: "id: plan\n".into() });
    for index in 0..iterations {
        let number = index.cast_signed() * 7 % STORED;
        let change = ModeChange {
            link: Link { number: 2 + index, body: "{}".into(), hash: "hash".into() },
            session: SessionId::new(format!("sess_{number}")),
            turn: 0,
            from: Some(SessionModeId::new("ask")),
            to: SessionModeId::new("plan"),
            why: ModeSource::SetMode.into(),
            text: Arc::clone(&text),
            at: STORED + index.cast_signed(),
        };
        runtime.block_on(store.record_mode_change(Vec::new(), change)).unwrap();
    }
    // Also the times that those commits have left.
    runtime.block_on(store.flush()).unwrap();
}
