//! Models that users can choose, and the default model. Pure data.

use super::allowed::AllowedModels;
use super::known::{ModelFacts, Thinking, facts_of, title_of};
use super::{Effort, ModelId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provider {
    pub id: &'static str,
    pub title: &'static str,
    /// Environment variables of the key. Messages name the first.
    pub key_variables: &'static [&'static str],
    pub url_variable: &'static str,
    pub base_url: &'static str,
    pub needs_key: bool,
    /// The first is the provider's default model.
    pub models: &'static [&'static str],
}

/// The first usable provider provides the default model.
pub const PROVIDERS: [Provider; 5] = [
    Provider {
        id: "anthropic",
        title: "Anthropic",
        key_variables: &["ANTHROPIC_API_KEY"],
        url_variable: "ANTHROPIC_BASE_URL",
        base_url: "https://api.anthropic.com",
        needs_key: true,
        models: &["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable-5-2"],
    },
    Provider {
        id: "openai-responses",
        title: "OpenAI",
        key_variables: &["OPENAI_API_KEY"],
        url_variable: "OPENAI_RESPONSES_BASE_URL",
        base_url: "https://api.openai.com/v1",
        needs_key: true,
        models: &["gpt-6.2-sol", "gpt-6.2-astra", "gpt-6.1-terra", "gpt-6-luna"],
    },
    Provider {
        id: "openai",
        title: "OpenAI Chat Completions",
        key_variables: &["OPENAI_API_KEY"],
        url_variable: "OPENAI_BASE_URL",
        base_url: "https://api.openai.com/v1",
        needs_key: true,
        models: &["gpt-6-luna"],
    },
    Provider {
        id: "gemini",
        title: "Google Gemini",
        key_variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        url_variable: "GEMINI_BASE_URL",
        base_url: "https://generativelanguage.googleapis.com",
        needs_key: true,
        models: &["gemini-4-hydrogen", "gemini-4-carbon", "gemini-3.8-flash"],
    },
    Provider {
        id: "ollama",
        title: "Ollama",
        key_variables: &["OLLAMA_API_KEY"],
        url_variable: "OLLAMA_HOST",
        base_url: "http://127.0.0.1:11434",
        needs_key: false,
        models: &["qwen3-coder", "gpt-oss:20b"],
    },
];

/// Images that a request may have: their number, and their bytes in Base64. Below the provider's limits, which
/// also count the rest of the request. As of November 2026.
pub fn image_limits(id: &ModelId) -> (usize, usize) {
    const MIB: usize = 1024 * 1024;
    match id.parts().map_or("", |(provider, _)| provider) {
        // 500 images, 50 MB.
        "openai-responses" => (400, 40 * MIB),
        // 20 MB.
        "gemini" => (400, 14 * MIB),
        // Anthropic: 100 images, 32 MB.
        _ => (100, 24 * MIB),
    }
}

pub const OFFLINE: &str = "offline";

pub const SCRIPTED: &str = "scripted";

/// Context tokens of a local model, unless the user sets another number.
const LOCAL_CONTEXT: u64 = 65_536;

/// A user's description of a model, which overrides the table of known models. `docs/reference/config.md` is
/// made from the comments of the fields.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Name of the model at the provider.
    pub name: String,
    /// Size of the context in tokens, 1,000 or more. Default: that of the known model.
    pub context: Option<u64>,
    /// The model takes images. Default: as the known model.
    pub images: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachable {
    pub provider: Provider,
    pub has_key: bool,
    pub described: Vec<Described>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCatalog {
    reachable: Vec<Reachable>,
    default: ModelId,
    effort: Effort,
    is_named: bool,
    small: Option<ModelId>,
    allowed: AllowedModels,
    /// Ids of the providers that an organisation's policy does not let reach their servers, with the reason.
    refused: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    pub id: ModelId,
    pub name: String,
    pub description: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoModel {
    #[error(
        "unknown model {asked:?}{}: it is `offline`, `scripted:FILE`, or PROVIDER/NAME with one of the providers {}",
        suggestion(guess.as_ref()),
        provider_ids()
    )]
    Unknown { asked: String, guess: Option<ModelId> },
    #[error("the model {asked} is not used, by your organisation's policy: it allows {allowed}")]
    NotAllowed { asked: String, allowed: String },
    /// A sentence about the server.
    #[error("{0}")]
    Refused(String),
    #[error("{title} needs a key: set {variable}, or run `modegate setup`")]
    NoKey { title: &'static str, variable: &'static str },
}

pub const REMEDY: &str =
    "set ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY or OLLAMA_HOST, or run `modegate setup`";

fn suggestion(guess: Option<&ModelId>) -> String {
    guess.map_or_else(String::new, |id| format!(" (did you mean {id}?)"))
}

fn provider_ids() -> String {
    PROVIDERS.map(|provider| provider.id).join(", ")
}

impl ModelCatalog {
    /// Takes the default model of the first provider with a key, or else the embedded model.
    pub fn new(reachable: Vec<Reachable>) -> Self {
        let first = reachable.iter().find(|reachable| reachable.has_key);
        let default = first.map_or_else(|| ModelId::new(OFFLINE), Reachable::default_model);
        Self {
            reachable,
            default,
            effort: Effort::Default,
            is_named: false,
            small: None,
            allowed: AllowedModels::default(),
            refused: Vec::new(),
        }
    }

    pub fn offline() -> Self {
        Self::new(Vec::new())
    }

    #[must_use]
    pub fn with_default(self, default: ModelId, effort: Effort, is_named: bool) -> Self {
        Self { default, effort, is_named, ..self }
    }

    /// Limits the models, and takes the first allowed one as the default model. `refused` are ids of providers, each
    /// with a reason.
    #[must_use]
    pub fn limited(self, allowed: AllowedModels, refused: Vec<(&'static str, String)>) -> Self {
        let limited = Self { allowed, refused, ..self };
        let models = limited.with_key().flat_map(Reachable::model_ids);
        let default = models.into_iter().find(|id| limited.check_policy(id).is_ok());
        Self { default: default.unwrap_or_else(|| ModelId::new(OFFLINE)), ..limited }
    }

    fn check_policy(&self, id: &ModelId) -> Result<(), NoModel> {
        if !self.allowed.admit(id) {
            return Err(NoModel::NotAllowed { asked: id.to_string(), allowed: self.allowed.describe() });
        }
        let provider = id.parts().map_or("", |(provider, _)| provider);
        match self.refused.iter().find(|(refused, _)| *refused == provider) {
            Some((_, reason)) => Err(NoModel::Refused(reason.clone())),
            None => Ok(()),
        }
    }

    #[must_use]
    pub fn with_small(self, small: Option<ModelId>) -> Self {
        Self { small, ..self }
    }

    pub fn ambiguity(&self) -> Option<String> {
        let mut ids: Vec<&str> = Vec::new();
        let mut keys = Vec::new();
        for Reachable { provider, .. } in self.with_key() {
            if !keys.contains(&provider.key_variables[0]) {
                keys.push(provider.key_variables[0]);
                ids.push(provider.id);
            }
        }
        let is_clear = self.is_named || ids.len() < 2;
        (!is_clear).then(|| {
            format!(
                "Using {}. Several providers are set up ({}); choose another with --model or the model option.\n\n",
                self.default,
                ids.join(", ")
            )
        })
    }

    /// True if the offline model is only used because no other is set up or named.
    pub fn is_fallback(&self, id: &ModelId) -> bool {
        !self.is_named && self.default.as_str() == OFFLINE && *id == self.default
    }

    pub fn default_model(&self) -> &ModelId {
        &self.default
    }

    /// Model of read-only sub-agents that name none.
    pub fn small_model(&self) -> Option<&ModelId> {
        self.small.as_ref()
    }

    pub fn default_effort(&self) -> Effort {
        self.effort
    }

    pub fn with_key(&self) -> impl Iterator<Item = &Reachable> {
        self.reachable.iter().filter(|reachable| reachable.has_key)
    }

    pub fn resolve(&self, requested: &str) -> Result<ModelId, NoModel> {
        let id = ModelId::new(requested);
        if requested == OFFLINE || id == self.default {
            return self.check_key(id);
        }
        let provider = id.parts().filter(|(_, name)| !name.is_empty()).and_then(|(id, _)| provider(id));
        match provider {
            Some(_) => self.check_key(id),
            None => Err(NoModel::Unknown { asked: requested.to_owned(), guess: self.guess(requested) }),
        }
    }

    /// Adds the provider to the name of a model: one that the user describes, that a provider lists, or that begins like
    /// a listed one, as `gpt-5` does.
    fn guess(&self, name: &str) -> Option<ModelId> {
        let (family, _) = name.split_once('-').filter(|_| !name.contains('/'))?;
        let listed = || {
            let described = self.reachable.iter().flat_map(|reachable| {
                reachable.described.iter().map(|it| (reachable.provider.id, it.name.as_str()))
            });
            let known = |provider: Provider| provider.models.iter().map(move |model| (provider.id, *model));
            described.chain(PROVIDERS.into_iter().flat_map(known))
        };
        let (provider, _) = listed()
            .find(|(_, model)| *model == name)
            .or_else(|| listed().find(|(_, model)| model.split('-').next() == Some(family)))?;
        Some(ModelId::new(format!("{provider}/{name}")))
    }

    /// Returns an error if the policy does not allow the model, or its key is missing.
    pub fn check_key(&self, id: ModelId) -> Result<ModelId, NoModel> {
        self.check_policy(&id)?;
        let Some(provider) = id.parts().and_then(|(id, _)| provider(id)) else { return Ok(id) };
        let has_key = self.with_key().any(|reachable| reachable.provider.id == provider.id);
        if has_key || !provider.needs_key {
            return Ok(id);
        }
        Err(NoModel::NoKey { title: provider.title, variable: provider.key_variables[0] })
    }

    /// The embedded model has an unlimited context.
    pub fn facts(&self, id: &ModelId) -> ModelFacts {
        let Some((provider, name)) = id.parts() else {
            return ModelFacts {
                context: u64::MAX,
                output: u64::MAX,
                images: false,
                thinking: Thinking::Never,
                efforts: &[],
            };
        };
        let mut facts = facts_of(name);
        if provider == "ollama" {
            // Ollama allocates memory for the whole context.
            facts.context = facts.context.min(LOCAL_CONTEXT);
        }
        if let Some(described) = self.described(id) {
            facts.context = described.context.unwrap_or(facts.context);
            facts.output = facts.output.min(facts.context / 4);
            facts.images = described.images.unwrap_or(facts.images);
        }
        facts
    }

    /// The user's description of the model.
    fn described(&self, id: &ModelId) -> Option<&Described> {
        let (provider, name) = id.parts()?;
        let of_provider = self.reachable.iter().filter(|reachable| reachable.provider.id == provider);
        of_provider.flat_map(|it| &it.described).find(|described| described.name == name)
    }

    /// Size of the context in tokens that the user has set.
    pub fn described_context(&self, id: &ModelId) -> Option<u64> {
        self.described(id)?.context
    }

    /// Models to choose from: those of usable providers, the default, the current one, and the embedded one.
    pub fn models(&self, current: &ModelId) -> Vec<ModelInfo> {
        let mut choices: Vec<ModelInfo> = Vec::new();
        let mut add = |id: ModelId, provider: &str| {
            let is_allowed = id == *current || self.check_policy(&id).is_ok();
            if is_allowed && choices.iter().all(|selection| selection.id != id) {
                let name = id.parts().map_or_else(|| id.as_str().to_owned(), |(_, name)| title_of(name));
                let description = provider.to_owned();
                choices.push(ModelInfo { id, name, description });
            }
        };
        for reachable in self.with_key() {
            let Provider { id, title, models, .. } = reachable.provider;
            let described = reachable.described.iter().map(|described| described.name.as_str());
            for name in described.chain(models.iter().copied()) {
                add(ModelId::new(format!("{id}/{name}")), title);
            }
        }
        for id in [&self.default, current, &ModelId::new(OFFLINE)] {
            let description = match id.as_str() {
                OFFLINE => "Not a language model: searches for the words of a prompt",
                SCRIPTED => "Not a language model: plays a script",
                id => provider_of(id).map_or("", |provider| provider.title),
            };
            add(id.clone(), description);
        }
        choices
    }
}

impl Reachable {
    /// The user's models, then those that Modegate knows.
    fn model_ids(&self) -> impl Iterator<Item = ModelId> + '_ {
        let described = self.described.iter().map(|described| described.name.as_str());
        let names = described.chain(self.provider.models.iter().copied());
        names.map(|name| ModelId::new(format!("{}/{name}", self.provider.id)))
    }

    pub fn default_model(&self) -> ModelId {
        let described_name = self.described.first().map(|described| described.name.as_str());
        let name = described_name.or_else(|| self.provider.models.first().copied()).unwrap_or_default();
        ModelId::new(format!("{}/{name}", self.provider.id))
    }
}

pub fn provider_of(model: &str) -> Option<Provider> {
    let (id, name) = model.split_once('/')?;
    provider(id).filter(|_| !name.is_empty())
}

pub fn provider(id: &str) -> Option<Provider> {
    PROVIDERS.into_iter().find(|provider| provider.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reachable(id: &str) -> Reachable {
        Reachable { provider: provider(id).unwrap(), has_key: true, described: Vec::new() }
    }

    #[test]
    fn first_reachable_provider_sets_the_default_model() {
        assert_eq!(ModelCatalog::offline().default_model().as_str(), "offline");
        let both = ModelCatalog::new(vec![reachable("anthropic"), reachable("gemini")]);
        assert_eq!(both.default_model().as_str(), "anthropic/claude-opus-5-5");
        let without = Reachable { has_key: false, ..reachable("anthropic") };
        let one = ModelCatalog::new(vec![without, reachable("gemini")]);
        assert_eq!(one.default_model().as_str(), "gemini/gemini-4-hydrogen");
    }

    #[test]
    fn unresolved_models_name_the_missing_key_or_the_providers() {
        let models = ModelCatalog::new(vec![reachable("anthropic")]);
        for fine in ["offline", "anthropic/claude-new", "ollama/any:7b"] {
            assert_eq!(models.resolve(fine), Ok(ModelId::new(fine)));
        }
        let error = |requested: &str| models.resolve(requested).unwrap_err().to_string();
        assert_eq!(
            error("gemini/gemini-4-carbon"),
            "Google Gemini needs a key: set GEMINI_API_KEY, or run `modegate setup`"
        );
        for unknown in ["", "gpt", "acme/x", "anthropic/"] {
            assert!(
                error(unknown).ends_with("anthropic, openai-responses, openai, gemini, ollama"),
                "{unknown}"
            );
        }
    }

    #[test]
    fn provider_of_an_unknown_model_is_guessed() {
        let described = vec![Described { name: "own-7b".into(), context: None, images: None }];
        let models = ModelCatalog::new(vec![Reachable { described, ..reachable("openai") }]);
        for (asked, guess) in [
            ("gpt-5", Some("openai-responses/gpt-5")),
            ("claude-opus-4", Some("anthropic/claude-opus-4")),
            ("gpt-oss:20b", Some("ollama/gpt-oss:20b")),
            ("own-7b", Some("openai/own-7b")),
            ("other-7b", None),
            ("acme/gpt-5", None),
            ("gpt", None),
        ] {
            let error = models.resolve(asked).unwrap_err().to_string();
            let expected = guess.map_or_else(String::new, |guess| format!(" (did you mean {guess}?)"));
            assert!(error.starts_with(&format!("unknown model {asked:?}{expected}: it is")), "{error}");
        }
    }

    #[test]
    fn user_described_model_overrides_known_facts() {
        let described = vec![Described { name: "qwen".into(), context: Some(32_000), images: Some(false) }];
        let models = ModelCatalog::new(vec![Reachable { described, ..reachable("openai") }]);
        let facts = models.facts(models.default_model());
        assert_eq!((facts.context, facts.output, facts.images), (32_000, 8000, false));
        let offered: Vec<_> = models
            .models(&ModelId::new("offline"))
            .into_iter()
            .map(|selection| selection.id.to_string())
            .collect();
        assert_eq!(offered, ["openai/qwen", "openai/gpt-6-luna", "offline"]);
    }
}
