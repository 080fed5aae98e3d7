//! Answers programs that ask for the addresses of names. Where the network is limited, allowed names get invented
//! addresses, and nothing is passed on, so a question carries nothing out of this machine.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::EgressBroker;
use super::dns::{self, NameAnswer, Query};
use super::forward;
use crate::supervisor::broker::threads;

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

pub(super) fn start(egress: Arc<EgressBroker>, listener: TcpListener) -> io::Result<()> {
    threads::start("resolver", move || accept(&egress, &listener))
}

fn accept(egress: &Arc<EgressBroker>, listener: &TcpListener) {
    let clients = Arc::new(AtomicUsize::default());
    loop {
        match listener.accept() {
            Ok((client, _)) if clients.load(Ordering::Relaxed) < MAX_CLIENTS => {
                clients.fetch_add(1, Ordering::Relaxed);
                let (egress, counting) = (Arc::clone(egress), Arc::clone(&clients));
                let serve = move || {
                    // The client may be gone.
                    let _ = serve(&egress, client);
                    counting.fetch_sub(1, Ordering::Relaxed);
                };
                if threads::start("names", serve).is_err() {
                    clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
            // Too many clients or descriptors. A client that is dropped here asks again.
            _ => thread::sleep(INTERVAL),
        }
    }
}

/// Answers the questions of one connection: each has a length of 2 bytes (big endian) before it.
fn serve(egress: &EgressBroker, mut client: TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    loop {
        let mut length = [0; 2];
        client.read_exact(&mut length)?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        client.read_exact(&mut message)?;
        let response = response(egress, &message)?;
        let length = u16::try_from(response.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(response);
        client.write_all(&bytes)?;
    }
}

fn response(egress: &EgressBroker, message: &[u8]) -> io::Result<Vec<u8>> {
    let is_limited = egress.is_limited();
    let forwarded = if is_limited { None } else { forward::ask(message, &|| !egress.is_limited()) };
    if let Some(response) = forwarded {
        return Ok(response);
    }
    let query = dns::query(message).ok_or(io::ErrorKind::InvalidData)?;
    let answer = if is_limited { answer(egress, &query) } else { NameAnswer::Failed };
    Ok(dns::response(&query, &answer))
}

fn answer(egress: &EgressBroker, query: &Query) -> NameAnswer {
    let Some(name) = query.name.as_deref() else { return NameAnswer::NoSuchName };
    if !egress.hosts().allow_name(name, None) {
        egress.report(name.to_owned());
        return NameAnswer::NoSuchName;
    }
    if query.kind != dns::TYPE_A {
        return NameAnswer::Addresses(Vec::new());
    }
    egress.invented(name).map_or(NameAnswer::Failed, NameAnswer::Addresses)
}
