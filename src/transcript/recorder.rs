//! Records every line of a connection as it is on the wire. The file is JSON lines: a header with version and
//! launch options, then one object per line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use serde_json::json;
use tokio::sync::mpsc;

use super::launch_options::{LaunchOptions, VERSION};
use super::text_of;
use crate::transport::{Line, Transport};

pub const VERSION_KEY: &str = "modegate_transcript";

/// Fails if the header cannot be written. Later errors stop only the recording.
pub fn start(transport: Transport, file: File, options: &LaunchOptions) -> std::io::Result<Transport> {
    let mut file = BufWriter::new(file);
    let header = json!({ VERSION_KEY: VERSION, "agent": env!("CARGO_PKG_VERSION"), "options": options });
    writeln!(file, "{header}")?;
    file.flush()?;
    let Transport { incoming: wire_in, outgoing: wire_out, flushed } = transport;
    let (to_agent, incoming) = mpsc::channel(64);
    let (outgoing, from_agent) = mpsc::channel(64);
    let recorder = TranscriptRecorder { file: Some(file), start: Instant::now() };
    tokio::spawn(pass(recorder, wire_in, wire_out, to_agent, from_agent));
    Ok(Transport { incoming, outgoing, flushed })
}

struct TranscriptRecorder {
    /// `None` after a write error.
    file: Option<BufWriter<File>>,
    start: Instant,
}

impl TranscriptRecorder {
    fn line(&mut self, direction: &str, line: &str) {
        let Some(file) = &mut self.file else { return };
        let at = self.start.elapsed().as_millis();
        let entry = json!({ "ms": u64::try_from(at).unwrap_or(u64::MAX), "dir": direction, "line": line });
        if let Err(error) = writeln!(file, "{entry}").and_then(|()| file.flush()) {
            tracing::error!(%error, "the transcript cannot be written any more");
            self.file = None;
        }
    }
}

async fn pass(
    mut recorder: TranscriptRecorder,
    mut wire_in: mpsc::Receiver<Line>,
    wire_out: mpsc::Sender<String>,
    to_agent: mpsc::Sender<Line>,
    mut from_agent: mpsc::Receiver<String>,
) {
    let mut to_agent = Some(to_agent);
    loop {
        tokio::select! {
            biased;
            // Closing `from_agent` tells the agent that its output is gone.
            () = wire_out.closed() => return,
            line = from_agent.recv() => {
                let Some(line) = line else { return };
                recorder.line("out", line.trim_end_matches('\n'));
                if wire_out.send(line).await.is_err() {
                    return;
                }
            }
            line = wire_in.recv(), if to_agent.is_some() => match (line, &to_agent) {
                (Some(line), Some(agent)) => {
                    recorder.line("in", &text_of(&line));
                    if agent.send(line).await.is_err() {
                        to_agent = None;
                    }
                }
                _ => to_agent = None,
            },
        }
    }
}
