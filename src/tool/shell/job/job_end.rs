//! The end of a command, and the notes about it and its sandbox that the model reads after its output. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::process::{Exit, RefusalKind, RuleRefusal};
use crate::text;

const READ_ONLY: &str = "\n[Read-only sandbox: writes only below $TMPDIR and in build caches, no network beyond its own 127.0.0.1, no home folder.]";

const WORKSPACE: &str = "\n[Sandbox: writes only in the session's folders, $TMPDIR, /tmp and caches.]";

const NAMESPACES: &str =
    "\n[Sandbox: no mounts and no namespaces, which other sandboxes and containers need.]";

const TRACING: &str = "\n[Sandbox: no program reads or controls another process, as debuggers do.]";

/// Messages of programs whose write a sandbox refuses, in lower case.
const REFUSED_WRITES: [&str; 2] = ["permission denied", "read-only file system"];

/// Most paths in the note about a rule.
const MAX_PATHS: usize = 5;

/// Further output of the commands in the read-only sandbox.
const OTHER_REFUSALS: [&str; 5] = [
    "operation not permitted",
    "function not implemented",
    "network is unreachable",
    "could not resolve",
    "name resolution",
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobNotes {
    pub sandbox: JobSandbox,
    /// True for the first command of its tool in a session, and after a compaction.
    pub is_first: bool,
    pub keeps: bool,
    /// True if the exit status may hide that a command failed.
    pub has_several_commands: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobSandbox {
    #[default]
    Off,
    Workspace,
    ReadOnly,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobEnd {
    pub notes: JobNotes,
    pub exit: Option<Exit>,
    pub why: Option<StopCause>,
    pub failure: Option<String>,
    pub left_behind: usize,
    /// True if the supervisor confirmed that no process is left.
    pub confirmed: bool,
    /// The last call of a brokered command that was refused.
    pub refused: Option<RefusalKind>,
    /// Changes of a brokered command that rules denied, the first ones only.
    pub rule_refusals: Vec<RuleRefusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The permit was cancelled: the turn, the session or the mode is over.
    Revoked,
    Time(Duration),
    Stopped,
    /// The supervisor died.
    Elsewhere,
}

impl JobEnd {
    /// A read-only command's exit status does not tell of a refusal: `cargo check | tail`.
    pub(super) fn sandbox_note(&self, output: &str) -> &'static str {
        let output = output.to_lowercase();
        let may_have_failed = self.exit != Some(Exit::Status(0)) || self.notes.has_several_commands;
        let shows = |messages: &[&str]| messages.iter().any(|message| output.contains(message));
        match self.notes.sandbox {
            JobSandbox::ReadOnly
                if self.notes.is_first || shows(&REFUSED_WRITES) || shows(&OTHER_REFUSALS) =>
            {
                READ_ONLY
            }
            // A rule is the better reason.
            JobSandbox::Workspace if !self.rule_refusals.is_empty() => "",
            JobSandbox::Workspace if may_have_failed && shows(&REFUSED_WRITES) => WORKSPACE,
            JobSandbox::Workspace if may_have_failed => match self.refused {
                Some(RefusalKind::Namespace) => NAMESPACES,
                Some(RefusalKind::Trace) => TRACING,
                Some(RefusalKind::Change | RefusalKind::Outside) | None => "",
            },
            JobSandbox::Off | JobSandbox::Workspace | JobSandbox::ReadOnly => "",
        }
    }

    /// Names the rules that denied changes of the command, whatever the command made of it.
    pub(super) fn rule_note(&self) -> String {
        let rules: BTreeSet<&str> = self.rule_refusals.iter().map(|refusal| refusal.rule.as_str()).collect();
        let note = |rule: &str| {
            let paths: Vec<String> = (self.rule_refusals.iter())
                .filter(|refusal| refusal.rule == rule)
                .map(|refusal| text::quoted_name(&refusal.path.to_string_lossy()))
                .collect();
            let shown = paths[..paths.len().min(MAX_PATHS)].join(", ");
            let more = match paths.len().saturating_sub(MAX_PATHS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("\n[The rule {rule} does not allow this, in any mode: changes of {shown}{more}.]")
        };
        rules.into_iter().map(note).collect()
    }

    /// The exit status, or 128 and the signal, as in shells.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit.map(|exit| match exit {
            Exit::Status(status) => status,
            Exit::Signal(signal) => 128 + signal,
        })
    }

    /// True if the command ran undisturbed and its end is confirmed.
    pub fn is_own(&self) -> bool {
        self.why.is_none() && self.failure.is_none() && self.confirmed
    }

    /// False if a stop call, a mode change, or the end of the turn or session ended the command.
    pub fn is_unrequested(&self) -> bool {
        !matches!(self.why, Some(StopCause::Revoked | StopCause::Stopped))
    }

    pub fn describe(&self, was_silent: bool) -> String {
        let mut parts = Vec::new();
        if let Some(failure) = &self.failure {
            parts.push(format!("Not run: {failure}."));
        }
        match self.why {
            Some(StopCause::Revoked) => {
                parts.push("Stopped: the turn was cancelled, or the mode no longer allows it.".into());
            }
            Some(StopCause::Time(limit)) => {
                parts.push(format!("Stopped: the timeout of {} s expired.", limit.as_secs_f64()));
            }
            Some(StopCause::Stopped) => parts.push("Stopped on request.".into()),
            Some(StopCause::Elsewhere) => parts.push("Its supervisor ended unexpectedly.".into()),
            None => {}
        }
        match self.exit {
            Some(Exit::Status(0)) if was_silent => parts.push("Exit status 0, no output.".into()),
            Some(Exit::Status(status)) => {
                parts.push(format!("Exit status {status}."));
            }
            Some(Exit::Signal(signal)) => parts.push(format!("Ended by signal {signal}.")),
            None => {}
        }
        if self.left_behind > 0 && self.exit.is_some() {
            let left_processes = if self.left_behind == 1 {
                "A process that it left running was"
            } else {
                "Processes that it left running were"
            };
            let how = if self.notes.keeps { "; shell with background: true keeps one running" } else { "" };
            parts.push(format!("{left_processes} stopped{how}."));
        }
        if !self.confirmed {
            parts.push("Some of its processes may still be running.".into());
        }
        format!("[{}]", parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(output: &str, status: i32, notes: JobNotes, expected: &str) {
        check_refused(None, output, status, notes, expected);
    }

    fn check_refused(
        refused: Option<RefusalKind>,
        output: &str,
        status: i32,
        notes: JobNotes,
        expected: &str,
    ) {
        let exit = Some(Exit::Status(status));
        let end = JobEnd { notes, exit, confirmed: true, refused, ..JobEnd::default() };
        assert_eq!(end.sandbox_note(output), expected, "{notes:?}");
    }

    const DENIED: &str = "error: Permission denied (os error 13)";

    #[test]
    fn read_only_commands_name_the_sandbox_first_and_where_it_refused() {
        let read_only = JobNotes { sandbox: JobSandbox::ReadOnly, ..JobNotes::default() };
        check("a", 0, JobNotes { is_first: true, ..read_only }, READ_ONLY);
        check("a", 0, read_only, "");
        check(DENIED, 0, read_only, READ_ONLY);
        check("cp: setting times: Operation not permitted", 1, read_only, READ_ONLY);
    }

    #[test]
    fn other_commands_name_the_sandbox_where_it_refused_a_write() {
        let workspace = JobNotes { sandbox: JobSandbox::Workspace, is_first: true, ..JobNotes::default() };
        check(DENIED, 1, workspace, WORKSPACE);
        check("touch: cannot touch 'x': Read-only file system", 1, workspace, WORKSPACE);
        check(DENIED, 0, workspace, "");
        // Behind `| tail`, `; echo done` and `|| true`, the status tells nothing.
        check(DENIED, 0, JobNotes { has_several_commands: true, ..workspace }, WORKSPACE);
        check("fine", 0, JobNotes { has_several_commands: true, ..workspace }, "");
        check("No such file or directory", 1, workspace, "");
        check(DENIED, 1, JobNotes::default(), "");
    }

    #[test]
    fn rules_that_denied_changes_are_named() {
        let refusals = |paths: &[(&str, &str)]| {
            let refusal =
                |(rule, path): &(&str, &str)| RuleRefusal { rule: (*rule).into(), path: path.into() };
            let rule_refusals = paths.iter().map(refusal).collect();
            JobEnd { rule_refusals, ..JobEnd::default() }.rule_note()
        };
        assert_eq!(refusals(&[]), "");
        assert_eq!(
            refusals(&[
                ("deny write_file(src/**)", "/w/src/a"),
                ("deny *(.env)", "/w/.env"),
                ("deny write_file(src/**)", "/w/src/b c")
            ]),
            "\n[The rule deny *(.env) does not allow this, in any mode: changes of /w/.env.]\n[The rule deny \
             write_file(src/**) does not allow this, in any mode: changes of /w/src/a, \"/w/src/b c\".]"
        );
        let names: Vec<String> = (0..8).map(|number| format!("/w/src/{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| ("deny edit_file(src/**)", name.as_str())).collect();
        let note = refusals(&many);
        assert!(note.ends_with("/w/src/3, /w/src/4 and 3 more.]"), "{note}");
    }

    /// The error of such a call, `EPERM`, can have other causes, so the output alone does not tell of the sandbox.
    #[test]
    fn brokered_commands_name_the_sandbox_where_it_refused_other_calls() {
        let brokered = JobNotes { sandbox: JobSandbox::Workspace, ..JobNotes::default() };
        let (namespace, trace) = (Some(RefusalKind::Namespace), Some(RefusalKind::Trace));
        check_refused(namespace, "unshare: Operation not permitted", 1, brokered, NAMESPACES);
        check_refused(trace, "ptrace: Operation not permitted", 1, brokered, TRACING);
        check_refused(trace, DENIED, 1, brokered, WORKSPACE);
        check_refused(namespace, "fine", 0, brokered, "");
        check_refused(Some(RefusalKind::Outside), "a", 1, brokered, "");
        check_refused(None, "unshare: Operation not permitted", 1, brokered, "");
    }
}
