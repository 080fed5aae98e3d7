//! The kernel sandbox, the fork server, the supervisor, and the cleanup of processes.

mod agent;
mod broker;
mod broker_attacks;
mod broker_differential;
mod broker_inputs;
mod broker_locks;
mod broker_questions;
mod broker_terminals;
mod cleanup;
mod commands;
mod denied_reads;
mod egress;
mod fixture;
mod fork_server;
mod seatbelt;
mod supervisor;
