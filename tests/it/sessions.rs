//! Loading, the store, crashes, undo and notes to the model.

mod audit_log;
mod budgets;
mod client_prompt;
mod commit_order;
#[cfg(target_os = "linux")]
mod file_faults;
#[cfg(target_os = "linux")]
pub(crate) mod hooks;
#[cfg(unix)]
pub(crate) mod kills;
#[cfg(unix)]
mod kills_files;
pub(crate) mod load;
mod notices;
#[cfg(unix)]
pub(crate) mod resume;
mod steering;
mod store_failures;
mod store_faults;
mod strace;
mod system_notes;
#[cfg(unix)]
pub(crate) mod undo;
#[cfg(unix)]
mod undo_fuzz;
#[cfg(unix)]
mod user_commands;
