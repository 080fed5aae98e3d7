//! A session's view of its MCP servers: their events, and the current facts of their tools.

use tokio::sync::mpsc;

use super::actor::Actor;
use crate::acp::MessageId;
use crate::permission::hints::Belief;
use crate::permission::{CallFacts, Effect};
use crate::server::ServerSandbox;
use crate::store::Row;
use crate::store::entry::{self, Entry};
use crate::tool::Toolset;
use crate::tool::mcp::{MAX_WHY, Phase, ServerEvent, ServerStatus, cannot_be_used, plain};

/// Maximum tool names per sentence.
const MAX_NAMES: usize = 8;

/// Maximum notices queued between turns.
const MAX_REPORTED: usize = 20;

pub(super) struct Servers {
    pub(super) events: mpsc::UnboundedReceiver<ServerEvent>,
    /// Last turn in which servers asked the user, and their number of questions.
    pub(super) questions: (u64, u32),
}

impl Actor {
    pub(super) async fn server_event(&mut self, event: ServerEvent) {
        let text = match event {
            ServerEvent::Changed(changed) => {
                let (turn, at) = (self.log.turns, self.log.now_ms());
                for (tool, from, to) in &changed {
                    let (from, to) = (entry::effect(*from), entry::effect(*to));
                    self.log.chain(&Entry::Hint { turn, tool: tool.clone(), from, to, at });
                }
                let text = changes(&changed);
                self.note_later(format!("{text} Modegate decides calls to these tools accordingly."));
                text
            }
            ServerEvent::ClaimsMore(server) => {
                // Grants in memory include the count of changed claims; stored grants must not come back.
                let session = self.log.id.clone();
                return self.log.store.post(Row::ClaimsChanged { session, server });
            }
            ServerEvent::Note(text) => text,
            ServerEvent::Elicitation(question) => return self.question(question).await,
            ServerEvent::Over { server, why } => cannot_be_used(&server, &why),
        };
        let text = format!("{text}\n\n");
        if self.turns.running.is_none() {
            if self.notes.for_user.len() < MAX_REPORTED {
                self.notes.for_user.push(text);
            }
            return;
        }
        self.notes.recorded += 1;
        let message_id = MessageId::new(format!("msg_{}_s{}", self.log.turns, self.notes.recorded));
        self.log.record_notice(message_id, text).await;
    }

    pub(super) fn servers_starting(&self) -> Option<String> {
        let late = self.context.tools.servers().starting();
        let text = "These MCP servers are still starting; their tools become available with a later request:";
        (!late.is_empty()).then(|| format!("{text} {}.", late.join(", ")))
    }

    pub(super) fn describe_servers(&self) -> String {
        let all = self.context.tools.servers().status();
        let unused = self.context.server_notices.iter().map(|notice| format!("- {notice}\n"));
        let lines: String = all.iter().map(line).chain(unused).collect();
        if lines.is_empty() { "There are no MCP servers in this session.\n".into() } else { lines }
    }
}

pub(super) fn now(tools: &Toolset, facts: &CallFacts) -> CallFacts {
    if !facts.is_servers() {
        return facts.clone();
    }
    let tool = tools.find(&facts.tool);
    let (effect, claim) =
        tool.map_or((Effect::Unknown, None), |tool| (tool.spec().effect, tool.spec().claim.clone()));
    CallFacts { effect, claim, ..facts.clone() }
}

fn changes(changed: &[(String, Effect, Effect)]) -> String {
    let mut text = String::new();
    for (to, does) in [(Effect::Unknown, "may change something"), (Effect::Read, "only read")] {
        let names: Vec<&str> =
            changed.iter().filter(|(_, _, it)| *it == to).map(|(tool, ..)| tool.as_str()).collect();
        let Some(more) = names.len().checked_sub(MAX_NAMES).or((!names.is_empty()).then_some(0)) else {
            continue;
        };
        let shown = names[..names.len().min(MAX_NAMES)].join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let space = if text.is_empty() { "" } else { " " };
        text = format!("{text}{space}The MCP server now says that these tools {does}: {shown}{more}.");
    }
    text
}

fn line(status: &ServerStatus) -> String {
    let ServerStatus { name, phase, tools, notes, sandbox } = status;
    let count = tools.len();
    let phase = match phase {
        Phase::Idle => "not started yet; starts with the first prompt".to_owned(),
        Phase::Starting => "starting".to_owned(),
        Phase::Ready => format!("ready, {count} tools"),
        Phase::Over(why) if count > 0 => {
            let why = plain(why, MAX_WHY);
            format!("not running ({why}); restarts when one of its {count} tools is called")
        }
        Phase::Over(why) => format!("cannot be used: {}", plain(why, MAX_WHY)),
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
