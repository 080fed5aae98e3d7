//! A session's view of its MCP servers: their events, their questions, and the current facts of their tools.

use tokio::sync::mpsc;

use super::SessionContext;
use super::event_log::EventLog;
use super::notes::Notes;
use crate::conversation::instructions::Instructions;
use crate::event::InstructionSource;
use crate::gate::{Active, Gate};
use crate::permission::hints::Belief;
use crate::permission::{self, CallFacts, Denial, Effect, Verdict};
use crate::server::ServerSandbox;
use crate::session::mode::decider::Decider;
use crate::store::Row;
use crate::store::entry::{self, ChainEntry};
use crate::text::plain;
use crate::tool::Toolset;
use crate::tool::client_io::ClientIo;
use crate::tool::mcp::{
    Form, MAX_WHY, ServerEvent, ServerPhase, ServerQuestion, ServerStatus, cannot_be_used, name_of_questions,
};

/// Maximum tool names per sentence.
const MAX_NAMES: usize = 8;

/// Maximum questions per turn, for all servers together.
const MAX_QUESTIONS: u32 = 20;

/// Maximum addresses of a session whose completion is passed on.
const MAX_ADDRESSES: usize = 100;

/// Maximum notices queued between turns.
const MAX_REPORTED: usize = 20;

pub(super) struct SessionServers {
    /// `None` if the session has no servers.
    events: Option<mpsc::UnboundedReceiver<ServerEvent>>,
    /// Last turn in which servers asked the user, and their number of questions.
    questions: (u64, u32),
    /// Open addresses: the server's part of tool names, and the id of the question.
    addresses: Vec<(String, String)>,
}

impl SessionServers {
    pub(super) fn new(events: Option<mpsc::UnboundedReceiver<ServerEvent>>) -> Self {
        Self { events, questions: (0, 0), addresses: Vec::new() }
    }

    /// Cancel-safe: a dropped call loses no event.
    pub(super) async fn next(&mut self) -> Option<ServerEvent> {
        self.events.as_mut()?.recv().await
    }

    /// Reports an event to the user and the model. Returns a question that a server asks the user.
    pub(super) fn handle(
        &mut self,
        event: ServerEvent,
        is_turn_running: bool,
        notes: &mut Notes,
        log: &mut EventLog,
    ) -> Option<ServerQuestion> {
        let text = match event {
            ServerEvent::Changed(changed) => {
                let (turn, at) = (log.turn(), log.now_ms());
                for (tool, from, to) in &changed {
                    let (from, to) = (entry::effect(*from), entry::effect(*to));
                    log.chain(&ChainEntry::Hint { turn, tool: tool.clone(), from, to, at });
                }
                let text = changes(&changed);
                notes.add_later(format!("{text} Modegate decides calls to these tools accordingly."));
                text
            }
            ServerEvent::ClaimsMore(server) => {
                // Grants in memory include the count of changed claims; stored grants must not come back.
                log.queue(Row::ClaimsChanged { session: log.id().clone(), server });
                return None;
            }
            ServerEvent::Note(text) => text,
            ServerEvent::Elicitation(question) => return Some(question),
            ServerEvent::ElicitationCompleted { part, id } => {
                let known = (part, id);
                for (_, id) in self.addresses.extract_if(.., |address| *address == known) {
                    log.client().complete_elicitation(id.into());
                }
                return None;
            }
            ServerEvent::Over { server, why } => cannot_be_used(&server, &why),
        };
        let text = format!("{text}\n\n");
        if is_turn_running {
            notes.record_warning(text, log);
        } else if notes.pending_for_user() < MAX_REPORTED {
            notes.warn(text);
        }
        None
    }

    /// Asks the user a server's question, which is decided like a call, as part of the call that runs on that
    /// server.
    pub(super) fn ask(
        &mut self,
        question: ServerQuestion,
        is_cancelled: bool,
        gate: &mut Gate,
        decider: &mut Decider,
        client_io: &ClientIo,
    ) {
        let ServerQuestion { part, message, form, mut reply } = question;
        let active = match self.asking_call(&part, gate, decider.log.turn()) {
            Ok(active) => active,
            // The server may be gone, here and below.
            Err(why) => return drop(reply.send(Err(why.to_owned()))),
        };
        let facts = CallFacts::of_tool(name_of_questions(&part), Effect::Session);
        match decider.policy.decide(&facts) {
            Verdict::Allow if is_cancelled => return drop(reply.send(Err("it was cancelled".into()))),
            // Asking the user satisfies a rule to ask.
            Verdict::Allow | Verdict::Ask(_) => {}
            Verdict::Deny(Denial { rule, message }) => {
                decider.record_denial(active.call.clone(), facts.tool, rule);
                return drop(reply.send(Err(message)));
            }
        }
        if let Form::Address { id, .. } = &form
            && self.addresses.len() < MAX_ADDRESSES
        {
            self.addresses.push((part, id.clone()));
        }
        let client_io = client_io.for_call(&active.call);
        tokio::spawn(async move {
            let answer = tokio::select! {
                biased;
                () = active.over() => Err("the call has ended".to_owned()),
                // The server withdrew the question.
                () = reply.closed() => return,
                answer = ServerQuestion::put(&client_io, &message, form) => answer.map_err(|error| error.to_string()),
            };
            let _ = reply.send(answer);
        });
    }

    fn asking_call(&mut self, part: &str, gate: &mut Gate, turn: u64) -> Result<Active, &'static str> {
        let active = gate.active(|facts| facts.server.as_deref() == Some(part));
        let active = active.ok_or("a server may ask only while one of its tools is called")?;
        let count = if self.questions.0 == turn { self.questions.1 } else { 0 };
        if count >= MAX_QUESTIONS {
            return Err("servers have asked too many questions in this turn");
        }
        self.questions = (turn, count + 1);
        Ok(active)
    }
}

/// Instructions that the model does not have, of servers with an available tool. In a note, not in the system
/// prompt: a server may start late, and another prompt would invalidate the provider's cache.
pub(super) fn instructions(decider: &Decider) -> Vec<Instructions> {
    let Decider { policy, log, .. } = decider;
    let (ceilings, history) = (policy.ceilings(), &log.conversation().history);
    let source = |server: &str| InstructionSource::Server(server.to_owned());
    let of_servers = policy.context.tools.servers().instructions(|server, tool| {
        !history.has_instructions(&source(server))
            && permission::is_available(&ceilings, &policy.grants, tool)
    });
    of_servers.iter().filter_map(|(server, text)| Instructions::new(source(server), text)).collect()
}

/// A note for the model about servers that are still starting.
pub(super) fn starting(tools: &Toolset) -> Option<String> {
    let late = tools.servers().starting();
    let text = "These MCP servers are still starting; their tools become available with a later request:";
    (!late.is_empty()).then(|| format!("{text} {}.", late.join(", ")))
}

pub(super) fn describe(context: &SessionContext) -> String {
    let all = context.tools.servers().status();
    let unused = context.server_notices.iter().map(|notice| format!("- {notice}\n"));
    let lines: String = all.iter().map(line).chain(unused).collect();
    if lines.is_empty() { "There are no MCP servers in this session.\n".into() } else { lines }
}

fn changes(changed: &[(String, Effect, Effect)]) -> String {
    let mut text = String::new();
    for (to, does) in [(Effect::Unknown, "may change something"), (Effect::Read, "only read")] {
        let names: Vec<&str> =
            changed.iter().filter(|(_, _, effect)| *effect == to).map(|(tool, ..)| tool.as_str()).collect();
        let Some(more) = names.len().checked_sub(MAX_NAMES).or((!names.is_empty()).then_some(0)) else {
            continue;
        };
        let names = names[..names.len().min(MAX_NAMES)].join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let space = if text.is_empty() { "" } else { " " };
        text = format!("{text}{space}The MCP server now says that these tools {does}: {names}{more}.");
    }
    text
}

fn line(status: &ServerStatus) -> String {
    let ServerStatus { name, phase, tools, notes, sandbox } = status;
    let count = tools.len();
    let phase = match phase {
        ServerPhase::Idle => "not started yet; starts with the first prompt".to_owned(),
        ServerPhase::Starting => "starting".to_owned(),
        ServerPhase::Ready => format!("ready, {count} tools"),
        ServerPhase::Over(why) if count > 0 => {
            let why = plain(why, MAX_WHY);
            format!("not running ({why}); restarts when one of its {count} tools is called")
        }
        ServerPhase::Over(why) => format!("cannot be used: {}", plain(why, MAX_WHY)),
    };
    let sandbox_text = match sandbox {
        ServerSandbox::ReadOnly => "; sandboxed: read-only",
        ServerSandbox::Workspace => "; sandboxed: changes only in the session's folders",
        ServerSandbox::Off => "",
    };
    let mut text = format!("- {}: {phase}{sandbox_text}\n", plain(name, 60));
    for (belief, what) in [
        (Belief::Reads, "trusted as read-only"),
        (
            Belief::ClaimsToRead,
            "read-only according to the server; Modegate asks first in modes that allow no changes",
        ),
        (Belief::MayChange, "may change something"),
    ] {
        let names: Vec<&str> =
            tools.iter().filter(|(_, it)| *it == belief).map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            text = format!("{text}  - {what}: {}\n", names.join(", "));
        }
    }
    for note in notes {
        text = format!("{text}  - {note}\n");
    }
    text
}
