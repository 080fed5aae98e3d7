//! The lines of the panel's views.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::{Panel, PanelView, UndoRequest, changes, frame};
use crate::terminal_run::short;
use crate::text;

const INDENT: &str = "   ";

pub(super) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);

impl Panel {
    /// The bytes that draw the panel on the whole screen.
    pub(crate) fn frame(&mut self, columns: u16, rows: u16) -> Vec<u8> {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        let width = usize::from(columns);
        let (body, selected) = self.body(width);
        let choices = match self.view {
            PanelView::Overview if self.has_questions() => self.choices(width),
            _ => Vec::new(),
        };
        let below = self.footer(width);
        let last = usize::from(rows);
        let choices_at = last.saturating_sub(below.len() + choices.len());
        let height = choices_at.saturating_sub(1).max(1);
        if let Some(selected) = selected {
            self.scroll.0 = self.scroll.0.clamp((selected + 1).saturating_sub(height), selected);
        }
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

    /// The lines, and the index of one that must be visible.
    fn body(&self, width: usize) -> (Vec<Line<'static>>, Option<usize>) {
        let lines = match self.view {
            PanelView::Overview if self.has_questions() => self.question(width),
            PanelView::Overview => self.overview(width),
            PanelView::Modes => self.modes(width),
            PanelView::Messages => self.all_messages(width),
            PanelView::Diff => self.changes.diff(self.scroll.1),
            PanelView::Questions => {
                let (lines, selected) = self.question_list(width);
                return (lines, Some(selected));
            }
            PanelView::Changes => {
                let (lines, selected) = self.changes.list(width);
                return (lines, Some(selected));
            }
            PanelView::Refusals => {
                let (lines, selected) = self.refusals.list(width);
                return (lines, Some(selected));
            }
        };
        (lines, None)
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
        let Some(question) = self.questions.get(self.current) else { return Vec::new() };
        let mut lines = Vec::new();
        let count = self.questions.len();
        if count > 1 {
            let which = format!("Question {} of {count}. Tab: list", self.current + 1);
            lines.push(Line::styled(which, DIM));
        }
        lines.extend(wrapped(&format!("{}?", question.title), width, BOLD));
        for line in question.text.lines() {
            let style = changes::style(line);
            if style == Style::new() && self.scroll.1 == 0 {
                lines.extend(wrapped(line, width, style));
            } else {
                let shown = line.replace('\t', "    ").chars().skip(self.scroll.1).collect::<String>();
                lines.push(Line::styled(shown, style));
            }
        }
        lines
    }

    fn choices(&self, width: usize) -> Vec<Line<'static>> {
        let question = self.questions.get(self.current);
        let options = question.map(|question| question.options.iter()).into_iter().flatten();
        let options = options.enumerate().map(|(index, choice)| {
            let name = choice.name.chars().take(width.saturating_sub(4)).collect::<String>();
            Line::from(vec![Span::styled(format!(" {} ", index + 1), BOLD), Span::raw(name)])
        });
        std::iter::once(Line::default()).chain(options).collect()
    }

    fn question_list(&self, width: usize) -> (Vec<Line<'static>>, usize) {
        let mut lines = wrapped("Open questions. The program waits for each of them:", width, BOLD);
        let first = lines.len();
        for (number, question) in self.questions.iter().enumerate() {
            let line = Line::raw(format!(" {} {}?", number + 1, question.title));
            lines.push(if number == self.current { line.style(BAR) } else { line });
        }
        (lines, first + self.current)
    }

    fn overview(&self, width: usize) -> Vec<Line<'static>> {
        let session = &self.session;
        let mut lines = vec![Line::default()];
        let program = format!("{} runs in {} mode in {}.", session.program, session.mode, session.folder);
        lines.extend(wrapped(&program, width, Style::new()));
        lines.push(Line::default());
        let changed = match self.changes.count() {
            None => "changed paths".to_owned(),
            Some(count) => text::counted(count, "changed path", "changed paths"),
        };
        for (key, item) in [
            ('m', "change the mode".to_owned()),
            ('c', format!("{changed}: diffs, undo")),
            ('d', text::counted(self.refusals.count(), "refused act", "refused acts")),
            ('l', text::counted(self.messages.len(), "message", "messages")),
        ] {
            lines.push(Line::from(vec![Span::styled(format!(" {key} "), BOLD), Span::raw(item)]));
        }
        lines.push(Line::default());
        let elsewhere = format!("In another terminal: modegate mode {}", short(&session.id));
        lines.extend(wrapped(&elsewhere, width, DIM));
        if let Some(message) = self.messages.last() {
            lines.push(Line::default());
            lines.push(Line::styled("The last message:", BOLD));
            lines.extend(message.lines().flat_map(|line| wrapped(line, width, Style::new())));
        }
        lines
    }

    fn modes(&self, width: usize) -> Vec<Line<'static>> {
        let mut lines = wrapped("The new mode of the program:", width, BOLD);
        for (index, mode) in self.session.modes.iter().enumerate() {
            let mark = if *mode == self.session.mode { " (now)" } else { "" };
            let key = Span::styled(format!(" {} ", index + 1), BOLD);
            lines.push(Line::from(vec![key, Span::raw(format!("{mode}{mark}"))]));
            let description =
                self.session.mode_descriptions.get(index).map(String::as_str).unwrap_or_default();
            lines.extend(note(description, width));
        }
        lines
    }

    fn all_messages(&self, width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for message in self.messages.iter().rev() {
            lines.extend(message.lines().flat_map(|line| wrapped(line, width, Style::new())));
            lines.push(Line::default());
        }
        if lines.is_empty() {
            lines.push(Line::raw("There are no messages."));
        }
        lines
    }

    fn footer(&self, width: usize) -> Vec<Line<'static>> {
        if let Some(request) = &self.undo {
            let which = match request {
                UndoRequest::Path(path) => self.changes.name(path),
                UndoRequest::All => "all changed paths".to_owned(),
            };
            let text = format!("Undo the changes of {which}? y: undo, any other key: keep");
            return wrapped(&text, width, Style::new().fg(Color::Yellow));
        }
        let keys = match self.view {
            PanelView::Overview if self.has_questions() => {
                "number: answer  m: mode  c: changes  d: refused  q: later"
            }
            PanelView::Overview => "q: close",
            PanelView::Modes => "number: set the mode  q: back",
            PanelView::Messages => "arrows: scroll  q: back",
            PanelView::Questions => "number or Enter: show  q: back",
            PanelView::Changes => "Enter: diff  u: undo this  U: undo all  r: read again  q: back",
            PanelView::Diff => "arrows: scroll  /: search  u: undo this  q: back",
            PanelView::Refusals => "arrows: select  q: back",
        };
        let mut keys = keys.to_owned();
        if self.view == PanelView::Overview {
            keys.push_str(&format!("  {}: pass the key", self.key));
        }
        if let Some(search) = self.changes.search_line().filter(|_| self.view == PanelView::Diff) {
            keys = search;
        }
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

/// Text below a line of a list.
pub(super) fn note(text: &str, width: usize) -> impl Iterator<Item = Line<'static>> {
    wrapped(text, width.saturating_sub(INDENT.len()), DIM).into_iter().map(indented)
}

fn indented(line: Line<'static>) -> Line<'static> {
    let style = line.style;
    let indent = std::iter::once(Span::raw(INDENT));
    indent.chain(line.spans).collect::<Line<'static>>().style(style)
}

/// Breaks a line between words.
pub(super) fn wrapped(text: &str, width: usize, style: Style) -> Vec<Line<'static>> {
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
