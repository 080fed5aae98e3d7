//! The panel of `modegate run`: the mode, questions and messages of the session. Knows neither the terminal nor a clock.
//!
//! Keys are read as answers only a moment after their question appeared, so that none is taken for one by accident.

use std::time::{Duration, Instant};

use super::keys::{PanelKey, PressedKey};
use crate::terminal_run::control::{Order, TerminalQuestion, TerminalReport};

pub(super) mod frame;
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
    messages: Vec<String>,
    /// The effect of the last key.
    hint: Option<String>,
    view: PanelView,
    /// Lines and columns that are scrolled away.
    scroll: (usize, usize),
    /// When the first question appeared on the screen.
    shown_at: Option<Instant>,
    /// Opened by a question, after whose answer the panel closes.
    is_for_question: bool,
}

#[derive(Default)]
struct PanelSession {
    id: String,
    program: String,
    mode: String,
    is_confirmed: bool,
    modes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PanelView {
    Overview,
    Modes,
    Messages,
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
            messages: Vec::new(),
            hint: None,
            view: PanelView::Overview,
            scroll: (0, 0),
            shown_at: None,
            is_for_question: false,
        }
    }

    /// Called before the first frame.
    pub(super) fn open(&mut self, is_for_question: bool, now: Instant) {
        self.is_for_question = is_for_question;
        self.view = PanelView::Overview;
        self.hint = None;
        self.show_question(now);
    }

    pub(super) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Called for every report, whether the panel is open or not. Returns whether it should close.
    pub(super) fn report(&mut self, report: TerminalReport, now: Instant) -> PanelEffect {
        match report {
            TerminalReport::State { session, program, mode, is_confirmed, modes, .. } => {
                self.session = PanelSession { id: session, program, mode, is_confirmed, modes };
            }
            TerminalReport::Mode(mode) => self.mode_changed(mode, true),
            TerminalReport::Unconfirmed(mode) => self.mode_changed(mode, false),
            TerminalReport::Refused(reason) => self.hint = Some(format!("Refused: {reason}.")),
            TerminalReport::Notice(text) => self.add_message(text),
            TerminalReport::Asked(question) => {
                self.questions.push(question);
                if self.questions.len() == 1 {
                    self.show_question(now);
                }
            }
            TerminalReport::Closed(number) => {
                let is_first = self.questions.first().is_some_and(|question| question.number == number);
                self.questions.retain(|question| question.number != number);
                if is_first {
                    self.show_question(now);
                }
                if self.questions.is_empty() && self.is_for_question {
                    return PanelEffect::Close;
                }
            }
            TerminalReport::Ended => return PanelEffect::Close,
            TerminalReport::Message(_) | TerminalReport::Stopped | TerminalReport::Continued => {}
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

    fn show_question(&mut self, now: Instant) {
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
        match key {
            PressedKey::Control(_) if key == self.key.as_key() => return PanelEffect::CloseAndPass,
            PressedKey::Up => self.scroll.0 = self.scroll.0.saturating_sub(1),
            PressedKey::Down => self.scroll.0 += 1,
            PressedKey::PageUp => self.scroll.0 = self.scroll.0.saturating_sub(10),
            PressedKey::PageDown => self.scroll.0 += 10,
            PressedKey::Left => self.scroll.1 = self.scroll.1.saturating_sub(8),
            PressedKey::Right => self.scroll.1 += 8,
            PressedKey::Home => self.scroll = (0, 0),
            PressedKey::Escape | PressedKey::Char('q') if self.view == PanelView::Overview => {
                return PanelEffect::Close;
            }
            PressedKey::Escape | PressedKey::Char('q') => self.change_view(PanelView::Overview),
            PressedKey::Char('m') => self.change_view(PanelView::Modes),
            PressedKey::Char('l') => self.change_view(PanelView::Messages),
            PressedKey::Tab if self.questions.len() > 1 => {
                self.questions.rotate_left(1);
                self.show_question(now);
            }
            PressedKey::Char(digit @ '1'..='9') => return self.choose(usize::from(digit as u8 - b'1'), now),
            _ => {}
        }
        PanelEffect::None
    }

    /// False if the question has just appeared.
    fn was_readable(&self, now: Instant) -> bool {
        self.shown_at.is_none_or(|shown_at| now.saturating_duration_since(shown_at) >= READING_TIME)
    }

    fn change_view(&mut self, view: PanelView) {
        self.view = view;
        self.scroll = (0, 0);
        self.hint = None;
    }

    fn choose(&mut self, index: usize, now: Instant) -> PanelEffect {
        match self.view {
            PanelView::Modes => {
                let Some(mode) = self.session.modes.get(index).cloned() else { return PanelEffect::None };
                self.change_view(PanelView::Overview);
                PanelEffect::Send(Order::SetMode(mode))
            }
            PanelView::Overview => self.answer(index, now),
            PanelView::Messages => PanelEffect::None,
        }
    }

    fn answer(&mut self, index: usize, now: Instant) -> PanelEffect {
        let Some(question) = self.questions.first() else { return PanelEffect::None };
        let Some(choice) = question.options.get(index) else { return PanelEffect::None };
        if !self.was_readable(now) {
            self.hint = Some(TOO_EARLY.into());
            return PanelEffect::None;
        }
        PanelEffect::Send(Order::Answer { number: question.number, option: choice.id.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal_run::control::Choice;

    fn question(number: u64) -> TerminalReport {
        let options =
            ["allow_once", "reject_once"].map(|id| Choice { id: id.into(), name: format!("Name of {id}") });
        TerminalReport::Asked(TerminalQuestion {
            number,
            title: format!("Create file{number} (sh)"),
            text: "By the program \"sh\".".into(),
            options: options.into(),
        })
    }

    fn panel() -> Panel {
        let mut panel = Panel::new(PanelKey::default(), Some("amber fox".into()));
        let state = TerminalReport::State {
            session: "019-9907b3".into(),
            program: "vim".into(),
            folder: "/work".into(),
            mode: "ask".into(),
            is_confirmed: true,
            modes: vec!["ask".into(), "plan".into(), "code".into()],
            open_questions: 0,
        };
        panel.report(state, Instant::now());
        panel
    }

    #[test]
    fn answers_count_after_the_question_was_readable() {
        let (mut panel, start) = (panel(), Instant::now());
        panel.report(question(7), start);
        panel.open(true, start);
        assert_eq!(panel.key(PressedKey::Char('1'), start + READING_TIME / 2), PanelEffect::None);
        let answer = |option: &str| PanelEffect::Send(Order::Answer { number: 7, option: option.into() });
        let later = start + READING_TIME;
        assert_eq!(panel.key(PressedKey::Char('9'), later), PanelEffect::None);
        assert_eq!(panel.key(PressedKey::Char('2'), later), answer("reject_once"));
        assert_eq!(panel.report(TerminalReport::Closed(7), later), PanelEffect::Close);
    }

    #[test]
    fn next_question_takes_no_key_of_the_one_before() {
        let (mut panel, start) = (panel(), Instant::now());
        panel.report(question(1), start);
        panel.report(question(2), start);
        panel.open(true, start);
        let later = start + READING_TIME;
        panel.key(PressedKey::Char('1'), later);
        assert_eq!(panel.report(TerminalReport::Closed(1), later), PanelEffect::None);
        assert_eq!(panel.key(PressedKey::Char('1'), later), PanelEffect::None);
        let answer = Order::Answer { number: 2, option: "allow_once".into() };
        assert_eq!(panel.key(PressedKey::Char('1'), later + READING_TIME), PanelEffect::Send(answer));
    }

    #[test]
    fn mode_is_chosen_and_the_panel_closed() {
        let (mut panel, now) = (panel(), Instant::now());
        panel.open(false, now);
        assert_eq!(panel.key(PressedKey::Char('3'), now), PanelEffect::None);
        panel.key(PressedKey::Char('m'), now);
        assert_eq!(panel.key(PressedKey::Char('3'), now), PanelEffect::Send(Order::SetMode("code".into())));
        assert_eq!(panel.key(PressedKey::Escape, now), PanelEffect::Close);
        assert_eq!(panel.key(PressedKey::Control(b']'), now), PanelEffect::CloseAndPass);
    }

    #[test]
    fn frames_fit_every_size_and_have_the_options() {
        let (mut panel, now) = (panel(), Instant::now());
        panel.report(question(1), now);
        panel.report(TerminalReport::Notice("refused \x1b[31m example.com".into()), now);
        for (columns, rows) in [(80, 24), (40, 12), (200, 60), (1, 1), (3, 2)] {
            for view in [PanelView::Overview, PanelView::Modes, PanelView::Messages] {
                panel.change_view(view);
                let text = String::from_utf8(panel.frame(columns, rows)).unwrap();
                assert!(!text.contains("\x1b[31m example"), "text of others is no sequence");
                if columns >= 40 && view == PanelView::Overview {
                    for part in [
                        "ask mode",
                        "amber fox",
                        "Create file1 (sh)",
                        " 1 ",
                        "Name of allow_once",
                        "Name of rej",
                    ] {
                        assert!(text.contains(part), "{columns}x{rows} {part}: {text:?}");
                    }
                }
            }
        }
    }
}
