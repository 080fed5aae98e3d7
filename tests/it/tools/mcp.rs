//! MCP servers over stdio and HTTP.

mod edge_cases;
mod elicitation;
pub(crate) mod http;
mod instructions;
mod login;
pub(crate) mod servers;
