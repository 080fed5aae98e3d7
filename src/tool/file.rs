//! Tools that read, find, move and delete files, and what the session knows of the texts of files.

pub(super) mod buffers;
pub(super) mod delete_file;
pub(super) mod directory_tree;
pub(super) mod disk_texts;
mod encoding;
pub(super) mod excerpt;
pub(super) mod find_files;
pub(super) mod last_seen;
pub(super) mod list_directory;
pub(super) mod move_file;
pub(super) mod near_path;
mod picture;
pub(super) mod read_file;
pub(super) mod search_files;
pub(super) mod text_file;
mod walk;
