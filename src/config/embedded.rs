//! Models inside this process: the offline model and scripts.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::bounded_file;
use crate::model::catalog::{ModelCatalog, OFFLINE, SCRIPTED};
use crate::model::gallery;
use crate::model::offline::Offline;
use crate::model::router::Remote;
use crate::model::scripted::{Pauses, Scripted};
use crate::model::{Effort, Model, ModelId};

/// Maximum bytes of a script.
const MAX_SCRIPT: u64 = 256 * 1024 * 1024;

pub(super) fn script(name: &str) -> anyhow::Result<Option<Scripted>> {
    let Some(file) = name.strip_prefix("scripted:") else { return Ok(None) };
    let text = match file.strip_prefix('@') {
        Some(script) => {
            let script = gallery::find(script).map_err(|error| anyhow::anyhow!("--model {name}: {error}"))?;
            script.text.to_owned()
        }
        None => bounded_file::read_own_text(Path::new(file), MAX_SCRIPT)
            .map_err(|error| anyhow::anyhow!("--model {name}: the file {error}"))?,
    };
    Scripted::parse(&text).with_context(|| format!("--model {name}")).map(Some)
}

pub(super) fn in_process(
    script: Option<Scripted>,
    pauses: Option<Pauses>,
) -> HashMap<String, Arc<dyn Model>> {
    let mut models: HashMap<String, Arc<dyn Model>> = HashMap::new();
    models.insert(OFFLINE.into(), Arc::new(Offline));
    if let Some(script) = script {
        let script = match pauses {
            Some(pauses) => script.paced_by(pauses),
            None => script,
        };
        models.insert(SCRIPTED.into(), Arc::new(script));
    }
    models
}

pub(super) fn remote(model: ModelId) -> Remote {
    let models = ModelCatalog::offline().with_default(model, Effort::Default, true);
    Remote { endpoints: HashMap::new(), catalog: Arc::new(models) }
}
