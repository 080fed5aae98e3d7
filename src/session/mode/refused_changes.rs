//! The rules that refused changes of the session's commands. Each is a denial in the record, once for a call, although
//! the call itself ran.
//!
//! A report precedes the end of its call, so the denial is committed before the client sees that end.

use super::decider::Decider;
use crate::acp::ToolCallId;
use crate::gate::{ReportingCall, RuleReport, RuleReporter};
use crate::lazy_channel::LazyChannel;
use crate::mode::ShellUse;
use crate::permission::CallFacts;

#[derive(Default)]
pub(crate) struct RefusedChanges {
    /// Unbounded: a call sends one for each rule.
    reports: LazyChannel<RuleReport>,
    /// Those of the last turn with any, and its number.
    last: (u64, Vec<RuleReport>),
}

impl RefusedChanges {
    /// Returns `None` for a call that runs no command with such rules.
    pub(crate) fn reporter(
        &mut self,
        id: &ToolCallId,
        facts: &CallFacts,
        decider: &Decider,
    ) -> Option<RuleReporter> {
        if facts.shell != ShellUse::Full {
            return None;
        }
        let title = decider.log.conversation().title_of(id);
        let call = ReportingCall { id: id.clone(), title, tool: facts.tool.clone() };
        Some(RuleReporter::new(call, self.reports.sender()))
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<RuleReport> {
        self.reports.recv().await
    }

    pub(crate) fn record(&mut self, report: RuleReport, decider: &mut Decider) {
        let RuleReport { call, rule } = report.clone();
        decider.record_denial(call.id, call.tool, &rule);
        let turn = decider.log.turn();
        if self.last.0 != turn {
            self.last = (turn, Vec::new());
        }
        self.last.1.push(report);
    }

    /// Records the reports that are already there.
    pub(crate) fn record_reported(&mut self, decider: &mut Decider) {
        while let Some(report) = self.reports.try_recv() {
            self.record(report, decider);
        }
    }

    pub(crate) fn of_last_turn(&mut self, decider: &mut Decider) -> Vec<RuleReport> {
        self.record_reported(decider);
        if self.last.0 == decider.log.turn() { self.last.1.clone() } else { Vec::new() }
    }
}
