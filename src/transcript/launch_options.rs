//! The options that a process was started with, as far as a replay needs them: a member of a recording's header. No secrets.

use serde::{Deserialize, Serialize};

/// The version of the recording's format that has these options.
pub const VERSION: u32 = 2;

/// What a recorded process was started with. An unknown member is an error: it might change what happens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LaunchOptions {
    /// The mode of new sessions, by `--mode` or by `default_mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `--max-mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mode: Option<String>,
    /// `--agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `--no-exit`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_exit: bool,
    /// The model of new sessions: `offline`, `scripted` or PROVIDER/NAME.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether sessions were recorded in a file or in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreKind>,
    /// The external agent of `modegate wrap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wraps: Option<String>,
}

/// Where sessions are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// In a file, which outlives the process.
    File,
    /// In memory.
    Memory,
}
