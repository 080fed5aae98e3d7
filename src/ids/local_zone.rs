//! The time zone of this system.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;

/// The zone may change while Modegate runs, for example on a journey.
const KEPT_FOR: Duration = Duration::from_mins(5);

/// The zone that `TZ` or the system names; without one, UTC.
///
/// [`TimeZone::system`] gives the same zone, but searches all folders of zones for it first.
pub(super) fn local_zone() -> TimeZone {
    static LAST: Mutex<Option<(Instant, TimeZone)>> = Mutex::new(None);
    if std::env::var_os("TZ").is_some() {
        return TimeZone::system();
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read, zone)) = &*last
        && read.elapsed() < KEPT_FOR
    {
        return zone.clone();
    }
    let zone = zone_of(Path::new("/etc/localtime")).unwrap_or_else(TimeZone::system);
    *last = Some((Instant::now(), zone.clone()));
    zone
}

/// `None` without a file of a time zone.
fn zone_of(file: &Path) -> Option<TimeZone> {
    TimeZone::tzif("local", &std::fs::read(file).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of version 2 (RFC 9636) without transitions.
    fn file_of(rule: &str) -> Vec<u8> {
        let block = |version: u8| {
            let mut block = b"TZif".to_vec();
            block.push(version);
            block.resize(20, 0);
            for count in [0_u32, 0, 0, 0, 1, 4] {
                block.extend(count.to_be_bytes());
            }
            block.extend(3_600_i32.to_be_bytes());
            block.extend([0, 0]);
            block.extend(*b"CET\0");
            block
        };
        [block(b'2'), block(b'2'), format!("\n{rule}\n").into_bytes()].concat()
    }

    #[test]
    fn zone_is_read_from_its_file() {
        let rule = "CET-1CEST,M3.5.0,M10.5.0/3";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("localtime");
        std::fs::write(&file, file_of(rule)).unwrap();
        let (zone, expected) = (zone_of(&file).unwrap(), TimeZone::posix(rule).unwrap());
        for time in ["2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z", "2026-10-25T01:00:00Z"] {
            let time: jiff::Timestamp = time.parse().unwrap();
            assert_eq!(zone.to_offset(time), expected.to_offset(time), "{time}");
        }
        std::fs::write(&file, "no zone").unwrap();
        assert!(zone_of(&file).is_none());
        assert!(zone_of(&folder.path().join("missing")).is_none());
    }
}
