//! Loading, the store, crashes, undo and notes to the model.

mod audit_log;
mod commit_order;
pub(crate) mod kills;
mod kills_files;
mod load;
mod resume;
mod store_failures;
mod system_notes;
mod undo;
mod undo_fuzz;
mod user_commands;
