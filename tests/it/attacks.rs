//! Attacks on everything but ordinary files: system calls, terminals, the network, Modegate's own files, and
//! questions. Each attack runs in every sandbox in which it could succeed, and without a sandbox as the
//! control.

mod control;
mod held;
#[cfg(target_os = "linux")]
mod managed_policy;
mod open_files;
mod own_files;
mod questions;
mod system_calls;
mod taken_back;
mod terminals;
