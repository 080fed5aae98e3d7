//! The mode that limits a program, for the lines of `modegate run`. Pure.

use crate::session::SessionSnapshot;

/// Such as `limited to plan by --max-mode`. `None` if the session's mode decides alone.
pub(super) fn mode_limit(snapshot: &SessionSnapshot) -> Option<String> {
    snapshot.limited_to.as_ref().map(|(limit, why)| format!("limited to {limit} {why}"))
}

/// The limit of the session's present mode, behind its name.
pub(super) fn mode_limit_text(snapshot: &SessionSnapshot) -> String {
    limit_text(mode_limit(snapshot).as_deref())
}

/// The limit behind the name of a mode.
pub fn limit_text(limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| format!(", {limit}"))
}
