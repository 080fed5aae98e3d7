//! Puts the panel over the screen of the program, and takes it away. While the panel is open, output of the program
//! waits, so nothing that a program prints is on the panel's screen.

use std::time::{Duration, Instant};

use super::keys::{KeyReader, PanelInput, PanelKey};
use super::panel::{Panel, PanelEffect};
use super::pending_bytes::PendingBytes;
use super::screen_model::{ScreenModel, ScreenPicture};
use super::screen_modes::{CoveredScreen, ScreenModes};
use super::settings::{QuestionSignal, TerminalSettings};
use super::window_title::WindowTitle;
use crate::terminal_run::control::TerminalReport;

/// Most output that waits while the panel is open. Then the program waits.
const MAX_HELD: usize = 1024 * 1024;

/// A program that pauses within an escape sequence for longer delays the panel no more.
const BOUNDARY_TIMEOUT: Duration = Duration::from_millis(300);

/// Time after which ESC is a key.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(40);

/// Ends an unfinished escape sequence.
const CANCEL: &[u8] = b"\x18";

pub(super) struct Overlay {
    panel: Panel,
    settings: TerminalSettings,
    modes: ScreenModes,
    model: ScreenModel,
    /// Output that waits.
    held: Vec<u8>,
    is_open: bool,
    wanted: Option<Wanted>,
    /// A question is waiting for the bell.
    rings: bool,
    /// Columns and rows.
    size: (u16, u16),
    title: Option<WindowTitle>,
    keys: KeyReader,
    /// When ESC came, which is a key unless more follows.
    escaped_at: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Wanted {
    since: Instant,
    is_for_question: bool,
    /// The key as it was typed.
    typed: Vec<u8>,
}

/// The result of typed bytes.
#[derive(Debug, Default)]
pub(super) struct TypedInput {
    pub to_program: Vec<u8>,
    pub effects: Vec<PanelEffect>,
}

impl Overlay {
    pub(super) fn new(panel: Panel, settings: TerminalSettings, size: (u16, u16)) -> Self {
        Self {
            panel,
            settings,
            modes: ScreenModes::default(),
            model: ScreenModel::new(size),
            held: Vec::new(),
            is_open: false,
            wanted: None,
            rings: false,
            size,
            title: settings.has_title.then(WindowTitle::default),
            keys: KeyReader::default(),
            escaped_at: None,
        }
    }

    /// True if the program has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.held.len() >= MAX_HELD
    }

    /// True if [`Self::advance`] should be called soon, also without an event.
    pub(super) fn is_waiting(&self) -> bool {
        let opens = self.wanted.is_some() && !self.is_open;
        opens
            || self.rings
            || self.escaped_at.is_some()
            || self.title.as_ref().is_some_and(WindowTitle::is_outdated)
    }

    /// Passes output of the program on, unless the panel is open.
    pub(super) fn output(&mut self, bytes: &[u8], to_user: &mut PendingBytes) {
        if self.is_open {
            self.held.extend_from_slice(bytes);
        } else {
            self.modes.read(bytes);
            self.model.read(bytes, self.modes.is_alternate());
            to_user.add(bytes);
            if let (Some(title), Some(new)) = (&mut self.title, self.modes.take_title()) {
                title.program_changed(new);
            }
        }
    }

    /// Shares typed bytes between the program and the panel.
    pub(super) fn input(&mut self, bytes: &[u8], now: Instant) -> TypedInput {
        let mut typed = TypedInput::default();
        if self.is_open {
            let PanelInput { keys, replies } = self.keys.read(bytes, self.panel.reads_text());
            typed.to_program = replies;
            typed.effects.extend(keys.into_iter().map(|key| self.panel.key(key, now)));
            self.escaped_at = self.keys.has_escape().then_some(now);
        } else if let Some(range) = self.settings.key.and_then(|key| key.find(bytes)) {
            typed.to_program.extend_from_slice(&bytes[..range.start]);
            self.want(false, bytes[range].to_vec(), now);
        } else {
            typed.to_program.extend_from_slice(bytes);
        }
        typed
    }

    pub(super) fn report(&mut self, report: TerminalReport, now: Instant) -> PanelEffect {
        if matches!(report, TerminalReport::Asked(_)) && !self.is_open {
            if self.settings.questions == QuestionSignal::Panel {
                self.want(true, Vec::new(), now);
            } else {
                self.rings = true;
            }
        }
        if let Some(title) = &mut self.title {
            title.report(&report);
        }
        let effect = self.panel.report(report, now);
        if self.wanted.as_ref().is_some_and(|wanted| wanted.is_for_question) && !self.panel.has_questions() {
            self.wanted = None;
        }
        effect
    }

    /// Opens the panel again for questions that were open when the program stopped.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.settings.questions == QuestionSignal::Panel && self.panel.has_questions() {
            self.want(true, Vec::new(), now);
        }
    }

    fn want(&mut self, is_for_question: bool, typed: Vec<u8>, now: Instant) {
        self.wanted.get_or_insert(Wanted { since: now, is_for_question, typed });
    }

    /// Returns the effect of a key that is now known to be complete.
    pub(super) fn waited(&mut self, now: Instant) -> Option<PanelEffect> {
        if self.escaped_at.is_none_or(|at| now.saturating_duration_since(at) < ESCAPE_TIMEOUT) {
            return None;
        }
        self.escaped_at = None;
        self.keys.take_escape().map(|key| self.panel.key(key, now))
    }

    /// Opens the panel if that is wanted and the output permits it. Then returns an order.
    pub(super) fn advance(
        &mut self,
        size: (u16, u16),
        to_user: &mut PendingBytes,
        now: Instant,
    ) -> Option<PanelEffect> {
        if self.rings && self.modes.is_at_boundary() {
            self.rings = false;
            to_user.add(b"\x07");
        }
        if let Some(title) = self.title.as_mut().filter(|title| title.is_outdated())
            && self.modes.is_at_boundary()
        {
            to_user.add(title.update().as_bytes());
        }
        let wanted = self.wanted.clone().filter(|_| !self.is_open)?;
        if !self.modes.is_at_boundary() {
            if now.saturating_duration_since(wanted.since) < BOUNDARY_TIMEOUT {
                return None;
            }
            self.output(CANCEL, to_user);
        }
        self.is_open = true;
        self.keys = KeyReader::default();
        let effect = self.panel.open(wanted.is_for_question, now);
        to_user.add(&self.modes.enter_panel());
        self.resize(size, to_user);
        Some(effect)
    }

    pub(super) fn resize(&mut self, size: (u16, u16), to_user: &mut PendingBytes) {
        if self.size != size {
            self.size = size;
            self.model.resize(size);
        }
        self.draw(to_user);
    }

    pub(super) fn draw(&mut self, to_user: &mut PendingBytes) {
        if self.is_open {
            to_user.add(&self.panel.frame(self.size.0, self.size.1));
        }
    }

    /// Takes the panel away. Returns true if the program must draw its screen again.
    pub(super) fn close(&mut self, to_user: &mut PendingBytes) -> bool {
        self.wanted = None;
        if !std::mem::take(&mut self.is_open) {
            return false;
        }
        let mut needs_drawing = false;
        let covered = if self.modes.is_alternate() || !self.settings.keeps_main_screen {
            let ScreenPicture { bytes, is_whole } = self.model.picture();
            needs_drawing = !is_whole && self.modes.is_alternate();
            CoveredScreen::Picture(bytes)
        } else if self.modes.has_saved_cursor() {
            CoveredScreen::SavedCursor(self.model.saved_cursor())
        } else {
            CoveredScreen::Kept
        };
        to_user.add(&self.modes.leave_panel(&covered));
        let held = std::mem::take(&mut self.held);
        self.output(&held, to_user);
        needs_drawing
    }

    /// Restores the title of the window.
    pub(super) fn end(&mut self, to_user: &mut PendingBytes) {
        to_user.add(self.title.take().map(WindowTitle::restored).unwrap_or_default().as_bytes());
    }

    /// The key that has opened the panel, as the program would have got it.
    pub(super) fn typed_key(&self) -> Vec<u8> {
        let typed = self.wanted.as_ref().map(|wanted| wanted.typed.clone()).unwrap_or_default();
        if typed.is_empty() { self.settings.key.map(PanelKey::byte).into_iter().collect() } else { typed }
    }
}
