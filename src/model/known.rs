//! Facts about models by name. Pure data. An unknown model gets [`UNKNOWN`].

use super::Effort;
use Effort::{High, Low, Max, Medium, Minimal, None as Off, XHigh};

/// How a request controls thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    ByEffort,
    /// By a number of tokens.
    ByBudget,
    /// Not at all.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    pub context: u64,
    /// Maximum reply size in tokens.
    pub output: u64,
    pub images: bool,
    pub thinking: Thinking,
    /// Supported efforts, apart from the provider's default.
    pub efforts: &'static [Effort],
}

impl ModelFacts {
    /// The highest supported effort up to `effort`, or else the lowest. `None` if the request names no
    /// effort: for the provider's default, and for `Effort::None` if that is not supported.
    pub fn nearest(&self, effort: Effort) -> Option<Effort> {
        match effort {
            Effort::Default => None,
            Effort::None => self.efforts.contains(&effort).then_some(effort),
            wanted => {
                let efforts = self.efforts.iter().copied().filter(|effort| *effort != Effort::None);
                efforts.clone().filter(|effort| *effort <= wanted).max().or_else(|| efforts.min())
            }
        }
    }
}

struct KnownModel {
    /// The row applies to names that begin so.
    prefix: &'static str,
    title: Option<&'static str>,
    facts: ModelFacts,
}

const ALL: &[Effort] = &[Low, Medium, High, XHigh, Max];
const ALL_OR_OFF: &[Effort] = &[Off, Low, Medium, High, XHigh, Max];
const WORDS: &[Effort] = &[Low, Medium, High];

const fn facts(context: u64, output: u64, thinking: Thinking, efforts: &'static [Effort]) -> ModelFacts {
    ModelFacts { context, output, images: true, thinking, efforts }
}

const fn text_only(context: u64, output: u64, thinking: Thinking, efforts: &'static [Effort]) -> ModelFacts {
    ModelFacts { context, output, images: false, thinking, efforts }
}

const fn row(prefix: &'static str, title: &'static str, facts: ModelFacts) -> KnownModel {
    KnownModel { prefix, title: Some(title), facts }
}

/// A row without a title, for models that the catalog does not offer.
const fn family(prefix: &'static str, facts: ModelFacts) -> KnownModel {
    KnownModel { prefix, title: None, facts }
}

const MILLION: u64 = 1_000_000;
const OPENAI_CONTEXT: u64 = 922_000;
const GEMINI_CONTEXT: u64 = 1_048_576;

use Thinking::{ByBudget, ByEffort, Never};

/// The row with the longest prefix of a name applies. As of November 2026.
const ROWS: [KnownModel; 33] = [
    row("claude-opus-5-5", "Claude Opus 5.5", facts(MILLION, 128_000, ByEffort, ALL)),
    row("claude-fable-5-2", "Claude Fable 5.2", facts(MILLION, 128_000, ByEffort, ALL)),
    row("claude-sonnet-5-5", "Claude Sonnet 5.5", facts(MILLION, 128_000, ByEffort, ALL)),
    row("claude-haiku-5-5", "Claude Haiku 5.5", facts(MILLION, 128_000, ByEffort, ALL)),
    family("claude-fable", facts(MILLION, 128_000, ByEffort, ALL)),
    family("claude-opus-5", facts(MILLION, 128_000, ByEffort, ALL)),
    family("claude-sonnet-5", facts(MILLION, 128_000, ByEffort, ALL_OR_OFF)),
    // 4.5 and earlier have budgets; 4.6 and later have efforts.
    family("claude-opus-4-0", facts(200_000, 32_000, ByBudget, ALL_OR_OFF)),
    family("claude-opus-4-2025", facts(200_000, 32_000, ByBudget, ALL_OR_OFF)),
    family("claude-opus-4-1", facts(200_000, 32_000, ByBudget, ALL_OR_OFF)),
    family("claude-opus-4-5", facts(200_000, 64_000, ByBudget, ALL_OR_OFF)),
    family("claude-opus-4", facts(200_000, 64_000, ByEffort, &[Low, Medium, High, Max])),
    family("claude-sonnet-4-6", facts(200_000, 64_000, ByEffort, &[Low, Medium, High, Max])),
    family("claude-", facts(200_000, 64_000, ByBudget, ALL_OR_OFF)),
    row("gpt-6.2-sol", "GPT-6.2 Sol", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL)),
    row("gpt-6.2-astra", "GPT-6.2 Astra", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL)),
    row("gpt-6.1-terra", "GPT-6.1 Terra", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL_OR_OFF)),
    row("gpt-6-luna", "GPT-6 Luna", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL_OR_OFF)),
    family("gpt-6", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL)),
    family("gpt-5.6", facts(OPENAI_CONTEXT, 128_000, ByEffort, ALL_OR_OFF)),
    // Only the first version has a minimal effort.
    family("gpt-5.", facts(272_000, 128_000, ByEffort, WORDS)),
    family("gpt-5", facts(272_000, 128_000, ByEffort, &[Minimal, Low, Medium, High])),
    family("gpt-4.1", facts(1_047_576, 32_768, Never, &[])),
    family("gpt-4", facts(128_000, 16_384, Never, &[])),
    row(
        "gemini-4-hydrogen",
        "Gemini 4 Hydrogen",
        facts(GEMINI_CONTEXT, 65_536, ByEffort, &[Low, Medium, High, XHigh]),
    ),
    row("gemini-4-carbon", "Gemini 4 Carbon", facts(GEMINI_CONTEXT, 65_536, ByEffort, WORDS)),
    row("gemini-3.8-flash", "Gemini 3.8 Flash", facts(GEMINI_CONTEXT, 65_536, ByEffort, WORDS)),
    family("gemini-2.5", facts(GEMINI_CONTEXT, 65_536, ByBudget, ALL_OR_OFF)),
    family("gemini-", facts(GEMINI_CONTEXT, 65_536, ByEffort, WORDS)),
    row("qwen3-coder", "Qwen3 Coder", text_only(65_536, 16_384, Never, &[])),
    row("gpt-oss", "gpt-oss", text_only(65_536, 16_384, ByEffort, WORDS)),
    family("deepseek", text_only(128_000, 32_000, ByEffort, &[Low, High, Max])),
    family("kimi", text_only(256_000, 32_000, ByEffort, &[Low, High, Max])),
];

/// Without images, because one would fail every request to a model that takes none.
const UNKNOWN: ModelFacts = text_only(128_000, 16_384, ByEffort, &[Off, Minimal, Low, Medium, High]);

/// Ignores a vendor before a slash.
pub fn facts_of(name: &str) -> ModelFacts {
    find(name).map_or(UNKNOWN, |row| row.facts)
}

/// What follows a known name tells variants apart, and stays.
pub fn title_of(name: &str) -> String {
    let Some((row, title)) = find(name).and_then(|row| Some((row, row.title?))) else {
        return name.to_owned();
    };
    match without_vendor(name)[row.prefix.len()..].trim_start_matches([':', '-', '@']) {
        "" => title.to_owned(),
        variant => format!("{title} {variant}"),
    }
}

fn find(name: &str) -> Option<&'static KnownModel> {
    let bare = without_vendor(name);
    ROWS.iter().filter(|row| bare.starts_with(row.prefix)).max_by_key(|row| row.prefix.len())
}

fn without_vendor(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_variants_apart() {
        for (name, title) in [
            ("gpt-6.2-sol", "GPT-6.2 Sol"),
            ("openai/gpt-6.2-sol", "GPT-6.2 Sol"),
            ("gpt-oss:20b", "gpt-oss 20b"),
            ("gpt-oss:120b", "gpt-oss 120b"),
            ("qwen/qwen3-coder:30b", "Qwen3 Coder 30b"),
            ("claude-opus-4-6", "claude-opus-4-6"),
            ("somebody/new-model", "somebody/new-model"),
        ] {
            assert_eq!(title_of(name), title);
        }
    }

    #[test]
    fn longest_known_model_name_matches_without_vendor() {
        assert_eq!(facts_of("claude-opus-5-5").context, MILLION);
        assert_eq!(facts_of("claude-opus-4-5-20251101").thinking, ByBudget);
        assert_eq!(facts_of("openai/gpt-6.2-sol"), facts_of("gpt-6.2-sol"));
        assert!(!facts_of("qwen/qwen3-coder:free").images);
        assert_eq!(facts_of("somebody/new-model"), UNKNOWN);
        assert_eq!(facts_of("claude-opus-4-20250514").thinking, ByBudget);
        assert_eq!(facts_of("claude-opus-4-6").thinking, ByEffort);
        let gemini = facts_of("gemini-4-carbon");
        for (requested, given) in [
            (Max, Some(High)),
            (Minimal, Some(Low)),
            (Medium, Some(Medium)),
            (Off, None),
            (Effort::Default, None),
        ] {
            assert_eq!(gemini.nearest(requested), given);
        }
    }
}
