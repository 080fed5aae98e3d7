//! Puts the panel over the screen of the program, and takes it away. While the panel is open, output of the program
//! waits, so nothing that a program prints is on the panel's screen.

use std::time::{Duration, Instant};

use super::keys::{self, KeyReader, PanelInput, PanelKey};
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

/// Asks the terminal where its cursor is.
const POSITION_QUERY: &[u8] = b"\x1b[6n";

/// Terminals answer immediately, except for those far away.
const REPLY_TIMEOUT: Duration = Duration::from_millis(300);

/// Time in which a late reply is still one for the panel.
const LATE_REPLY: Duration = Duration::from_secs(3);

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
    /// When the terminal was asked for its cursor, until it answers.
    asked_at: Option<Instant>,
    /// The panel opens after the answer. Until then, output of the program waits.
    is_asking: bool,
    /// Row and column, as the terminal has answered.
    position: Option<(u16, u16)>,
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
            asked_at: None,
            is_asking: false,
            position: None,
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
        if self.is_open || self.is_asking {
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
        let without_reply = self.take_reply(bytes, now);
        let bytes = without_reply.as_deref().unwrap_or(bytes);
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

    /// Takes the reply about the cursor. Returns the other bytes, or `None` without a reply.
    fn take_reply(&mut self, bytes: &[u8], now: Instant) -> Option<Vec<u8>> {
        let asked_at = self.asked_at?;
        if now.saturating_duration_since(asked_at) > LATE_REPLY {
            self.asked_at = None;
            return None;
        }
        let (range, position) = keys::find_position(bytes)?;
        self.asked_at = None;
        if self.is_asking {
            self.position = Some(position);
        }
        Some([&bytes[..range.start], &bytes[range.end..]].concat())
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
        let Some(wanted) = self.wanted.clone().filter(|_| !self.is_open) else {
            self.stop_asking(to_user);
            return None;
        };
        if !self.modes.is_at_boundary() {
            if now.saturating_duration_since(wanted.since) < BOUNDARY_TIMEOUT {
                return None;
            }
            self.output(CANCEL, to_user);
        }
        if self.has_saved_cursor() && self.waits_for_position(to_user, now) {
            return None;
        }
        self.is_asking = false;
        self.is_open = true;
        self.keys = KeyReader::default();
        let effect = self.panel.open(wanted.is_for_question, now);
        to_user.add(&self.modes.enter_panel(self.position.is_some()));
        self.resize(size, to_user);
        Some(effect)
    }

    /// True if the program would lose the cursor that it has saved on the main screen. The other screen saves the current
    /// one in its place, in most terminals.
    fn has_saved_cursor(&self) -> bool {
        self.settings.keeps_main_screen && !self.modes.is_alternate() && self.modes.has_saved_cursor()
    }

    /// Asks the terminal for the current cursor. Returns false after the answer, or without one.
    fn waits_for_position(&mut self, to_user: &mut PendingBytes, now: Instant) -> bool {
        if !self.is_asking {
            to_user.add(POSITION_QUERY);
            (self.asked_at, self.is_asking, self.position) = (Some(now), true, None);
            return true;
        }
        let is_late = self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= REPLY_TIMEOUT);
        self.position.is_none() && !is_late
    }

    /// The panel is not wanted any more.
    fn stop_asking(&mut self, to_user: &mut PendingBytes) {
        if !self.is_open && std::mem::take(&mut self.is_asking) {
            self.position = None;
            let held = std::mem::take(&mut self.held);
            self.output(&held, to_user);
        }
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
        self.stop_asking(to_user);
        if !std::mem::take(&mut self.is_open) {
            return false;
        }
        let mut needs_drawing = false;
        let covered = if self.modes.is_alternate() || !self.settings.keeps_main_screen {
            let ScreenPicture { bytes, is_whole } = self.model.picture();
            needs_drawing = !is_whole && self.modes.is_alternate();
            CoveredScreen::Picture(bytes)
        } else if let Some((row, column)) = self.position.take() {
            let position = format!("\x1b[{row};{column}H").into_bytes();
            CoveredScreen::Cursor([position, self.model.attributes()].concat())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal_host::pending_bytes::PendingBytes;

    const SETTINGS: TerminalSettings = TerminalSettings {
        key: None,
        questions: QuestionSignal::Panel,
        is_quiet: true,
        has_title: false,
        keeps_main_screen: true,
    };

    /// A terminal that has shown other lines before the program's.
    struct Terminal {
        emulator: vt100::Parser,
        output: PendingBytes,
    }

    impl Terminal {
        fn new() -> Self {
            let mut emulator = vt100::Parser::new(24, 80, 0);
            emulator.process(b"$ one\r\n$ two\r\n$ three\r\n");
            Self { emulator, output: PendingBytes::default() }
        }

        /// Shows the output. Returns the reply to a question about the cursor.
        fn show(&mut self) -> Option<String> {
            let output = self.output.take();
            self.emulator.process(&output);
            let (row, column) = self.emulator.screen().cursor_position();
            let is_asked = memchr::memmem::find(&output, POSITION_QUERY).is_some();
            is_asked.then(|| format!("\x1b[{};{}R", row + 1, column + 1))
        }

        fn cursor(&self) -> ((u16, u16), vt100::Color) {
            (self.emulator.screen().cursor_position(), self.emulator.screen().fgcolor())
        }
    }

    #[test]
    fn both_cursors_of_the_main_screen_are_those_of_the_program() {
        let (red, green) = (vt100::Color::Idx(1), vt100::Color::Idx(2));
        for (answers, saved) in [(true, ((3, 0), red)), (false, ((4, 3), green))] {
            let mut terminal = Terminal::new();
            let mut overlay = Overlay::new(Panel::new(PanelKey::default(), None), SETTINGS, (80, 24));
            let start = Instant::now();
            overlay.output(b"\x1b[31m\x1b7prompt:\r\n\x1b[32mabc", &mut terminal.output);
            overlay.want(false, Vec::new(), start);
            assert_eq!(overlay.advance((80, 24), &mut terminal.output, start), None);
            let reply = terminal.show().unwrap();
            // Waits, too.
            overlay.output(b"d", &mut terminal.output);
            let mut now = start;
            if answers {
                let typed = overlay.input(format!("k{reply}").as_bytes(), now);
                assert_eq!(typed.to_program, b"k", "the reply is not for the program");
            } else {
                assert_eq!(overlay.advance((80, 24), &mut terminal.output, now), None);
                now += REPLY_TIMEOUT;
            }
            assert!(overlay.advance((80, 24), &mut terminal.output, now).is_some());
            terminal.show();
            assert!(terminal.emulator.screen().alternate_screen());
            overlay.close(&mut terminal.output);
            terminal.show();
            assert_eq!(terminal.cursor(), ((4, 4), green));
            terminal.emulator.process(b"\x1b8");
            let (at, colour) = saved;
            assert_eq!(terminal.cursor(), (at, colour), "{answers}");
        }
    }

    #[test]
    fn output_goes_on_if_the_panel_is_not_wanted_any_more() {
        let mut terminal = Terminal::new();
        let mut overlay = Overlay::new(Panel::new(PanelKey::default(), None), SETTINGS, (80, 24));
        let now = Instant::now();
        overlay.output(b"\x1b7", &mut terminal.output);
        overlay.want(true, Vec::new(), now);
        overlay.advance((80, 24), &mut terminal.output, now);
        let reply = terminal.show().unwrap();
        overlay.output(b"later", &mut terminal.output);
        overlay.close(&mut terminal.output);
        terminal.show();
        assert!(terminal.emulator.screen().contents().contains("later"));
        assert_eq!(overlay.input(reply.as_bytes(), now).to_program, b"");
        assert_eq!(overlay.input(reply.as_bytes(), now).to_program, reply.as_bytes(), "of the program");
    }
}
