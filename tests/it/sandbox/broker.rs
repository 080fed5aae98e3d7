//! The sandbox of brokered agents. Without a policy that allows changes, nothing changes. With one, nothing
//! outside of the workspace changes.

use std::path::Path;

use futures_util::StreamExt;
use modegate::process::Exit;
use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::agent::make_state_folder;
use crate::sandbox::commands::{CONCURRENT_CASES, EscapeCase, cases, finish};
use crate::sandbox::controls::{Control, controls};
use crate::sandbox::fixture::{FixturePool, SandboxFixture};
use crate::support::requirements::require_sandbox;
use crate::support::shell;

pub(crate) async fn brokered(
    fixture: &SandboxFixture,
    line: &str,
    policy: BrokerPolicy,
) -> (String, Option<Exit>) {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let restrictions = shell
        .brokered_agent(
            AgentFolders::of(&[fixture.work()], &["~/.state".into()]),
            policy,
            None,
            AgentNetwork::OPEN,
        )
        .expect("the kernel can sandbox it");
    finish(shell.start(&fixture.fill_in(line), &fixture.work(), &restrictions).await.unwrap()).await
}

/// Returns the forbidden effects of a brokered command. Like other agents, it reads everything and uses the
/// network.
pub(crate) fn forbidden_effects(
    fixture: &mut SandboxFixture,
    text: &str,
    policy: BrokerPolicy,
) -> Vec<String> {
    forbidden(&fixture.effects(text), fixture.dir().path(), policy)
}

fn forbidden(effects: &[String], folder: &Path, policy: BrokerPolicy) -> Vec<String> {
    let home = format!("changed {}", folder.join("home").display());
    let state = format!("{home}/.state");
    let work = format!("changed {}", folder.join("work").display());
    let allowed = ["reached tcp", "reached udp", "had an effect", "read a secret", &home];
    let is_forbidden = |effect: &&String| {
        let is_allowed = allowed.contains(&effect.as_str())
            || effect.starts_with(&state)
            || policy == BrokerPolicy::Roots && effect.starts_with(&work);
        !is_allowed
    };
    effects.iter().filter(is_forbidden).cloned().collect()
}

/// Runs each case under each policy.
#[tokio::test]
async fn brokered_agent_never_escapes() {
    require_sandbox();
    let (cases, _) = cases(include_str!("../../escape/cases.txt"));
    let pool = FixturePool::new(make_state_folder);
    let run = async |case: EscapeCase| {
        let mut escapes = Vec::new();
        for policy in [BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Roots] {
            let mut fixture = pool.take();
            let (text, _) = brokered(&fixture, &case.line, policy).await;
            let effects = forbidden_effects(&mut fixture, &text, policy);
            if !effects.is_empty() {
                escapes.push(format!("{} ({policy:?}): {effects:?}: {text}", case.name));
            }
            pool.put_back(fixture);
        }
        escapes
    };
    let controls = controls().await;
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(CONCURRENT_CASES).collect().await;
    let escapes = results.concat();
    let counts =
        |control: &&Control| !forbidden(&control.effects, &control.folder, BrokerPolicy::Nothing).is_empty();
    let counting = controls.values().filter(counts).count();
    assert!(escapes.is_empty(), "{} escaped:\n{}", escapes.len(), escapes.join("\n"));
    assert!(counting >= 80, "only {counting} cases count");
}

/// Lines that succeed if the policy allows changes of the workspace.
const CHANGES: &[&str] = &[
    "echo x > new.txt && test $(cat new.txt) = x",
    "echo y >> a.txt && grep -q y a.txt",
    "echo x > /dev/stdout | cat; echo z > z.txt; cat z.txt >> /dev/fd/1",
    "cp a.txt c.txt && mv c.txt sub/d.txt && rm sub/d.txt",
    "mkdir -p n/m && touch n/m/f && rm -r n",
    "ln -s a.txt l && echo through >> l && grep -q through a.txt && rm l",
    "ln -s nothing.txt dangling && echo made > dangling && test $(cat nothing.txt) = made",
    "ln a.txt hard && test a.txt -ef hard",
    "chmod 600 a.txt && test $(stat -c %a a.txt) = 600",
    "umask 077; echo x > private && test $(stat -c %a private) = 600",
    "umask 002; mkdir shared && test $(stat -c %a shared) = 775",
    "touch -d 2001-01-01 a.txt && test $(stat -c %Y a.txt) -lt 1000000000",
    "truncate -s 3 a.txt && test $(stat -c %s a.txt) = 3",
    "mkfifo p && (cat p > got & sleep 0.05; echo through > p; wait) && test $(cat got) = through",
    "mkfifo q && (echo early > q & cat q | grep -q early; wait)",
    "printf '#!/bin/sh\\necho ran\\n' > s.sh && chmod +x s.sh && test $(./s.sh) = ran",
    "tar cf t.tar a.txt sub && mkdir x && tar xf t.tar -C x && cmp a.txt x/a.txt",
    "git add -A && git commit -qm second && git log -1 | grep -q second",
    "sed -i s/old/new/ a.txt && grep -q new a.txt",
    "cd sub && echo x > ../up.txt && cd .. && cp -a sub copied && rm -rf copied",
    "set -C; echo x > once && ! echo x > once",
    "echo x > {home}/.state/s && chmod 600 {home}/.state/s && echo x > $TMPDIR/t && cp $TMPDIR/t here.txt",
    "mv $TMPDIR/../nothing . 2>/dev/null; echo x > $TMPDIR/m && mv $TMPDIR/m moved && test $(cat moved) = x",
];

#[tokio::test]
async fn brokered_command_changes_the_workspace_only_if_the_policy_allows_it() {
    require_sandbox();
    for line in CHANGES {
        let mut fixture = SandboxFixture::new();
        let (text, exit) = brokered(&fixture, line, BrokerPolicy::Roots).await;
        assert_eq!(exit, Some(Exit::Status(0)), "{line}: {text}");
        let outside = forbidden_effects(&mut fixture, &text, BrokerPolicy::Roots);
        assert_eq!(outside, Vec::<String>::new(), "{line}: {text}");
        let mut fixture = SandboxFixture::new();
        let (text, _) = brokered(&fixture, line, BrokerPolicy::Nothing).await;
        let changed = forbidden_effects(&mut fixture, &text, BrokerPolicy::Nothing);
        assert_eq!(changed, Vec::<String>::new(), "{line}: {text}");
    }
}
