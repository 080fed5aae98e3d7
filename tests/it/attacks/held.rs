//! Runs an attack in a sandbox.

use modegate::process::Exit;
use modegate::process::shell::{AgentNetwork, CommandSandbox, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::commands::{finish, free};
use crate::sandbox::fixture::SandboxFixture;
use crate::support::shell;

/// The sandboxes in which a program is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Of `shell_read_only`.
    ReadOnly,
    /// Of `shell`.
    Workspace,
    /// Of an external agent without the broker.
    Agent,
    /// Of a program of `modegate run`, a wrapped agent, and `shell` with the broker.
    Brokered(BrokerPolicy),
}

/// All sandboxes of plan mode.
pub(super) const IN_PLAN: &[Held] = &[Held::ReadOnly, Held::Agent, Held::Brokered(BrokerPolicy::Nothing)];

/// Those in which a program can change nothing that is not in the session's folders.
pub(super) const ALL: &[Held] = &[
    Held::ReadOnly,
    Held::Workspace,
    Held::Agent,
    Held::Brokered(BrokerPolicy::Nothing),
    Held::Brokered(BrokerPolicy::Ask),
    Held::Brokered(BrokerPolicy::Roots),
];

impl Held {
    fn sandbox(self, fixture: &SandboxFixture) -> CommandSandbox {
        let shell = shell(&fixture.home(), Sandbox::Workspace);
        let (roots, state) = ([fixture.work()], ["~/.state".into()]);
        let sandbox = match self {
            Self::ReadOnly => return shell.read_only(&roots).expect("the kernel can sandbox it"),
            Self::Workspace => return shell.workspace(&roots),
            Self::Agent => shell.external_agent(&roots, &state),
            Self::Brokered(policy) => shell.brokered_agent(&roots, &state, policy, None, AgentNetwork::OPEN),
        };
        sandbox.expect("the kernel can sandbox it")
    }

    pub(super) async fn run(self, fixture: &SandboxFixture, line: &str) -> (String, Option<Exit>) {
        let shell = shell(&fixture.home(), Sandbox::Workspace);
        let sandbox = self.sandbox(fixture);
        finish(shell.start(&fixture.fill_in(line), &fixture.work(), &sandbox).await.unwrap()).await
    }
}

pub(super) fn has_effect(text: &str) -> bool {
    text.lines().any(|line| line == "EFFECT")
}

/// Attacks print `EFFECT` if they succeed. Returns those that do so in a sandbox, and how many do so without one.
pub(super) async fn successes(lines: &[&str], sandboxes: &[Held]) -> (Vec<String>, usize) {
    let (mut successes, mut counting) = (Vec::new(), 0);
    for line in lines {
        for held in sandboxes {
            let fixture = SandboxFixture::new();
            let (text, _) = held.run(&fixture, line).await;
            if has_effect(&text) {
                successes.push(format!("{line} ({held:?}): {text}"));
            }
        }
        counting += usize::from(has_effect(&free(&SandboxFixture::new(), line).await));
    }
    (successes, counting)
}
