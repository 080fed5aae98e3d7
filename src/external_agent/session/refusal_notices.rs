//! Tells the user what a brokered agent was refused. Each refused call is a denial; the user gets one notice for each
//! kind in a turn, and at its end the other paths.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use super::change::TOOL;
use super::host::{self, is_wrapped};
use super::{AgentLimits, AgentOutput, ExternalAgentHost, RefusedAct};
use crate::acp::ToolCallId;
use crate::permission::external::{ChangeLevel, change_level};
use crate::permission::{ACCESS, NAMESPACE, OUTSIDE, TRACE};
use crate::process::{EndedWriter, RefusalKind, RefusedCall};
use crate::text;

/// Most paths in one notice.
const MAX_PATHS: usize = 5;

#[derive(Debug, Default)]
pub(super) struct RefusalNotices {
    /// Kinds that the user was told about in this turn.
    told: HashSet<RefusalKind>,
    /// Further paths outside of the session's folders.
    further: BTreeSet<PathBuf>,
}

impl RefusalNotices {
    pub(super) fn add(
        &mut self,
        call: RefusedCall,
        session: &ExternalAgentHost,
        limits: &AgentLimits,
    ) -> Vec<AgentOutput> {
        let mut outputs = vec![denied(rule(call.kind))];
        outputs.extend(refused_act(&call, session, limits).shown(session));
        if is_known(&call, limits) {
            return outputs;
        }
        if self.told.insert(call.kind) {
            outputs.push(AgentOutput::NoticeInTurn(notice(&call, session)));
        } else {
            self.further.extend(call.path);
        }
        outputs
    }

    /// The panel of a terminal program has listed the paths already.
    pub(super) fn end_turn(&mut self, session: &ExternalAgentHost) -> Option<AgentOutput> {
        self.told.clear();
        let further = std::mem::take(&mut self.further);
        let shown: Vec<String> = further.iter().take(MAX_PATHS).map(|path| quoted(path)).collect();
        let more = match further.len().saturating_sub(MAX_PATHS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!(
            "Modegate also refused changes of these files outside of the session's folders: {}{more}.\n\n",
            shown.join(", ")
        );
        (!further.is_empty() && !session.has_terminal_host()).then_some(AgentOutput::Notice(text))
    }
}

/// Returns true for a change in a mode that denies all of them: the first prompt came with a notice.
pub(super) fn is_known(call: &RefusedCall, limits: &AgentLimits) -> bool {
    let is_change = matches!(call.kind, RefusalKind::Change | RefusalKind::Outside);
    is_change && change_level(&limits.ceilings) == Some(ChangeLevel::Nothing)
}

/// Names programs that were killed, because the agent can wait for them in vain.
pub(super) fn ended(writers: &[EndedWriter]) -> AgentOutput {
    let programs: BTreeSet<_> = writers.iter().map(|writer| text::quoted_name(&writer.program)).collect();
    let paths: BTreeSet<_> = writers.iter().map(|writer| quoted(&writer.path)).collect();
    AgentOutput::NoticeInTurn(format!(
        "When the mode changed, Modegate ended programs that had files open for writing: {}. The files: {}. If the agent \
         does not go on, cancel the turn.\n\n",
        listed(programs),
        listed(paths)
    ))
}

fn listed(names: BTreeSet<String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn denied(rule: &'static str) -> AgentOutput {
    AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule: rule.into() }
}

fn rule(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::Change => ACCESS,
        RefusalKind::Outside => OUTSIDE,
        RefusalKind::Namespace => NAMESPACE,
        RefusalKind::Trace => TRACE,
    }
}

fn quoted(path: &Path) -> String {
    text::quoted_name(&path.to_string_lossy())
}

fn refused_act(call: &RefusedCall, session: &ExternalAgentHost, limits: &AgentLimits) -> RefusedAct {
    let program = text::quoted_name(&call.program);
    let path = call.path.as_deref().map(|path| quoted(path.strip_prefix(&session.cwd).unwrap_or(path)));
    let path = path.unwrap_or_default();
    match call.kind {
        RefusalKind::Change => {
            let reason = format!("{} changes.", host::denied_by(limits));
            RefusedAct::new(format!("Change {path} ({program})"), host::sentence(&reason))
        }
        RefusalKind::Outside => RefusedAct::new(
            format!("Change {path} ({program})"),
            "It is outside of the folders that the program may change. `--write-dir` adds one where the mode allows changes, \
             `--state-dir` in every mode.",
        ),
        RefusalKind::Namespace => RefusedAct::new(
            format!("Mount, or make a namespace ({program})"),
            "Programs cannot make a sandbox or a container of their own here.",
        ),
        RefusalKind::Trace => RefusedAct::new(
            format!("Read or control another process ({program})"),
            "Debuggers work in a terminal without Modegate.",
        ),
    }
}

fn notice(call: &RefusedCall, session: &ExternalAgentHost) -> String {
    let program = text::quoted_name(&call.program);
    let path = call.path.as_deref().map(quoted).unwrap_or_default();
    let text = match call.kind {
        RefusalKind::Change => format!("Modegate refused a change of {path} by {program}."),
        RefusalKind::Outside => {
            let how = if session.is_terminal_program() {
                "use `modegate run --write-dir DIR`"
            } else if is_wrapped(session) {
                "add the folder to the session, or start Modegate with --write-dir DIR"
            } else {
                "add the folder to the session, or to the agent's sandbox.write_dirs"
            };
            format!(
                "Modegate refused a change of {path} by {program}: it is outside of the session's folders. To allow \
                 changes there, {how}."
            )
        }
        RefusalKind::Namespace => format!(
            "Modegate refused a mount or a namespace of {program}: in Modegate's sandbox, programs cannot make a sandbox \
             or a container of their own. Switch the program's own sandbox off, or run it outside of Modegate."
        ),
        RefusalKind::Trace => format!(
            "Modegate refused that {program} reads or controls another process, as debuggers do. Run it in a terminal \
             outside of Modegate."
        ),
    };
    format!("{text}\n\n")
}
