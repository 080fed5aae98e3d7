//! Ids, times and hashes. Code that needs a session id or the time gets a [`Source`]: real in normal use,
//! counted where every run must give the same bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::acp::SessionId;

mod local_zone;

/// Cheap to clone; clones share the counters.
#[derive(Debug, Clone)]
pub struct Source(SourceKind);

#[derive(Debug, Clone)]
enum SourceKind {
    Real,
    Counted { ids: Arc<AtomicI64>, ticks: Arc<AtomicI64> },
}

impl Source {
    pub fn real() -> Self {
        Self(SourceKind::Real)
    }

    /// Ids `sess_1`, `sess_2`, … and a clock that advances one millisecond at each call.
    pub fn counted() -> Self {
        Self(SourceKind::Counted { ids: Arc::default(), ticks: Arc::default() })
    }

    pub fn is_counted(&self) -> bool {
        matches!(self.0, SourceKind::Counted { .. })
    }

    pub fn session_id(&self) -> SessionId {
        match &self.0 {
            SourceKind::Real => SessionId::new(format!("sess_{}", unique())),
            SourceKind::Counted { ids, .. } => {
                SessionId::new(format!("sess_{}", ids.fetch_add(1, Ordering::Relaxed) + 1))
            }
        }
    }

    /// The present day. In a counted source the zone is UTC, and asking does not advance the clock.
    pub fn today(&self, zone: DayZone) -> Day {
        match &self.0 {
            SourceKind::Real => Day::of(jiff::Timestamp::now(), zone.time_zone()),
            SourceKind::Counted { ticks, .. } => {
                let now = jiff::Timestamp::from_millisecond(ticks.load(Ordering::Relaxed));
                Day::of(now.unwrap_or_default(), jiff::tz::TimeZone::UTC)
            }
        }
    }

    /// Moves the clock of a counted source forward. A real clock stays as it is.
    pub fn advance(&self, ms: i64) {
        if let SourceKind::Counted { ticks, .. } = &self.0 {
            ticks.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// In microseconds. The counted clock does not advance.
    pub fn now_us(&self) -> i64 {
        match &self.0 {
            SourceKind::Real => jiff::Timestamp::now().as_microsecond(),
            SourceKind::Counted { ticks, .. } => ticks.load(Ordering::Relaxed) * 1000,
        }
    }

    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            SourceKind::Real => jiff::Timestamp::now().as_millisecond(),
            SourceKind::Counted { ticks, .. } => ticks.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

/// A calendar day of a [`DayZone`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Day {
    /// As ISO 8601.
    pub date: String,
    /// For people: the next midnight, with its offset from UTC.
    pub ends: String,
}

/// The zone whose midnight begins a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DayZone {
    /// The zone that `TZ` or the system names; without one, UTC.
    #[default]
    Local,
    Utc,
}

impl DayZone {
    fn time_zone(self) -> jiff::tz::TimeZone {
        match self {
            Self::Local => local_zone::local_zone(),
            Self::Utc => jiff::tz::TimeZone::UTC,
        }
    }
}

impl Day {
    fn of(now: jiff::Timestamp, zone: jiff::tz::TimeZone) -> Self {
        let now = now.to_zoned(zone);
        // The last day that the library knows has no end.
        let midnight = now.tomorrow().and_then(|tomorrow| tomorrow.start_of_day());
        Self {
            date: now.date().to_string(),
            ends: midnight.unwrap_or(now).strftime("%F %H:%M %:z").to_string(),
        }
    }
}

/// Returns a unique id of 32 hexadecimal digits that begins with the time, so that ids sort by age.
pub fn unique() -> String {
    unique_at(jiff::Timestamp::now().as_millisecond())
}

/// A clock before 1970 counts as 1970, which the library would not survive.
fn unique_at(now_ms: i64) -> String {
    let id = if now_ms < 0 {
        uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 0, 0))
    } else {
        uuid::Uuid::now_v7()
    };
    id.simple().to_string()
}

/// Returns the SHA-256 of a text in hexadecimal digits.
pub fn hash(text: &str) -> String {
    hash_bytes(text.as_bytes())
}

pub fn hash_bytes(bytes: &[u8]) -> String {
    // Each event is hashed: a formatter for each digit would cost as much as the digest.
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let digits = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| DIGITS[usize::from(digit)]).collect()
}

/// Returns the SHA-1 of the parts together, which git uses for its objects.
pub fn sha1(parts: &[&[u8]]) -> [u8; 20] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    for part in parts {
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("SHA-1 has twenty bytes")
}

/// Parses a duration such as `30d`, `12h` or `2 weeks`. A day has 24 hours. Months and years have no fixed
/// length and give `None`.
pub fn duration_ms(text: &str) -> Option<i64> {
    let span: jiff::Span = text.parse().ok()?;
    let total = span.total((jiff::Unit::Millisecond, jiff::SpanRelativeTo::days_are_24_hours())).ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "a span is bounded to some twenty thousand years")]
    (total >= 0.0).then_some(total as i64)
}

/// Formats a time as ISO 8601 in UTC.
pub fn time_iso(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.to_string())
}

pub fn time_text(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms)
        .map_or_else(|_| at_ms.to_string(), |at| at.strftime("%F %T").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_before_1970_gives_unique_ids() {
        let (one, other) = (unique_at(-1), unique_at(i64::MIN));
        assert!(one != other && one.len() == 32 && one.starts_with("000000000000"), "{one} {other}");
        assert!(unique_at(1) > one, "the control");
        assert_eq!(time_iso(i64::MAX), i64::MAX.to_string());
    }

    #[test]
    fn day_ends_at_the_midnight_of_its_zone() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let berlin = jiff::tz::TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (now, zone, date, ends) in [
            ("2026-11-27T22:59:59Z", &berlin, "2026-11-27", "2026-11-28 00:00 +01:00"),
            ("2026-11-27T23:00:00Z", &berlin, "2026-11-28", "2026-11-29 00:00 +01:00"),
            ("2026-11-27T23:00:00Z", &jiff::tz::TimeZone::UTC, "2026-11-27", "2026-11-28 00:00 +00:00"),
            ("2026-10-24T22:30:00Z", &berlin, "2026-10-25", "2026-10-26 00:00 +01:00"),
        ] {
            let day = Day::of(at(now), zone.clone());
            assert_eq!((day.date.as_str(), day.ends.as_str()), (date, ends), "{now}");
        }
    }

    #[test]
    fn durations_parse_and_invalid_ones_do_not() {
        const HOUR: i64 = 3_600_000;
        assert_eq!(duration_ms("12h"), Some(12 * HOUR));
        assert_eq!(duration_ms("30d"), Some(30 * 24 * HOUR));
        assert_eq!(duration_ms("8w"), Some(56 * 24 * HOUR));
        for bad in ["", "30", "d", "soon", "-3d", "1 month", "99999999999999999999d"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }
}
