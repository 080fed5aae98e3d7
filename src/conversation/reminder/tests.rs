//! Reminders in every mode, after every switch and under further ceilings; and the prefix rule as a property.

use std::path::Path;

use proptest::prelude::*;

use super::placement::Placement;
use super::*;
use crate::acp::{MessageId, ToolCallId, ToolCallStatus, ToolKind};
use crate::conversation::history::History;
use crate::conversation::neutralise::tests::{hostile, tags};
use crate::event::{SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::mode::{Modes, ReminderPosition, ShellUse};
use crate::model::{Block, Message, Role};
use crate::permission::{Effect, Target, Verdict, decide};
use crate::policy::{LayerOwner, Layers};

/// Tools of every effect.
fn tools() -> Vec<CallFacts> {
    let shell = |tool: &str, effect, shell| CallFacts { shell, ..CallFacts::of_tool(tool, effect) };
    vec![
        CallFacts::of_tool("read_file", Effect::Read),
        CallFacts::of_tool("search_files", Effect::Read),
        shell("shell_read_only", Effect::Read, ShellUse::ReadOnly),
        CallFacts::of_tool("todo", Effect::Session),
        CallFacts { is_exit: true, ..CallFacts::of_tool("switch_mode", Effect::Session) },
        CallFacts::of_tool("write_file", Effect::Edit),
        CallFacts::of_tool("delete_file", Effect::Edit),
        shell("shell", Effect::Execute, ShellUse::Full),
        CallFacts::of_tool("fetch", Effect::Network),
        CallFacts::of_tool("save_memory", Effect::State),
        CallFacts::of_tool("delegate", Effect::Delegate),
        CallFacts { server: Some("s".into()), ..CallFacts::of_tool("mcp__s__act", Effect::Unknown) },
        CallFacts {
            claim: Some(crate::permission::Claim { server: "s".into(), flips: 0 }),
            ..CallFacts::of_tool("mcp__s__look", Effect::Read)
        },
    ]
}

fn ceilings(modes: &Modes, id: &str) -> Ceilings {
    Ceilings { modes: modes.ceilings(id).unwrap(), rules: Vec::new() }
}

/// A switch without further ceilings.
fn switch(modes: &Modes, from: &str, to: &str) -> Transition {
    let (before, id) = (ceilings(modes, from), SessionModeId::new);
    Transition { from: id(from), to: id(to), before, unconfirmed: 0 }
}

fn composed(modes: &Modes, id: &str, transition: Option<&Transition>, notes: &[&str]) -> Option<String> {
    let (ceilings, tools) = (ceilings(modes, id), tools());
    let known: Vec<&str> = modes.iter().map(|mode| mode.id.as_str()).collect();
    compose(&Inputs {
        mode: modes.resolve(id).unwrap(),
        reader: ReminderReader::Agent,
        transition,
        is_attended: true,
        notes,
        ceilings: &ceilings,
        grants: &Grants::default(),
        tools: &tools,
        modes: &known,
    })
}

fn reminder(id: &str, from: Option<&str>) -> Option<String> {
    let modes = Modes::built_in();
    composed(&modes, id, from.map(|from| switch(&modes, from, id)).as_ref(), &[])
}

/// The built-in modes and those of the YAML `text`.
fn with(text: &str) -> Modes {
    let mut layers = Layers::default();
    layers.add("modes.yaml", text, LayerOwner::User).unwrap();
    layers.modes
}

#[test]
fn code_has_no_reminder_without_a_switch() {
    assert!(reminder("plan", None).is_some());
    assert!(reminder("ask", None).is_some());
    assert_eq!(reminder("code", None), None);
    assert_eq!(
        reminder("code", Some("plan")).unwrap(),
        "<system-reminder>\nThe user's session has switched from plan mode to code mode. The restrictions of plan mode \
         no longer hold. The user is no longer asked before: fetch, mcp__s__look.\n</system-reminder>"
    );
    assert_eq!(
        reminder("ask", Some("code")).unwrap(),
        "<system-reminder>\nThe user's session has switched from code mode to ask mode.\nUnless already allowed, the user is asked before: \
         changing files, shell, fetch, changing memories, MCP tools that may change something, mcp__s__look. Allowed in the \
         session's folders without asking: reading and searching, shell_read_only.\n</system-reminder>"
    );
}

#[test]
fn reminder_without_a_user_names_the_refused_calls() {
    let modes = Modes::built_in();
    let (ceilings, tools) = (ceilings(&modes, "ask"), tools());
    let text = |is_attended| {
        let inputs = Inputs {
            mode: modes.resolve("ask").unwrap(),
            reader: ReminderReader::Agent,
            transition: None,
            is_attended,
            notes: &[],
            ceilings: &ceilings,
            grants: &Grants::default(),
            tools: &tools,
            modes: &["ask"],
        };
        compose(&inputs).unwrap()
    };
    let refused = "Nobody can be asked in this run, so these are refused: changing files, shell, fetch,";
    assert!(text(false).contains(refused) && !text(false).contains("the user is asked"), "{}", text(false));
    assert!(text(true).contains("the user is asked before: changing files, shell, fetch,"), "the control");
}

#[test]
fn plan_reminder_contains_the_required_sentences() {
    let text = reminder("plan", None).unwrap();
    for part in [
        "only read-only tools are available this turn", // D35
        "Research",                                     // D34
        "actionable plan",                              // D34
        "Do not edit, create or delete anything, run no shell command or background job but `shell_read_only`", // D34
        "no call that changes state",                           // D34
        "disabled by the user's mode",                          // D35
        "presenting the plan and asking the user to review it", // D36
        "the user\nswitches to `code`",                         // D36
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert_eq!(tags(&text), 2);
    let names = "Tools available now: read_file, search_files, shell_read_only, todo, switch_mode, fetch, delegate, mcp__s__look.";
    assert!(!text.contains(names), "the request lists no other tools");
    let mut modes = Modes::built_in();
    modes.set_default_tool_list(ToolList::Mask);
    let text = composed(&modes, "plan", None, &[]).unwrap();
    assert!(text.contains(names), "{text}");
}

#[test]
fn mode_authors_cannot_remove_the_guardrail() {
    let modes = with(
        "modes: [{id: own, access: read_only, prompt: Plan well.}, {id: none, access: read_only, tools: {allow: []}}]",
    );
    let text = composed(&modes, "own", None, &[]).unwrap();
    assert!(
        text.starts_with("<system-reminder>\nown mode is on: only read-only tools are available"),
        "{text}"
    );
    assert!(text.contains("are refused.") && text.contains("\nPlan well.\n"), "{text}");
    let text = composed(&modes, "none", None, &[]).unwrap();
    assert!(
        text.contains(
            "calls that would change anything are refused.\nA tool that is missing has been disabled"
        ),
        "{text}"
    );
}

/// A blank prompt counts as missing, so the parent mode's prompt applies (D39).
#[test]
fn blank_prompt_inherits_the_parents_prompt() {
    let modes = with(
        "modes: [{id: blank, extends: plan, prompt: ' ', name: Plan}, {id: own, extends: plan, prompt: Plan well.}]",
    );
    assert_eq!(composed(&modes, "blank", None, &[]), composed(&modes, "plan", None, &[]));
    let own = composed(&modes, "own", None, &[]).unwrap();
    assert!(own.contains("\nPlan well.\n") && !own.contains("You are planning"), "{own}");
}

/// Modes of every kind, with short prompts so that the fixture stays readable.
fn many() -> Modes {
    let mut modes = with(
        "modes:
- {id: docs, access: edit, permission: auto, shell: read_only, network: allow, write_paths: ['docs/**', '*.md'], prompt: x}
- {id: draft, access: edit, permission: ask, in_band_switch: off}
- {id: quiet, extends: code, shell: off, write_paths: ['src/**']}
- {id: few, extends: code, tools: {allow: [read_file, write_file, fetch]}}
- {id: keep, extends: ask, tools: {deny: [delete_file]}, network: deny}
- {id: talk, extends: ask, tools: {allow: []}, prompt: x}
- {id: nowhere, access: edit, permission: auto, write_paths: []}",
    );
    for mode in modes.iter_mut().filter(|mode| !mode.prompt.trim().is_empty()) {
        mode.prompt = format!("The words of {}.", mode.id);
    }
    modes
}

/// Ceilings that may apply in addition to a session's mode.
fn further(modes: &Modes) -> Vec<(&'static str, Ceilings)> {
    let of = |id: &str| modes.ceilings(id).unwrap();
    let agent = with(
        "modes: [{id: agent-reader, access: full, shell: full, permission: auto, network: allow, tools: {deny: [shell*]}}]",
    );
    let rules = "{deny: [fetch], ask: ['read_file(secret/**)', search_files], allow: [shell]}";
    let rules: crate::permission::rules::RuleTexts = serde_saphyr::from_str(rules).unwrap();
    vec![
        ("nothing", Ceilings { modes: vec![], rules: vec![] }),
        ("--max-mode plan", Ceilings { modes: of("plan"), rules: vec![] }),
        ("an ancestor in docs", Ceilings { modes: of("docs"), rules: vec![] }),
        ("an ancestor in ask", Ceilings { modes: of("ask"), rules: vec![] }),
        ("an agent's limit", Ceilings { modes: agent.ceilings("agent-reader").unwrap(), rules: vec![] }),
        ("rules", Ceilings { modes: vec![], rules: vec![Arc::new(rules.compile(true).unwrap())] }),
    ]
}

fn together(modes: &Modes, id: &str, further: &Ceilings) -> Ceilings {
    let modes = [modes.ceilings(id).unwrap(), further.modes.clone()].concat();
    Ceilings { modes, rules: further.rules.clone() }
}

/// Compares the full texts with `fixtures/reminders.txt`.
#[test]
fn every_reminder_matches_the_fixture() {
    let (modes, tools) = (many(), tools());
    let ids: Vec<String> = modes.iter().map(|mode| mode.id.clone()).collect();
    let mut text = String::from(
        "Written by `UPDATE_EXPECT=1 cargo test every_reminder`. Each line is held against decide() besides.\n",
    );
    for (name, further) in further(&modes) {
        text.push_str(&format!("\n== {name}\n"));
        let all: Vec<Ceilings> = ids.iter().map(|id| together(&modes, id, &further)).collect();
        let compose = |at: usize, transition: Option<&Transition>| {
            let grants = Grants::default();
            let mode = modes.resolve(&ids[at]).unwrap();
            let facts = Inputs {
                mode,
                reader: ReminderReader::Agent,
                transition,
                is_attended: true,
                notes: &[],
                ceilings: &all[at],
                grants: &grants,
                tools: &tools,
                modes: &[],
            };
            super::compose(&facts)
        };
        let inner = |text: Option<String>| -> Vec<String> {
            let lines = text.unwrap_or_default();
            lines.lines().filter(|line| !line.contains("system-reminder>")).map(str::to_owned).collect()
        };
        for (at, id) in ids.iter().enumerate() {
            let status = inner(compose(at, None));
            text.push_str(&format!("\n{id}\n"));
            let none = ["(no reminder)".to_owned()];
            for line in if status.is_empty() { &none[..] } else { &status[..] } {
                text.push_str(&format!("    {line}\n"));
            }
            for (from, before) in ids.iter().zip(&all).filter(|(from, _)| *from != id) {
                let mode = SessionModeId::new;
                let transition = Transition {
                    from: mode(from.as_str()),
                    to: mode(id.as_str()),
                    before: before.clone(),
                    unconfirmed: 0,
                };
                let lines = inner(compose(at, Some(&transition)));
                // A switch only adds lines, or extends the line about asking.
                let stays = |line: &String| {
                    line.ends_with(" mode is on.")
                        || lines.iter().any(|other| other.starts_with(line.as_str()))
                };
                assert!(status.iter().all(stays), "{from} to {id}: {lines:?}");
                let new: Vec<&str> =
                    lines.iter().filter(|line| !status.contains(line)).map(String::as_str).collect();
                assert!(
                    new[0].starts_with(&format!(
                        "The user's session has switched from {from} mode to {id} mode."
                    ))
                );
                let new = new.join(" / ").replacen(
                    &format!("The user's session has switched from {from} mode to {id} mode."),
                    "",
                    1,
                );
                text.push_str(&format!("  from {from}:{new}\n"));
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/reminders.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (message, expected) in text.lines().zip(expected.lines()) {
        assert_eq!(message, expected);
    }
    assert_eq!(text, expected);
}

/// Calls that test a claim: without a path, and with several paths.
fn calls(tool: &CallFacts) -> Vec<CallFacts> {
    let at = |path: &str| {
        let target = Target { path: Path::new("/w").join(path), inside: Some(path.into()) };
        CallFacts { targets: vec![target], ..tool.clone() }
    };
    let places = ["docs/a.md", "README.md", "src/lib.rs", "x.txt"];
    let has_places = tool.effect == Effect::Edit || tool.tool == "read_file";
    std::iter::once(tool.clone()).chain(places.into_iter().filter(|_| has_places).map(at)).collect()
}

/// Decision as a number: 0 allow, 1 ask, 2 deny.
fn level(ceilings: &Ceilings, call: &CallFacts) -> u8 {
    match decide(ceilings, &Grants::default(), call) {
        Verdict::Allow => 0,
        Verdict::Ask(_) => 1,
        Verdict::Deny(_) => 2,
    }
}

/// A switch, with the ceilings before and after.
struct Case<'a> {
    name: &'a str,
    from: &'a str,
    to: &'a str,
    before: Ceilings,
    now: Ceilings,
    tools: &'a [CallFacts],
}

impl Case<'_> {
    fn was(&self, call: &CallFacts) -> u8 {
        level(&self.before, call)
    }

    fn is(&self, call: &CallFacts) -> u8 {
        level(&self.now, call)
    }

    fn names(&self, is_so: impl Fn(&CallFacts) -> bool) -> Vec<String> {
        let tools = self.tools.iter().filter(|tool| !tool.is_exit && is_so(tool));
        tools.map(|tool| tool.tool.clone()).collect()
    }

    fn calls(&self, is_so: impl Fn(&CallFacts) -> bool) -> Vec<CallFacts> {
        self.tools.iter().filter(|tool| !tool.is_exit && is_so(tool)).flat_map(calls).collect()
    }

    /// True if a claim agrees with `decide()`; also the tools that the claim covers as denied or asked.
    fn verify(&self, claim: &ReminderClaim) -> (bool, Vec<String>) {
        let changes = |tool: &CallFacts| tool.effect.is_change();
        let others = |tool: &CallFacts| changes(tool) && tool.effect != Effect::Edit;
        let is_refused = |call: &CallFacts| self.is(call) == 2;
        let was_refused = |call: &CallFacts| self.was(call) == 2;
        match claim {
            ReminderClaim::Lifted(mode) => {
                let mut calls = self.calls(|_| true);
                calls.retain(was_refused);
                (mode == self.from && !calls.is_empty() && !calls.iter().any(is_refused), vec![])
            }
            ReminderClaim::NoLongerRefused(these) => {
                (these.tools == self.names(|tool| was_refused(tool) && !is_refused(tool)), vec![])
            }
            ReminderClaim::NothingFromNowOn => {
                let is_so = self.calls(changes).iter().all(is_refused);
                (is_so && !self.names(|tool| changes(tool) && !was_refused(tool)).is_empty(), vec![])
            }
            ReminderClaim::RefusedFromNowOn(these) => {
                (these.tools == self.names(|tool| !was_refused(tool) && is_refused(tool)), vec![])
            }
            ReminderClaim::NoLongerAsked(these) => {
                (these.tools == self.names(|tool| self.was(tool) == 1 && self.is(tool) == 0), vec![])
            }
            ReminderClaim::SameAsBefore => {
                let calls = self.calls(|_| true);
                let is_same = calls.iter().all(|call| was_refused(call) == is_refused(call));
                (is_same && calls.iter().any(is_refused), vec![])
            }
            ReminderClaim::NothingChanges => {
                (self.calls(changes).iter().all(is_refused), self.names(changes))
            }
            ReminderClaim::ClaimedToRead(these) => {
                (these.tools == self.names(|tool| tool.claim.is_some() && !is_refused(tool)), vec![])
            }
            ReminderClaim::FilesOnly(lists) => {
                let lists: Vec<_> =
                    lists.iter().map(|list| crate::mode::Globs::new(list.clone()).unwrap()).collect();
                let edits = self.calls(|tool| tool.effect == Effect::Edit && !is_refused(tool));
                let is_so = |call: &CallFacts| match call.targets.first().and_then(|it| it.inside.clone()) {
                    Some(inside) => is_refused(call) != lists.iter().all(|list| list.matches(&inside)),
                    None => true,
                };
                (edits.iter().all(is_so), vec![])
            }
            ReminderClaim::NothingElseChanges => {
                (self.calls(others).iter().all(is_refused), self.names(others))
            }
            ReminderClaim::Refused(these) => {
                let refused = self.names(is_refused);
                (these.tools.iter().all(|tool| refused.contains(tool)), these.tools.clone())
            }
            ReminderClaim::Asked(these) | ReminderClaim::Unanswered(these) => {
                (these.tools == self.names(|tool| self.is(tool) == 1), these.tools.clone())
            }
            ReminderClaim::NotAsked(these) => {
                let calls = self.calls(|tool| these.tools.contains(&tool.tool));
                (calls.iter().all(|call| self.is(call) == 0), vec![])
            }
        }
    }

    fn check(&self, claims: &[ReminderClaim]) {
        let Self { name, from, to, .. } = self;
        let mut mentioned = Vec::new();
        for claim in claims {
            let (is_true, covered) = self.verify(claim);
            assert!(is_true, "{name}, {from} to {to}: {claim}");
            mentioned.extend(covered);
        }
        let is_due = |tool: &CallFacts| {
            let is_said = tool.effect.is_change() || tool.effect == Effect::Network;
            (self.is(tool) == 2 && is_said) || self.is(tool) == 1
        };
        for tool in self.names(is_due) {
            // If nothing changes, the list of available tools shows that `fetch` is denied.
            let is_mentioned = mentioned.contains(&tool) || tool == "fetch";
            assert!(is_mentioned, "{name}, {from} to {to}: {tool} is not mentioned: {claims:?}");
        }
        let limits_files = self.calls(|tool| self.is(tool) < 2).iter().any(|call| self.is(call) == 2);
        let claims_files = claims.iter().any(|claim| matches!(claim, ReminderClaim::FilesOnly(_)));
        assert_eq!(limits_files, claims_files, "{name}, {from} to {to}: {claims:?}");
    }
}

/// Checks each claim alone against `decide()`, and that no denied or asked tool is omitted.
#[test]
fn every_claim_agrees_with_decide() {
    let (modes, tools, grants) = (many(), tools(), Grants::default());
    let ids: Vec<&str> = modes.iter().map(|mode| mode.id.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    for (name, further) in further(&modes) {
        for (to, from) in ids.iter().flat_map(|to| ids.iter().map(move |from| (*to, *from))) {
            let (before, now) = (together(&modes, from, &further), together(&modes, to, &further));
            let case = Case { name, from, to, before, now, tools: &tools };
            let levels = Levels::of(&case.now, &grants, &tools);
            let mut claims = levels.refusals();
            claims.extend(levels.asked(true));
            claims.extend(levels.not_asked(&case.now));
            claims.extend(levels.since(&Levels::of(&case.before, &grants, &tools), from));
            seen.extend(claims.iter().map(std::mem::discriminant).map(|kind| format!("{kind:?}")));
            case.check(&claims);
        }
    }
    assert_eq!(seen.len(), 13, "every kind of claim has come up");
}

/// A reminder is present wherever any mode among the ceilings denies something.
#[test]
fn denials_by_any_ceiling_bring_a_reminder() {
    let (modes, tools) = (many(), tools());
    for (name, further) in further(&modes) {
        for id in modes.iter().map(|mode| mode.id.as_str()) {
            let ceilings = together(&modes, id, &further);
            let by_modes = Ceilings { rules: vec![], ..ceilings.clone() };
            let mut all = tools.iter().filter(|tool| !tool.is_exit).flat_map(calls);
            let refuses = all.any(|call| level(&by_modes, &call) == 2);
            let mode = modes.resolve(id).unwrap();
            let facts = Inputs {
                mode,
                reader: ReminderReader::Agent,
                transition: None,
                is_attended: true,
                notes: &[],
                ceilings: &ceilings,
                grants: &Grants::default(),
                tools: &tools,
                modes: &[],
            };
            let asks = Levels::of(&ceilings, &Grants::default(), &tools).not_asked(&ceilings).is_some();
            let is_due = refuses || asks || !mode.prompt.trim().is_empty();
            assert_eq!(compose(&facts).is_some(), is_due, "{name}: {id}");
            assert_eq!(is_standing(&facts), is_due, "{name}: {id}");
        }
    }
}

proptest! {
    /// Hostile text in any field leaves exactly one opening and one closing tag.
    #[test]
    fn hostile_text_never_closes_the_reminder(
        texts in prop::collection::vec(prop_oneof![hostile(), any::<String>()], 10),
        is_edit in any::<bool>(),
        reader in prop::sample::select(vec![ReminderReader::Agent, ReminderReader::Subagent]),
    ) {
        let mut mode = Modes::built_in().resolve("plan").unwrap().clone();
        (mode.name, mode.prompt, mode.id) = (texts[0].clone(), texts[1].clone(), texts[2].clone());
        mode.subagent_prompt = Some(texts[1].clone());
        mode.in_band_switch = InBand::Instruct;
        if is_edit {
            mode.access = crate::mode::Access::Edit;
            // `write_paths` only takes valid globs.
            mode.write_paths = crate::mode::Globs::new(vec![texts[3].clone(), texts[4].clone()]).ok();
        }
        let mut tools = tools();
        tools.push(CallFacts::of_tool(texts[5].clone(), Effect::Read));
        tools.push(CallFacts::of_tool(texts[6].clone(), Effect::Edit));
        let ceilings = Ceilings { modes: vec![Arc::new(mode.clone())], rules: Vec::new() };
        let transition = Transition {
            from: SessionModeId::new(texts[7].clone()),
            to: SessionModeId::new(texts[2].clone()),
            before: self::ceilings(&Modes::built_in(), "code"),
            unconfirmed: 1,
        };
        let (notes, known) = ([texts[8].as_str()], [texts[9].as_str()]);
        let text = compose(&Inputs {
            mode: &mode,
            reader,
            transition: Some(&transition),
            is_attended: true,
            notes: &notes,
            ceilings: &ceilings,
            grants: &Grants::default(),
            tools: &tools,
            modes: &known,
        })
        .unwrap();
        prop_assert_eq!(tags(&text), 2, "{}", text);
        prop_assert!(text.starts_with("<system-reminder>\n") && text.ends_with("\n</system-reminder>"));
    }
}

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
            vec![SessionEvent::UserMessage {
                message_id,
                content: vec![text.as_str().into()],
                typed: None,
                key: None,
            }]
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
                SessionEvent::ToolCall(Box::new(ToolCallEvent {
                    id: ToolCallId::new(id(call)),
                    model_id: id(call),
                    name: "read_file".into(),
                    title: String::new(),
                    kind: ToolKind::Read,
                    arguments: serde_json::json!({}),
                    locations: vec![],
                    is_announced: false,
                    note: None,
                    check: None,
                }))
            }));
            events.extend((0..*calls).rev().map(|call| {
                SessionEvent::from(ToolCallUpdateEvent {
                    status: ToolCallStatus::Completed,
                    result: Some(text.clone()),
                    ..ToolCallUpdateEvent::in_progress(ToolCallId::new(id(call)))
                })
            }));
            if *calls == 0 {
                // A reply without calls ends its turn, so only a prompt leads to the next request.
                let message_id = MessageId::new(format!("p{number}"));
                events.push(SessionEvent::UserMessage {
                    message_id,
                    content: vec!["go on".into()],
                    typed: None,
                    key: None,
                });
            }
            events
        }
    }
}

fn blocks(messages: &[Arc<Message>]) -> Vec<(Role, Block)> {
    let of = |message: &Arc<Message>| {
        let role = message.role;
        message.blocks.iter().map(move |block| (role, block.clone())).collect::<Vec<_>>()
    };
    messages.iter().flat_map(of).collect()
}

/// The blocks of a request without its reminders, and the number of reminders.
fn stable_blocks(messages: &[Arc<Message>]) -> (Vec<(Role, Block)>, usize) {
    let (reminders, stable): (Vec<_>, Vec<_>) =
        blocks(messages).into_iter().partition(|(_, block)| matches!(block, Block::Reminder(_)));
    (stable, reminders.len())
}

proptest! {
    #[test]
    fn request_without_reminder_is_a_prefix_of_the_next(
        steps in prop::collection::vec(any_step(), 1..12),
        position in prop::sample::select(vec![ReminderPosition::Stay, ReminderPosition::Tail]),
    ) {
        let modes = Modes::built_in();
        let mut mode = modes.resolve("plan").unwrap();
        let mut history = History::default();
        history.apply(&SessionEvent::UserMessage { message_id: MessageId::new("u"), content: vec!["go".into()], typed: None, key: None });
        let mut before: Vec<(Role, Block)> = Vec::new();
        let mut whole_before: Vec<(Role, Block)> = Vec::new();
        let (mut placement, mut said) = (Placement::default(), None);
        for (number, step) in steps.iter().enumerate() {
            let mut transition = None;
            if let Step::Mode(id) = step {
                transition = Some(switch(&modes, &mode.id, id));
                mode = modes.resolve(id).unwrap();
            }
            for event in events(step, number) {
                history.apply(&event);
            }
            let reminder = composed(&modes, &mode.id, transition.as_ref(), &[]);
            let request = placement.splice(history.messages(), reminder.clone(), position);
            let (stable, reminders) = stable_blocks(&request);
            prop_assert_eq!(reminders, usize::from(mode.id != "code" || transition.is_some()));
            prop_assert!(stable.starts_with(&before), "{:?} does not begin with {:?}", stable, before);
            let whole = blocks(&request);
            let stays = position == ReminderPosition::Stay && number > 0 && said == reminder;
            prop_assert!(!stays || whole.starts_with(&whole_before), "{:?} does not begin with {:?}", whole, whole_before);
            if reminders == 1 && !stays {
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
            prop_assert!(!elsewhere, "the request contains a tag that `Placement` did not add");
            (before, whole_before, said) = (stable, whole, reminder);
        }
    }
}

#[test]
fn instruct_mode_explains_the_switch_syntax() {
    let modes = with("modes: [{id: code, extends: code, in_band_switch: instruct}]");
    let text = composed(&modes, "code", None, &[]).unwrap();
    for part in [
        "The mode is code.",
        "mode_switch:\n  analysis: |",
        "new_mode: MODE",
        "The modes are: ask, plan, code.",
        "Staying is often right",
        "omit `new_mode`",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    let modes = Modes::built_in();
    assert_eq!(composed(&modes, "code", None, &[]), None);
    let notice = composed(&modes, "code", None, &["The block was not applied."]).unwrap();
    assert_eq!(notice, "<system-reminder>\nThe block was not applied.\n</system-reminder>");
}
