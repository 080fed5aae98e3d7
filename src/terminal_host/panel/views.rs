//! The lines of the panel's views.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::{Panel, PanelView, frame};
use crate::terminal_run::short;
use crate::text;

const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

impl Panel {
    /// The bytes that draw the panel on the whole screen.
    pub(crate) fn frame(&mut self, columns: u16, rows: u16) -> Vec<u8> {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        let width = usize::from(columns);
        let (body, choices) = match self.view {
            PanelView::Overview if self.has_questions() => (self.question(width), self.choices(width)),
            PanelView::Overview => (self.overview(width), Vec::new()),
            PanelView::Modes => (self.modes(width), Vec::new()),
            PanelView::Messages => (self.all_messages(width), Vec::new()),
        };
        let below = self.footer(width);
        let last = usize::from(rows);
        let choices_at = last.saturating_sub(below.len() + choices.len());
        let height = choices_at.saturating_sub(1);
        self.scroll.0 = self.scroll.0.min(body.len().saturating_sub(height));
        let shown = body.into_iter().skip(self.scroll.0).take(height);
        for (row, line) in shown.enumerate() {
            set(&mut buffer, row + 1, &line);
        }
        for (row, line) in choices.into_iter().chain(below).enumerate() {
            set(&mut buffer, choices_at + row, &line);
        }
        self.draw_header(&mut buffer);
        frame::bytes(&buffer)
    }

    fn draw_header(&self, buffer: &mut Buffer) {
        let area = *buffer.area();
        let row = Rect { height: area.height.min(1), ..area };
        let session = short(&self.session.id);
        let state = if self.session.is_confirmed { "mode" } else { "mode (not confirmed)" };
        let left =
            format!(" modegate · {} {state} · {} · {session} ", self.session.mode, self.session.program);
        set(buffer, 0, &Line::raw(left));
        if let Some(phrase) = &self.phrase {
            let phrase = Line::raw(format!(" {phrase} "));
            let start = usize::from(area.width).saturating_sub(phrase.width());
            let column = u16::try_from(start).unwrap_or_default();
            buffer.set_line(column, 0, &phrase, area.width.saturating_sub(column));
        }
        buffer.set_style(row, BAR);
    }

    fn question(&self, width: usize) -> Vec<Line<'static>> {
        let Some(question) = self.questions.first() else { return Vec::new() };
        let mut lines = Vec::new();
        if self.questions.len() > 1 {
            lines.push(Line::styled(format!("One of {} questions", self.questions.len()), DIM));
        }
        lines.extend(wrapped(&format!("{}?", question.title), width, BOLD));
        for line in question.text.lines() {
            let style = match line.as_bytes().first() {
                Some(b'+') => Style::new().fg(Color::Green),
                Some(b'-') => Style::new().fg(Color::Red),
                _ => Style::new(),
            };
            if style == Style::new() && self.scroll.1 == 0 {
                lines.extend(wrapped(line, width, style));
            } else {
                lines.push(Line::styled(line.chars().skip(self.scroll.1).collect::<String>(), style));
            }
        }
        lines
    }

    fn choices(&self, width: usize) -> Vec<Line<'static>> {
        let options = self.questions.first().map(|question| question.options.iter()).into_iter().flatten();
        let options = options.enumerate().map(|(index, choice)| {
            let name = choice.name.chars().take(width.saturating_sub(4)).collect::<String>();
            Line::from(vec![Span::styled(format!(" {} ", index + 1), BOLD), Span::raw(name)])
        });
        std::iter::once(Line::default()).chain(options).collect()
    }

    fn overview(&self, width: usize) -> Vec<Line<'static>> {
        let session = &self.session;
        let mut lines = vec![Line::default()];
        let program = format!("{} runs in {} mode. No question is open.", session.program, session.mode);
        lines.extend(wrapped(&program, width, Style::new()));
        let elsewhere = format!("In another terminal: modegate mode {}", short(&session.id));
        lines.extend(wrapped(&elsewhere, width, DIM));
        let count = text::counted(self.messages.len(), "message", "messages");
        lines.push(Line::default());
        lines.push(Line::styled(format!("{count}:"), BOLD));
        for message in self.messages.iter().rev() {
            lines.extend(wrapped(message, width, Style::new()));
        }
        lines
    }

    fn modes(&self, width: usize) -> Vec<Line<'static>> {
        let modes = self.session.modes.iter().enumerate().map(|(index, mode)| {
            let mark = if *mode == self.session.mode { " (now)" } else { "" };
            Line::raw(format!(" {} {mode}{mark}", index + 1))
        });
        let title = wrapped("The new mode of the program:", width, BOLD);
        std::iter::once(Line::default()).chain(title).chain(modes).collect()
    }

    fn all_messages(&self, width: usize) -> Vec<Line<'static>> {
        let messages = self.messages.iter().flat_map(|message| message.lines());
        let mut lines: Vec<_> = messages.flat_map(|line| wrapped(line, width, Style::new())).collect();
        if lines.is_empty() {
            lines.push(Line::raw("There are no messages."));
        }
        lines
    }

    fn footer(&self, width: usize) -> Vec<Line<'static>> {
        let keys = match self.view {
            PanelView::Overview if self.has_questions() => {
                "number: answer  Tab: next  m: mode  l: messages  q: close"
            }
            PanelView::Overview => "m: mode  l: messages  arrows: scroll  q: close",
            PanelView::Modes => "number: set the mode  q: back",
            PanelView::Messages => "arrows: scroll  q: back",
        };
        let keys = format!("{keys}  {}: pass the key", self.key);
        let hint = self.hint.iter().flat_map(|hint| wrapped(hint, width, Style::new().fg(Color::Yellow)));
        hint.chain(wrapped(&keys, width, DIM)).collect()
    }
}

fn set(buffer: &mut Buffer, row: usize, line: &Line<'_>) {
    let area = *buffer.area();
    if let Ok(row) = u16::try_from(row)
        && row < area.height
    {
        buffer.set_line(0, row, line, area.width);
    }
}

/// Breaks a line between words.
fn wrapped(text: &str, width: usize, style: Style) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text::visible_line(text).split(' ') {
        let needed = Span::raw(&*line).width() + 1 + Span::raw(word).width();
        if !line.is_empty() && needed > width {
            lines.push(Line::styled(std::mem::take(&mut line), style));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(Line::styled(line, style));
    lines
}
