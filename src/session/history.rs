//! What happened before: changed files and their undo, stored sessions, changes that a killed process left.

pub(super) mod changes_so_far;
pub(super) mod checkpoint;
pub(super) mod intents;
pub(super) mod interruption;
pub(super) mod replays;
pub(super) mod restore;
