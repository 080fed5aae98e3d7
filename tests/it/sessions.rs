//! Loading, the store, crashes, undo and notes to the model.

mod audit_log;
mod client_prompt;
mod commit_order;
pub(crate) mod kills;
mod kills_files;
pub(crate) mod load;
mod notices;
mod resume;
mod steering;
mod store_failures;
mod system_notes;
pub(crate) mod undo;
mod undo_fuzz;
mod user_commands;
