//! MCP servers over stdio and HTTP.

mod edge_cases;
mod elicitation;
pub(crate) mod http;
mod instructions;
pub(crate) mod servers;
