//! UNIX sockets of brokered commands: in modes that allow changes those in the command's folders, and listed ones.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{AllowedHosts, BrokerEvent, Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

/// Says `hello` to each client and returns what it receives.
fn serve(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            std::thread::spawn(move || {
                let _ = client.write_all(b"hello\n");
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    if client.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

struct Sockets {
    fixture: SandboxFixture,
}

/// Connects, and prints what the server says.
const CONNECT: &str = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{path}'); print(s.recv(6).decode(), end='')";

impl Sockets {
    fn new() -> Self {
        require_sandbox();
        let sockets = Self { fixture: SandboxFixture::new() };
        serve(&sockets.outside("listed.sock"));
        serve(&sockets.outside("other.sock"));
        serve(&sockets.work("in.sock"));
        std::fs::create_dir(sockets.outside(".cache")).unwrap();
        serve(&sockets.outside(".cache/cached.sock"));
        std::os::unix::fs::symlink(sockets.outside("other.sock"), sockets.work("link.sock")).unwrap();
        std::fs::write(sockets.work("file"), "").unwrap();
        sockets
    }

    fn work(&self, name: &str) -> PathBuf {
        self.fixture.work().join(name)
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.fixture.home().join(name)
    }

    /// Starts a script of Python. `{work}` and `{outside}` stand for folders.
    async fn start(&self, script: &str, policy: BrokerPolicy) -> Process {
        let shell = shell(&self.fixture.home(), Sandbox::Workspace);
        let roots = [self.fixture.work()];
        let sockets = vec![self.outside("listed.sock")];
        let network = AgentNetwork { sockets, ..AgentNetwork::limited(AllowedHosts::default(), policy) };
        let sandbox = shell
            .brokered_agent(AgentFolders::of(&roots, &["~/.state".into()]), policy, None, network)
            .unwrap();
        let script = script
            .replace("{work}", &self.fixture.work().display().to_string())
            .replace("{outside}", &self.fixture.home().display().to_string());
        let line = format!("{} -c \"{script}\" 2>&1 | tail -1", python());
        shell.start(&line, &self.fixture.work(), &sandbox).await.unwrap()
    }

    /// Returns the last line of the output, and the refused sockets.
    async fn run(&self, script: &str, policy: BrokerPolicy) -> (String, Vec<PathBuf>) {
        let events = CommandEvents::of(self.start(script, policy).await, |_| false).await;
        assert!(!events.was_killed(), "{script}: {:?}", events.exit);
        let path = |event: &BrokerEvent| match event {
            BrokerEvent::SocketRefused(path) => Some(path.clone()),
            _ => None,
        };
        (events.text().trim().to_owned(), events.broker.iter().filter_map(path).collect())
    }
}

const DENIED: &str = "PermissionError: [Errno 13] Permission denied";

/// `multiprocessing` passes on the address of a socket in the command's own folder.
#[tokio::test]
async fn address_of_an_own_socket_is_a_whole_path() {
    let script = "import multiprocessing as m; x = m.Manager(); print(x.list([1]))";
    for policy in [BrokerPolicy::Ask, BrokerPolicy::Roots] {
        let (output, _) = Sockets::new().run(script, policy).await;
        assert_eq!(output, "[1]", "{policy:?}");
    }
}

/// Another thread turns a folder of the socket's path into a link to the home folder, and back.
#[tokio::test]
async fn socket_of_an_own_folder_is_bound_nowhere_else() {
    let sockets = Sockets::new();
    let script = "import os, socket, threading, time
t = os.environ['TMPDIR']; f = t + '/f'; os.mkdir(t + '/real')
def swap():
    while True:
        for target in (t + '/real', '{outside}'):
            os.symlink(target, f + '.new'); os.rename(f + '.new', f)
threading.Thread(target=swap, daemon=True).start()
bound = 0
for n in range(1000):
    s = socket.socket(socket.AF_UNIX)
    try: s.bind(f + '/raced-%d' % n); bound += 1
    except OSError: pass
print('bound' if bound else 'never bound')
os._exit(0)";
    let (output, _) = sockets.run(script, BrokerPolicy::Roots).await;
    assert_eq!(output, "bound", "the control");
    let escaped = std::fs::read_dir(sockets.fixture.home()).unwrap().flatten();
    let escaped = escaped.filter(|entry| entry.file_name().to_string_lossy().starts_with("raced"));
    assert_eq!(escaped.count(), 0);
}

/// In a folder that it shares with other programs, a command reaches its own sockets, and no other by their names.
#[tokio::test]
async fn own_sockets_in_caches_can_be_connected() {
    let serve = "import os, socket, threading
s = socket.socket(socket.AF_UNIX); s.bind('{outside}/.cache/own.sock'); s.listen()
threading.Thread(target=lambda: s.accept()[0].send(b'hello'), daemon=True).start()
c = socket.socket(socket.AF_UNIX); ";
    for (client, expected) in [
        ("c.connect('{outside}/.cache/own.sock'); print(c.recv(5).decode())", "hello"),
        (
            "os.rename('{outside}/.cache/cached.sock', '{outside}/.cache/own.sock')
c.connect('{outside}/.cache/own.sock'); print(c.recv(5).decode())",
            DENIED,
        ),
    ] {
        let line = format!("{serve}{client}");
        let (output, _) = Sockets::new().run(&line, BrokerPolicy::Roots).await;
        assert_eq!(output, expected, "{client}");
    }
}

/// A socket of another program cannot become one of the workspace, whose sockets can be connected.
#[tokio::test]
async fn sockets_in_caches_cannot_move_to_the_workspace() {
    for change in [
        "os.link('{outside}/.cache/cached.sock', '{work}/moved')",
        "os.rename('{outside}/.cache/cached.sock', '{work}/moved')",
        "os.rename('{outside}/.cache/folder', '{work}/moved')",
        "os.mkdir('{work}/moved'); exchange('{outside}/.cache/folder', '{work}/moved')",
    ] {
        let sockets = Sockets::new();
        std::fs::create_dir(sockets.outside(".cache/folder")).unwrap();
        serve(&sockets.outside(".cache/folder/inner.sock"));
        let script = format!(
            "import ctypes, os, socket
c = socket.socket(socket.AF_UNIX); libc = ctypes.CDLL(None, use_errno=True)
def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), 2): raise OSError(ctypes.get_errno(), a)
try: {change}
except OSError as error: print(error.errno, end=' ')
try: c.connect('{{work}}/moved'); print('connected')
except OSError:
    try: c.connect('{{work}}/moved/inner.sock'); print('connected')
    except OSError: print('refused')"
        );
        let (output, _) = sockets.run(&script, BrokerPolicy::Roots).await;
        assert_eq!(output, "18 refused", "{change}");
        let within = change.replace("{work}/moved", "{outside}/.cache/moved");
        let (output, _) = sockets.run(&script.replace(change, &within), BrokerPolicy::Roots).await;
        assert_eq!(output, "refused", "the control: {within}");
        assert!(sockets.outside(".cache/moved").exists(), "the control: {within}");
    }
}

#[tokio::test]
async fn sockets_in_the_workspace_and_listed_ones_can_be_connected() {
    let sockets = Sockets::new();
    for (path, expected) in [
        ("{work}/in.sock", "hello"),
        ("in.sock", "hello"),
        ("{outside}/listed.sock", "hello"),
        ("{outside}/other.sock", DENIED),
        ("{work}/link.sock", DENIED),
        ("{outside}/.cache/cached.sock", DENIED),
        ("{work}/file", "ConnectionRefusedError: [Errno 111] Connection refused"),
        ("{work}/missing", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("\\0modegate-abstract", DENIED),
    ] {
        let script = CONNECT.replace("{path}", path);
        let (output, refused) = sockets.run(&script, BrokerPolicy::Roots).await;
        assert_eq!(output, expected, "{path}");
        let reported = match path {
            "{outside}/other.sock" | "{work}/link.sock" => Some("other.sock"),
            "{outside}/.cache/cached.sock" => Some(".cache/cached.sock"),
            _ => None,
        };
        assert_eq!(
            refused,
            reported.map(|name| sockets.outside(name)).into_iter().collect::<Vec<_>>(),
            "{path}"
        );
        let (output, _) = sockets.run(&script, BrokerPolicy::Nothing).await;
        assert_ne!(output, "hello", "{path} in plan");
    }
}

const BIND: &str = "import socket, os, threading\n\
    s = socket.socket(socket.AF_UNIX); s.bind('{path}'); s.listen()\n\
    threading.Thread(target=lambda: s.accept()[0].send(b'own')).start()\n\
    c = socket.socket(socket.AF_UNIX); c.connect('{path}'); print(c.recv(3).decode())";

#[tokio::test]
async fn commands_listen_in_their_folders() {
    let sockets = Sockets::new();
    for (path, expected) in [
        ("{work}/new.sock", "own"),
        ("relative.sock", "own"),
        ("' + os.environ['TMPDIR'] + '/x", "own"),
        ("{work}/file", "OSError: [Errno 98] Address already in use"),
        ("{outside}/new.sock", DENIED),
        ("{work}/missing/x", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("\\0modegate-abstract", DENIED),
    ] {
        let script = BIND.replace("{path}", path);
        let (output, _) = sockets.run(&script, BrokerPolicy::Nothing).await;
        assert_ne!(output, "own", "{path} in plan");
        let is_made = || sockets.work("new.sock").exists() || sockets.outside("new.sock").exists();
        assert!(!is_made(), "{path} in plan");
        let (output, _) = sockets.run(&script, BrokerPolicy::Roots).await;
        assert_eq!(output, expected, "{path}");
        if path.ends_with("work}/new.sock") {
            assert!(sockets.work("new.sock").exists());
            std::fs::remove_file(sockets.work("new.sock")).unwrap();
        }
        assert!(!is_made(), "{path}");
    }
}

#[tokio::test]
async fn sockets_of_other_kinds_stay_closed() {
    let sockets = Sockets::new();
    for kind in ["SOCK_DGRAM", "SOCK_SEQPACKET"] {
        let script = format!("import socket; socket.socket(socket.AF_UNIX, socket.{kind}); print('made')");
        let (output, _) = sockets.run(&script, BrokerPolicy::Roots).await;
        assert_eq!(output, "PermissionError: [Errno 1] Operation not permitted", "{kind}");
    }
    let script = "import socket; socket.socket(socket.AF_UNIX); print('made')";
    assert_eq!(sockets.run(script, BrokerPolicy::Roots).await.0, "made", "the control");
}

/// Another thread replaces the address of calls in memory, as the kernel would read it later. On a busy machine, it may
/// not run during many rounds, so they go on until the wanted number of sockets is reached.
const RACE: &str = "import ctypes, socket, struct, threading, time, os\n\
    c = ctypes.CDLL(None, use_errno=True)\n\
    good = struct.pack('H', 1) + b'{work}/in.sock\\0'\n\
    bad = struct.pack('H', 1) + b'{outside}/other.sock\\0'\n\
    internet = struct.pack('!HH4s8x', 0x200, 9, b'\\x7f\\0\\0\\1')\n\
    size = max(len(good), len(bad))\n\
    buffer = ctypes.create_string_buffer(good, size)\n\
    going = True\n\
    def swap():\n\
    \\twhile going:\n\
    \\t\\tfor part in (bad, good, bad, internet): ctypes.memmove(buffer, part, len(part))\n\
    threading.Thread(target=swap).start()\n\
    reached, rounds, end = set(), 0, time.monotonic() + 60\n\
    while rounds < 3000 or (len(reached) < {wanted} and time.monotonic() < end):\n\
    \\trounds += 1\n\
    \\ts = socket.socket(socket.AF_UNIX)\n\
    \\tif c.connect(s.fileno(), buffer, size) == 0: reached.add(os.path.basename(s.getpeername()))\n\
    \\ts.close()\n\
    going = False\n\
    print(sorted(reached))";

#[tokio::test]
async fn address_cannot_change_after_the_decision() {
    let sockets = Sockets::new();
    let script = RACE.replace("\\t", "    ");
    for policy in [BrokerPolicy::Roots, BrokerPolicy::Nothing] {
        let (wanted, expected) =
            if policy == BrokerPolicy::Roots { ("1", "['in.sock']") } else { ("0", "[]") };
        let (output, _) = sockets.run(&script.replace("{wanted}", wanted), policy).await;
        assert_eq!(output, expected, "{policy:?}");
    }
    // Without a sandbox, both are reached.
    let script = script
        .replace("{wanted}", "2")
        .replace("{work}", &sockets.fixture.work().display().to_string())
        .replace("{outside}", &sockets.fixture.home().display().to_string());
    let output = std::process::Command::new(python()).args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "['in.sock', 'other.sock']", "the control");
}

/// Sends to each connection every 20 ms, and prints each change of the results.
const FOLLOW: &str = "import socket, time, os, threading\n\
    def client(path):\n\
    \\ts = socket.socket(socket.AF_UNIX); s.connect(path); s.settimeout(2); return s\n\
    own = socket.socket(socket.AF_UNIX); own.bind(os.environ['TMPDIR'] + '/own'); own.listen()\n\
    def echo():\n\
    \\tpeer, _ = own.accept(); peer.send(b'hello '); \n\
    \\twhile True: peer.send(peer.recv(64))\n\
    threading.Thread(target=echo, daemon=True).start()\n\
    clients = {'own': client(os.environ['TMPDIR'] + '/own'), 'listed': client('{outside}/listed.sock')}\n\
    a, b = socket.socketpair()\n\
    def works(s):\n\
    \\ttry: s.send(b'x'); return len(s.recv(64)) > 0\n\
    \\texcept OSError: return False\n\
    def pair():\n\
    \\ta.send(b'x'); return b.recv(1) == b'x'\n\
    last = None\n\
    while True:\n\
    \\tnow = [name for name, s in clients.items() if works(s)] + (['pair'] if pair() else [])\n\
    \\tif now != last: print(' '.join(now), flush=True)\n\
    \\tlast = now; time.sleep(0.02)";

#[tokio::test]
async fn tighter_policy_closes_connections_to_other_programs() {
    let sockets = Sockets::new();
    let shell = shell(&sockets.fixture.home(), Sandbox::Workspace);
    let roots = [sockets.fixture.work()];
    let hosts = AllowedHosts::default();
    let network = AgentNetwork {
        sockets: vec![sockets.outside("listed.sock")],
        ..AgentNetwork::limited(hosts, BrokerPolicy::Roots)
    };
    let sandbox = shell
        .brokered_agent(AgentFolders::of(&roots, &["~/.state".into()]), BrokerPolicy::Roots, None, network)
        .unwrap();
    let script =
        FOLLOW.replace("\\t", "    ").replace("{outside}", &sockets.fixture.home().display().to_string());
    std::fs::write(sockets.work("follow.py"), script).unwrap();
    let line = format!("{} follow.py", python());
    let mut process = shell.start(&line, &sockets.fixture.work(), &sandbox).await.unwrap();
    let mut text = String::new();
    while text.lines().count() < 2 || !text.ends_with('\n') {
        let event = tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap();
        if let Event::Output(bytes) | Event::Error(bytes) = event {
            text.push_str(&String::from_utf8_lossy(&bytes));
            if text.lines().count() == 1 && text.ends_with('\n') {
                process.set_policy(BrokerPolicy::Nothing).await;
            }
        }
    }
    assert_eq!(text, "own listed pair\nown pair\n");
    process.end().await;
}
