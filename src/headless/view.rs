//! What a headless run shows: the answer as text, as one JSON object, or as a stream of JSON lines.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::acp::{ContentBlock, RequestPermissionRequest, SessionUpdate, StopReason, ToolCallStatus, Update};
use crate::session::encoder::NOTICE_META;

/// How the answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// The answer's text.
    #[default]
    Text,
    /// One JSON object at the end.
    Json,
    /// One JSON object per update, and the same object at the end.
    StreamJson,
}

/// What is shown of a turn, and what is remembered for the end.
pub(super) struct View<'a, O, P> {
    pub(super) output: &'a mut O,
    pub(super) progress: &'a mut P,
    pub(super) format: Format,
    pub(super) session: String,
    pub(super) mode: String,
    /// Titles of calls that would have needed consent.
    pub(super) denied: Vec<String>,
    /// The model's text.
    pub(super) text: String,
}

impl<O: Write, P: Write> View<'_, O, P> {
    pub(super) fn update(&mut self, update: &Update) -> io::Result<()> {
        if self.format == Format::StreamJson {
            self.line(&json!({ "type": "update", "update": update }))?;
        }
        let Update::Schema(update) = update else { return Ok(()) };
        match &**update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let ContentBlock::Text(text) = &chunk.content else { return Ok(()) };
                if chunk.meta.as_ref().is_some_and(|meta| meta.contains_key(NOTICE_META)) {
                    return writeln!(self.progress, "modegate: {}", text.text.trim());
                }
                self.text.push_str(&text.text);
                if self.format == Format::Text {
                    self.output.write_all(text.text.as_bytes())?;
                    self.output.flush()?;
                }
                Ok(())
            }
            SessionUpdate::ToolCall(call) => writeln!(self.progress, "· {}", call.title),
            SessionUpdate::ToolCallUpdate(update) if update.fields.status == Some(ToolCallStatus::Failed) => {
                writeln!(self.progress, "  failed")
            }
            // Thoughts, plans, usage and whatever the protocol may add are for editors.
            _ => Ok(()),
        }
    }

    /// Says that nobody was there to be asked.
    pub(super) fn deny(&mut self, request: &RequestPermissionRequest) -> io::Result<()> {
        let what = request.tool_call.fields.title.clone().unwrap_or_default();
        writeln!(self.progress, "denied: {what}: {} mode asks first, and nobody is here to ask", self.mode)?;
        writeln!(self.progress, "        use --mode code to allow changes without asking")?;
        if self.format == Format::StreamJson {
            self.line(&json!({ "type": "denied", "title": what }))?;
        }
        self.denied.push(what);
        Ok(())
    }

    /// Ends the output: the answer's last line, or the object that sums it up.
    pub(super) fn finish(&mut self, stop: Option<StopReason>, error: Option<&str>) -> io::Result<()> {
        match self.format {
            Format::Text if self.text.is_empty() || self.text.ends_with('\n') => Ok(()),
            Format::Text => {
                self.output.write_all(b"\n")?;
                self.output.flush()
            }
            Format::Json | Format::StreamJson => self.line(&json!({
                "type": "result",
                "sessionId": self.session,
                "mode": self.mode,
                "stopReason": stop,
                "error": error,
                "denied": self.denied,
                "text": self.text,
            })),
        }
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.output, "{value}")?;
        self.output.flush()
    }
}
