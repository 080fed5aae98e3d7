//! The kernel sandbox, the fork server, the supervisor, and the cleanup of processes.

mod agent;
pub(crate) mod broker;
mod broker_attacks;
mod broker_differential;
mod broker_inputs;
mod broker_locks;
mod broker_questions;
mod broker_races;
mod broker_terminals;
mod cleanup;
mod command_events;
pub(crate) mod commands;
mod controls;
mod denied_changes;
mod denied_reads;
pub(crate) mod egress;
pub(crate) mod fixture;
mod fork_server;
mod seatbelt;
mod shared_memory;
mod supervisor;
mod unix_sockets;
