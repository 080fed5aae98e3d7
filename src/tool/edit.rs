//! Tools that change the text of files, and the search for the text that an edit replaces.

pub(super) mod apply_patch;
pub(super) mod edit_file;
mod save;
mod syntax;
mod text_change;
pub(super) mod text_match;
pub(super) mod write_file;
