//! Implements `modegate schema`, which prints the JSON Schemas of files and outputs.

use std::io::Write;
use std::process::ExitCode;

use schemars::{Schema, schema_for};

use super::UsageError;
use super::audit::AuditOutput;
#[cfg(target_os = "linux")]
use super::mode::remote::RunningProgram;
use super::sessions::output::{SessionDetails, SessionOutput};
use crate::config::user_file::UserFile;
use crate::headless;
use crate::managed_policy::ManagedPolicy;
use crate::managed_policy::explain::{PolicyDecision, PolicyOutput};
use crate::policy::ModeFile;

/// Name of a schema, its subject, and the schema.
type NamedSchema = (&'static str, &'static str, fn() -> Schema);

const SCHEMAS: &[NamedSchema] = &[
    ("audit", "output of `modegate audit SESSION --json`", || schema_for!(AuditOutput)),
    ("config", "the file config.yaml", || schema_for!(UserFile)),
    #[cfg(target_os = "linux")]
    ("mode", "a line of `modegate mode --json`", || schema_for!(RunningProgram)),
    ("modes", "the file modes.yaml", || schema_for!(ModeFile)),
    ("policy", "the file policy.yaml of an administrator", || schema_for!(ManagedPolicy)),
    ("policy-explain", "output of `modegate policy explain --json`", || schema_for!(PolicyDecision)),
    ("policy-show", "output of `modegate policy show --json`", || schema_for!(PolicyOutput)),
    ("result", "output of `modegate --output json -p TEXT`", headless::result_schema),
    ("session", "output of `modegate sessions show ID --json`", || schema_for!(SessionDetails)),
    ("sessions", "a line of `modegate sessions list --json`", || schema_for!(SessionOutput)),
    ("stream", "a line of `modegate --output stream-json -p TEXT`", headless::stream_schema),
];

#[derive(Debug, clap::Args)]
pub(super) struct SchemaArguments {
    /// Name of the schema [default: list the names]
    name: Option<String>,
}

pub(super) fn run(arguments: &SchemaArguments, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let Some(name) = &arguments.name else {
        for (name, about, _) in SCHEMAS {
            writeln!(output, "{name:16}{about}")?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some((_, _, schema)) = SCHEMAS.iter().find(|(known, ..)| known == name) else {
        let names: Vec<&str> = SCHEMAS.iter().map(|(name, ..)| *name).collect();
        let message = format!("there is no schema {name:?}: the schemas are {}", names.join(", "));
        return Err(UsageError::new(message).into());
    };
    writeln!(output, "{}", serde_json::to_string_pretty(&schema())?)?;
    Ok(ExitCode::SUCCESS)
}
