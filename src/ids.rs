//! Where ids, times and hashes come from. Real ones in use; counted ones where the same run must give the same bytes.
//!
//! Rooms that need an id or a time are handed a [`Source`]; nothing else asks the operating system for either.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::acp::SessionId;

/// A source of ids and of the time. Cheap to clone; clones share the counters.
#[derive(Debug, Clone)]
pub struct Source(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Real,
    Counted { ids: Arc<AtomicI64>, ticks: Arc<AtomicI64> },
}

impl Source {
    /// Unique ids (UUID version 7) and the system's clock.
    pub fn real() -> Self {
        Self(Kind::Real)
    }

    /// `sess_1`, `sess_2`, … and a clock that moves one millisecond each time it is read.
    pub fn counted() -> Self {
        Self(Kind::Counted { ids: Arc::default(), ticks: Arc::default() })
    }

    /// Whether the same run gives the same ids and times.
    pub fn is_counted(&self) -> bool {
        matches!(self.0, Kind::Counted { .. })
    }

    /// A session id that was not given before.
    pub fn session_id(&self) -> SessionId {
        match &self.0 {
            Kind::Real => SessionId::new(format!("sess_{}", uuid::Uuid::now_v7().simple())),
            Kind::Counted { ids, .. } => {
                SessionId::new(format!("sess_{}", ids.fetch_add(1, Ordering::Relaxed) + 1))
            }
        }
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Kind::Real => jiff::Timestamp::now().as_millisecond(),
            Kind::Counted { ticks, .. } => ticks.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

/// The SHA-256 of a text, in hexadecimal digits: what names a text in the record, and a file that is trusted.
pub fn hash(text: &str) -> String {
    hash_bytes(text.as_bytes())
}

/// The SHA-256 of bytes, in hexadecimal digits: what names the content of a file.
pub fn hash_bytes(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        hex
    })
}

/// A length of time as people write it (`30d`, `12client`, `2 weeks`), in milliseconds. A day has 24 hours; months and years have no
/// one length.
pub fn duration_ms(text: &str) -> Option<i64> {
    let span: jiff::Span = text.parse().ok()?;
    let total = span.total((jiff::Unit::Millisecond, jiff::SpanRelativeTo::days_are_24_hours())).ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "a span is bounded to some twenty thousand years")]
    (total >= 0.0).then_some(total as i64)
}

/// A time in milliseconds since 1970 as ISO 8601 has it, in UTC.
pub fn time_iso(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.to_string())
}

/// A time in milliseconds since 1970 for people, in UTC.
pub fn time_text(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms)
        .map_or_else(|_| at_ms.to_string(), |at| at.strftime("%F %T").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        const HOUR: i64 = 3_600_000;
        assert_eq!(duration_ms("12h"), Some(12 * HOUR));
        assert_eq!(duration_ms("30d"), Some(30 * 24 * HOUR));
        assert_eq!(duration_ms("8w"), Some(56 * 24 * HOUR));
        for bad in ["", "30", "d", "soon", "-3d", "1 month", "99999999999999999999d"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }
}
