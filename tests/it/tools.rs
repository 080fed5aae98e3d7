//! The tools: files, commands, fetch, memory, skills, questions.

mod ask_user;
#[cfg(unix)]
mod concurrent_edits;
#[cfg(unix)]
mod editor;
mod editor_clients;
pub(crate) mod fetch;
mod file_changes;
#[cfg(unix)]
mod file_reading;
mod html;
pub(crate) mod mcp;
mod memories;
#[cfg(unix)]
mod noise;
#[cfg(unix)]
mod odd_arguments;
#[cfg(unix)]
mod patches;
mod read_file;
#[cfg(unix)]
mod shell;
#[cfg(unix)]
mod shell_output;
#[cfg(target_os = "linux")]
mod shell_rules;
pub(crate) mod skills;
