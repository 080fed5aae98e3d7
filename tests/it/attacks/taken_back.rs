//! Pipes, sockets and connections that a program opened in a looser mode. After a tighter mode is confirmed,
//! they carry no more data.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use modegate::process::{BrokerEvent, Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::egress::Servers;
use crate::support::requirements::python;

/// Opens something in the way of the first argument, prints a line, and then sends every 10 ms.
const PROGRAM: &str = r#"
import ctypes, os, socket, sys, threading, time
way, tcp, udp, allowed = sys.argv[1], *map(int, sys.argv[2:])
def stream(port):
    return socket.create_connection(("127.0.0.1", port))
def datagram(connected):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if connected: s.connect(("127.0.0.1", udp))
    return s
def pipe(flags):
    return os.open("pipe", flags)
def send_forever(send):
    while True:
        try: send(b"x\n")
        except OSError: pass
        time.sleep(0.01)
def start(send):
    print("ready", flush=True)
    send_forever(send)
def in_child(make):
    send = make()
    if os.fork() == 0: send_forever(send)
    print("ready", flush=True)
    time.sleep(60)
def in_own_table(make):
    def run():
        ctypes.CDLL(None).unshare(0x400)
        start(make())
    threading.Thread(target=run).start()
def accept(address):
    s = socket.socket(); s.bind((address, 0)); s.listen(8)
    print("port %d" % s.getsockname()[1], flush=True)
    while True:
        try: s.accept()[0].sendall(b"x\n")
        except OSError: time.sleep(0.01)
ways = {
    "stream": lambda: start(stream(tcp).sendall),
    "stream-child": lambda: in_child(lambda: stream(tcp).sendall),
    "stream-table": lambda: in_own_table(lambda: stream(tcp).sendall),
    "stream-copy": lambda: start(lambda text, s=stream(tcp).dup(): os.write(s.fileno(), text)),
    "datagram": lambda: start(lambda text, s=datagram(False): s.sendto(text, ("127.0.0.1", udp))),
    "datagram-connected": lambda: start(datagram(True).send),
    "datagram-child": lambda: in_child(lambda: lambda text, s=datagram(False): s.sendto(text, ("127.0.0.1", udp))),
    "pipe": lambda: start(lambda text, f=pipe(os.O_WRONLY): os.write(f, text)),
    "pipe-both": lambda: start(lambda text, f=pipe(os.O_RDWR): os.write(f, text)),
    "pipe-nonblocking": lambda: start(lambda text, f=pipe(os.O_WRONLY | os.O_NONBLOCK): os.write(f, text)),
    "pipe-child": lambda: in_child(lambda: lambda text, f=pipe(os.O_WRONLY): os.write(f, text)),
    "pipe-copy": lambda: start(lambda text, f=os.dup(pipe(os.O_WRONLY)): os.write(f, text)),
    "pipe-table": lambda: in_own_table(lambda: lambda text, f=pipe(os.O_WRONLY): os.write(f, text)),
    "allowed": lambda: start(lambda text, s=stream(allowed): None),
    "listen": lambda: accept("0.0.0.0"),
    "listen-here": lambda: accept("127.0.0.1"),
}
ways[way]()
"#;

#[rustfmt::skip]
const WAYS: &[&str] = &[
    "stream", "stream-child", "stream-table", "stream-copy", "datagram", "datagram-connected", "datagram-child", "pipe",
    "pipe-both", "pipe-nonblocking", "pipe-child", "pipe-copy", "pipe-table",
];

/// Receivers of the program's messages.
struct Receivers {
    servers: Servers,
    tcp: TcpListener,
    udp: UdpSocket,
    pipe: std::fs::File,
    connection: Option<TcpStream>,
}

impl Receivers {
    fn new() -> Self {
        let servers = Servers::new();
        let path = servers.fixture.work().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let pipe =
            OpenOptions::new().read(true).write(true).custom_flags(libc_nonblock()).open(&path).unwrap();
        Self { servers, tcp, udp, pipe, connection: None }
    }

    async fn start(&self, way: &str) -> (Process, String) {
        let (tcp, udp) = (self.tcp.local_addr().unwrap().port(), self.udp.local_addr().unwrap().port());
        let code = PROGRAM.replace('\'', "'\\''");
        let line = format!("exec {} -c '{code}' {way} {tcp} {udp} {}", python(), self.servers.allowed.port());
        let mut process = self.servers.start(&line, BrokerPolicy::Roots).await;
        loop {
            match process.next().await.unwrap() {
                Event::Output(bytes) => return (process, String::from_utf8(bytes).unwrap()),
                Event::Error(bytes) => panic!("{way}: {}", String::from_utf8_lossy(&bytes)),
                _ => {}
            }
        }
    }

    /// Takes all received data. Returns the number of bytes.
    fn received(&mut self) -> usize {
        if self.connection.is_none() {
            self.connection = self.tcp.accept().ok().map(|(connection, _)| connection);
        }
        let mut count = 0;
        let mut buffer = [0; 4096];
        if let Some(connection) = &mut self.connection {
            connection.set_nonblocking(true).unwrap();
            count += take(|| connection.read(&mut buffer));
        }
        count += take(|| self.udp.recv(&mut buffer));
        count + take(|| self.pipe.read(&mut buffer))
    }
}

fn libc_nonblock() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap()
}

fn take(mut read: impl FnMut() -> std::io::Result<usize>) -> usize {
    let mut count = 0;
    loop {
        match read() {
            Ok(0) => return count,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return count,
        }
    }
}

/// Sets a policy. Returns true if it is confirmed.
async fn set(process: &mut Process, policy: BrokerPolicy) -> bool {
    process.set_policy(policy).await;
    loop {
        match tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap() {
            Event::Broker(BrokerEvent::PolicySet { is_complete, .. }) => return is_complete,
            // A killed program can send nothing.
            Event::Gone { confirmed, .. } => return confirmed,
            Event::Failed(reason) => panic!("{reason}"),
            _ => {}
        }
    }
}

/// A program that can send does so within this time.
const WATCH: Duration = Duration::from_millis(150);

#[tokio::test]
async fn descriptors_of_a_looser_mode_carry_no_data() {
    for way in WAYS {
        let mut receivers = Receivers::new();
        let (mut process, _) = receivers.start(way).await;
        assert!(set(&mut process, BrokerPolicy::Ask).await, "{way}");
        receivers.received();
        tokio::time::sleep(WATCH).await;
        assert!(receivers.received() > 0, "{way}: the control");
        assert!(set(&mut process, BrokerPolicy::Nothing).await, "{way}");
        receivers.received();
        tokio::time::sleep(WATCH).await;
        assert_eq!(receivers.received(), 0, "{way}");
        process.end().await;
    }
}

/// Returns true if a connection from another address of this machine succeeds.
fn reaches(address: &str, port: u16) -> bool {
    let address = format!("{address}:{port}").parse().unwrap();
    let Ok(mut connection) = TcpStream::connect_timeout(&address, Duration::from_secs(2)) else {
        return false;
    };
    connection.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = connection.write_all(b"x");
    connection.read(&mut [0; 8]).is_ok_and(|count| count > 0)
}

#[tokio::test]
async fn listeners_of_a_looser_mode_end_unless_they_are_for_this_machine() {
    for (way, address, stays) in [("listen", "127.0.0.2", false), ("listen-here", "127.0.0.1", true)] {
        let receivers = Receivers::new();
        let (mut process, text) = receivers.start(way).await;
        let port = text.trim().strip_prefix("port ").unwrap().parse().unwrap();
        assert!(reaches(address, port), "{way}: the control");
        assert!(set(&mut process, BrokerPolicy::Nothing).await, "{way}");
        assert_eq!(reaches(address, port), stays, "{way}");
        process.end().await;
    }
}

/// The agent's connection to its model stays open.
#[tokio::test]
async fn connections_to_allowed_hosts_stay() {
    let receivers = Receivers::new();
    let (mut process, _) = receivers.start("allowed").await;
    assert!(set(&mut process, BrokerPolicy::Nothing).await);
    let list = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let established = format!(":{:04X} 01 ", receivers.servers.allowed.port());
    assert!(list.contains(&established));
    process.end().await;
}
