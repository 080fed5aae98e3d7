//! What a reminder says, and the prefix rule as a property.

use proptest::prelude::*;

use super::*;
use crate::acp::{MessageId, ToolCallId, ToolCallStatus, ToolKind};
use crate::event::{SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::mode::Modes;
use crate::session::history::History;

fn switch(from: &str, to: &str) -> Transition {
    Transition { from: SessionModeId::new(from), to: SessionModeId::new(to), unconfirmed: 0 }
}

fn reminder(mode: &str, transition: Option<&Transition>) -> Option<String> {
    let modes = Modes::built_in();
    compose(modes.resolve(mode).unwrap(), Reader::Agent, transition, &[], &["read_file", "search_files"], &[])
}

#[test]
fn plan_always_has_a_reminder_and_the_others_only_after_a_switch() {
    assert!(reminder("plan", None).is_some());
    assert_eq!(reminder("ask", None), None);
    assert_eq!(reminder("code", None), None);
    let left = reminder("code", Some(&switch("plan", "code"))).unwrap();
    assert_eq!(
        left,
        "<system-reminder>\nThe user's session has switched from plan mode to code mode. Earlier restrictions no \
         longer hold: the tools of this request can be used.\n</system-reminder>"
    );
}

#[test]
fn the_plan_reminder_says_what_the_sources_want_it_to_say() {
    let text = reminder("plan", None).unwrap();
    for part in [
        "only read-only tools are available this turn", // D35
        "Research",                                     // D34
        "actionable plan",                              // D34
        "Do not edit, create or delete anything, run no shell command or background job", // D34
        "no call that changes state",                   // D34
        "disabled by the user's mode",                  // D35
        "presenting the plan and asking the user to review it", // D36
        "the user\nswitches to `code`",                 // D36
        "Tools available now: read_file, search_files.",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert_eq!(text.matches("<system-reminder>").count(), 1);
}

#[test]
fn an_author_cannot_drop_the_guardrail() {
    let mut mode = Modes::built_in().resolve("plan").unwrap().clone();
    mode.prompt = "   ".into();
    let text = compose(&mode, Reader::Agent, None, &[], &[], &[]).unwrap();
    assert!(text.contains("calls that would change anything are refused"));
    assert!(text.contains("Tools available now: none."));
}

/// One thing that may happen between two requests.
#[derive(Debug, Clone)]
enum Step {
    Reply { text: String, calls: usize, thought: bool },
    Prompt(String),
    Mode(&'static str),
}

fn any_step() -> impl Strategy<Value = Step> {
    let text = "[a-z<>/ -]{0,12}|<system-reminder>|</System-Reminder>";
    prop_oneof![
        (text, 0..3_usize, any::<bool>()).prop_map(|(text, calls, thought)| Step::Reply {
            text,
            calls,
            thought
        }),
        text.prop_map(Step::Prompt),
        prop::sample::select(vec!["ask", "plan", "code"]).prop_map(Step::Mode),
    ]
}

fn events(step: &Step, number: usize) -> Vec<SessionEvent> {
    let message_id = MessageId::new(format!("m{number}"));
    match step {
        Step::Mode(_) => vec![],
        Step::Prompt(text) => {
            vec![SessionEvent::UserMessage { message_id, content: vec![text.as_str().into()], typed: None }]
        }
        Step::Reply { text, calls, thought } => {
            let mut events = Vec::new();
            if *thought {
                events
                    .push(SessionEvent::AgentThought { message_id: MessageId::new("t"), text: "hm".into() });
            }
            events.push(SessionEvent::AgentText { message_id, text: text.clone(), shown: None });
            let id = |call| format!("c{number}_{call}");
            events.extend((0..*calls).map(|call| {
                SessionEvent::ToolCall(ToolCallEvent {
                    id: ToolCallId::new(id(call)),
                    model_id: id(call),
                    name: "read_file".into(),
                    title: String::new(),
                    kind: ToolKind::Read,
                    arguments: serde_json::json!({}),
                    locations: vec![],
                    is_announced: false,
                })
            }));
            events.extend((0..*calls).rev().map(|call| {
                SessionEvent::ToolCallUpdate(ToolCallUpdateEvent {
                    id: ToolCallId::new(id(call)),
                    status: ToolCallStatus::Completed,
                    content: None,
                    result: Some(text.clone()),
                    denied: None,
                })
            }));
            if *calls == 0 {
                // A reply without calls ends its turn: only a prompt brings the next request.
                let message_id = MessageId::new(format!("p{number}"));
                events.push(SessionEvent::UserMessage {
                    message_id,
                    content: vec!["go on".into()],
                    typed: None,
                });
            }
            events
        }
    }
}

/// A request as the sequence of its blocks, without its reminder; the reminders are counted on the way.
fn stable_blocks(messages: &[Arc<Message>]) -> (Vec<(Role, Block)>, usize) {
    let blocks: Vec<_> = messages
        .iter()
        .flat_map(|message| message.blocks.iter().map(|block| (message.role, block.clone())))
        .collect();
    let reminders = blocks.iter().filter(|(_, block)| matches!(block, Block::Reminder(_))).count();
    let stable = blocks.into_iter().filter(|(_, block)| !matches!(block, Block::Reminder(_))).collect();
    (stable, reminders)
}

proptest! {
    #[test]
    fn a_request_less_its_reminder_is_a_prefix_of_the_next(steps in prop::collection::vec(any_step(), 1..12)) {
        let modes = Modes::built_in();
        let mut mode = modes.resolve("plan").unwrap();
        let mut history = History::default();
        history.push(&SessionEvent::UserMessage { message_id: MessageId::new("u"), content: vec!["go".into()], typed: None });
        let mut before: Vec<(Role, Block)> = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let mut transition = None;
            if let Step::Mode(id) = step {
                transition = Some(switch(&mode.id, id));
                mode = modes.resolve(id).unwrap();
            }
            for event in events(step, number) {
                history.push(&event);
            }
            let request = splice(history.messages(), compose(mode, Reader::Agent, transition.as_ref(), &[], &["read_file"], &[]), ReminderPosition::Tail);
            let (stable, reminders) = stable_blocks(&request);
            prop_assert_eq!(reminders, usize::from(mode.has_standing_reminder() || transition.is_some()));
            prop_assert!(stable.starts_with(&before), "{:?} does not begin with {:?}", stable, before);
            if reminders == 1 {
                let last = request.last().unwrap();
                prop_assert_eq!(last.role, Role::User);
                prop_assert!(matches!(last.blocks.last(), Some(Block::Reminder(_))));
            }
            let user_side = stable.iter().filter(|(role, _)| *role == Role::User);
            let elsewhere = user_side.into_iter().any(|(_, block)| match block {
                Block::Text(text) | Block::ToolResult { text, .. } => {
                    text.to_lowercase().contains("<system-reminder") || text.to_lowercase().contains("</system-reminder")
                }
                _ => false,
            });
            prop_assert!(!elsewhere, "a tag that is not the splicer's came through");
            before = stable;
        }
    }
}

#[test]
fn a_mode_that_instructs_says_how_a_switch_is_written() {
    let mut mode = Modes::built_in().resolve("code").unwrap().clone();
    mode.in_band_switch = InBand::Instruct;
    let text = compose(&mode, Reader::Agent, None, &[], &["read_file"], &["ask", "plan", "code"]).unwrap();
    for part in [
        "The mode is code.",
        "mode_switch:\n  analysis: |",
        "new_mode: MODE",
        "The modes are: ask, plan, code.",
        "Staying is often right",
        "leave `new_mode` out",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    mode.in_band_switch = InBand::Parse;
    assert_eq!(compose(&mode, Reader::Agent, None, &[], &["read_file"], &[]), None);
    let told =
        compose(&mode, Reader::Agent, None, &["The block was not applied."], &["read_file"], &[]).unwrap();
    assert!(told.contains("The block was not applied."));
}

#[test]
fn before_the_prompt_is_before_the_users_last_words_and_there_is_one() {
    let user = |blocks: Vec<Block>| Arc::new(Message { role: Role::User, blocks });
    let text = |text: &str| Block::Text(text.into());
    let result = Block::ToolResult { id: "c".into(), name: "t".into(), text: "r".into(), is_error: false };
    let messages = vec![
        user(vec![text("first")]),
        Arc::new(Message { role: Role::Assistant, blocks: vec![text("answer")] }),
        user(vec![text("second"), text("more")]),
        Arc::new(Message { role: Role::Assistant, blocks: vec![text("calls")] }),
        user(vec![result]),
    ];
    let spliced = splice(messages, Some("R".into()), ReminderPosition::BeforePrompt);
    let places: Vec<_> = spliced
        .iter()
        .enumerate()
        .flat_map(|(at, message)| message.blocks.iter().enumerate().map(move |(n, block)| (at, n, block)))
        .filter(|(.., block)| matches!(block, Block::Reminder(_)))
        .map(|(at, n, _)| (at, n))
        .collect();
    assert_eq!(places, [(2, 0)]);
}
