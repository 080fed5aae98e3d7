//! Models that an organisation's policy allows. Pure.

use globset::{GlobBuilder, GlobMatcher};

use super::ModelId;

/// PROVIDER/NAME, where `*` matches any text.
#[derive(Debug, Clone)]
pub struct ModelPattern {
    text: String,
    glob: GlobMatcher,
}

impl ModelPattern {
    /// The error is the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text != "*" && text.split_once('/').is_none_or(|(id, name)| id.is_empty() || name.is_empty()) {
            return Err("a model is PROVIDER/NAME, such as anthropic/*, or *".into());
        }
        let glob = GlobBuilder::new(text).build().map_err(|error| error.to_string())?;
        Ok(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }
}

impl PartialEq for ModelPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ModelPattern {}

/// The default allows all models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedModels(Option<Vec<ModelPattern>>);

impl AllowedModels {
    /// `None` allows all models.
    pub fn new(patterns: Option<Vec<ModelPattern>>) -> Self {
        Self(patterns)
    }

    /// Models without a server are always allowed, because nothing leaves this machine.
    pub fn admit(&self, model: &ModelId) -> bool {
        let patterns = self.0.as_ref().filter(|_| model.parts().is_some());
        patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.glob.is_match(model.as_str())))
    }

    /// The patterns in words.
    pub fn describe(&self) -> String {
        match self.0.as_deref() {
            None => "all".into(),
            Some([]) => "none with a server".into(),
            Some(patterns) => {
                patterns.iter().map(|pattern| pattern.text.as_str()).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_match_patterns_exactly() {
        let allowed = |patterns: &[&str]| {
            AllowedModels::new(Some(patterns.iter().map(|text| ModelPattern::parse(text).unwrap()).collect()))
        };
        for (patterns, model, expected) in [
            (&["anthropic/*"][..], "anthropic/claude-opus-5-5", true),
            (&["anthropic/claude-*"], "anthropic/other", false),
            (&["anthropic/*"], "Anthropic/claude", false),
            (&["openai/gpt-6-luna"], "openai/gpt-6-luna-2", false),
            (&["openai/*"], "openai-responses/gpt", false),
            (&["openai/*"], "openai/meta/llama", true),
            (&["*"], "ollama/x", true),
            (&[], "ollama/x", false),
            (&[], "offline", true),
            (&[], "scripted", true),
        ] {
            let admitted = allowed(patterns).admit(&ModelId::new(model));
            assert_eq!(admitted, expected, "{patterns:?} {model}");
        }
        assert!(AllowedModels::default().admit(&ModelId::new("any/model")));
        for invalid in ["", "anthropic", "/x", "x/", "a/[", "offline"] {
            assert!(ModelPattern::parse(invalid).is_err(), "{invalid}");
        }
    }
}
