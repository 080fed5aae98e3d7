//! Modegate: a standalone ACP coding agent whose modes hold.
//!
//! An editor starts the `modegate` binary and speaks line-delimited JSON-RPC to it. A line travels down
//! these rooms, and its answer travels back up:
//!
//! - [`transport`] turns bytes into lines; [`rpc`] sorts lines and keeps the connection; [`rpc::dispatch`] is the
//!   table of methods; [`client`] is the agent's view of whoever it talks to.
//! - [`agent`] holds the sessions; [`session`] is one conversation: an actor that owns its mode, its toolset and
//!   its reminder splicer, and a turn that asks the model and runs tools.
//! - [`mode`] and [`permission`] say what may happen, [`gate`] holds what is happening to it; [`tool`] and
//!   [`workspace`] are the hands; [`model`] is the voice, over [`http`] where it is far away; [`store`] is the memory.
//! - [`transcript`] records conversations and plays them again; [`headless`] runs one prompt without an editor. [`cli`] and [`config`] read what the user asked for.
//!
//! `docs/architecture.md` has the whole map, with the invariants and the walk of a prompt.

pub mod acp;
pub mod agent;
pub mod agents;
pub mod audit;
pub mod bounded_file;
pub mod chain;
pub mod cli;
pub mod client;
pub mod config;
pub mod error;
pub mod event;
pub mod external_agent;
pub mod front_matter;
pub mod gate;
pub mod git_folder;
pub mod headless;
pub mod http;
pub mod ids;
pub mod mode;
pub mod model;
pub mod permission;
pub mod policy;
pub mod process;
pub mod rpc;
pub mod sandbox;
pub mod server;
pub mod session;
pub mod skill;
pub mod store;
pub mod telemetry;
pub mod tool;
pub mod transcript;
pub mod transport;
pub mod workspace;
