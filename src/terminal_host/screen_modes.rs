//! The settings of the terminal that a program changes, read from its output. While the panel is open they are off;
//! afterwards they are as the program has left them. Pure.

use vte::{Params, Parser, Perform};

use super::boundary::Boundary;

/// Private modes that change which keys, clicks and pastes the panel would get, or where it draws.
const MODES: [u16; 16] =
    [1, 6, 9, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004, 2031];

/// Private modes of the alternate screen.
const ALTERNATE: [u16; 3] = [47, 1047, 1049];

const CURSOR_VISIBLE: u16 = 25;

/// Positions are relative to the margins.
const ORIGIN: u16 = 6;

/// Ends [`ORIGIN`], which can be saved with a cursor.
const ABSOLUTE: &str = "\x1b[?6l";

/// Sets the cursor to the one that the program has saved.
const RESTORE_CURSOR: &str = "\x1b8";

const ESCAPE: u8 = 0x1b;

/// In bytes.
const LONGEST_CHARACTER: usize = 4;

/// Starts a control sequence.
const CONTROL: &[u8] = b"\x1b[";

/// The part of the program's screen that the terminal does not keep.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CoveredScreen {
    Kept,
    /// Draws the screen.
    Picture(Vec<u8>),
    /// The terminal has kept the cursor that the program has saved. Sets the current one.
    Cursor(Vec<u8>),
}

/// Follows the output of a program.
#[derive(Default)]
pub(super) struct ScreenModes {
    parser: Parser,
    boundary: Boundary,
    settings: Settings,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "a terminal has as many independent modes")]
struct Settings {
    /// In the order in which they were set: of two forms of mouse reports, the last applies.
    modes: Vec<u16>,
    is_alternate: bool,
    hides_cursor: bool,
    inserts: bool,
    has_application_keypad: bool,
    /// Value of xterm's `modifyOtherKeys`.
    other_keys: u16,
    /// First and last line of the scroll region.
    margins: Option<(u16, u16)>,
    /// The program has saved the cursor on the main screen.
    has_saved_cursor: bool,
    /// A title that was not taken yet.
    new_title: Option<String>,
}

impl ScreenModes {
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.boundary.is_reached() {
                let (text, rest) = bytes.split_at(text_length(bytes));
                // Nothing is set. Only the end can be within a character.
                self.boundary.read(&text[text.len().saturating_sub(LONGEST_CHARACTER)..]);
                bytes = rest;
            }
            let (sequence, rest) = bytes.split_at(self.boundary.read_to_next(bytes));
            self.parser.advance(&mut self.settings, sequence);
            bytes = rest;
        }
    }

    /// False within a character or an escape sequence.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.boundary.is_reached()
    }

    /// Takes the title of the window that the program has set since the last call.
    pub(super) fn take_title(&mut self) -> Option<String> {
        self.settings.new_title.take()
    }

    pub(super) fn is_alternate(&self) -> bool {
        self.settings.is_alternate
    }

    /// True if the saved cursor of the main screen is the program's, and not relative to margins.
    pub(super) fn has_saved_cursor(&self) -> bool {
        self.settings.has_saved_cursor && !self.settings.modes.contains(&ORIGIN)
    }

    /// Makes the screen and the keys usable for the panel. `keeps_saved` makes the saved cursor the current one, so that
    /// the other screen, which saves the current cursor, keeps it.
    pub(super) fn enter_panel(&self, keeps_saved: bool) -> Vec<u8> {
        let Settings { modes, is_alternate, inserts, has_application_keypad, other_keys, margins, .. } =
            &self.settings;
        // The end of a synchronized update. Then the other screen, which keeps this one with its cursor.
        let mut text = "\x1b[?2026l".to_owned();
        if keeps_saved {
            text.push_str(RESTORE_CURSOR);
        }
        if !is_alternate {
            text.push_str("\x1b[?1049h");
        }
        if keeps_saved {
            text.push_str(ABSOLUTE);
        }
        for mode in modes {
            text.push_str(&format!("\x1b[?{mode}l"));
        }
        let resets = [
            (*inserts, "\x1b[4l"),
            (*has_application_keypad, "\x1b>"),
            (*other_keys > 0, "\x1b[>4;0m"),
            (margins.is_some(), "\x1b[r"),
        ];
        text.extend(resets.iter().filter(|(is_set, _)| *is_set).map(|(_, reset)| *reset));
        // No kitty keyboard, the usual characters, no attributes, no cursor.
        // Pasted text is marked, so it is not taken for keys.
        text.push_str("\x1b[?2004h\x1b[>0u\x0f\x1b(B\x1b[0m\x1b[?25l");
        text.into_bytes()
    }

    /// Restores all that [`Self::enter_panel`] has changed.
    pub(super) fn leave_panel(&self, covered: &CoveredScreen) -> Vec<u8> {
        let Settings {
            modes,
            is_alternate,
            inserts,
            has_application_keypad,
            other_keys,
            margins,
            hides_cursor,
            ..
        } = &self.settings;
        let mut text = b"\x1b[?2004l\x1b[<1u\x1b[0m\x1b[2J\x1b[H".to_vec();
        if let Some((top, bottom)) = margins {
            text.extend(format!("\x1b[{top};{bottom}r").bytes());
        }
        // Positions of the picture are not relative to the margins.
        let (late, early): (Vec<u16>, Vec<u16>) =
            modes.iter().partition(|mode| **mode == ORIGIN && *is_alternate);
        text.extend(early.iter().flat_map(|mode| format!("\x1b[?{mode}h").into_bytes()));
        if *other_keys > 0 {
            text.extend(format!("\x1b[>4;{other_keys}m").bytes());
        }
        if !is_alternate {
            // Also restores the cursor, which some of the settings have moved.
            text.extend(b"\x1b[?1049l");
        }
        match covered {
            CoveredScreen::Kept => {}
            CoveredScreen::Picture(bytes) => text.extend(bytes),
            CoveredScreen::Cursor(bytes) => text.extend(ABSOLUTE.bytes().chain(bytes.iter().copied())),
        }
        text.extend(late.iter().flat_map(|mode| format!("\x1b[?{mode}h").into_bytes()));
        let sets = [
            (*inserts, "\x1b[4h"),
            (*has_application_keypad, "\x1b="),
            (*hides_cursor, "\x1b[?25l"),
            (!hides_cursor, "\x1b[?25h"),
        ];
        text.extend(sets.iter().filter(|(is_set, _)| *is_set).flat_map(|(_, set)| set.bytes()));
        text
    }
}

/// Length of the text at the start, with the colours in it. It sets nothing.
fn text_length(bytes: &[u8]) -> usize {
    let mut length = 0;
    loop {
        let rest = &bytes[length..];
        let Some(text) = memchr::memchr(ESCAPE, rest) else { return bytes.len() };
        length += text;
        match colour_length(&rest[text..]) {
            Some(colour) => length += colour,
            None => return length,
        }
    }
}

/// Length of a whole sequence that sets colours and the like. `None` for another one.
fn colour_length(bytes: &[u8]) -> Option<usize> {
    let parameters = bytes.strip_prefix(CONTROL)?;
    let end = parameters.iter().position(|byte| !matches!(byte, b'0'..=b';'))?;
    (parameters[end] == b'm').then_some(CONTROL.len() + end + 1)
}

/// The number of a parameter, without those after a colon.
fn first(parameter: &[u16]) -> u16 {
    parameter.first().copied().unwrap_or_default()
}

impl Settings {
    fn set_private(&mut self, mode: u16, is_set: bool) {
        self.modes.retain(|set| *set != mode);
        match mode {
            CURSOR_VISIBLE => self.hides_cursor = !is_set,
            _ if ALTERNATE.contains(&mode) => self.is_alternate = is_set,
            _ if MODES.contains(&mode) && is_set => self.modes.push(mode),
            _ => {}
        }
    }
}

impl Perform for Settings {
    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], _ignored: bool, action: char) {
        let number = |at| params.iter().nth(at).map_or(0, first);
        match (intermediates, action) {
            (b"?", 'h' | 'l') => {
                params.iter().map(first).for_each(|mode| self.set_private(mode, action == 'h'));
            }
            (b"", 's') if params.is_empty() && !self.is_alternate => self.has_saved_cursor = true,
            (b"", 'h' | 'l') if params.iter().any(|mode| first(mode) == 4) => self.inserts = action == 'h',
            (b"", 'r') => {
                let (top, bottom) = (number(0).max(1), number(1));
                self.margins = (bottom > 0).then_some((top, bottom));
            }
            (b">", 'm') if number(0) == 4 => self.other_keys = number(1),
            (b"!", 'p') => {
                let is_alternate = self.is_alternate;
                *self = Self { is_alternate, modes: std::mem::take(&mut self.modes), ..Self::default() };
                self.modes.retain(|mode| ![1, 6].contains(mode));
            }
            _ => {}
        }
    }

    fn osc_dispatch(&mut self, params: &[&[u8]], _bell_terminated: bool) {
        if let [b"0" | b"2", title @ ..] = params {
            self.new_title = Some(String::from_utf8_lossy(&title.join(&b';')).into_owned());
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignored: bool, byte: u8) {
        match (intermediates, byte) {
            (b"", b'7') => self.has_saved_cursor |= !self.is_alternate,
            (b"", b'=') => self.has_application_keypad = true,
            (b"", b'>') => self.has_application_keypad = false,
            (b"", b'c') => *self = Self::default(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn after(output: &str) -> (String, String) {
        let mut modes = ScreenModes::default();
        modes.read(output.as_bytes());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(modes.enter_panel(false)), text(modes.leave_panel(&CoveredScreen::Kept)))
    }

    proptest! {
        #[test]
        fn text_without_sequences_is_read_like_any_other(
            parts in vec(prop_oneof![
                "[a-zä€😀]{0,9}".prop_map(String::into_bytes),
                Just(b"\x1b[?1h".to_vec()),
                Just(b"\x1b[?1000".to_vec()),
                Just(b"h".to_vec()),
                Just(b"\x1b[38;5;7m".to_vec()),
                Just(b"\x1b[1;3".to_vec()),
                Just(b"1m".to_vec()),
                Just(b"\x1b[>4;2m".to_vec()),
                Just(b"\x1b]2;title\x1b[1m\x07".to_vec()),
                vec(any::<u8>(), 0..6),
            ], 0..12),
        ) {
            let mut read = ScreenModes::default();
            let (mut parser, mut settings, mut boundary) = (Parser::new(), Settings::default(), Boundary::default());
            for part in parts {
                read.read(&part);
                parser.advance(&mut settings, &part);
                boundary.read(&part);
                prop_assert_eq!(read.boundary, boundary);
                prop_assert_eq!(format!("{:?}", read.settings), format!("{settings:?}"));
            }
        }
    }

    #[test]
    fn settings_are_left_and_restored() {
        for (output, left, restored) in [
            ("\x1b[?1h", "\x1b[?1l", "\x1b[?1h"),
            ("\x1b[?1000;1006h", "\x1b[?1000l\x1b[?1006l", "\x1b[?1000h\x1b[?1006h"),
            ("\x1b[?1003h\x1b[?9h", "\x1b[?1003l\x1b[?9l", "\x1b[?1003h\x1b[?9h"),
            ("\x1b[?2004h", "\x1b[?2004l", "\x1b[?2004h"),
            ("\x1b[3;9r", "\x1b[r", "\x1b[3;9r"),
            ("\x1b[4h", "\x1b[4l", "\x1b[4h"),
            ("\x1b=", "\x1b>", "\x1b="),
            ("\x1b[>4;2m", "\x1b[>4;0m", "\x1b[>4;2m"),
        ] {
            let (entering, leaving) = after(output);
            assert!(entering.contains(left) && leaving.contains(restored), "{output:?}");
            let (entering, leaving) = after(&format!("{output}\x1bc"));
            assert!(!entering.contains(left) && !leaving.contains(restored), "{output:?} and a reset");
        }
    }

    #[test]
    fn screen_and_cursor_are_those_of_the_program() {
        for (output, is_alternate, hides_cursor) in [
            ("", false, false),
            ("\x1b[?1049h\x1b[?25l", true, true),
            ("\x1b[?47h", true, false),
            ("\x1b[?1049h\x1b[?1049l\x1b[?25l\x1b[?25h", false, false),
        ] {
            let (entering, leaving) = after(output);
            assert_eq!(entering.contains("\x1b[?1049h"), !is_alternate, "{output:?}");
            assert_eq!(leaving.contains("\x1b[?1049l"), !is_alternate, "{output:?}");
            assert_eq!(leaving.contains("\x1b[?25h"), !hides_cursor, "{output:?}");
        }
    }
}
