//! Runs an attack in a sandbox.

use modegate::process::Exit;
use modegate::process::shell::{AgentFolders, AgentNetwork, CommandSandbox, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::commands::{finish, free};
use crate::sandbox::fixture::SandboxFixture;
use crate::support::shell;

/// The sandboxes of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// The sandbox of `shell_read_only`.
    ReadOnly,
    /// The sandbox of `shell`.
    Workspace,
    /// The sandbox of an external agent without the broker.
    Agent,
    /// The sandbox of a program of `modegate run`, of a wrapped agent, and of `shell` with the broker.
    Brokered(BrokerPolicy),
}

/// All sandboxes of plan mode.
pub(super) const IN_PLAN: &[Held] = &[Held::ReadOnly, Held::Agent, Held::Brokered(BrokerPolicy::Nothing)];

/// The sandboxes in which a program can change nothing outside of the session's folders.
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
            Self::Brokered(policy) => {
                shell.brokered_agent(AgentFolders::of(&roots, &state), policy, None, AgentNetwork::OPEN)
            }
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

/// Runs attacks, which print `EFFECT` if they succeed. Returns those that succeed in a sandbox, and the
/// number of those that succeed without one.
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
