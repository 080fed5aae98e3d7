//! Implements `modegate report`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::sessions::{all_events, find, new_file, open_to_read};
use crate::audit::{self, TrustAnchors};
use crate::config::environment::Environment;
use crate::config::{self, Flags};
use crate::report::{self, SessionRecord};
use crate::store::Store;
use crate::tool::effect_of;

#[derive(Debug, clap::Args)]
pub(super) struct ReportArguments {
    /// Id of the session [default: the most recent one of this directory]
    session: Option<String>,
    /// Another session to show beside it
    #[arg(long, value_name = "ID")]
    compare: Option<String>,
    /// New file for the page [default: print it]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(
    arguments: ReportArguments,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let store = open_to_read(flags, environment)?;
    let cwd = config::working_folder(flags)?;
    let session = arguments.session.as_deref().unwrap_or("last");
    let record = read(&store, &cwd, session).await?;
    let page = match &arguments.compare {
        Some(other) => report::compare(&record, &read(&store, &cwd, other).await?),
        None => report::page(&record),
    };
    match &arguments.output {
        Some(path) => new_file(path)?
            .write_all(page.as_bytes())
            .with_context(|| format!("writing {}", path.display()))?,
        None => output.write_all(page.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(store: &Store, cwd: &Path, part: &str) -> anyhow::Result<SessionRecord> {
    let session = find(store, cwd, part).await?;
    let evidence = store.evidence(&session.id).await?.context("the session is gone")?;
    let audit = audit::audit(&evidence, effect_of, TrustAnchors::default());
    Ok(SessionRecord {
        events: all_events(store, &session.id).await?,
        changes: store.changes(&session.id).await?,
        uncovered: store.uncovered(&session.id).await?,
        evidence,
        audit,
        session,
    })
}
