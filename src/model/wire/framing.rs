//! Splits response bytes into frames. Chunks may end anywhere. Only the data of an event matters, because all
//! providers repeat the event name in it. Pure.

use std::borrow::Cow;

/// Maximum bytes of a frame. No model sends longer ones.
const MAX_FRAME: usize = 32 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `text/event-stream`: `data:` lines up to an empty line.
    Events,
    Lines,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

#[derive(Debug)]
pub struct FrameReader {
    framing: Framing,
    rest: Vec<u8>,
    data: String,
    /// True if the last byte was a carriage return, so that a following line feed is skipped.
    after_return: bool,
    /// True if the event in `data` has no field name.
    is_bare: bool,
}

impl FrameReader {
    pub fn new(framing: Framing) -> Self {
        Self { framing, rest: Vec::new(), data: String::new(), after_return: false, is_bare: false }
    }

    pub fn push<E: From<Unreadable>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.keep(bytes)?;
                break;
            };
            let (line, after) = bytes.split_at(end);
            self.after_return = after[0] == b'\r';
            bytes = &after[1..];
            if self.rest.is_empty() {
                self.line(line, &mut each)?;
            } else {
                self.keep(line)?;
                let line = std::mem::take(&mut self.rest);
                self.line(&line, &mut each)?;
                self.rest = line;
                self.rest.clear();
            }
        }
        Ok(())
    }

    /// Ends the input. A last frame counts without its terminator.
    pub fn end<E: From<Unreadable>>(&mut self, mut each: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let line = std::mem::take(&mut self.rest);
        if !line.is_empty() {
            self.line(&line, &mut each)?;
        }
        self.dispatch(&mut each)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        if self.rest.len() + self.data.len() + bytes.len() > MAX_FRAME {
            return Err(Unreadable);
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    fn line<E: From<Unreadable>>(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let text = std::str::from_utf8(line).map_or_else(|_| Cow::Owned(damaged(line)), Cow::Borrowed);
        let line = text.strip_prefix('\u{feff}').unwrap_or(&text);
        match self.framing {
            Framing::Lines if line.trim().is_empty() => Ok(()),
            Framing::Lines => each(line),
            Framing::Events if line.is_empty() => self.dispatch(each),
            Framing::Events => {
                // Some servers write an error into the stream as it is.
                self.is_bare |= self.data.is_empty() && line.starts_with('{');
                let field = line.strip_prefix("data:").map(|data| data.strip_prefix(' ').unwrap_or(data));
                let data = if self.is_bare { Some(line) } else { field };
                if let Some(data) = data {
                    if self.data.len() + data.len() > MAX_FRAME {
                        return Err(Unreadable.into());
                    }
                    if !self.data.is_empty() {
                        self.data.push('\n');
                    }
                    self.data.push_str(data);
                }
                Ok(())
            }
        }
    }

    fn dispatch<E>(&mut self, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        if self.data.is_empty() {
            return Ok(());
        }
        let outcome = each(&self.data);
        self.is_bare = false;
        self.data.clear();
        outcome
    }
}

/// Replaces bytes that are not UTF-8 by a control character, which no JSON text may contain, so that the
/// decoder does not take the frame for a whole one.
fn damaged(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    for chunk in line.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend((!chunk.invalid().is_empty()).then_some('\u{1}'));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(framing: Framing, pieces: &[&[u8]]) -> Result<Vec<String>, Unreadable> {
        let mut found = Vec::new();
        let mut frames = FrameReader::new(framing);
        let mut each = |frame: &str| {
            found.push(frame.to_owned());
            Ok(())
        };
        for piece in pieces {
            frames.push(piece, &mut each)?;
        }
        frames.end(&mut each)?;
        Ok(found)
    }

    fn check(framing: Framing, text: &str, expected: &[&str]) {
        let bytes = text.as_bytes();
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(frames(framing, &[a, b]).unwrap(), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(frames(framing, &single).unwrap(), expected);
    }

    #[test]
    fn event_frames_do_not_depend_on_chunk_boundaries() {
        let text = ": hello\n\nevent: a\ndata: {\"é\":1}\n\ndata:two\r\ndata: lines\r\n\r\nid: 3\rdata: cr\r\rdata: [DONE]";
        check(Framing::Events, text, &["{\"é\":1}", "two\nlines", "cr", "[DONE]"]);
    }

    #[test]
    fn line_frames_do_not_depend_on_chunk_boundaries() {
        check(Framing::Lines, "{\"a\":\"ü\"}\n\r\n{\"b\":2}\r\n{}", &["{\"a\":\"ü\"}", "{\"b\":2}", "{}"]);
    }

    #[test]
    fn invalid_utf8_costs_its_frame_only() {
        let frames = frames(Framing::Lines, &[b"{\"a\":\"\xff\"}\n{}\n"]).unwrap();
        assert_eq!(frames, ["{\"a\":\"\u{1}\"}", "{}"]);
        assert!(serde_json::from_str::<serde_json::Value>(&frames[0]).is_err());
    }

    #[test]
    fn event_without_a_field_name_is_data() {
        let text = "\u{feff}data: {}\nignored\n\n{\n  \"error\": \"busy\"\n}\n\nid: 1\ndata: [DONE]\n\n";
        check(Framing::Events, text, &["{}", "{\n  \"error\": \"busy\"\n}", "[DONE]"]);
    }
}
