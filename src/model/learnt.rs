//! Facts about the models of a server, learnt while this process runs: parts of requests that it
//! rejects, images that it cannot process, and the size of the context.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::OnceCell;

use super::excess::Excess;

/// Images whose fate is remembered for a model; beyond it, the memory starts anew.
const MAX_IMAGES: usize = 4_096;

#[derive(Debug, Default)]
pub struct Learnt(Mutex<HashMap<String, ModelFindings>>);

#[derive(Debug, Default)]
struct ModelFindings {
    /// Optional parts that the server rejected.
    without: Vec<&'static str>,
    /// Context in tokens, from a refusal.
    refused_beyond: Option<u64>,
    /// Context in tokens, from the server's list of models. Empty until it was read.
    listed: Arc<OnceCell<Option<u64>>>,
    accepted_images: HashSet<u64>,
    refused_images: HashSet<u64>,
}

impl Learnt {
    fn models(&self) -> MutexGuard<'_, HashMap<String, ModelFindings>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(&mut ModelFindings) -> T) -> T {
        let mut models = self.models();
        if let Some(findings) = models.get_mut(name) {
            return read(findings);
        }
        read(models.entry(name.to_owned()).or_default())
    }

    pub(super) fn without(&self, name: &str) -> Vec<&'static str> {
        self.models().get(name).map(|findings| findings.without.clone()).unwrap_or_default()
    }

    pub(super) fn leave_out(&self, name: &str, part: &'static str) {
        self.with(name, |findings| {
            if !findings.without.contains(&part) {
                findings.without.push(part);
            }
        });
    }

    /// Notes the size of the context that a refusal names.
    pub(super) fn note_excess(&self, name: &str, excess: Excess) {
        if let Some(limit) = excess.limit {
            self.with(name, |findings| {
                findings.refused_beyond =
                    Some(findings.refused_beyond.map_or(limit, |known| known.min(limit)));
            });
        }
    }

    /// Where the context of the server's list of models is kept.
    pub(super) fn listed(&self, name: &str) -> Arc<OnceCell<Option<u64>>> {
        self.with(name, |findings| Arc::clone(&findings.listed))
    }

    /// Size of the context in tokens as the server has reported it. `described` is the user's figure: a
    /// list does not change it, and a refusal only reduces it.
    pub(super) fn context(&self, name: &str, described: Option<u64>) -> Option<u64> {
        let models = self.models();
        let ModelFindings { refused_beyond, listed, .. } = models.get(name)?;
        match (refused_beyond, described) {
            (Some(limit), Some(described)) => Some(described.min(*limit)),
            (Some(limit), None) => Some(*limit),
            (None, Some(_)) => None,
            (None, None) => listed.get().copied().flatten(),
        }
    }

    /// The images of a request that the server could not process before.
    pub(super) fn refused_images(&self, name: &str, images: &[u64]) -> Vec<u64> {
        let models = self.models();
        let Some(findings) = models.get(name) else { return Vec::new() };
        images.iter().filter(|image| findings.refused_images.contains(image)).copied().collect()
    }

    pub(super) fn accepted_images(&self, name: &str) -> HashSet<u64> {
        self.models().get(name).map(|findings| findings.accepted_images.clone()).unwrap_or_default()
    }

    /// Notes which images of a request the server took, and which had to be left out.
    pub(super) fn note_images(&self, name: &str, accepted: Vec<u64>, refused: Vec<u64>) {
        self.with(name, |findings| {
            if findings.accepted_images.len() + findings.refused_images.len() > MAX_IMAGES {
                findings.accepted_images.clear();
                findings.refused_images.clear();
            }
            findings.refused_images.extend(refused);
            findings.accepted_images.extend(accepted);
        });
    }
}

/// Members of an entry in a server's list of models that have the context in tokens. The one that is in force
/// comes before the one that the model could have.
const CONTEXT_MEMBERS: [&str; 8] = [
    "loaded_context_length",
    "max_model_len",
    "n_ctx",
    "context_length",
    "max_context_length",
    "context_window",
    "max_input_tokens",
    "n_ctx_train",
];

/// Context of the model in the body of `/models`, which has it at the top of an entry or one level below.
pub(super) fn listed_context(body: &str, name: &str) -> Option<u64> {
    let body: Value = serde_json::from_str(body).ok()?;
    let entries = body.get("data").or(body.get("models")).unwrap_or(&body).as_array()?.clone();
    // A server with one model answers for it under any name.
    let only = (entries.len() == 1).then(|| &entries[0]);
    let entry = entries
        .iter()
        .find(|entry| ["id", "name", "model"].iter().any(|key| entry[*key] == name))
        .or(only)?;
    let below = entry.as_object()?.values().filter(|value| value.is_object());
    std::iter::once(entry).chain(below).find_map(|place| {
        CONTEXT_MEMBERS
            .iter()
            .find_map(|member| place.get(*member)?.as_u64())
            .filter(|context| *context >= 256)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_is_read_from_the_lists_of_known_servers() {
        for (body, expected) in [
            (r#"{"object":"list","data":[{"id":"m","max_model_len":32768}]}"#, Some(32_768)),
            (r#"{"data":[{"id":"x","context_length":1},{"id":"m","context_length":131072}]}"#, Some(131_072)),
            (r#"{"data":[{"id":"/models/m.gguf","meta":{"n_ctx_train":8192,"n_ctx":4096}}]}"#, Some(4_096)),
            (
                r#"{"data":[{"id":"m","max_context_length":131072,"loaded_context_length":8192}]}"#,
                Some(8_192),
            ),
            (r#"{"data":[{"id":"m","top_provider":{"context_length":65536}},{"id":"n"}]}"#, Some(65_536)),
            (r#"{"data":[{"id":"m"}]}"#, None),
            (r#"{"data":[{"id":"x","context_length":9000},{"id":"y"}]}"#, None),
            (r#"{"data":[{"id":"m","context_length":2}]}"#, None),
            (r#"{"data":null}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(listed_context(body, "m"), expected, "{body}");
        }
    }

    #[test]
    fn refusal_counts_before_a_list_and_reduces_the_users_figure() {
        let learnt = Learnt::default();
        assert_eq!(learnt.context("m", None), None);
        learnt.listed("m").set(Some(32_000)).unwrap();
        assert_eq!((learnt.context("m", None), learnt.context("m", Some(8_000))), (Some(32_000), None));
        learnt.note_excess("m", Excess { limit: Some(16_000), requested: None });
        assert_eq!(
            (learnt.context("m", None), learnt.context("m", Some(8_000))),
            (Some(16_000), Some(8_000))
        );
        assert_eq!(learnt.context("other", None), None);
    }
}
