//! Launch options in a recording's header. Contains no secrets.

use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 2;

/// An unknown member is an error: it might change the outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LaunchOptions {
    /// Mode of new sessions, from `--mode` or `default_mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_exit: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_all: bool,
    /// Such as `offline`, `scripted` or PROVIDER/NAME.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wraps: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    File,
    Memory,
}
