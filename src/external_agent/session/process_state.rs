//! The states of an external agent's process, and every transition between them. Pure.

use crate::permission::external::ChangeLevel;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessState {
    Stopped,
    /// The process has no session yet.
    Starting(ProcessAccess),
    Ready(ProcessAccess),
    /// The broker does not have the policy for these changes yet.
    Switching(ChangeLevel),
    /// `restarts` is true if the agent starts again for waiting prompts.
    Ending {
        access: ProcessAccess,
        restarts: bool,
    },
}

/// Changes that a process can make, or that the mode lets it make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessAccess {
    Unsandboxed,
    /// Changes fail for the whole life of the process.
    Sandboxed,
    Brokered(ChangeLevel),
}

/// How a sandboxed agent reacts to a mode that does not require the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loosening {
    Restart,
    /// A restart would lose the agent's context.
    Ask,
    /// The user has declined a restart.
    Stay,
}

/// Events of the current process and of its session. Events of earlier processes are dropped before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessEvent {
    /// A prompt waits for the agent, or the agent starts without one.
    Wanted {
        required: ProcessAccess,
        loosening: Loosening,
    },
    /// The mode has changed, or the agent's own mode has followed a switch.
    Followed {
        required: ProcessAccess,
    },
    /// The agent has a session.
    Started,
    /// The gate has cancelled the permit to make changes.
    Denied,
    /// The broker has the policy of the last permit.
    Applied,
    /// The gate has cancelled the permit of the process.
    Cancelled,
    /// The program has ended.
    Exited,
    Closed,
    /// Nothing is left of the process, or its start has failed.
    Ended,
}

/// The work of a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessAction {
    Nothing,
    Start,
    /// Ask the user whether the agent may restart.
    AskToRestart,
    ShutDown,
    PermitChanges(ChangeLevel),
    AnswerPrompts,
    /// Start the agent again if prompts wait.
    StartAgain,
    FailPrompts,
}

impl ProcessAccess {
    fn without_changes(self) -> Self {
        match self {
            Self::Brokered(_) => Self::Brokered(ChangeLevel::Nothing),
            other => other,
        }
    }

    fn must_leave_sandbox(self, required: Self) -> bool {
        (self, required) == (Self::Sandboxed, Self::Unsandboxed)
    }

    fn needs_restart(self, required: Self, loosening: Loosening) -> bool {
        let may_stay = loosening == Loosening::Stay && self.must_leave_sandbox(required);
        !matches!(self, Self::Brokered(_)) && self != required && !may_stay
    }

    /// The changes that a running process has to be permitted. Less is never permitted: the gate takes permits.
    fn new_level(self, required: Self) -> Option<ChangeLevel> {
        match (self, required) {
            (Self::Brokered(level), Self::Brokered(wanted)) => {
                (wanted != level && wanted != ChangeLevel::Nothing).then_some(wanted)
            }
            _ => None,
        }
    }

    /// True if changes fail, apart from those in the process's own folders.
    pub(super) fn is_sandboxed(self) -> bool {
        matches!(self, Self::Sandboxed | Self::Brokered(ChangeLevel::Nothing))
    }
}

impl ProcessState {
    /// `None` if there is no process.
    pub(super) fn access(self) -> Option<ProcessAccess> {
        match self {
            Self::Stopped => None,
            Self::Starting(access) | Self::Ready(access) | Self::Ending { access, .. } => Some(access),
            Self::Switching(level) => Some(ProcessAccess::Brokered(level)),
        }
    }

    /// Each cell has the next state and the action; `-` changes nothing. States are `.` stopped, `s` starting,
    /// `r` ready, `w` switching, `e` ending, and `E` ending with a new start for waiting prompts. They are followed
    /// by the access: `U`nsandboxed, `S`andboxed, or brokered for `N`o changes, `D`ecided ones or `A`ll.
    ///
    /// |              | .        | sU      | sS      | rU        | rS        | eS      | ES      |
    /// | ---          | ---      | ---     | ---     | ---       | ---       | ---     | ---     |
    /// | want S       | sS start | EU stop | -       | EU stop   | rS answer | ES stop | ES stop |
    /// | want U       | sU start | -       | ES stop | rU answer | ES stop   | ES stop | ES stop |
    /// | want U, ask  | sU start | -       | sS ask  | rU answer | rS ask    | ES stop | ES stop |
    /// | want U, stay | sU start | -       | -       | rU answer | rS answer | ES stop | ES stop |
    /// | follow S     | -        | -       | -       | rU answer | rS answer | -       | -       |
    /// | follow U     | -        | -       | -       | rU answer | rS answer | -       | -       |
    /// | started      | -        | rU      | rS      | -         | -         | -       | -       |
    /// | denied       | -        | -       | -       | -         | -         | -       | -       |
    /// | applied      | -        | -       | -       | -         | -         | -       | -       |
    /// | cancelled    | -        | EU      | ES      | EU        | ES        | ES      | -       |
    /// | exited       | -        | eU      | eS      | eU        | eS        | -       | -       |
    /// | closed       | -        | eU stop | eS stop | eU stop   | eS stop   | eS stop | ES stop |
    /// | ended        | -        | . fail  | . fail  | . fail    | . fail    | . fail  | . again |
    ///
    /// |           | .        | sN      | sD      | sA      | rN        | rD        | rA        | wD        | wA        | eD      | ED      |
    /// | ---       | ---      | ---     | ---     | ---     | ---       | ---       | ---       | ---       | ---       | ---     | ---     |
    /// | want N    | sN start | -       | -       | -       | rN answer | rD answer | rA answer | -         | -         | ED stop | ED stop |
    /// | want D    | sD start | -       | -       | -       | wD permit | rD answer | wD permit | -         | wD permit | ED stop | ED stop |
    /// | want A    | sA start | -       | -       | -       | wA permit | wA permit | rA answer | wA permit | -         | ED stop | ED stop |
    /// | follow N  | -        | -       | -       | -       | rN answer | rD answer | rA answer | -         | -         | -       | -       |
    /// | follow D  | -        | -       | -       | -       | wD permit | rD answer | wD permit | -         | wD permit | -       | -       |
    /// | follow A  | -        | -       | -       | -       | wA permit | wA permit | rA answer | wA permit | -         | -       | -       |
    /// | started   | -        | rN      | rD      | rA      | -         | -         | -         | -         | -         | -       | -       |
    /// | denied    | -        | -       | sN      | sN      | -         | rN        | rN        | rN        | rN        | eN      | EN      |
    /// | applied   | -        | -       | -       | -       | -         | -         | -         | rD        | rA        | -       | -       |
    /// | cancelled | -        | EN      | ED      | EA      | EN        | ED        | EA        | ED        | EA        | ED      | -       |
    /// | exited    | -        | eN      | eD      | eA      | eN        | eD        | eA        | eD        | eA        | -       | -       |
    /// | closed    | -        | eN stop | eD stop | eA stop | eN stop   | eD stop   | eA stop   | eD stop   | eA stop   | eD stop | ED stop |
    /// | ended     | -        | . fail  | . fail  | . fail  | . fail    | . fail    | . fail    | . fail    | . fail    | . fail  | . again |
    ///
    /// Why nothing happens:
    /// - stopped: the process that the event is about is gone;
    /// - a prompt in `s` or `w`: it waits until the agent is ready, or until the broker has the policy, because its
    ///   first changes would be refused otherwise;
    /// - `follow` in `s`: the agent follows when it has started; in `e`: its end decides;
    /// - `follow N`: the gate takes the permit, which is `denied`; the prompts go on without changes;
    /// - `started` in `e`: the process ends before its first prompt;
    /// - `denied`, `applied` for `U` and `S`: only a brokered process has a permit for changes.
    pub(super) fn on(self, event: ProcessEvent) -> (Self, ProcessAction) {
        use ProcessAction::{AnswerPrompts, AskToRestart, Nothing, PermitChanges, ShutDown};
        use ProcessEvent::{Applied, Cancelled, Closed, Denied, Ended, Exited, Followed, Started, Wanted};
        let Some(access) = self.access() else {
            return match event {
                Wanted { required, .. } => (Self::Starting(required), ProcessAction::Start),
                _ => (self, Nothing),
            };
        };
        let ending = |restarts| Self::Ending { access, restarts };
        match (self, event) {
            (Self::Ending { .. }, Wanted { .. }) => (ending(true), ShutDown),
            (_, Wanted { required, loosening: Loosening::Ask }) if access.must_leave_sandbox(required) => {
                (self, AskToRestart)
            }
            (_, Wanted { required, loosening }) if access.needs_restart(required, loosening) => {
                (ending(true), ShutDown)
            }
            (Self::Ready(_) | Self::Switching(_), Wanted { required, .. } | Followed { required }) => {
                match access.new_level(required) {
                    Some(level) => (Self::Switching(level), PermitChanges(level)),
                    None if self == Self::Ready(access) => (self, AnswerPrompts),
                    None => (self, Nothing),
                }
            }
            (Self::Starting(_), Started) | (Self::Switching(_), Applied) => (Self::Ready(access), Nothing),
            (Self::Starting(_), Denied) => (Self::Starting(access.without_changes()), Nothing),
            (Self::Ending { restarts, .. }, Denied) => {
                (Self::Ending { access: access.without_changes(), restarts }, Nothing)
            }
            (_, Denied) => (Self::Ready(access.without_changes()), Nothing),
            (_, Cancelled) => (ending(true), Nothing),
            (Self::Starting(_) | Self::Ready(_) | Self::Switching(_), Exited) => (ending(false), Nothing),
            (Self::Ending { .. }, Closed) => (self, ShutDown),
            (_, Closed) => (ending(false), ShutDown),
            (Self::Ending { restarts: true, .. }, Ended) => (Self::Stopped, ProcessAction::StartAgain),
            (_, Ended) => (Self::Stopped, ProcessAction::FailPrompts),
            (_, Wanted { .. } | Followed { .. } | Started | Applied | Exited) => (self, Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED_STATES: [ProcessState; 7] = [
        ProcessState::Stopped,
        ProcessState::Starting(ProcessAccess::Unsandboxed),
        ProcessState::Starting(ProcessAccess::Sandboxed),
        ProcessState::Ready(ProcessAccess::Unsandboxed),
        ProcessState::Ready(ProcessAccess::Sandboxed),
        ProcessState::Ending { access: ProcessAccess::Sandboxed, restarts: false },
        ProcessState::Ending { access: ProcessAccess::Sandboxed, restarts: true },
    ];

    const BROKERED_STATES: [ProcessState; 11] = [
        ProcessState::Stopped,
        ProcessState::Starting(ProcessAccess::Brokered(ChangeLevel::Nothing)),
        ProcessState::Starting(ProcessAccess::Brokered(ChangeLevel::Decided)),
        ProcessState::Starting(ProcessAccess::Brokered(ChangeLevel::All)),
        ProcessState::Ready(ProcessAccess::Brokered(ChangeLevel::Nothing)),
        ProcessState::Ready(ProcessAccess::Brokered(ChangeLevel::Decided)),
        ProcessState::Ready(ProcessAccess::Brokered(ChangeLevel::All)),
        ProcessState::Switching(ChangeLevel::Decided),
        ProcessState::Switching(ChangeLevel::All),
        ProcessState::Ending { access: ProcessAccess::Brokered(ChangeLevel::Decided), restarts: false },
        ProcessState::Ending { access: ProcessAccess::Brokered(ChangeLevel::Decided), restarts: true },
    ];

    const COMMON_EVENTS: [(&str, ProcessEvent); 7] = [
        ("started", ProcessEvent::Started),
        ("denied", ProcessEvent::Denied),
        ("applied", ProcessEvent::Applied),
        ("cancelled", ProcessEvent::Cancelled),
        ("exited", ProcessEvent::Exited),
        ("closed", ProcessEvent::Closed),
        ("ended", ProcessEvent::Ended),
    ];

    fn state_cell(state: ProcessState) -> String {
        let letter = match state {
            ProcessState::Stopped => ".",
            ProcessState::Starting(_) => "s",
            ProcessState::Ready(_) => "r",
            ProcessState::Switching(_) => "w",
            ProcessState::Ending { restarts: false, .. } => "e",
            ProcessState::Ending { restarts: true, .. } => "E",
        };
        let access = match state.access() {
            None => "",
            Some(ProcessAccess::Unsandboxed) => "U",
            Some(ProcessAccess::Sandboxed) => "S",
            Some(ProcessAccess::Brokered(ChangeLevel::Nothing)) => "N",
            Some(ProcessAccess::Brokered(ChangeLevel::Decided)) => "D",
            Some(ProcessAccess::Brokered(ChangeLevel::All)) => "A",
        };
        format!("{letter}{access}")
    }

    fn transition_cell(state: ProcessState, event: ProcessEvent) -> String {
        let (next, action) = state.on(event);
        let action = match action {
            ProcessAction::Nothing if next == state => return "-".into(),
            ProcessAction::Nothing => return state_cell(next),
            ProcessAction::Start => "start",
            ProcessAction::AskToRestart => "ask",
            ProcessAction::ShutDown => "stop",
            ProcessAction::PermitChanges(level) => {
                assert_eq!(next, ProcessState::Switching(level));
                "permit"
            }
            ProcessAction::AnswerPrompts => "answer",
            ProcessAction::StartAgain => "again",
            ProcessAction::FailPrompts => "fail",
        };
        format!("{} {action}", state_cell(next))
    }

    fn table(states: &[ProcessState], events: &[(&str, ProcessEvent)]) -> Vec<String> {
        let row = |name: &str, cells: Vec<String>| format!("| {name} | {} |", cells.join(" | "));
        let mut lines = vec![row("", states.iter().map(|state| state_cell(*state)).collect())];
        lines.push(row("---", states.iter().map(|_| "---".into()).collect()));
        for (name, event) in events.iter().chain(&COMMON_EVENTS) {
            lines.push(row(name, states.iter().map(|state| transition_cell(*state, *event)).collect()));
        }
        lines
    }

    /// Every pair of a state and an event stands in the table above [`ProcessState::on`], and only those.
    #[test]
    fn table_lists_every_transition() {
        let wanted = |required, loosening| ProcessEvent::Wanted { required, loosening };
        let followed = |required| ProcessEvent::Followed { required };
        let fixed = [
            ("want S", wanted(ProcessAccess::Sandboxed, Loosening::Restart)),
            ("want U", wanted(ProcessAccess::Unsandboxed, Loosening::Restart)),
            ("want U, ask", wanted(ProcessAccess::Unsandboxed, Loosening::Ask)),
            ("want U, stay", wanted(ProcessAccess::Unsandboxed, Loosening::Stay)),
            ("follow S", followed(ProcessAccess::Sandboxed)),
            ("follow U", followed(ProcessAccess::Unsandboxed)),
        ];
        let brokered_wants = [
            ("want N", ChangeLevel::Nothing),
            ("want D", ChangeLevel::Decided),
            ("want A", ChangeLevel::All),
        ]
        .map(|(name, level)| (name, wanted(ProcessAccess::Brokered(level), Loosening::Restart)));
        let brokered_follows = [
            ("follow N", ChangeLevel::Nothing),
            ("follow D", ChangeLevel::Decided),
            ("follow A", ChangeLevel::All),
        ]
        .map(|(name, level)| (name, followed(ProcessAccess::Brokered(level))));
        let mut expected = table(&FIXED_STATES, &fixed);
        expected.extend(table(&BROKERED_STATES, &[brokered_wants, brokered_follows].concat()));
        let source = include_str!("process_state.rs").lines().map(str::trim);
        let rows = source.filter_map(|line| line.strip_prefix("/// ")).filter(|line| line.starts_with('|'));
        let listed: Vec<String> =
            rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected: Vec<String> =
            expected.iter().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(listed.join("\n"), expected.join("\n"));
    }
}
