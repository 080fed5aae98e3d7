//! MCP servers over stdio and HTTP.

mod edge_cases;
pub(crate) mod http;
pub(crate) mod servers;
