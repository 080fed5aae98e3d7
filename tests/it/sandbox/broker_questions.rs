//! Changes of brokered commands that wait for an answer.

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{BrokerEvent, ChangeQuestion, Event, Exit, Process};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::python;
use crate::support::shell;
use crate::support::waiting::until_exists;

async fn start(fixture: &SandboxFixture, line: &str) -> Process {
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let sandbox = shell
        .brokered_agent(
            AgentFolders::of(&[fixture.work()], &["~/.state".into()]),
            BrokerPolicy::Ask,
            None,
            AgentNetwork::OPEN,
        )
        .expect("the kernel can sandbox it");
    shell.start(&fixture.fill_in(line), &fixture.work(), &sandbox).await.unwrap()
}

/// Returns the command's output, its exit, and the questions with names relative to the workspace.
async fn asked(
    fixture: &SandboxFixture,
    line: &str,
    allows: impl Fn(&ChangeQuestion) -> bool,
) -> (String, Option<Exit>, Vec<String>) {
    let events = CommandEvents::of(start(fixture, line).await, allows).await;
    let question = |event: &BrokerEvent| match event {
        BrokerEvent::Asked(question) => Some(text(fixture, question)),
        _ => None,
    };
    (events.text(), events.exit, events.broker.iter().filter_map(question).collect())
}

fn text(fixture: &SandboxFixture, question: &ChangeQuestion) -> String {
    let work = fixture.work();
    let name = |path: &std::path::Path| path.strip_prefix(&work).unwrap_or(path).display().to_string();
    let ChangeQuestion { change, path, to, files, program, .. } = question;
    let to = to.as_deref().map(|to| format!(" to {}", name(to))).unwrap_or_default();
    let files: String = files.iter().map(|file| format!(" with {}", file.display())).collect();
    format!("{program}: {change:?} {}{to}{files}", name(path))
}

/// Commands, their questions, and whether they succeed without consent.
const COMMANDS: [(&str, &[&str], bool); 16] = [
    ("echo x > new", &["bash: Create new"], false),
    ("echo x > new; echo x >> new", &["bash: Create new", "bash: Write new"], false),
    ("mkdir d", &["mkdir: CreateFolder d"], false),
    ("mkdir -p d", &["mkdir: CreateFolder d"], false),
    ("ln -s a l", &["ln: Create l"], false),
    ("touch t; mv t u", &["touch: Create t", "touch: Attributes t", "mv: Move t to u"], false),
    ("touch t; rm -f t", &["touch: Create t", "touch: Attributes t", "rm: Delete t"], true),
    ("mkdir d; rmdir d", &["mkdir: CreateFolder d", "rmdir: DeleteFolder d"], false),
    ("echo > t; ln t u", &["bash: Create t", "ln: Link t to u"], false),
    (
        "mkdir d; echo > d/f; mv -T d e",
        &["mkdir: CreateFolder d", "bash: Create d/f", "mv: Move d to e with f"],
        false,
    ),
    ("echo > t; chmod 600 t", &["bash: Create t", "chmod: Attributes t"], false),
    ("echo > t; truncate -s 3 t", &["bash: Create t", "truncate: Write t"], false),
    // As vim does after it has written a file.
    ("echo > t; chmod $(stat -c %a t) t", &["bash: Create t"], false),
    ("echo > t; chown $(id -u):$(id -g) t", &["bash: Create t"], false),
    // These calls would change nothing.
    ("mkdir .; rm -f missing; [ ! -e missing ]", &[], true),
    ("echo x > {home}/.state/s && echo x > $TMPDIR/t", &[], true),
];

#[tokio::test]
async fn changes_wait_for_the_answer() {
    for (line, expected, succeeds) in COMMANDS {
        let fixture = SandboxFixture::new();
        let before = names(&fixture);
        let (output, exit, questions) = asked(&fixture, line, |_| true).await;
        assert_eq!(questions, expected, "{line}: {output}");
        assert_eq!(exit, Some(Exit::Status(0)), "{line}: {output}");
        let fixture = SandboxFixture::new();
        let (output, exit, refused) = asked(&fixture, line, |_| false).await;
        assert_eq!(refused.is_empty(), expected.is_empty(), "{line}: {output}");
        assert_eq!(exit == Some(Exit::Status(0)), succeeds, "{line}: {output}");
        assert_eq!(names(&fixture), before, "{line}: {output}");
    }
}

/// An access list without further users or groups is a mode.
#[tokio::test]
async fn access_list_asks_only_if_it_changes_rights() {
    let script = "import os, struct, sys
os.close(os.open('t', os.O_CREAT | os.O_WRONLY, 0o640))
for rights in (4, 6):
    entries = ((1, 6), (4, rights), (32, 0))
    entries = b''.join(struct.pack('<HHI', *entry, 0xffffffff) for entry in entries)
    os.setxattr('t', 'system.posix_acl_access', struct.pack('<I', 2) + entries)";
    let fixture = SandboxFixture::new();
    let line = format!("{} -c \"{script}\"; stat -c %a t", python());
    let (output, _, questions) = asked(&fixture, &line, |_| true).await;
    assert_eq!(questions.len(), 2, "{questions:?}: {output}");
    assert!(questions[0].ends_with("Create t") && questions[1].ends_with("Attributes t"), "{questions:?}");
    assert_eq!(output, "660\n");
}

fn names(fixture: &SandboxFixture) -> Vec<String> {
    let entries = std::fs::read_dir(fixture.work()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The user allows the change of one path. Another path needs another answer, even if the paths are
/// exchanged.
#[tokio::test]
async fn consent_covers_one_path() {
    let fixture = SandboxFixture::new();
    let line = "mkdir a b; for n in 1 2 3; do echo x > a/f; rm -f a/f; done; echo x > b/f";
    let allows = |question: &ChangeQuestion| !question.path.ends_with("b/f");
    let (output, _, questions) = asked(&fixture, line, allows).await;
    assert_eq!(questions.len(), 9, "{questions:?}: {output}");
    assert!(fixture.work().join("a").exists() && !fixture.work().join("b/f").exists(), "{output}");

    // The folder of the path is exchanged while the call waits.
    let fixture = SandboxFixture::new();
    for name in ["a", "b"] {
        std::fs::create_dir(fixture.work().join(name)).unwrap();
    }
    let exchange = |question: &ChangeQuestion| {
        if question.path.ends_with("a/f") {
            let name = |name: &str| fixture.work().join(name);
            std::fs::rename(name("a"), name("c")).unwrap();
            std::os::unix::fs::symlink("b", name("a")).unwrap();
            return true;
        }
        false
    };
    let (output, _, questions) = asked(&fixture, "echo x > a/f", exchange).await;
    assert_eq!(questions, ["bash: Create a/f", "bash: Create b/f"], "{output}");
    assert!(!fixture.work().join("b/f").exists(), "{output}");
}

/// A question is withdrawn when its caller ends, or when another policy decides it.
#[tokio::test]
async fn questions_are_withdrawn() {
    for (policy, is_written) in
        [(None, false), (Some(BrokerPolicy::Nothing), false), (Some(BrokerPolicy::Roots), true)]
    {
        let fixture = SandboxFixture::new();
        let line = "sh -c 'echo x > f' & writer=$!; until [ -e {home}/.state/go ]; do sleep 0.01; done; \
                    kill -9 $writer; until [ -e {home}/.state/end ]; do sleep 0.01; done";
        let create = |name: &str| std::fs::write(fixture.home().join(".state").join(name), "").unwrap();
        let mut process = start(&fixture, line).await;
        let (mut asked, mut withdrawn) = (None, None);
        while let Some(event) = process.next().await {
            match event {
                Event::Broker(BrokerEvent::Asked(question)) => {
                    asked = Some(question.number);
                    match policy {
                        Some(policy) => process.set_policy(policy).await,
                        None => create("go"),
                    }
                }
                Event::Broker(BrokerEvent::Withdrawn(number)) => {
                    withdrawn = Some(number);
                    if policy.is_none() {
                        // A late answer has no effect. The confirmation of a policy shows that it has arrived.
                        process.answer(number, true).await;
                        process.set_policy(BrokerPolicy::Ask).await;
                    }
                }
                Event::Broker(BrokerEvent::PolicySet { .. }) if asked.is_some() => {
                    if is_written {
                        until_exists(&fixture.work().join("f")).await;
                    }
                    create("go");
                    create("end");
                }
                _ => {}
            }
        }
        assert!(asked.is_some() && asked == withdrawn, "{policy:?}: {asked:?} {withdrawn:?}");
        assert_eq!(fixture.work().join("f").exists(), is_written, "{policy:?}");
    }
}
