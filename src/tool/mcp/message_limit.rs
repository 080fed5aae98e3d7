//! Bounds the messages of a server program. The library drops a line that is too long without a word, and the call
//! would wait for its time limit; here, an error takes the place of such an answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, ReadBuf};

/// Code of the error that replaces an answer, outside of the codes that JSON-RPC and MCP use.
pub(super) const TOO_LARGE: i32 = -31_999;

/// Passes all messages on. Of a message beyond the limit, it passes on the start, so that the library drops it, and
/// then an error with the same id.
pub(super) struct MessageLimit<R> {
    reader: R,
    limit: usize,
    envelope: OuterMembers,
    /// Bytes of the current line so far.
    length: usize,
    is_answered: bool,
    /// Still to be passed on, from `passed` on.
    pending: Vec<u8>,
    passed: usize,
}

impl<R> MessageLimit<R> {
    pub(super) fn new(reader: R, limit: usize) -> Self {
        let envelope = OuterMembers::default();
        Self { reader, limit, envelope, length: 0, is_answered: false, pending: Vec::new(), passed: 0 }
    }

    /// Returns true if the bytes can be passed on as they are. If not, `pending` has what takes their place.
    fn accept(&mut self, bytes: &[u8]) -> bool {
        let mut is_unchanged = true;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            is_unchanged &= self.read_part(part);
        }
        is_unchanged
    }

    /// `part` ends at a line end, or has none. Returns true if it is passed on as it is.
    fn read_part(&mut self, part: &[u8]) -> bool {
        let was_within = self.length <= self.limit;
        self.length += part.len();
        self.envelope.read(part);
        if was_within {
            self.pending.extend_from_slice(part);
        }
        let is_over = part.ends_with(b"\n");
        if self.length > self.limit && !self.is_answered && (is_over || self.envelope.is_answer()) {
            self.is_answered = true;
            if let Some(id) = self.envelope.answer_id() {
                let limit = self.limit >> 20;
                let message = format!("The answer is larger than {limit} MiB and was not read.");
                let error =
                    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": TOO_LARGE, "message": message } });
                // The library reads on after the end of the line that it drops.
                if !(was_within && is_over) {
                    self.pending.push(b'\n');
                }
                self.pending.extend_from_slice(error.to_string().as_bytes());
                self.pending.push(b'\n');
            } else if !(was_within && is_over) {
                self.pending.push(b'\n');
            }
        }
        let is_within = self.length <= self.limit;
        if is_over {
            (self.length, self.is_answered, self.envelope) = (0, false, OuterMembers::default());
        }
        is_within
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for MessageLimit<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.passed < self.pending.len() {
                let rest = &self.pending[self.passed..];
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                self.passed += count;
                return Poll::Ready(Ok(()));
            }
            self.pending.clear();
            self.passed = 0;
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let this = &mut *self;
            if this.accept(&buffer.filled()[before..]) {
                this.pending.clear();
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(before);
        }
    }
}

/// Reads the outermost members of a JSON object as its bytes arrive, without keeping it.
#[derive(Debug, Default)]
struct OuterMembers {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    part: OuterPart,
    /// The name of the current outermost member.
    name: Vec<u8>,
    id: Vec<u8>,
    kind: OuterKind,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum OuterPart {
    #[default]
    Other,
    /// The name of an outermost member may begin.
    BeforeName,
    Name,
    /// The value of the member `id`.
    Id,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum OuterKind {
    #[default]
    Unknown,
    Answer,
    /// A request or a notification of the server.
    Request,
}

/// Maximum bytes of a name, and of an id, that are kept.
const MAX_KEPT: usize = 256;

impl OuterMembers {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.read_byte(*byte);
        }
    }

    fn read_byte(&mut self, byte: u8) {
        let is_end = self.depth == 1 && !self.is_in_string && matches!(byte, b',' | b'}');
        if self.part == OuterPart::Id && !is_end && self.id.len() < MAX_KEPT {
            self.id.push(byte);
        }
        if self.is_in_string {
            self.read_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.is_in_string = true;
                if self.part == OuterPart::BeforeName {
                    self.part = OuterPart::Name;
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == 1 {
                    self.part = OuterPart::BeforeName;
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.part = OuterPart::Other;
                }
            }
            b':' if self.depth == 1 => self.begin_value(),
            b',' if self.depth == 1 => self.part = OuterPart::BeforeName,
            _ => {}
        }
    }

    fn read_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => {
                self.is_in_string = false;
                if self.part == OuterPart::Name {
                    self.part = OuterPart::Other;
                }
            }
            byte if self.part == OuterPart::Name && self.name.len() < MAX_KEPT => self.name.push(byte),
            _ => {}
        }
    }

    fn begin_value(&mut self) {
        match self.name.as_slice() {
            b"id" => {
                self.part = OuterPart::Id;
                self.id.clear();
            }
            b"result" | b"error" if self.kind == OuterKind::Unknown => self.kind = OuterKind::Answer,
            b"method" => self.kind = OuterKind::Request,
            _ => {}
        }
    }

    /// True if the message is known to be an answer with an id.
    fn is_answer(&self) -> bool {
        self.kind == OuterKind::Answer && self.part != OuterPart::Id && !self.id.is_empty()
    }

    fn answer_id(&self) -> Option<Value> {
        let id: Value = serde_json::from_slice(&self.id).ok()?;
        let is_id = id.is_u64() || id.is_i64() || id.is_string();
        (self.kind == OuterKind::Answer && is_id).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const LIMIT: usize = 3 << 20;

    async fn lines(input: &str, step: usize) -> Vec<String> {
        let mut reader = MessageLimit::new(input.as_bytes(), LIMIT);
        let (mut output, mut buffer) = (Vec::new(), vec![0; step]);
        loop {
            let count = reader.read(&mut buffer).await.unwrap();
            if count == 0 {
                break;
            }
            output.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_becomes_an_error() {
        let large = "x".repeat(4 << 20);
        let small = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
        let error = |id: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-31999,"message":"The answer is larger than 3 MiB and was not read."}}}}"#
            )
        };
        for (message, expected) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"text":"{large}"}}}}"#), Some(error("7"))),
            (
                format!(r#"{{"result":{{"id":1,"t":["\"{large}",{{"id":2}}]}},"id" : "a,\"}}b"}}"#),
                Some(error(r#""a,\"}b""#)),
            ),
            (format!(r#"{{"error":{{"message":"{large}"}},"id":-3 }}"#), Some(error("-3"))),
            (format!(r#"{{"id":7,"params":{{"result":"{large}"}},"method":"ping"}}"#), None),
            (format!(r#"{{"id":7,"result":{{}},"method":"x","params":"{large}"}}"#), None),
            (format!(r#"{{"method":"notice","params":"{large}"}}"#), None),
            (large.clone(), None),
        ] {
            for step in [1 << 13, 1 << 16, 77_777] {
                let got = lines(&format!("{small}\n{message}\n{small}\n"), step).await;
                assert_eq!((got.first(), got.last()), (Some(&small.to_owned()), Some(&small.to_owned())));
                let between: Vec<_> =
                    got[1..got.len() - 1].iter().filter(|line| line.len() < LIMIT).collect();
                assert_eq!(between, expected.iter().collect::<Vec<_>>(), "{}", &message[..60]);
                // The start is passed on beyond the limit, so that the library drops it.
                assert!(got.iter().any(|line| line.len() >= LIMIT && line.len() < LIMIT + (1 << 17)));
            }
        }
    }

    #[tokio::test]
    async fn messages_within_the_limit_are_passed_on_unchanged() {
        let input = format!(
            "{}\n\nno JSON\n{{\"id\":1,\"result\":\"{}\"}}\nno end",
            "x".repeat(5000),
            "é".repeat(1 << 20)
        );
        for step in [1000, 8192, 1 << 20] {
            let got = lines(&input, step).await;
            assert_eq!(got, input.lines().collect::<Vec<_>>(), "{step}");
        }
    }
}
