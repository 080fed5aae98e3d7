//! The tools: files, commands, fetch, memory, skills, questions.

mod ask_user;
mod editor;
mod editor_clients;
pub(crate) mod fetch;
mod file_changes;
mod file_reading;
mod html;
pub(crate) mod mcp;
mod memories;
mod noise;
mod patches;
mod read_file;
mod shell;
mod shell_output;
pub(crate) mod skills;
