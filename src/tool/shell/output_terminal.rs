//! Streams command output to Zed's display-only terminal. Modegate itself runs the command.
//!
//! The tool call announces the terminal (`_meta.terminal_info`, see [`crate::conversation::acp_updates`]). Its updates
//! carry `_meta.terminal_output` and, at the end, `_meta.terminal_exit`.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::job::OutputWatcher;
use crate::client::TerminalExit;
use crate::conversation::content::fitting;
use crate::process::Exit;
use crate::text::visible;
use crate::tool::ClientIo;

/// Bytes of JSON in one update.
const PIECE: usize = 16 * 1024;

pub(super) async fn stream(
    client_io: &ClientIo,
    output: OutputWatcher,
    pace: Duration,
    cancel: &CancellationToken,
) {
    client_io.show_terminal(None, cancel).await;
    let mut pieces = OutputPieces::new(output, pace);
    while let Some(piece) = pieces.next().await {
        let what = match piece {
            OutputPiece::Text(text) => ("terminal_output", json!({ "data": text })),
            OutputPiece::End(exit) => {
                let TerminalExit { code, signal } = terminal_exit(exit);
                ("terminal_exit", json!({ "exit_code": code, "signal": signal }))
            }
        };
        client_io.show_terminal(Some(what), cancel).await;
    }
}

/// The output of a command as updates show it: in pieces that fit into a line, at most one a pace.
pub struct OutputPieces {
    output: OutputWatcher,
    pace: Duration,
    read_bytes: usize,
    text: String,
    shown_bytes: usize,
    end: OutputEnd,
}

enum OutputEnd {
    Running,
    Over(Option<Exit>),
    Told,
}

pub enum OutputPiece {
    Text(String),
    /// The last piece.
    End(Option<Exit>),
}

impl OutputPieces {
    pub fn new(output: OutputWatcher, pace: Duration) -> Self {
        Self { output, pace, read_bytes: 0, text: String::new(), shown_bytes: 0, end: OutputEnd::Running }
    }

    /// `None` after the end, or if the command is lost.
    pub async fn next(&mut self) -> Option<OutputPiece> {
        let mut is_first = self.read_bytes == 0;
        loop {
            let rest = &self.text[self.shown_bytes..];
            if !rest.is_empty() {
                let piece = rest[..fitting(rest, PIECE)].to_owned();
                self.shown_bytes += piece.len();
                return Some(OutputPiece::Text(piece));
            }
            match self.end {
                OutputEnd::Running => {}
                OutputEnd::Over(exit) => {
                    self.end = OutputEnd::Told;
                    return Some(OutputPiece::End(exit));
                }
                OutputEnd::Told => return None,
            }
            if !std::mem::take(&mut is_first) {
                self.output.changed(self.pace).await;
            }
            let news = self.output.since(self.read_bytes).await?;
            (self.text, self.shown_bytes, self.read_bytes) = (for_terminal(&news.text), 0, news.next);
            if news.is_over {
                self.end = OutputEnd::Over(news.exit);
            }
        }
    }
}

/// Escapes control characters that a terminal would obey, except line ends.
fn for_terminal(text: &str) -> String {
    text.split('\r').map(visible).collect::<Vec<_>>().join("\r")
}

/// A killed command without an exit reports SIGKILL.
pub fn terminal_exit(exit: Option<Exit>) -> TerminalExit {
    match exit {
        Some(Exit::Status(status)) => TerminalExit { code: Some(status), signal: None },
        Some(Exit::Signal(signal)) => TerminalExit { code: None, signal: Some(signal_name(signal)) },
        None => TerminalExit { code: None, signal: Some("SIGKILL".to_owned()) },
    }
}

fn signal_name(signal: i32) -> String {
    let signal_names = [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (6, "ABRT"),
        (9, "KILL"),
        (11, "SEGV"),
        (13, "PIPE"),
        (15, "TERM"),
    ];
    let name = signal_names.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name);
    name.map_or_else(|| signal.to_string(), |name| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_output_escapes_control_characters() {
        assert_eq!(for_terminal("a\r\nb\tc\rd\u{1b}]52;c;x\u{7}"), "a\r\nb\tc\rd\\u{1b}]52;c;x\\u{7}");
    }

    #[test]
    fn exit_is_a_status_or_a_signal() {
        let check = |exit, code, signal: Option<&str>| {
            assert_eq!(terminal_exit(exit), TerminalExit { code, signal: signal.map(str::to_owned) });
        };
        check(Some(Exit::Status(3)), Some(3), None);
        check(Some(Exit::Signal(9)), None, Some("SIGKILL"));
        check(Some(Exit::Signal(64)), None, Some("64"));
        check(None, None, Some("SIGKILL"));
    }
}
