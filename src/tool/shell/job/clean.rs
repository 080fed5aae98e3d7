//! Text of a command's output as a terminal would leave it: without escape sequences, overwritten lines and
//! blanks at the ends of lines. Pure.

use super::output::unfinished;

/// A longer line is passed on in pieces.
const MAX_LINE: usize = 64 * 1024;

/// Stands for one or more NUL bytes, which separate names in the output of `find -print0`.
pub(super) const NUL: char = '\u{2400}';

#[derive(Debug, Default)]
pub(super) struct Cleaner {
    line: Vec<u8>,
    state: CleanerState,
    /// A carriage return was read: the next character begins the line anew.
    is_overwriting: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum CleanerState {
    #[default]
    Text,
    Escape,
    /// `ESC [`, up to a final byte.
    Control,
    /// `ESC ]` and the like, up to BEL or `ESC \`.
    Command,
    CommandEscape,
}

impl Cleaner {
    /// Returns the lines that the bytes complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut done = String::new();
        for byte in bytes {
            self.byte(*byte, &mut done);
        }
        done
    }

    /// The incomplete last line.
    pub(super) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.line).into_owned()
    }

    pub(super) fn finish(&mut self) -> String {
        self.trim_end();
        std::mem::take(self).rest()
    }

    fn byte(&mut self, byte: u8, done: &mut String) {
        self.state = match (self.state, byte) {
            (CleanerState::Text, 0x1b) | (CleanerState::Escape, b' '..=b'/') => CleanerState::Escape,
            (CleanerState::Text, _) => return self.text(byte, done),
            (CleanerState::Escape, b'[') | (CleanerState::Control, b' '..=b'?') => CleanerState::Control,
            (CleanerState::Escape, b']' | b'P' | b'X' | b'^' | b'_') => CleanerState::Command,
            (CleanerState::Control, b'K') => {
                if self.is_overwriting {
                    self.line.clear();
                }
                CleanerState::Text
            }
            (CleanerState::Escape | CleanerState::Control, b'@'..=b'~')
            | (CleanerState::Escape, b'0'..=b'?')
            | (CleanerState::Command, 0x07)
            | (CleanerState::CommandEscape, b'\\') => CleanerState::Text,
            (CleanerState::Command, 0x1b) => CleanerState::CommandEscape,
            (CleanerState::Command | CleanerState::CommandEscape, byte) if byte != b'\n' => {
                CleanerState::Command
            }
            // Not a sequence of a terminal.
            _ => {
                self.state = CleanerState::Text;
                return self.byte(byte, done);
            }
        };
    }

    fn text(&mut self, byte: u8, done: &mut String) {
        match byte {
            b'\n' => {
                self.trim_end();
                self.line.push(b'\n');
                self.pass_on(self.line.len(), done);
                self.is_overwriting = false;
            }
            b'\r' => self.is_overwriting = true,
            0x08 => {
                let last = self.line.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
                self.line.truncate(last);
            }
            0 if self.rest_is_nul() => {}
            0 => NUL.to_string().bytes().for_each(|byte| self.put(byte, done)),
            b'\t' | b' '..=0x7e | 0x80.. => self.put(byte, done),
            _ => {}
        }
    }

    fn put(&mut self, byte: u8, done: &mut String) {
        if std::mem::take(&mut self.is_overwriting) {
            self.line.clear();
        }
        self.line.push(byte);
        if self.line.len() >= MAX_LINE {
            self.pass_on(self.line.len() - unfinished(&self.line), done);
        }
    }

    fn trim_end(&mut self) {
        let end = self.line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t'));
        self.line.truncate(end.map_or(0, |last| last + 1));
    }

    fn pass_on(&mut self, length: usize, done: &mut String) {
        let line: Vec<u8> = self.line.drain(..length).collect();
        done.push_str(&String::from_utf8_lossy(&line));
    }

    fn rest_is_nul(&self) -> bool {
        !self.is_overwriting && self.line.ends_with(NUL.to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result must not depend on how the bytes are cut.
    fn check(input: &[u8], expected: &str) {
        for step in [1, 2, 3, 7, 4096] {
            let mut cleaner = Cleaner::default();
            let mut text: String = input.chunks(step).map(|bytes| cleaner.push(bytes)).collect();
            text.push_str(&cleaner.finish());
            assert_eq!(text, expected, "{step}");
        }
    }

    #[test]
    fn progress_bars_collapse_to_their_last_state() {
        check(b"  1%\r 50%\r100%\ndone\n", "100%\ndone\n");
        check(b"a\r\nb\r\r\nc\r", "a\nb\nc");
        check(b"fetching\r\x1b[Kok\nfetching\r\x1b[K\n", "ok\n\n");
        check(b"-\x08\\\x08|\x08done \xc3\xa9\x08e", "done e");
    }

    #[test]
    fn escape_sequences_and_control_characters_are_removed() {
        check(b"\x1b[1;31mred\x1b[0m \x1b(Bplain\x07\x01\n", "red plain\n");
        check(b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "alink\n");
        check(b"\x1b]never ended\nnext\x1b[31\nlast\x1b", "\nnext\nlast");
        check("\u{1b}é".as_bytes(), "é");
    }

    #[test]
    fn blanks_at_the_ends_of_lines_are_removed() {
        check(b"a \t\n  b c  \r\n \n\td\x1b[0m  ", "a\n  b c\n\n\td");
    }

    #[test]
    fn nul_and_invalid_bytes_stay_visible() {
        check(b"a.rs\0b.rs\0\0\0c\n", "a.rs\u{2400}b.rs\u{2400}c\n");
        check(b"caf\xe9\n\xff", "caf\u{fffd}\n\u{fffd}");
    }

    #[test]
    fn long_lines_are_passed_on_whole() {
        let line = "aé€😀".repeat(MAX_LINE / 4);
        check(line.as_bytes(), &line);
    }
}
