//! Passes questions about names on to the system's name servers, while the network is open. Programs ask over TCP,
//! which many name servers do not speak, so the questions go on over UDP.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::NAME_PORT;

/// As many name servers as the C library asks.
const MAX_SERVERS: usize = 3;

/// Rounds of questions over all servers.
const ROUNDS: usize = 2;

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bit of the third byte of an answer that did not fit into a datagram.
const TRUNCATED: u8 = 0x02;

/// Bit of the third byte of every answer.
const IS_ANSWER: u8 = 0x80;

/// The name servers that the C library asks.
pub(super) fn name_servers() -> Vec<IpAddr> {
    listed(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

/// Reads a file like `/etc/resolv.conf`.
fn listed(settings: &str) -> Vec<IpAddr> {
    let servers = settings.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    });
    let servers: Vec<IpAddr> = servers.take(MAX_SERVERS).collect();
    if servers.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { servers }
}

/// Asks the system's name servers, while `is_open` returns true. `None` if none answers.
pub(super) fn ask(question: &[u8], is_open: &dyn Fn() -> bool) -> Option<Vec<u8>> {
    let servers: Vec<_> = name_servers().into_iter().map(|ip| (ip, NAME_PORT).into()).collect();
    ask_servers(question, &servers, is_open)
}

fn ask_servers(question: &[u8], servers: &[SocketAddr], is_open: &dyn Fn() -> bool) -> Option<Vec<u8>> {
    let mut attempts = (0..ROUNDS).flat_map(|_| servers).take_while(|_| is_open());
    attempts.find_map(|server| ask_server(question, *server).ok())
}

fn ask_server(question: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let answer = ask_by_datagram(question, server)?;
    let is_truncated = answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0);
    if !is_truncated {
        return Ok(answer);
    }
    // A server without TCP has given the part that fits.
    Ok(ask_by_stream(question, server).unwrap_or(answer))
}

fn ask_by_datagram(question: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let own: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((own, 0))?;
    socket.connect(server)?;
    socket.send(question)?;
    let deadline = Instant::now() + TIMEOUT;
    let mut answer = vec![0; usize::from(u16::MAX)];
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(remaining))?;
        let count = socket.recv(&mut answer)?;
        if answers(&answer[..count], question) {
            answer.truncate(count);
            return Ok(answer);
        }
    }
}

fn ask_by_stream(question: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let length = u16::try_from(question.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    if answers(&answer, question) { Ok(answer) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// True for an answer with the number of the question.
fn answers(message: &[u8], question: &[u8]) -> bool {
    message.len() > 2 && message[..2] == question[..2] && message[2] & IS_ANSWER != 0
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const QUESTION: &[u8] = b"\x12\x34\x01\x00question";

    fn answer(id: [u8; 2], flags: u8, text: &str) -> Vec<u8> {
        [&id[..], &[IS_ANSWER | flags, 0], text.as_bytes()].concat()
    }

    /// Answers each question with these datagrams.
    fn server(datagrams: Vec<Vec<u8>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((count, client)) = socket.recv_from(&mut question) {
                assert_eq!(&question[..count], QUESTION);
                for datagram in &datagrams {
                    socket.send_to(datagram, client).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn name_servers_are_read_as_the_c_library_reads_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (settings, expected) in [
            ("nameserver 192.0.2.1\n# nameserver 192.0.2.2\nsearch a.b\n", vec![ip("192.0.2.1")]),
            ("nameserver\t2001:db8::1\n nameserver 192.0.2.1\n", vec![ip("2001:db8::1"), ip("192.0.2.1")]),
            ("", vec![ip("127.0.0.1")]),
            ("nameserver x\nnameservers 192.0.2.1\n", vec![ip("127.0.0.1")]),
            (&"nameserver 192.0.2.1\n".repeat(5), vec![ip("192.0.2.1"); 3]),
        ] {
            assert_eq!(listed(settings), expected, "{settings}");
        }
    }

    #[test]
    fn questions_go_to_the_first_server_that_answers() {
        let good = answer([0x12, 0x34], 0, "good");
        // Nothing listens there.
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let one = server(vec![good.clone()]);
        assert_eq!(ask_servers(QUESTION, &[one], &|| true), Some(good.clone()));
        assert_eq!(ask_servers(QUESTION, &[closed, one], &|| true), Some(good));
        assert_eq!(ask_servers(QUESTION, &[closed], &|| true), None);
        assert_eq!(ask_servers(QUESTION, &[one], &|| false), None, "the network was limited");
    }

    #[test]
    fn answers_to_other_questions_are_ignored() {
        let good = answer([0x12, 0x34], 0, "good");
        let other = answer([0x12, 0x35], 0, "other");
        let question = b"\x12\x34\x00\x00question".to_vec();
        let server = server(vec![other, question, b"\x12".to_vec(), good.clone()]);
        assert_eq!(ask_servers(QUESTION, &[server], &|| true), Some(good));
    }

    #[test]
    fn long_answers_come_over_tcp() {
        let short = answer([0x12, 0x34], TRUNCATED, "short");
        let long = answer([0x12, 0x34], 0, &"long".repeat(1000));
        assert_eq!(
            ask_servers(QUESTION, &[server(vec![short.clone()])], &|| true),
            Some(short.clone()),
            "no TCP"
        );
        let address = server(vec![short]);
        let listener = TcpListener::bind(address).unwrap();
        let sent = [&u16::try_from(long.len()).unwrap().to_be_bytes()[..], &long].concat();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut question = [0; QUESTION.len() + 2];
            client.read_exact(&mut question).unwrap();
            client.write_all(&sent).unwrap();
        });
        assert_eq!(ask_servers(QUESTION, &[address], &|| true), Some(long));
    }
}
