//! Answers programs that ask for the addresses of names. Allowed names get invented addresses. Nothing is passed on,
//! so a question carries nothing out of this machine.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::dns::{self, Answer, Query};
use super::{AbortOnPanic, Egress};

/// Programs that ask at the same time. More wait.
const MAX_CLIENTS: usize = 64;

/// How long a client may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);

const INTERVAL: Duration = Duration::from_millis(20);

pub(super) fn bind() -> io::Result<(TcpListener, SocketAddrV4)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match listener.local_addr()? {
        SocketAddr::V4(address) => Ok((listener, address)),
        SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

pub(super) fn start(egress: Arc<Egress>, listener: TcpListener) -> io::Result<()> {
    let clients = Arc::new(AtomicUsize::default());
    let run = move || {
        let _abort = AbortOnPanic;
        loop {
            match listener.accept() {
                Ok((client, _)) if clients.load(Ordering::Relaxed) < MAX_CLIENTS => {
                    let (egress, clients) = (Arc::clone(&egress), Arc::clone(&clients));
                    clients.fetch_add(1, Ordering::Relaxed);
                    let counting = Arc::clone(&clients);
                    let serve = move || {
                        let _abort = AbortOnPanic;
                        // The client may be gone.
                        let _ = serve(&egress, client);
                        clients.fetch_sub(1, Ordering::Relaxed);
                    };
                    if thread::Builder::new().name("names".into()).spawn(serve).is_err() {
                        counting.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                // Too many clients or descriptors. A client that is dropped here asks again.
                _ => thread::sleep(INTERVAL),
            }
        }
    };
    thread::Builder::new().name("resolver".into()).spawn(run).map(drop)
}

/// Answers the questions of one connection: each has a length of 2 bytes (big endian) before it.
fn serve(egress: &Egress, mut client: TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    loop {
        let mut length = [0; 2];
        client.read_exact(&mut length)?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        client.read_exact(&mut message)?;
        let query = dns::query(&message).ok_or(io::ErrorKind::InvalidData)?;
        let response = dns::response(&query, &answer(egress, &query));
        let length = u16::try_from(response.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(response);
        client.write_all(&bytes)?;
    }
}

fn answer(egress: &Egress, query: &Query) -> Answer {
    let Some(name) = query.name.as_deref() else { return Answer::NoSuchName };
    if !egress.hosts.allow_name(name, None) {
        egress.report(name.to_owned());
        return Answer::NoSuchName;
    }
    if query.kind != dns::TYPE_A {
        return Answer::Addresses(Vec::new());
    }
    egress.invented(name).map_or(Answer::Failed, Answer::Addresses)
}
