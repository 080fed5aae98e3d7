//! The network of brokered commands. In modes that allow no changes, they reach only allowed hosts.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{AllowedHosts, BrokerEvent, Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::command_events::CommandEvents;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

/// Compiles `tests/escape/network.c`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/network.c");
        let program = folder.path().join("network");
        let built =
            Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source).arg("-lpthread").status();
        assert!(built.unwrap().success(), "tests/escape/network.c");
        (folder, program)
    });
    program
}

/// Starts a server that answers HTTP.
fn serve(ip: impl Into<std::net::IpAddr>) -> SocketAddr {
    let listener = TcpListener::bind((ip.into(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            std::thread::spawn(move || {
                client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                if client.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreached\n";
                    let _ = client.write_all(answer.as_bytes());
                }
            });
        }
    });
    address
}

/// Two loopback servers. The command may reach one of them, by a name and by its address.
pub(crate) struct Servers {
    pub(crate) fixture: SandboxFixture,
    pub(crate) allowed: SocketAddr,
    other: SocketAddr,
    other_v6: SocketAddr,
}

impl Servers {
    pub(crate) fn new() -> Self {
        require_sandbox();
        let (allowed, other) = (serve(Ipv4Addr::LOCALHOST), serve(Ipv4Addr::LOCALHOST));
        Self { fixture: SandboxFixture::new(), allowed, other, other_v6: serve(Ipv6Addr::LOCALHOST) }
    }

    pub(crate) async fn start(&self, line: &str, policy: BrokerPolicy) -> Process {
        let port = self.allowed.port();
        let patterns = [format!("allowed.example:{port}"), format!("*.wild.example:{port}")];
        let patterns = patterns.into_iter().chain([self.allowed.to_string()]);
        let hosts = AllowedHosts {
            patterns: patterns.map(|text| text.parse().unwrap()).collect(),
            addresses: ["allowed.example", "a.wild.example"]
                .map(|name| (name.to_owned(), Ipv4Addr::LOCALHOST))
                .into(),
            ..AllowedHosts::default()
        };
        let shell = shell(&self.fixture.home(), Sandbox::Workspace);
        let roots = [self.fixture.work()];
        let network = AgentNetwork::limited(hosts, policy);
        let sandbox = shell
            .brokered_agent(AgentFolders::of(&roots, &["~/.state".into()]), policy, None, network)
            .unwrap();
        let line = line
            .replace("{port}", &port.to_string())
            .replace("{other}", &self.other.port().to_string())
            .replace("{other_v6}", &self.other_v6.port().to_string())
            .replace("{network}", &program().display().to_string())
            .replace("{python}", python());
        shell.start(&line, &self.fixture.work(), &sandbox).await.unwrap()
    }

    /// Returns the output, and the refused hosts.
    async fn run(&self, line: &str, policy: BrokerPolicy) -> (String, Vec<String>) {
        let events = CommandEvents::of(self.start(line, policy).await, |_| false).await;
        assert!(!events.was_killed(), "{line}: {:?}", events.exit);
        let host = |event: &BrokerEvent| match event {
            BrokerEvent::HostRefused(host) => Some(host.clone()),
            _ => None,
        };
        (events.text(), events.broker.iter().filter_map(host).collect())
    }
}

/// `{name}` stands for a host.
const PROGRAMS: &[&str] = &[
    "curl -sS --max-time 9 http://{name}:{port}/",
    "{python} -c \"import urllib.request as r; print(r.urlopen('http://{name}:{port}/', timeout=9).read().decode())\"",
    "node -e \"fetch('http://{name}:{port}/').then(r => r.text()).then(console.log, e => console.log(e.cause))\"",
    "node -e \"require('http').get('http://{name}:{port}/', r => r.pipe(process.stdout))\"",
    "exec 3<>/dev/tcp/{name}/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3",
    "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(\"{name}:{port}\") or die $@; print $s \"GET\\n\"; print <$s>'",
];

#[tokio::test]
async fn programs_reach_allowed_names_only() {
    let servers = Servers::new();
    for line in PROGRAMS {
        for name in ["allowed.example", "ALLOWED.example", "a.wild.example"] {
            let (text, refused) = servers.run(&line.replace("{name}", name), BrokerPolicy::Nothing).await;
            assert!(text.contains("reached"), "{line} {name}: {text}");
            assert_eq!(refused, Vec::<String>::new(), "{line} {name}");
        }
        for name in ["other.example", "wild.example", "allowed.example.evil"] {
            let (text, refused) = servers.run(&line.replace("{name}", name), BrokerPolicy::Nothing).await;
            assert!(!text.contains("reached"), "{line} {name}: {text}");
            assert_eq!(refused, [name], "{line}: {text}");
        }
    }
}

/// Ways to connect or listen, with their arguments. If only allowed hosts can be reached, each is refused. The
/// second value is the address that is then reported. With an open network, each succeeds.
const WAYS: &[(&str, Option<&str>)] = &[
    ("stream 127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("nonblocking 127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("again 127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("table 127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("stream 0.0.0.0 {other}", Some("127.0.0.1:{other}")),
    ("stream ::ffff:127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("stream ::1 {other_v6}", Some("[::1]:{other_v6}")),
    ("stream :: {other_v6}", Some("[::1]:{other_v6}")),
    ("nonblocking ::1 {other_v6}", Some("[::1]:{other_v6}")),
    ("datagram 127.0.0.1 {other}", None),
    ("datagram ::1 {other_v6}", None),
    ("fastopen-option 127.0.0.1 {other}", Some("127.0.0.1:{other}")),
    ("listen 0.0.0.0 0", None),
    ("listen :: 0", None),
    ("listen-unbound 0.0.0.0 0", None),
    ("listen ::ffff:0.0.0.0 0", None),
    ("listen-copy 0.0.0.0 0", None),
    ("listen-child 0.0.0.0 0", None),
    ("listen-twice 0.0.0.0 0", None),
    ("listen-after-end 127.0.0.1 {port}", None),
    ("listen-after-shutdown 127.0.0.1 {port}", None),
    ("listen-untied 0.0.0.0 0", None),
];

/// Ways that every mode refuses.
const CLOSED: &[&str] = &[
    "fastopen-sendto 127.0.0.1 {other}",
    "fastopen-sendmsg 127.0.0.1 {other}",
    "fastopen-sendmmsg 127.0.0.1 {other}",
    "multipath 127.0.0.1 {other}",
    "raw 127.0.0.1 {other}",
    "route 127.0.0.1 {other}",
];

/// Ways that every mode allows.
const ALLOWED: &[&str] = &[
    "stream 127.0.0.1 {port}",
    "nonblocking 127.0.0.1 {port}",
    "again 127.0.0.1 {port}",
    "table 127.0.0.1 {port}",
    "stream ::ffff:127.0.0.1 {port}",
    "stream 0.0.0.0 {port}",
    "listen 127.0.0.1 0",
    "listen ::1 0",
    "own 127.0.0.1 0",
    "own 127.0.0.2 0",
    "own ::1 0",
    "netlink 127.0.0.1 0",
];

#[tokio::test]
async fn other_addresses_cannot_be_reached() {
    let servers = Servers::new();
    let line = |way: &str| format!("{{network}} {way}");
    for (way, reported) in WAYS {
        let (text, refused) = servers.run(&line(way), BrokerPolicy::Roots).await;
        assert_eq!((text.as_str(), refused.len()), ("reached\n", 0), "{way}: the control");
        let (text, refused) = servers.run(&line(way), BrokerPolicy::Nothing).await;
        assert!(!text.contains("reached"), "{way}: {text}");
        let reported = reported.map(|host| {
            let host = host.replace("{other}", &servers.other.port().to_string());
            host.replace("{other_v6}", &servers.other_v6.port().to_string())
        });
        assert_eq!(refused, Vec::from_iter(reported), "{way}: {text}");
    }
    for policy in [BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Roots] {
        for way in ALLOWED {
            let (text, refused) = servers.run(&line(way), policy).await;
            assert_eq!((text.as_str(), refused.len()), ("reached\n", 0), "{way} {policy:?} {refused:?}");
        }
        for way in CLOSED {
            let (text, _) = servers.run(&line(way), policy).await;
            assert!(!text.is_empty() && !text.contains("reached"), "{way} {policy:?}: {text}");
        }
    }
    for way in CLOSED {
        let arguments = way.replace("{other}", &servers.other.port().to_string());
        let output = Command::new(program()).args(arguments.split(' ')).output().unwrap();
        // Multipath TCP may be missing; raw sockets and source routes may need a privilege.
        let is_optional = ["multipath", "raw", "route"].iter().any(|word| way.starts_with(word));
        assert!(is_optional || output.stdout == b"reached\n", "{way}: the control");
    }
}

#[tokio::test]
async fn address_cannot_change_after_the_decision() {
    let servers = Servers::new();
    for (policy, expected) in [
        (BrokerPolicy::Nothing, "tries many, allowed some, never the other\n"),
        (BrokerPolicy::Roots, "tries many, allowed some, reached\n"),
    ] {
        let mut text = String::new();
        // A busy machine may leave time for few tries.
        for _ in 0..5 {
            (text, _) = servers.run("{network} race 127.0.0.1 {port} {other}", policy).await;
            assert!(policy != BrokerPolicy::Nothing || text.ends_with("never the other\n"), "{text}");
            if text.starts_with("tries many") {
                break;
            }
        }
        assert_eq!(text, expected, "{policy:?}");
    }
}

#[tokio::test]
async fn address_cannot_change_before_the_socket_listens() {
    let servers = Servers::new();
    let mut runs_with_many_tries = 0;
    // A busy machine may leave time for few tries.
    for _ in 0..6 {
        let (text, _) = servers.run("{network} listen-race 0 0", BrokerPolicy::Nothing).await;
        assert!(text.ends_with("never elsewhere\n"), "{text}");
        runs_with_many_tries += usize::from(text.starts_with("tries many"));
        if runs_with_many_tries == 2 {
            break;
        }
    }
    assert!(runs_with_many_tries > 0, "few tries in every run");
    let (text, _) = servers.run("{network} listen-race 0 0", BrokerPolicy::Roots).await;
    assert_eq!(text, "tries few, reached\n", "the control");
}

/// Tries every 20 ms and prints each change of the result.
const FOLLOW: &str = "last=; while :; do now=$({network} stream 127.0.0.1 {other}); \
    [ \"$now\" = \"$last\" ] || echo \"$now\"; last=$now; sleep 0.02; done";

#[tokio::test]
async fn network_follows_the_policy() {
    let servers = Servers::new();
    let mut process = servers.start(FOLLOW, BrokerPolicy::Roots).await;
    let mut lines = Vec::new();
    let expected = ["reached", "stream: Permission denied", "reached", "stream: Permission denied"];
    let policies = [BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Nothing];
    while lines.len() < expected.len() {
        let event = tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap();
        if let Event::Output(bytes) = event {
            for line in String::from_utf8_lossy(&bytes).lines() {
                lines.push(line.to_owned());
                if let Some(policy) = policies.get(lines.len() - 1) {
                    process.set_policy(*policy).await;
                }
            }
        }
    }
    assert_eq!(lines, expected);
    process.end().await;
}

/// The connection is to an address that never answers.
#[tokio::test]
async fn waiting_connection_delays_no_other_call() {
    let servers = Servers::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Fills the queue of a listener that accepts nothing.
    let silent = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(client) = std::net::TcpStream::connect_timeout(&silent, Duration::from_millis(300)) {
        queued.push(client);
    }
    let line = format!(
        "for i in 1 2 3 4 5 6; do {{network}} stream 127.0.0.1 {} & done; sleep 0.3; \
         {{network}} stream 127.0.0.1 {{port}}; echo x > $TMPDIR/file; rm $TMPDIR/file; echo end; kill $(jobs -p)",
        silent.port()
    );
    let shell = shell(&servers.fixture.home(), Sandbox::Workspace);
    let patterns = [silent.to_string(), servers.allowed.to_string()].map(|text| text.parse().unwrap()).into();
    let hosts = AllowedHosts { patterns, ..AllowedHosts::default() };
    let roots = [servers.fixture.work()];
    let network = AgentNetwork::limited(hosts, BrokerPolicy::Nothing);
    let sandbox = shell
        .brokered_agent(AgentFolders::of(&roots, &["~/.state".into()]), BrokerPolicy::Nothing, None, network)
        .unwrap();
    let line = line
        .replace("{network}", &program().display().to_string())
        .replace("{port}", &servers.allowed.port().to_string());
    let start = Instant::now();
    let mut process = shell.start(&line, &servers.fixture.work(), &sandbox).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = process.next().await {
        if let Event::Output(bytes) = event {
            output.extend(bytes);
        }
    }
    assert_eq!(String::from_utf8_lossy(&output), "reached\nend\n");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
