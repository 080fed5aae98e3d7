//! Modegate: a standalone ACP coding agent whose modes hold.
//!
//! An editor starts the `modegate` binary and exchanges line-delimited JSON-RPC messages with it. From the
//! wire inwards:
//!
//! - [`transport`] converts bytes to lines, [`json_rpc`] lines to messages; [`rpc`] owns the connection and the table of methods; [`client`]
//!   is the agent's view of its client.
//! - [`agent`] owns the sessions; [`session`] is one conversation: an actor with a mode, a toolset and a
//!   turn.
//! - [`mode`] and [`permission`] decide calls; [`gate`] ends running calls that a new mode denies; [`tool`]
//!   and [`workspace`] carry calls out; [`model`] calls providers over [`http`]; [`store`] persists sessions.
//! - [`transcript`] replays conversations; [`headless`] runs one prompt without an editor; [`cli`] and
//!   [`config`] read options and files.
//!
//! `docs/internals/architecture.md` has the full map.

pub mod acp;
pub mod agent;
pub mod agents;
pub mod audit;
pub mod bounded_file;
pub mod budget;
pub mod busy;
pub mod chain;
pub mod checks;
pub mod cli;
pub mod client;
pub mod config;
pub mod conversation;
pub mod error;
pub mod event;
pub mod evidence_bundle;
pub mod external_agent;
pub mod file_lock;
mod folder_removal;
pub mod front_matter;
pub mod gate;
pub mod git_folder;
pub mod headless;
pub mod http;
pub mod ids;
pub mod image_scaling;
pub mod json_rpc;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod lazy_channel;
pub mod line_diff;
pub mod managed_policy;
pub mod memory;
pub mod mode;
pub mod model;
pub mod otlp;
pub mod own_files;
pub mod path_bytes;
pub mod permission;
pub mod platform;
pub mod policy;
pub mod process;
pub mod report;
pub mod rpc;
pub mod sandbox;
pub mod server;
pub mod session;
pub mod signing;
pub mod skill;
pub mod span_record;
pub mod store;
pub mod supervisor;
pub mod telemetry;
#[cfg(target_os = "linux")]
pub mod terminal_host;
#[cfg(target_os = "linux")]
pub mod terminal_run;
pub mod text;
pub mod tool;
pub mod transcript;
pub mod transport;
pub mod workspace;
pub mod yaml_error;
