//! The supervisor's end of the connection to Modegate, whose end kills everything.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use super::descriptors;
use super::protocol::{self, BUILD, MessageReader, SpawnRequest, SupervisorReport};

/// Most bytes of one read.
const CHUNK: usize = 16 * 1024;

/// Reads the request, and the descriptor beside it. Orders that came together with it stay in `orders`.
pub(super) fn read_request(
    connection: &UnixStream,
    orders: &mut MessageReader,
) -> io::Result<(SpawnRequest, Option<OwnedFd>)> {
    let mut input = None;
    loop {
        if let Some(request) = orders.take() {
            return Ok((check_build(request?)?, input));
        }
        let mut bytes = [0; CHUNK];
        let (count, handed) = descriptors::receive(connection, &mut bytes)?;
        input = handed.into_iter().next().or(input);
        add(&bytes[..count], orders)?;
    }
}

fn check_build(request: SpawnRequest) -> io::Result<SpawnRequest> {
    if request.build == BUILD {
        return Ok(request);
    }
    Err(io::Error::other(format!("Modegate is {}, and its supervisor is {BUILD}: restart it", request.build)))
}

/// Reads orders once.
///
/// # Errors
/// Returns an error at the end of the connection.
pub(super) fn read_orders(mut connection: &UnixStream, orders: &mut MessageReader) -> io::Result<()> {
    let mut bytes = [0; CHUNK];
    let count = connection.read(&mut bytes)?;
    add(&bytes[..count], orders)
}

fn add(received: &[u8], orders: &mut MessageReader) -> io::Result<()> {
    if received.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if orders.add(received) { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Reports to Modegate, which may be gone. Writes a whole line, also if several threads report.
pub(super) fn report(mut connection: &UnixStream, report: &SupervisorReport) {
    static WRITING: Mutex<()> = Mutex::new(());
    // Never fails: every report can be encoded.
    let line = protocol::encode(report).unwrap_or_default();
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = connection.write_all(&line);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::sandbox::Confinement;
    use crate::supervisor::protocol::{MAX_ORDER, SupervisorOrder, TerminalAccess};

    fn request(build: &str) -> SpawnRequest {
        SpawnRequest {
            build: build.to_owned(),
            program: "true".into(),
            arguments: Vec::new(),
            environment: None,
            settings: Vec::new(),
            confinement: Confinement::Off,
            own_folder: None,
            terminal: TerminalAccess::None,
            waits: false,
            own: Vec::new(),
        }
    }

    #[test]
    fn request_and_orders_can_come_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sent = protocol::encode(&request(BUILD)).unwrap();
        descriptors::send(&ours, sent[0], &[ours.as_fd()]).unwrap();
        let mut rest = sent[1..].to_vec();
        rest.extend(protocol::encode(&SupervisorOrder::Release).unwrap());
        (&ours).write_all(&rest).unwrap();
        let mut orders = MessageReader::new(MAX_ORDER);
        let (received, input) = read_request(&theirs, &mut orders).unwrap();
        assert_eq!(received, request(BUILD));
        assert!(input.is_some());
        while orders.take::<SupervisorOrder>().map(Result::unwrap) != Some(SupervisorOrder::Release) {
            read_orders(&theirs, &mut orders).unwrap();
        }
    }

    #[test]
    fn request_of_another_build_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&protocol::encode(&request("0.0.0")).unwrap()).unwrap();
        let error = read_request(&theirs, &mut MessageReader::new(MAX_ORDER)).unwrap_err();
        assert!(error.to_string().starts_with("Modegate is 0.0.0, and its supervisor is "), "{error}");
    }

    #[test]
    fn end_of_the_connection_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let mut orders = MessageReader::new(MAX_ORDER);
        assert!(read_request(&theirs, &mut orders).is_err());
        assert!(read_orders(&theirs, &mut orders).is_err());
    }
}
