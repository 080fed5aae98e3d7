//! The escape cases without a sandbox: the control of each sandbox. They run once for all tests.

use std::collections::HashMap;
use std::path::PathBuf;

use futures_util::StreamExt;
use tokio::sync::OnceCell;

use crate::sandbox::commands::{CONCURRENT_CASES, EscapeCase, cases, free};
use crate::sandbox::fixture::SandboxFixture;

pub(crate) struct Control {
    /// The folder of its fixture, which is gone.
    pub folder: PathBuf,
    pub output: String,
    pub effects: Vec<String>,
}

/// The controls, by the names of their cases.
pub(crate) async fn controls() -> &'static HashMap<String, Control> {
    static CONTROLS: OnceCell<HashMap<String, Control>> = OnceCell::const_new();
    CONTROLS.get_or_init(run_without_sandbox).await
}

async fn run_without_sandbox() -> HashMap<String, Control> {
    let (cases, _) = cases(include_str!("../../escape/cases.txt"));
    let run = |case: EscapeCase| async move {
        let mut fixture = SandboxFixture::new();
        let output = free(&fixture, &case.line).await;
        let effects = fixture.effects(&output);
        let control = Control { folder: fixture.dir().path().to_owned(), output, effects };
        // Some file systems are slow to make files while others are being removed.
        (fixture.dir(), case.name, control)
    };
    let results: Vec<_> =
        futures_util::stream::iter(cases).map(run).buffer_unordered(CONCURRENT_CASES).collect().await;
    results.into_iter().map(|(_, name, control)| (name, control)).collect()
}
