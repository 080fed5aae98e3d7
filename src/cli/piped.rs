//! Reads text piped to a run with `-p`.
//!
//! A parent process may leave stdin open without writing to it, so the first byte has a timeout. Reading runs
//! on another thread, so that a stop ends the wait immediately.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) const WAIT: Duration = Duration::from_secs(3);

const CHUNK: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piped {
    Text(String),
    Nothing,
    TimedOut,
}

/// Replaces invalid UTF-8. `wait` limits the time to the first byte.
pub(super) async fn read(
    mut input: impl Read + Send + 'static,
    wait: Duration,
    stop: &CancellationToken,
) -> io::Result<Piped> {
    let (chunks, mut received) = mpsc::channel::<io::Result<Vec<u8>>>(1);
    tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = match input.read(&mut chunk) {
                Ok(0) => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map(|length| chunk[..length].to_vec()),
            };
            let is_over = read.is_err();
            if chunks.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    let mut bytes: Vec<u8> = Vec::new();
    let late = tokio::time::sleep(wait);
    tokio::pin!(late);
    loop {
        tokio::select! {
            chunk = received.recv() => match chunk {
                Some(chunk) => bytes.extend(chunk?),
                None => break,
            },
            () = &mut late, if bytes.is_empty() => return Ok(Piped::TimedOut),
            () = stop.cancelled() => return Ok(Piped::Nothing),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if text.trim().is_empty() { Piped::Nothing } else { Piped::Text(text) })
}

/// Text of a file begins with a slash more often by chance than as a command.
pub(super) fn warn_of_command(text: &str, errors: &mut impl Write) -> io::Result<()> {
    if text.trim_start().starts_with('/') {
        let message = "text from stdin is no slash command, so the model gets it; give commands with -p TEXT";
        writeln!(errors, "modegate: {message}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_open_stdin_times_out() {
        let stop = CancellationToken::new();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(1000));
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(read(reader, short, &stop).await.unwrap(), Piped::TimedOut);
        drop(writer);
        for (text, expected) in
            [("a\nb", Piped::Text("a\nb".into())), ("", Piped::Nothing), (" \n", Piped::Nothing)]
        {
            assert_eq!(read(text.as_bytes(), long, &stop).await.unwrap(), expected, "the control");
        }
        let (reader, _writer) = io::pipe().unwrap();
        stop.cancel();
        assert_eq!(read(reader, long, &stop).await.unwrap(), Piped::Nothing);
    }
}
