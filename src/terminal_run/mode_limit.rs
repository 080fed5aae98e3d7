//! The mode that limits a program, for the lines of `modegate run`. Pure.

use crate::session::SessionSnapshot;

/// The limit of the session's present mode, behind its name.
pub(super) fn mode_limit_text(snapshot: &SessionSnapshot) -> String {
    limit_text(snapshot.mode_limit().as_deref())
}

/// The limit behind the name of a mode.
pub fn limit_text(limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| format!(", {limit}"))
}
