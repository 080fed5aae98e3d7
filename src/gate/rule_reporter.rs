//! Reports the rules that refuse acts of a running call, such as the changes of a command. A command can be refused
//! thousands of times, so each rule is reported once for a call. Decides and records nothing.

use std::collections::HashSet;

use tokio::sync::mpsc::UnboundedSender;

use crate::acp::ToolCallId;

/// A rule that refused an act of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleReport {
    pub call: ReportingCall,
    /// The text of the rule, such as `deny write_file(src/**)`.
    pub rule: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportingCall {
    pub id: ToolCallId,
    pub title: String,
    pub tool: String,
}

#[derive(Debug)]
pub struct RuleReporter {
    call: ReportingCall,
    reported: HashSet<String>,
    reports: UnboundedSender<RuleReport>,
}

impl RuleReporter {
    pub fn new(call: ReportingCall, reports: UnboundedSender<RuleReport>) -> Self {
        Self { call, reported: HashSet::new(), reports }
    }

    pub fn report(&mut self, rule: &str) {
        if self.reported.insert(rule.to_owned()) {
            // The session may be over.
            let _ = self.reports.send(RuleReport { call: self.call.clone(), rule: rule.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_reported_once_for_a_call() {
        let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
        for call in ["a", "b"] {
            let call =
                ReportingCall { id: ToolCallId::new(call), title: String::new(), tool: "shell".into() };
            let mut reporter = RuleReporter::new(call, sender.clone());
            for rule in ["deny *(x)", "deny *(x)", "deny *(y)", "deny *(x)"] {
                reporter.report(rule);
            }
        }
        let mut reported = Vec::new();
        while let Ok(RuleReport { call, rule }) = reports.try_recv() {
            reported.push((call.id.to_string(), rule));
        }
        let expected = [("a", "deny *(x)"), ("a", "deny *(y)"), ("b", "deny *(x)"), ("b", "deny *(y)")];
        assert_eq!(reported, expected.map(|(call, rule)| (call.to_owned(), rule.to_owned())));
    }
}
