//! No input of a command ends its supervisor. After each script, the command has its own exit status, and its
//! end is confirmed.

use std::time::Duration;

use modegate::process::Exit;
use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

const LIMIT: Duration = Duration::from_mins(2);

/// Scripts with calls that the broker handles. The calls may fail.
const SCRIPTS: &[(&str, &str)] = &[
    ("deep tree", "deep('.', b'd', 800)\nmove(b'd', b'e'); move(b'e', b'f', 2); remove(b'f')"),
    (
        "deep tree of long names",
        "deep('.', b'n' * 255, 600)\nmove(b'n' * 255, b'm'); move(b'm', b'x/y'); move(b'm', b'o')",
    ),
    ("deep temporary folder", "deep(os.environ['TMPDIR'], b'd', 1500)"),
    (
        "names of all bytes",
        "names = [bytes([b]) for b in range(1, 256) if b not in b'./']\n\
        for n in names: touch(n); link(n, n * 255); move(n, n + b'\\n'); symlink(n, n + b'l'); touch(n + b'l')\n\
        mkdir(b'\\xff'); [touch(b'\\xff/' + n) for n in names]; move(b'\\xff', b'\\xfe'); move(b'\\xfe', b'\\xfd')",
    ),
    (
        "long paths",
        "p = b'a/' * 2040\nfor n in (p, p + b'x' * 20, p * 2, b'y' * 256, b'z' * 5000, b''): touch(n); mkdir(n); move(n, b'q' + n); symlink(n, b's'); os.path.lexists(b's') and os.unlink(b's')",
    ),
    (
        "wide folder",
        "mkdir(b'w'); [touch(b'w/%d' % n) for n in range(600)]; move(b'w', b'v'); move(b'v', b'u')",
    ),
    (
        "many callers",
        "kids = []\n\
        for n in range(400):\n\
        \x20   k = os.fork()\n\
        \x20   if not k: touch(b'k%d' % n); os._exit(0)\n\
        \x20   kids.append(k)\n\
        \x20   if n % 3 == 0: os.kill(k, 9)\n\
        \x20   if len(kids) > 280: os.waitpid(kids.pop(0), 0)\n\
        [os.waitpid(k, 0) for k in kids]",
    ),
    (
        "arguments of chance",
        "import ctypes, random\n\
        libc = ctypes.CDLL(None); random.seed(7); numbers = [257, 258, 263, 264, 265, 266, 268, 260, 280, 316, 437, 76, 82, 83, 87, 90]\n\
        for n in range(3000):\n\
        \x20   value = lambda: random.choice([0, 1, -1, -100, 3, 2**31, 2**63, random.getrandbits(64), id(numbers), random.getrandbits(12)])\n\
        \x20   libc.syscall(random.choice(numbers), *[ctypes.c_ulong(value() & (2**64 - 1)) for _ in range(6)])",
    ),
];

const START: &str = "import os
def attempt(call):
    def run(*a):
        try: return call(*a)
        except OSError: return None
    return run
touch = attempt(lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o644)))
mkdir, symlink, link, remove = attempt(os.mkdir), attempt(os.symlink), attempt(os.link), attempt(os.rmdir)
def move(a, b, flags=0):
    import ctypes
    ctypes.CDLL(None).renameat2(-100, a, -100, b, flags)
def deep(at, name, levels):
    home = os.open('.', os.O_RDONLY); os.chdir(at)
    for n in range(levels):
        if attempt(os.mkdir)(name, 0o700) is None and not os.path.isdir(name): break
        os.chdir(name)
    os.fchdir(home)
";

/// Runs a script, and allows every question. Returns the exit, and whether the end is confirmed.
async fn run(script: &str, policy: BrokerPolicy) -> CommandEvents {
    let fixture = SandboxFixture::new();
    let shell = shell(&fixture.home(), Sandbox::Workspace);
    let record = fixture.home().join("record");
    std::fs::create_dir(&record).unwrap();
    let roots = [fixture.work()];
    let sandbox = shell
        .brokered_agent(AgentFolders::of(&roots, &[]), policy, Some(record), AgentNetwork::OPEN)
        .unwrap();
    let file = fixture.work().join("script.py");
    std::fs::write(&file, format!("{START}{script}\nprint('over')\n")).unwrap();
    let line = format!("{} script.py; exit 7", python());
    let process = shell.start(&line, &fixture.work(), &sandbox).await.unwrap();
    tokio::time::timeout(LIMIT, CommandEvents::of(process, |_| true)).await.expect("the script ends")
}

#[tokio::test]
async fn no_input_ends_the_supervisor() {
    require_sandbox();
    for (name, script) in SCRIPTS {
        for policy in [BrokerPolicy::Roots, BrokerPolicy::Ask, BrokerPolicy::Nothing] {
            let events = run(script, policy).await;
            let output = events.text();
            // The script may end early if its calls are refused. The supervisor must not.
            let end = (events.exit, events.confirmed);
            assert_eq!(end, (Some(Exit::Status(7)), Some(true)), "{name} ({policy:?}): {output}");
            let is_over = output.ends_with("over\n") || policy == BrokerPolicy::Nothing;
            assert!(is_over, "{name} ({policy:?}): {output}");
        }
    }
}
