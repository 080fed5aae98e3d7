//! The kernel sandbox, the supervisor, and the cleanup of processes.

mod agent;
mod cleanup;
mod commands;
mod fixture;
mod supervisor;
