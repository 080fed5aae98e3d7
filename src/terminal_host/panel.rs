//! The panel of `modegate run`: the mode, questions, changes, refused acts and messages of the session. Knows neither
//! the terminal nor a clock.
//!
//! Keys are read as answers only a moment after their question appeared, so that none is taken for one by accident.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::keys::{PanelKey, PressedKey};
use crate::terminal_run::control::{Order, TerminalQuestion, TerminalReport};
use crate::text;
use changes::ChangesView;
use refusals::RefusalsView;

mod changes;
pub(super) mod frame;
mod refusals;
#[cfg(test)]
mod tests;
mod views;

/// A key that comes sooner after a question appeared was not typed for it.
const READING_TIME: Duration = Duration::from_millis(500);

const TOO_EARLY: &str = "The question has just appeared: read it, and press the key again.";

/// Messages that are kept.
const MAX_MESSAGES: usize = 200;

pub(super) struct Panel {
    key: PanelKey,
    /// Shown at the start and in the panel. The program does not know it.
    phrase: Option<String>,
    session: PanelSession,
    questions: Vec<TerminalQuestion>,
    /// Index of the question that is shown.
    current: usize,
    changes: ChangesView,
    refusals: RefusalsView,
    messages: Vec<String>,
    /// The effect of the last key.
    hint: Option<String>,
    view: PanelView,
    /// Waits for `y`.
    undo: Option<UndoRequest>,
    /// Lines and columns that are scrolled away.
    scroll: (usize, usize),
    /// When the current question appeared on the screen.
    shown_at: Option<Instant>,
    /// Opened by a question, after whose answer the panel closes.
    is_for_question: bool,
    /// The last question that was answered here. Keys that follow are for the program.
    answered: Option<u64>,
}

#[derive(Default)]
struct PanelSession {
    id: String,
    program: String,
    folder: String,
    mode: String,
    is_confirmed: bool,
    modes: Vec<String>,
    mode_descriptions: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PanelView {
    Overview,
    /// A list of the open questions.
    Questions,
    Modes,
    Messages,
    Changes,
    Diff,
    Refusals,
}

/// The list of changes may be another one when the user confirms.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UndoRequest {
    Path(PathBuf),
    All,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PanelEffect {
    None,
    Send(Order),
    Close,
    /// The program gets the key.
    CloseAndPass,
}

impl Panel {
    pub(super) fn new(key: PanelKey, phrase: Option<String>) -> Self {
        Self {
            key,
            phrase,
            session: PanelSession { is_confirmed: true, ..PanelSession::default() },
            questions: Vec::new(),
            current: 0,
            changes: ChangesView::default(),
            refusals: RefusalsView::default(),
            messages: Vec::new(),
            hint: None,
            view: PanelView::Overview,
            undo: None,
            scroll: (0, 0),
            shown_at: None,
            is_for_question: false,
            answered: None,
        }
    }

    /// Called before the first frame.
    pub(super) fn open(&mut self, is_for_question: bool, now: Instant) -> PanelEffect {
        self.is_for_question = is_for_question;
        self.change_view(PanelView::Overview, now);
        PanelEffect::Send(Order::ListChanges)
    }

    pub(super) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// True while typed text is a search.
    pub(super) fn reads_text(&mut self) -> bool {
        self.view == PanelView::Diff && self.changes.typed().is_some()
    }

    /// Called for every report, whether the panel is open or not. Returns whether it should close.
    pub(super) fn report(&mut self, report: TerminalReport, now: Instant) -> PanelEffect {
        match report {
            TerminalReport::State {
                session: id,
                program,
                folder,
                mode,
                is_confirmed,
                modes,
                mode_descriptions,
                ..
            } => {
                self.changes.set_folder(&folder);
                self.session =
                    PanelSession { id, program, folder, mode, is_confirmed, modes, mode_descriptions };
            }
            TerminalReport::Mode(mode) => self.mode_changed(mode, true),
            TerminalReport::Unconfirmed(mode) => self.mode_changed(mode, false),
            TerminalReport::Refused(reason) => self.hint = Some(format!("Refused: {reason}.")),
            TerminalReport::Notice(text) => self.add_message(text),
            TerminalReport::Refusal(act) => self.refusals.add(act),
            TerminalReport::Changes(changes) => self.changes.set(changes),
            TerminalReport::Undone { count, remaining_folders } => {
                let mut hint = format!("{} restored.", text::counted(count, "path was", "paths were"));
                if !remaining_folders.is_empty() {
                    hint.push_str(&format!(" Not empty, so they stay: {}.", remaining_folders.join(", ")));
                }
                self.hint = Some(hint);
                if self.view == PanelView::Diff {
                    self.view = PanelView::Changes;
                    self.scroll = (0, 0);
                }
                return PanelEffect::Send(Order::ListChanges);
            }
            TerminalReport::HostAllowed(host) => {
                self.refusals.host_allowed(&host);
                self.hint = Some(format!("{host} is allowed now. The program has to try again."));
            }
            TerminalReport::Asked(question) => {
                self.questions.push(question);
                if self.questions.len() == 1 {
                    self.show_question(0, now);
                }
            }
            TerminalReport::Closed(number) => return self.closed(number, now),
            TerminalReport::Ended => return PanelEffect::Close,
            TerminalReport::Message(_)
            | TerminalReport::Stopped
            | TerminalReport::Continued
            | TerminalReport::ContinueDone => {}
        }
        PanelEffect::None
    }

    fn closed(&mut self, number: u64, now: Instant) -> PanelEffect {
        let Some(position) = self.questions.iter().position(|question| question.number == number) else {
            return PanelEffect::None;
        };
        self.questions.remove(position);
        if position == self.current {
            self.show_question(self.current.min(self.questions.len().saturating_sub(1)), now);
        } else if position < self.current {
            self.current -= 1;
        }
        if self.questions.is_empty() && self.view == PanelView::Questions {
            self.change_view(PanelView::Overview, now);
        }
        let is_over = self.is_for_question || self.answered == Some(number);
        if self.questions.is_empty() && is_over && self.view == PanelView::Overview {
            return PanelEffect::Close;
        }
        PanelEffect::None
    }

    fn mode_changed(&mut self, mode: String, is_confirmed: bool) {
        self.hint = Some(if is_confirmed {
            format!("The mode is {mode}.")
        } else {
            format!(
                "The mode is {mode}, but a process of the program may still write: end it, or set the mode again."
            )
        });
        self.session.mode = mode;
        self.session.is_confirmed = is_confirmed;
    }

    fn add_message(&mut self, text: String) {
        if self.messages.len() == MAX_MESSAGES {
            self.messages.remove(0);
        }
        self.messages.push(text);
    }

    fn show_question(&mut self, index: usize, now: Instant) {
        self.current = index;
        self.shown_at = self.has_questions().then_some(now);
        self.scroll = (0, 0);
    }

    pub(super) fn key(&mut self, key: PressedKey, now: Instant) -> PanelEffect {
        let scrolls = matches!(
            key,
            PressedKey::Up
                | PressedKey::Down
                | PressedKey::Left
                | PressedKey::Right
                | PressedKey::PageUp
                | PressedKey::PageDown
        );
        if self.is_for_question && !scrolls && !self.was_readable(now) {
            self.hint = Some(TOO_EARLY.into());
            return PanelEffect::None;
        }
        if matches!(key, PressedKey::Control(_)) && key == self.key.as_key() {
            return PanelEffect::CloseAndPass;
        }
        if let Some(request) = self.undo.take() {
            return confirmed(key, request);
        }
        if self.reads_text() {
            self.search_key(key);
            return PanelEffect::None;
        }
        self.view_key(key, now)
    }

    fn view_key(&mut self, key: PressedKey, now: Instant) -> PanelEffect {
        match (self.view, key) {
            (PanelView::Overview, PressedKey::Escape | PressedKey::Char('q')) => return PanelEffect::Close,
            (PanelView::Diff, PressedKey::Escape | PressedKey::Char('q')) => {
                self.changes.end_search();
                self.change_view(PanelView::Changes, now);
            }
            (_, PressedKey::Escape | PressedKey::Char('q')) => self.change_view(PanelView::Overview, now),
            (PanelView::Changes, PressedKey::Up) => self.changes.select_before(),
            (PanelView::Changes, PressedKey::Down) => self.changes.select_after(),
            (PanelView::Changes, PressedKey::Enter | PressedKey::Right)
                if self.changes.selected().is_some() =>
            {
                self.change_view(PanelView::Diff, now);
            }
            (PanelView::Changes | PanelView::Diff, PressedKey::Char('u')) => {
                self.undo = self.changes.selected().map(|change| UndoRequest::Path(change.path.clone()));
            }
            (PanelView::Changes | PanelView::Diff, PressedKey::Char('U'))
                if self.changes.selected().is_some() =>
            {
                self.undo = Some(UndoRequest::All);
            }
            (PanelView::Changes, PressedKey::Char('r')) => return PanelEffect::Send(Order::ListChanges),
            (PanelView::Diff, PressedKey::Char('/')) => self.changes.begin_search(),
            (PanelView::Diff, PressedKey::Char('n')) => self.go_to_match(self.scroll.0, false),
            (PanelView::Diff, PressedKey::Char('N')) => self.go_to_match(self.scroll.0, true),
            (PanelView::Refusals, PressedKey::Up) => self.refusals.select_newer(),
            (PanelView::Refusals, PressedKey::Down) => self.refusals.select_older(),
            (PanelView::Refusals, PressedKey::Char('a')) => {
                let order = self.refusals.host().map(|host| Order::AllowHost(host.to_owned()));
                return order.map_or(PanelEffect::None, PanelEffect::Send);
            }
            (PanelView::Questions, PressedKey::Up) => self.current = self.current.saturating_sub(1),
            (PanelView::Questions, PressedKey::Down) => {
                self.current = (self.current + 1).min(self.questions.len().saturating_sub(1));
            }
            (PanelView::Questions, PressedKey::Enter | PressedKey::Tab) => {
                self.change_view(PanelView::Overview, now);
            }
            (_, PressedKey::Tab) if self.questions.len() > 1 => self.change_view(PanelView::Questions, now),
            (_, PressedKey::Char('m')) => self.change_view(PanelView::Modes, now),
            (_, PressedKey::Char('l')) => self.change_view(PanelView::Messages, now),
            (_, PressedKey::Char('d')) => self.change_view(PanelView::Refusals, now),
            (_, PressedKey::Char('c')) => {
                self.change_view(PanelView::Changes, now);
                return PanelEffect::Send(Order::ListChanges);
            }
            (_, PressedKey::Char(digit @ '1'..='9')) => {
                return self.choose(usize::from(digit as u8 - b'1'), now);
            }
            (_, key) => {
                let scroll = self.scroll;
                self.scroll_by(key);
                if self.scroll == scroll && matches!(key, PressedKey::Char(_) | PressedKey::Enter) {
                    self.hint = Some(self.key_hint());
                }
            }
        }
        PanelEffect::None
    }

    /// The line for a key without effect.
    fn key_hint(&self) -> String {
        let options = self.questions.get(self.current).map_or(0, |question| question.options.len());
        if self.view == PanelView::Overview && options > 0 {
            format!("This key is no answer: press a number from 1 to {options}.")
        } else {
            "This key has no effect here. The keys that have one are below.".to_owned()
        }
    }

    fn scroll_by(&mut self, key: PressedKey) {
        let (lines, columns) = self.scroll;
        self.scroll = match key {
            PressedKey::Up => (lines.saturating_sub(1), columns),
            PressedKey::Down => (lines.saturating_add(1), columns),
            PressedKey::PageUp => (lines.saturating_sub(10), columns),
            PressedKey::PageDown | PressedKey::Char(' ') => (lines.saturating_add(10), columns),
            PressedKey::Left => (lines, columns.saturating_sub(8)),
            PressedKey::Right => (lines, columns + 8),
            PressedKey::Home => (0, 0),
            // The frame knows the last line.
            PressedKey::End => (usize::MAX, columns),
            _ => self.scroll,
        };
    }

    fn search_key(&mut self, key: PressedKey) {
        match (self.changes.typed(), key) {
            (Some(text), PressedKey::Char(typed)) => text.push(typed),
            (Some(text), PressedKey::Backspace) => drop(text.pop()),
            (Some(_), PressedKey::Enter) => {
                self.changes.end_typing();
                self.go_to_match(0, false);
            }
            (Some(_), PressedKey::Escape) => self.changes.end_search(),
            _ => {}
        }
    }

    fn go_to_match(&mut self, from: usize, is_backwards: bool) {
        match self.changes.find(from, is_backwards) {
            Some(line) => {
                self.hint = None;
                self.scroll.0 = line;
            }
            None => self.hint = Some("There is no match.".into()),
        }
    }

    /// False if the question has just appeared.
    fn was_readable(&self, now: Instant) -> bool {
        self.shown_at.is_none_or(|shown_at| now.saturating_duration_since(shown_at) >= READING_TIME)
    }

    fn change_view(&mut self, view: PanelView, now: Instant) {
        self.view = view;
        self.scroll = (0, 0);
        self.hint = None;
        self.undo = None;
        match view {
            PanelView::Overview => self.show_question(self.current, now),
            PanelView::Refusals => self.refusals.select_newest(),
            _ => {}
        }
    }

    fn choose(&mut self, index: usize, now: Instant) -> PanelEffect {
        match self.view {
            PanelView::Modes => {
                let Some(mode) = self.session.modes.get(index).cloned() else { return PanelEffect::None };
                self.change_view(PanelView::Overview, now);
                PanelEffect::Send(Order::SetMode(mode))
            }
            PanelView::Overview => self.answer(index, now),
            PanelView::Questions if index < self.questions.len() => {
                self.current = index;
                self.change_view(PanelView::Overview, now);
                PanelEffect::None
            }
            PanelView::Questions
            | PanelView::Messages
            | PanelView::Changes
            | PanelView::Diff
            | PanelView::Refusals => PanelEffect::None,
        }
    }

    fn answer(&mut self, index: usize, now: Instant) -> PanelEffect {
        let Some(question) = self.questions.get(self.current) else { return PanelEffect::None };
        let Some(choice) = question.options.get(index) else {
            self.hint = Some(self.key_hint());
            return PanelEffect::None;
        };
        if !self.was_readable(now) {
            self.hint = Some(TOO_EARLY.into());
            return PanelEffect::None;
        }
        self.answered = Some(question.number);
        PanelEffect::Send(Order::Answer { number: question.number, option: choice.id.clone() })
    }
}

fn confirmed(key: PressedKey, request: UndoRequest) -> PanelEffect {
    if key != PressedKey::Char('y') {
        return PanelEffect::None;
    }
    let path = match request {
        UndoRequest::All => None,
        UndoRequest::Path(path) => Some(path),
    };
    PanelEffect::Send(Order::Undo { path })
}
