//! Pseudo-terminals of brokered commands. Under every policy, a command can open its own terminals, and no
//! others.

use std::fs;
use std::os::fd::OwnedFd;

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{Event, Exit, Process};
use modegate::sandbox::BrokerPolicy;
use rustix::fs::OFlags;
use rustix::pty::{self, OpenptFlags};

use crate::sandbox::broker::brokered;
use crate::sandbox::commands::free;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

const POLICIES: [BrokerPolicy; 3] = [BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Roots];

/// Runs a shell line in a new terminal, prints its output, and ends with its status.
const IN_TERMINAL: &str = "
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execvp('sh', ['sh', '-c', sys.argv[1]])
text = b''
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    text += part
print(text.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[tokio::test]
async fn brokered_command_has_terminals_under_every_policy() {
    require_sandbox();
    let line = "tty && stty rows 30 && stty size && echo own > /dev/tty && echo named > $(tty) && test -t 0";
    for policy in POLICIES {
        let fixture = SandboxFixture::new();
        let line = format!("{} -c \"{IN_TERMINAL}\" '{line}'", python());
        let (text, exit) = brokered(&fixture, &line, policy).await;
        assert_eq!(exit, Some(Exit::Status(0)), "{policy:?}: {text}");
        for part in ["/dev/pts/", "30 ", "own", "named"] {
            assert!(text.contains(part), "{policy:?}, {part}: {text}");
        }
        let (text, exit) = brokered(&fixture, "script -qec 'echo from $(tty)' /dev/null", policy).await;
        assert_eq!(exit, Some(Exit::Status(0)), "{policy:?}: {text}");
        assert!(text.contains("from /dev/pts/"), "{policy:?}: {text}");
    }
}

/// A terminal of the test, whose user would see the program's output.
struct OtherTerminal {
    terminal: OwnedFd,
    name: String,
}

impl OtherTerminal {
    fn open() -> Self {
        let terminal = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        pty::unlockpt(&terminal).unwrap();
        rustix::fs::fcntl_setfl(&terminal, OFlags::NONBLOCK).unwrap();
        let name = pty::ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        Self { terminal, name }
    }

    fn received(&self) -> String {
        let mut bytes = [0; 4096];
        let count = rustix::io::read(&self.terminal, &mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

#[tokio::test]
async fn terminals_of_others_stay_closed() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let other = OtherTerminal::open();
    let write = format!("echo intruder > {}", other.name);
    for policy in POLICIES {
        let line = format!("{write}; {} -c \"{IN_TERMINAL}\" '{write}'", python());
        let (text, _) = brokered(&fixture, &line, policy).await;
        assert_eq!(text.matches("ermission denied").count(), 2, "{policy:?}: {text}");
        assert_eq!(other.received(), "", "{policy:?}");
    }
    free(&fixture, &write).await;
    assert_eq!(other.received(), "intruder\r\n", "the control");
}

/// Opens a terminal, prints its number, and closes it. Then another program's terminal may have the number.
const STALE: &str = "
import os, time
terminal, end = os.openpty()
name = os.ttyname(end)
os.close(end)
os.close(terminal)
print(name, flush=True)
while not os.path.exists('go'):
    time.sleep(0.01)
try:
    os.write(os.open(name, os.O_WRONLY), b'intruder')
    print('written')
except OSError as error:
    print(error)
";

async fn next_output(process: &mut Process) -> Option<String> {
    loop {
        match process.next().await? {
            Event::Output(bytes) | Event::Error(bytes) => {
                return Some(String::from_utf8_lossy(&bytes).trim().to_owned());
            }
            _ => {}
        }
    }
}

async fn remaining_output(process: &mut Process) -> String {
    let mut output = Vec::new();
    while let Some(event) = process.next().await {
        if let Event::Output(bytes) | Event::Error(bytes) = event {
            output.extend(bytes);
        }
    }
    String::from_utf8_lossy(&output).trim().to_owned()
}

#[tokio::test]
async fn number_of_a_closed_terminal_opens_no_other() {
    require_sandbox();
    let shell = |fixture: &SandboxFixture| shell(&fixture.home(), Sandbox::Workspace);
    // Another test may take the number.
    for _ in 0..20 {
        let fixture = SandboxFixture::new();
        let sandbox = shell(&fixture)
            .brokered_agent(
                AgentFolders::of(&[fixture.work()], &["~/.state".into()]),
                BrokerPolicy::Roots,
                None,
                AgentNetwork::OPEN,
            )
            .unwrap();
        let line = format!("{} -c \"{STALE}\"", python());
        let mut process = shell(&fixture).start(&line, &fixture.work(), &sandbox).await.unwrap();
        let name = next_output(&mut process).await.unwrap();
        assert!(name.starts_with("/dev/pts/"), "{name}");
        let other = OtherTerminal::open();
        fs::write(fixture.work().join("go"), "").unwrap();
        let outcome = remaining_output(&mut process).await;
        let (received, is_reused) = (other.received(), other.name == name);
        assert_eq!(received, "");
        if is_reused {
            assert!(outcome.contains("Permission denied"), "{outcome}");
            return;
        }
    }
    panic!("the number of the closed terminal was never used again");
}
