//! Delegation, sub-agents and external agents.

mod background_tools;
pub(crate) mod delegation;
mod delegation_edge_cases;
pub(crate) mod external;
mod parallel;
mod small_model;
mod sub_agents;
