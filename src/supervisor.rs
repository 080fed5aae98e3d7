//! The programs that run commands on Linux, in processes of their own: the `fork_server` forks a supervisor (`supervision`)
//! for each command, and the `guard` ends the commands of a killed supervisor.
//!
//! A supervisor sandboxes its command, adopts the command's orphaned descendants, and ends all of them. Its `broker`
//! answers the calls that the sandbox suspends. Modegate itself uses only the public items.

pub mod protocol;
pub mod record;

#[cfg(target_os = "linux")]
mod broker;
#[cfg(target_os = "linux")]
mod call_answerer;
#[cfg(target_os = "linux")]
pub mod children;
#[cfg(target_os = "linux")]
mod command_process;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
pub mod descriptors;
#[cfg(target_os = "linux")]
mod entry;
#[cfg(target_os = "linux")]
mod fork_server;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod startup;
#[cfg(target_os = "linux")]
mod supervision;

#[cfg(target_os = "linux")]
pub use entry::begin;
