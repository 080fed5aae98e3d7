//! A model of the program's screen. It restores the picture of an alternate screen, and on the main one the attributes
//! of the next characters, which terminals do not keep. The place of the program's output on the main screen is
//! unknown, because the terminal had other lines before. Pure.
//!
//! A terminal emulator reads the output only when that is necessary: on the main screen, the last output tells the
//! attributes, so the rest of a flood is dropped unread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vt100::{Callbacks, Parser, Screen};

/// Output that waits to be read, in bytes. On the main screen, only the last part of more is kept.
const MAX_UNREAD: usize = 256 * 1024;
const KEPT: usize = 64 * 1024;

/// Starts of images: of kitty and iTerm, and of sixels before their numbers.
const IMAGES: [&[u8]; 2] = [b"\x1b_G", b"\x1b]1337;"];
const SIXEL: (&[u8], u8) = (b"\x1bP", b'q');

const ESCAPE: u8 = 0x1b;
const SHIFT_OUT: u8 = 0x0e;
const LINE_DRAWING: u8 = b'0';

/// Number of the sequence that begins or ends a link.
const LINK: &[u8] = b"8";

/// Sequences that draw nothing: questions to the terminal, and its window.
const HARMLESS: [char; 4] = ['c', 'n', 'q', 't'];

/// Private modes that change how text is drawn: reversed colours, no automatic line breaks, margins at the sides.
const DRAWING_MODES: [u16; 3] = [5, 7, 69];

/// Whether the program has drawn something that the emulator does not know.
#[derive(Default)]
struct Undrawn {
    is_seen: bool,
}

/// An alternate screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScreenPicture {
    pub bytes: Vec<u8>,
    /// False if something may be missing, such as an image.
    pub is_whole: bool,
}

pub(super) struct ScreenModel {
    /// `None` after the emulator has failed.
    parser: Option<Parser<Undrawn>>,
    unread: Vec<u8>,
}

impl ScreenModel {
    pub(super) fn new((columns, rows): (u16, u16)) -> Self {
        let parser = Parser::new_with_callbacks(rows.max(1), columns.max(1), 0, Undrawn::default());
        Self { parser: Some(parser), unread: Vec::new() }
    }

    pub(super) fn read(&mut self, output: &[u8], is_alternate: bool) {
        self.unread.extend_from_slice(output);
        if self.unread.len() <= MAX_UNREAD {
            return;
        }
        if is_alternate {
            self.catch_up();
        } else {
            self.unread.drain(..self.unread.len() - KEPT);
        }
    }

    pub(super) fn resize(&mut self, (columns, rows): (u16, u16)) {
        self.catch_up();
        self.attempt(|parser| parser.screen_mut().set_size(rows.max(1), columns.max(1)));
    }

    /// Draws the whole screen, with its cursor and attributes.
    pub(super) fn picture(&mut self) -> ScreenPicture {
        self.catch_up();
        let picture = self.attempt(|parser| ScreenPicture {
            bytes: parser.screen().contents_formatted(),
            is_whole: !parser.callbacks().is_seen,
        });
        picture.unwrap_or(ScreenPicture { bytes: Vec::new(), is_whole: false })
    }

    /// Sets the attributes of the program's next characters.
    pub(super) fn attributes(&mut self) -> Vec<u8> {
        self.catch_up();
        self.attempt(|parser| parser.screen().attributes_formatted()).unwrap_or_default()
    }

    fn catch_up(&mut self) {
        let unread = std::mem::take(&mut self.unread);
        let has_image = has_image(&unread);
        self.attempt(|parser| {
            parser.process(&unread);
            parser.callbacks_mut().is_seen |= has_image;
        });
    }

    /// The program goes on if the emulator fails on its output.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut Parser<Undrawn>) -> T) -> Option<T> {
        let mut parser = self.parser.take()?;
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut parser))).ok()?;
        self.parser = Some(parser);
        Some(done)
    }
}

impl Callbacks for Undrawn {
    fn unhandled_control(&mut self, _: &mut Screen, byte: u8) {
        self.is_seen |= byte == SHIFT_OUT;
    }

    fn unhandled_escape(&mut self, _: &mut Screen, first: Option<u8>, _: Option<u8>, byte: u8) {
        self.is_seen |= match first {
            None => matches!(byte, b'D' | b'E' | b'H'),
            Some(b'(' | b')') => byte == LINE_DRAWING,
            Some(first) => first == b'#',
        };
    }

    fn unhandled_csi(
        &mut self,
        _: &mut Screen,
        first: Option<u8>,
        _: Option<u8>,
        params: &[&[u16]],
        action: char,
    ) {
        self.is_seen |= match (first, action) {
            (None, _) => !HARMLESS.contains(&action),
            (Some(b'?'), 'h' | 'l') => {
                params.iter().any(|param| param.first().is_some_and(|mode| DRAWING_MODES.contains(mode)))
            }
            _ => false,
        };
    }

    fn unhandled_osc(&mut self, _: &mut Screen, params: &[&[u8]]) {
        self.is_seen |= params.first().is_some_and(|number| *number == LINK);
    }
}

/// Other sequences begin like those of sixels, such as questions to the terminal.
fn has_image(output: &[u8]) -> bool {
    let (start, end) = SIXEL;
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
    memchr::memchr_iter(ESCAPE, output).any(|at| {
        let rest = &output[at..];
        let sixel = rest.strip_prefix(start);
        let after_numbers = sixel.and_then(|sixel| sixel.iter().find(|byte| !is_number(byte)));
        after_numbers == Some(&end) || IMAGES.iter().any(|image| rest.starts_with(image))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(output: &[&str]) -> ScreenModel {
        let mut model = ScreenModel::new((20, 5));
        for part in output {
            model.read(part.as_bytes(), part.contains("\x1b[?1049h"));
        }
        model
    }

    #[test]
    fn picture_is_drawn_whole() {
        for output in [
            "\x1b[?1049h\x1b[2;3Hhere \x1b[1;31mred\x1b[0m\x1b[4;1H\x1b[32m",
            "\x1b[?1049h語ab\x1b[?25l\r\n0123456789012345678901234",
        ] {
            let mut expected = Parser::new(5, 20, 0);
            expected.process(output.as_bytes());
            let mut drawn = Parser::new(5, 20, 0);
            drawn.process(b"\x1b[?1049hcovered\r\nby the panel");
            let picture = model(&[output]).picture();
            assert!(picture.is_whole);
            drawn.process(&picture.bytes);
            assert_eq!(
                drawn.screen().contents_formatted(),
                expected.screen().contents_formatted(),
                "{output:?}"
            );
        }
    }

    #[test]
    fn flood_is_dropped_on_the_main_screen_only() {
        let flood = "a line of a flood\r\n".repeat(MAX_UNREAD / 8);
        let mut main = model(&["first\r\n", &flood]);
        assert_eq!(main.unread.len(), KEPT);
        main.picture();
        let position = main.parser.as_ref().map(|parser| parser.screen().cursor_position());
        assert_eq!(position, Some((4, 0)), "the last line");
        let mut alternate = ScreenModel::new((20, 5));
        alternate.read(format!("\x1b[?1049htop\x1b[2;5r\x1b[2H{flood}").as_bytes(), true);
        assert!(alternate.unread.is_empty());
        assert!(String::from_utf8(alternate.picture().bytes).unwrap().contains("top"));
    }

    #[test]
    fn missing_parts_are_known() {
        for (output, is_whole) in [
            ("\x1b[?2004h\x1b[?1004h\x1b[c\x1b[1;2H\x1b(B\x1b[>1u\x1b[2 q\x1b]2;title\x07", true),
            ("\x1b(0lqk\x1b(B", false),
            ("-\x1b[9b", false),
            ("\x1b[9mstruck", false),
            ("\x1b[2;2fa", false),
            ("\x1b[?7l", false),
            ("\x1b]8;;https://example.com\x1b\\link", false),
            ("\x1b_Ga=T;AAAA\x1b\\", false),
            ("\x1bP0;1q#0~~\x1b\\", false),
            ("\x1bP+q436f\x1b\\\x1bP$qm\x1b\\", true),
        ] {
            assert_eq!(model(&["\x1b[?1049h", output]).picture().is_whole, is_whole, "{output:?}");
        }
    }
}
