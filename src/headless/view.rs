//! Output of a headless run.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::acp::{
    ContentBlock, RequestPermissionRequest, SessionUpdate, StopReason, ToolCallContent, ToolCallStatus,
    ToolKind, Update,
};
use crate::session::encoder::{CLAIM_META, DENIED_META, NOTICE_META};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Text,
    Json,
    /// A JSON object per update, then the object of [`Self::Json`].
    StreamJson,
}

/// Removes control characters, which a terminal would obey: output quotes files and prompts.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

fn first_line(content: Option<&[ToolCallContent]>) -> String {
    let text = content.into_iter().flatten().find_map(|content| match content {
        ToolCallContent::Content(content) => match &content.content {
            ContentBlock::Text(text) => {
                Some(crate::text::first_line(&text.text)).filter(|line| !line.is_empty())
            }
            _ => None,
        },
        _ => None,
    });
    printable(text.unwrap_or_default())
}

pub(super) struct View<'a, O, P> {
    pub(super) output: &'a mut O,
    pub(super) progress: &'a mut P,
    pub(super) format: Format,
    pub(super) session: String,
    pub(super) mode: String,
    pub(super) denied: Vec<String>,
    /// Messages of Modegate itself.
    pub(super) notices: Vec<String>,
    pub(super) text: String,
    /// True if the model has written text since its last call.
    pub(super) answered: bool,
    pub(super) last_call: String,
    /// `None` if an external agent answers.
    pub(super) model: Option<String>,
    pub(super) warning: Option<String>,
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
                    self.notices.push(text.text.trim().to_owned());
                    return writeln!(self.progress, "modegate: {}", text.text.trim());
                }
                self.answered |= !text.text.trim().is_empty();
                self.text.push_str(&text.text);
                if self.format == Format::Text {
                    self.output.write_all(printable(&text.text).as_bytes())?;
                    self.output.flush()?;
                }
                Ok(())
            }
            SessionUpdate::ToolCall(call) => {
                // Text before a call is not the answer.
                self.answered = false;
                self.last_call.clone_from(&call.title);
                // A call without its arguments has no final title.
                if call.raw_input.is_none() {
                    return Ok(());
                }
                writeln!(self.progress, "· {}", call.title)
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.title.is_some() => {
                self.last_call = update.fields.title.clone().unwrap_or_default();
                writeln!(self.progress, "· {}", self.last_call)
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.status == Some(ToolCallStatus::Failed) => {
                let rule = update.meta.as_ref().and_then(|meta| meta.get(DENIED_META));
                let Some(rule) = rule else {
                    return writeln!(
                        self.progress,
                        "  failed: {}",
                        first_line(update.fields.content.as_deref())
                    );
                };
                self.denied.push(self.last_call.clone());
                // The first sentence names the mode, limit or rule.
                let message = first_line(update.fields.content.as_deref());
                let first = message.split_once(". ").map_or(message.as_str(), |(first, _)| first);
                let rule = rule.as_str().unwrap_or_default();
                writeln!(self.progress, "  denied: {} ({rule})", first.trim_end_matches('.'))
            }
            // Other updates are for editors.
            _ => Ok(()),
        }
    }

    pub(super) fn deny(&mut self, request: &RequestPermissionRequest) -> io::Result<()> {
        if request.tool_call.fields.kind == Some(ToolKind::SwitchMode) {
            return self.show_plan(request);
        }
        let what = request.tool_call.fields.title.clone().unwrap_or_default();
        writeln!(self.progress, "denied: {what}: needs permission, and a headless run has no user to ask")?;
        let is_read = matches!(request.tool_call.fields.kind, Some(ToolKind::Read | ToolKind::Search));
        let meta = request.tool_call.meta.as_ref();
        let hint = if meta.is_some_and(|meta| meta.contains_key(CLAIM_META)) {
            "only its MCP server claims that it is read-only; to trust the claim, set trust_hints: true for the server in your modes.yaml"
        } else if is_read {
            "run it in that directory: --cwd DIR"
        } else {
            "use --mode code to allow changes without asking"
        };
        writeln!(self.progress, "        {hint}")?;
        if self.format == Format::StreamJson {
            self.line(&json!({ "type": "denied", "title": what }))?;
        }
        self.denied.push(what);
        Ok(())
    }

    /// Prints a plan as the answer. No user can accept it, so the mode stays.
    fn show_plan(&mut self, request: &RequestPermissionRequest) -> io::Result<()> {
        writeln!(self.progress, "  the mode stays: a headless run has no user to accept the plan")?;
        let content = request.tool_call.fields.content.iter().flatten();
        for block in content {
            let ToolCallContent::Content(content) = block else { continue };
            let ContentBlock::Text(text) = &content.content else { continue };
            let gap = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { "\n" };
            let plan = format!("{gap}{}\n", text.text.trim_end());
            self.text.push_str(&plan);
            if self.format == Format::Text {
                self.output.write_all(plan.as_bytes())?;
            }
        }
        Ok(())
    }

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
                "model": self.model,
                "warning": self.warning,
                "stopReason": stop,
                "error": error,
                "denied": self.denied,
                "notices": self.notices,
                "text": self.text,
            })),
        }
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.output, "{value}")?;
        self.output.flush()
    }
}
