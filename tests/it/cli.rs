//! The command line and headless runs, with the built binary.

mod agents;
#[cfg(unix)]
mod evidence;
mod generated;
mod headless;
#[cfg(target_os = "linux")]
mod headless_checks;
mod headless_ci;
mod headless_endings;
mod headless_modes;
mod headless_progress;
#[cfg(target_os = "linux")]
mod headless_terminal;
mod hints;
mod modes;
mod modes_import;
mod offline;
mod permissions;
mod report;
#[cfg(target_os = "linux")]
pub(crate) mod run;
#[cfg(target_os = "linux")]
mod run_changes;
#[cfg(target_os = "linux")]
mod run_kills;
#[cfg(target_os = "linux")]
mod run_messages;
#[cfg(target_os = "linux")]
mod run_panel;
#[cfg(target_os = "linux")]
mod run_terminal;
#[cfg(target_os = "linux")]
mod run_undo;
mod schemas;
mod scripts;
mod sessions;
mod tutorial;
