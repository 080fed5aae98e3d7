//! External agents: other programs that speak ACP and answer a session. [`client`] is an ACP client over the
//! pipes of the agent's process; [`session`] keeps the process in the sandbox that the mode requires, and
//! turns its messages into effects for the session's actor. Nothing here names the session.

pub mod capability;
pub mod client;
pub mod definition;
pub mod known;
pub mod options;
pub mod profile;
pub mod requested_call;
pub mod session;
pub mod settings;
pub mod settings_text;
pub mod sockets;

pub use client::{ExternalAgent, ExternalAgentError, StartError, StartRequest, StartingAgent, WrappedAgent};
