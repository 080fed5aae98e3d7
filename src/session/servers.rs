//! What a session makes of its servers: what they report, what the model and the user are told, and calls decided by what
//! holds of their tools now.

use super::actor::Actor;
use crate::acp::MessageId;
use crate::event::SessionEvent;
use crate::permission::{CallFacts, Effect};
use crate::server::ServerSandbox;
use crate::store::entry::{self, Entry};
use crate::tool::mcp::{Phase, ServerEvent, Standing};

impl Actor {
    /// The facts of a call as they are now: what a server says of its tool may have changed since they were first read. Of a
    /// tool that is gone, the worst is taken.
    pub(super) fn now(&self, facts: &CallFacts) -> CallFacts {
        if !is_servers(&facts.tool) {
            return facts.clone();
        }
        let tool = self.shared.tools.find(&facts.tool);
        CallFacts { effect: tool.map_or(Effect::Unknown, |tool| tool.spec().effect), ..facts.clone() }
    }

    /// Takes note of what a server reports.
    pub(super) async fn server_event(&mut self, event: ServerEvent) {
        let text = match event {
            ServerEvent::Changed { tool, from, to } => {
                let (turn, at) = (self.session.turns, self.shared.source.now_ms());
                let (was, is) = (entry::effect(from), entry::effect(to));
                self.chain(&Entry::Hint { turn, tool: tool.clone(), from: was, to: is, at });
                let does = if to == Effect::Read { "only reads" } else { "may change things" };
                let text = format!("{tool}: its server now says that it {does}.");
                self.session.for_model.push((format!("{text} It is decided on by that."), false));
                text
            }
            ServerEvent::Wants(sampling) => return self.sample(sampling).await,
            ServerEvent::Asks(question) => return self.question(question).await,
            ServerEvent::Over { server, why } => format!("The MCP server {server:?} cannot be used: {why}."),
        };
        let text = format!("{text}\n\n");
        if self.turn.is_none() {
            return self.session.notices.push(text);
        }
        self.session.server_notices += 1;
        let message_id =
            MessageId::new(format!("msg_{}_s{}", self.session.turns, self.session.server_notices));
        self.record(SessionEvent::Notice { message_id, text }, None).await;
    }

    /// What the model is to know of servers that are not there yet.
    pub(super) fn servers_starting(&self) -> Option<String> {
        let standing = self.shared.tools.servers().standing();
        let late: Vec<String> =
            standing.into_iter().filter(|it| it.phase == Phase::Starting).map(|it| it.name).collect();
        let text = "These MCP servers are still starting; their tools come with a later request:";
        (!late.is_empty()).then(|| format!("{text} {}.", late.join(", ")))
    }

    /// What `/mcp` answers.
    pub(super) fn say_servers(&self) -> String {
        let all = self.shared.tools.servers().standing();
        if all.is_empty() {
            return "There are no MCP servers in this session.\n".into();
        }
        all.iter().map(line).collect()
    }
}

/// Whether a tool is a server's, by its name.
pub(super) fn is_servers(tool: &str) -> bool {
    tool.starts_with("mcp__")
}

fn line(standing: &Standing) -> String {
    let Standing { name, phase, tools, left_out, sandbox } = standing;
    let phase = match phase {
        Phase::Idle => "not started yet: that comes with the first prompt".to_owned(),
        Phase::Starting => "starting".to_owned(),
        Phase::Ready => format!("ready, {tools} tools"),
        Phase::Over(why) if *tools > 0 => {
            format!("not running ({why}); it is started again when one of its {tools} tools is called")
        }
        Phase::Over(why) => format!("cannot be used: {why}"),
    };
    let held = match sandbox {
        ServerSandbox::ReadOnly => "; held to reading",
        ServerSandbox::Workspace => "; held to the session's folders",
        ServerSandbox::Off => "",
    };
    let mut text = format!("- {name}: {phase}{held}\n");
    for tool in left_out {
        text = format!("{text}  - left out: {tool}\n");
    }
    text
}
