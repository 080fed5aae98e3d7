//! Streams command output to Zed's display-only terminal. Modegate itself runs the command.
//!
//! The tool call announces the terminal (`_meta.terminal_info`, see [`crate::conversation::acp_updates`]). Its updates
//! carry `_meta.terminal_output` and, at the end, `_meta.terminal_exit`.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::conversation::content::fitting;
use crate::process::Exit;
use crate::text::visible;
use crate::tool::{ClientIo, Job};

/// Bytes of JSON in one update.
const PIECE: usize = 16 * 1024;

pub(super) async fn stream(
    client_io: &ClientIo,
    job: &mut Job,
    pace: std::time::Duration,
    cancel: &CancellationToken,
) {
    let mut shown_bytes = 0;
    client_io.show_terminal(None, cancel).await;
    loop {
        let Some(news) = job.since(shown_bytes).await else { return };
        let text = for_terminal(&news.text);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(fitting(rest, PIECE));
            client_io.show_terminal(Some(("terminal_output", json!({ "data": piece }))), cancel).await;
            rest = after;
        }
        shown_bytes = news.next;
        if news.is_over {
            return client_io.show_terminal(Some(("terminal_exit", exit(news.exit))), cancel).await;
        }
        job.changed().await;
        tokio::select! {
            () = job.ending() => {}
            () = tokio::time::sleep(pace) => {}
        }
    }
}

/// Escapes control characters that a terminal would obey, except line ends.
fn for_terminal(text: &str) -> String {
    text.split('\r').map(visible).collect::<Vec<_>>().join("\r")
}

/// A killed command without an exit reports SIGKILL.
fn exit(exit: Option<Exit>) -> Value {
    match exit {
        Some(Exit::Status(status)) => json!({ "exit_code": status, "signal": null }),
        Some(Exit::Signal(signal)) => json!({ "exit_code": null, "signal": signal_name(signal) }),
        None => json!({ "exit_code": null, "signal": "SIGKILL" }),
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
        assert_eq!(exit(Some(Exit::Status(3))), json!({ "exit_code": 3, "signal": null }));
        assert_eq!(exit(Some(Exit::Signal(9))), json!({ "exit_code": null, "signal": "SIGKILL" }));
        assert_eq!(exit(Some(Exit::Signal(64))), json!({ "exit_code": null, "signal": "64" }));
    }
}
