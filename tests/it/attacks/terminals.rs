//! Terminals of other programs: the user's input, the settings, and the hang-up.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use modegate::process::Exit;
use rustix::fs::OFlags;
use rustix::pty::{self, OpenptFlags};

use super::held::{Held, IN_PLAN, has_effect};
use crate::sandbox::commands::free;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use modegate::sandbox::BrokerPolicy;

/// Arguments: the attack, the name of the terminal, and a process in the terminal. Prints EFFECT if the
/// attack succeeds.
const PROGRAM: &str = r#"
import ctypes, fcntl, os, struct, sys, termios
way, name, owner = sys.argv[1:]
flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
def by_link():
    os.symlink(name, os.environ.get("TMPDIR", ".") + "/link")
    return os.open(os.environ.get("TMPDIR", ".") + "/link", flags)
def by_path_descriptor():
    return os.open("/proc/self/fd/%d" % os.open(name, os.O_PATH), flags)
def by_openat2():
    how = struct.pack("QQQ", flags, 0, 0)
    result = ctypes.CDLL(None, use_errno=True).syscall(437, -100, name.encode(), how, len(how))
    if result < 0: raise OSError(ctypes.get_errno(), "openat2")
    return result
def by_thread():
    import threading
    opened = []
    def run():
        try: opened.append(os.open(name, flags))
        except OSError as error: print(error)
    t = threading.Thread(target=run); t.start(); t.join()
    if not opened: raise OSError("closed")
    return opened[0]
opens = {
    "name": lambda: os.open(name, flags),
    "dots": lambda: os.open("/dev/../dev/./pts//" + name.rsplit("/", 1)[1], flags),
    "folder": lambda: os.open(name.rsplit("/", 1)[1], flags, dir_fd=os.open("/dev/pts", os.O_RDONLY)),
    "process": lambda: os.open("/proc/%s/fd/0" % owner, flags),
    "root": lambda: os.open("/proc/%s/root%s" % (owner, name), flags),
    "link": by_link, "path": by_path_descriptor, "openat2": by_openat2, "thread": by_thread,
    "write": lambda: os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK),
    "write-only": lambda: os.open(name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK),
    "create": lambda: os.open(name, flags | os.O_CREAT),
}
def interrupt(terminal):
    attributes = termios.tcgetattr(terminal)
    attributes[6][termios.VINTR] = b"x"
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
acts = {
    "opened": lambda terminal: None,
    "typed": lambda terminal: os.read(terminal, 99),
    "interrupt": interrupt,
    "flush": lambda terminal: termios.tcflush(terminal, termios.TCIFLUSH),
    "stop": lambda terminal: termios.tcflow(terminal, termios.TCOOFF),
    "discipline": lambda terminal: fcntl.ioctl(terminal, 0x5423, struct.pack("i", 27)),
    "size": lambda terminal: fcntl.ioctl(terminal, 0x5414, struct.pack("HHHH", 1, 1, 0, 0)),
    "exclusive": lambda terminal: fcntl.ioctl(terminal, 0x540c),
    "speed": lambda terminal: termios.tcsendbreak(terminal, 0),
}
try:
    how, act = way.split("+")
    acts[act](opens[how]())
    print("EFFECT")
except OSError as error:
    print(error)
"#;

#[rustfmt::skip]
const ATTACKS: &[&str] = &[
    "name+opened", "name+typed", "name+interrupt", "name+flush", "name+stop", "name+discipline", "name+size",
    "name+exclusive", "name+speed", "dots+typed", "folder+typed", "process+typed", "root+typed", "link+typed",
    "path+typed", "openat2+typed", "thread+typed", "write+interrupt", "write-only+discipline", "create+typed",
    "process+interrupt", "path+discipline",
];

/// A terminal of the test, and a program that runs there.
struct VictimTerminal {
    _terminal: OwnedFd,
    name: String,
    program: Child,
}

impl VictimTerminal {
    fn open() -> Self {
        let terminal = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        pty::unlockpt(&terminal).unwrap();
        let name = pty::ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        let program = Command::new("sleep").arg("60").stdin(Stdio::from(end)).spawn().unwrap();
        std::fs::File::from(terminal.try_clone().unwrap()).write_all(b"secret\n").unwrap();
        rustix::fs::fcntl_setfl(&terminal, OFlags::NONBLOCK).unwrap();
        Self { _terminal: terminal, name, program }
    }
}

impl Drop for VictimTerminal {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn line(attack: &str, other: &VictimTerminal) -> String {
    let code = PROGRAM.replace('\'', "'\\''");
    format!("{} -c '{code}' {attack} {} {}", python(), other.name, other.program.id())
}

#[tokio::test]
async fn terminals_of_other_programs_are_not_read_or_changed() {
    require_sandbox();
    let sandboxes =
        IN_PLAN.iter().chain(&[Held::Brokered(BrokerPolicy::Ask), Held::Brokered(BrokerPolicy::Roots)]);
    let mut failures = Vec::new();
    for held in sandboxes {
        for attack in ATTACKS {
            let other = VictimTerminal::open();
            let (text, _) = held.run(&SandboxFixture::new(), &line(attack, &other)).await;
            if has_effect(&text) || text.trim().is_empty() || text.contains("Traceback") {
                failures.push(format!("{attack} ({held:?}): {text}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for attack in ATTACKS {
        let other = VictimTerminal::open();
        let text = free(&SandboxFixture::new(), &line(attack, &other)).await;
        assert!(has_effect(&text), "the control of {attack}: {text}");
    }
}

/// Other devices can have the user's output or files.
#[tokio::test]
async fn agents_read_no_devices_but_harmless_ones() {
    require_sandbox();
    for held in [Held::Agent, Held::Brokered(BrokerPolicy::Nothing)] {
        let line = "head -c 8 /dev/zero /dev/urandom | wc -c; cat /dev/null; echo x > /dev/null; ls /dev > /dev/null; \
            exec 3< <(echo passed); cat <&3; cat /dev/fd/0 < a.txt > /dev/null && cat /dev/stdin < a.txt > /dev/null";
        let (text, exit) = held.run(&SandboxFixture::new(), line).await;
        assert_eq!(exit, Some(Exit::Status(0)), "{held:?}: {text}");
        assert!(text.contains("passed"), "{held:?}: {text}");
        for device in ["/dev/ptmx", "/dev/console", "/dev/vcs", "/dev/tty0", "/dev/mem", "/dev/kmsg"] {
            let (text, _) =
                held.run(&SandboxFixture::new(), &format!("head -c 1 < {device} && echo EFFECT")).await;
            assert!(!has_effect(&text), "{held:?} {device}: {text}");
        }
    }
}

/// A sandboxed program reads and sets its own terminal, by name and as `/dev/tty`.
#[test]
fn own_terminal_is_readable() {
    require_sandbox();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let inside =
        "stty -F /dev/tty rows 30 && stty size < /dev/tty && stty size < $(tty) && stty size < /dev/stdin";
    let binary = env!("CARGO_BIN_EXE_modegate");
    let line = format!("{binary} run --mode plan -- sh -c '{inside}'");
    let mut script = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("HOME", dir.path())
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    script.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    script.wait().unwrap();
    assert_eq!(text.matches("30 ").count(), 3, "{text}");
}
