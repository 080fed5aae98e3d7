//! Facts about models by name. Pure data. Unknown models get careful defaults.

use super::Effort;
use Effort::{High, Low, Max, Medium, Minimal, None as Off, XHigh};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    Effort,
    Budget,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Context size in tokens.
    pub context: u64,
    /// Maximum reply size in tokens.
    pub output: u64,
    pub images: bool,
    pub thinking: Thinking,
    /// Supported efforts, apart from the provider's default.
    pub efforts: &'static [Effort],
}

impl Facts {
    /// Returns the highest supported effort up to `effort`, or else the lowest. `Effort::None` maps only to
    /// itself.
    pub fn nearest(&self, effort: Effort) -> Option<Effort> {
        match effort {
            Effort::Default => None,
            Effort::None => self.efforts.contains(&effort).then_some(effort),
            wanted => {
                let thinks = || self.efforts.iter().copied().filter(|effort| *effort != Effort::None);
                thinks().filter(|effort| *effort <= wanted).max().or_else(|| thinks().min())
            }
        }
    }
}

struct Row {
    name: &'static str,
    title: Option<&'static str>,
    facts: Facts,
}

const ALL: &[Effort] = &[Low, Medium, High, XHigh, Max];
const ALL_OR_OFF: &[Effort] = &[Off, Low, Medium, High, XHigh, Max];
const WORDS: &[Effort] = &[Low, Medium, High];
const BUDGETS: &[Effort] = &[Off, Low, Medium, High, XHigh, Max];

const fn facts(context: u64, output: u64, thinking: Thinking, efforts: &'static [Effort]) -> Facts {
    Facts { context, output, images: true, thinking, efforts }
}

const fn without_images(context: u64, output: u64, thinking: Thinking, efforts: &'static [Effort]) -> Facts {
    Facts { context, output, images: false, thinking, efforts }
}

const fn row(name: &'static str, title: &'static str, facts: Facts) -> Row {
    Row { name, title: Some(title), facts }
}

const fn unlisted(name: &'static str, facts: Facts) -> Row {
    Row { name, title: None, facts }
}

const M: u64 = 1_000_000;
const OPENAI: u64 = 922_000;
const GEMINI: u64 = 1_048_576;

use Thinking::{Budget, Effort as Word, Never};

/// The longest matching name wins. As of November 2026.
const ROWS: [Row; 29] = [
    row("claude-opus-5-5", "Claude Opus 5.5", facts(M, 128_000, Word, ALL)),
    row("claude-fable-5-2", "Claude Fable 5.2", facts(M, 128_000, Word, ALL)),
    row("claude-sonnet-5-5", "Claude Sonnet 5.5", facts(M, 128_000, Word, ALL)),
    row("claude-haiku-5-5", "Claude Haiku 5.5", facts(M, 128_000, Word, ALL)),
    unlisted("claude-fable", facts(M, 128_000, Word, ALL)),
    unlisted("claude-opus-5", facts(M, 128_000, Word, ALL)),
    unlisted("claude-sonnet-5", facts(M, 128_000, Word, ALL_OR_OFF)),
    unlisted("claude-opus-4-5", facts(200_000, 64_000, Budget, BUDGETS)),
    unlisted("claude-opus-4", facts(200_000, 64_000, Word, &[Low, Medium, High, Max])),
    unlisted("claude-sonnet-4-6", facts(200_000, 64_000, Word, &[Low, Medium, High, Max])),
    unlisted("claude-", facts(200_000, 64_000, Budget, BUDGETS)),
    row("gpt-6.2-sol", "GPT-6.2 Sol", facts(OPENAI, 128_000, Word, ALL)),
    row("gpt-6.2-astra", "GPT-6.2 Astra", facts(OPENAI, 128_000, Word, ALL)),
    row("gpt-6.1-terra", "GPT-6.1 Terra", facts(OPENAI, 128_000, Word, ALL_OR_OFF)),
    row("gpt-6-luna", "GPT-6 Luna", facts(OPENAI, 128_000, Word, ALL_OR_OFF)),
    unlisted("gpt-6", facts(OPENAI, 128_000, Word, ALL)),
    unlisted("gpt-5.6", facts(OPENAI, 128_000, Word, ALL_OR_OFF)),
    unlisted("gpt-5", facts(272_000, 128_000, Word, &[Minimal, Low, Medium, High])),
    unlisted("gpt-4.1", facts(1_047_576, 32_768, Never, &[])),
    unlisted("gpt-4", facts(128_000, 16_384, Never, &[])),
    row("gemini-4-hydrogen", "Gemini 4 Hydrogen", facts(GEMINI, 65_536, Word, &[Low, Medium, High, XHigh])),
    row("gemini-4-carbon", "Gemini 4 Carbon", facts(GEMINI, 65_536, Word, WORDS)),
    row("gemini-3.8-flash", "Gemini 3.8 Flash", facts(GEMINI, 65_536, Word, WORDS)),
    unlisted("gemini-2.5", facts(GEMINI, 65_536, Budget, BUDGETS)),
    unlisted("gemini-", facts(GEMINI, 65_536, Word, WORDS)),
    row("qwen3-coder", "Qwen3 Coder", without_images(65_536, 16_384, Never, &[])),
    row("gpt-oss", "gpt-oss", without_images(65_536, 16_384, Word, WORDS)),
    unlisted("deepseek", without_images(128_000, 32_000, Word, &[Low, High, Max])),
    unlisted("kimi", without_images(256_000, 32_000, Word, &[Low, High, Max])),
];

/// Defaults for unknown models. Images are off, because an image would fail every request to a model without
/// image support. Users can turn them on in the settings.
const UNKNOWN: Facts = without_images(128_000, 16_384, Word, &[Off, Minimal, Low, Medium, High]);

/// Returns the facts for a model name. Ignores a vendor before a slash.
pub fn facts_of(name: &str) -> Facts {
    find(name).map_or(UNKNOWN, |row| row.facts)
}

pub fn title_of(name: &str) -> &str {
    find(name).and_then(|row| row.title).unwrap_or(name)
}

fn find(name: &str) -> Option<&'static Row> {
    let bare = name.rsplit('/').next().unwrap_or(name);
    ROWS.iter().filter(|row| bare.starts_with(row.name)).max_by_key(|row| row.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_known_model_name_matches_without_vendor() {
        assert_eq!(facts_of("claude-opus-5-5").context, M);
        assert_eq!(facts_of("claude-opus-4-5-20251101").thinking, Budget);
        assert_eq!(facts_of("openai/gpt-6.2-sol"), facts_of("gpt-6.2-sol"));
        assert!(!facts_of("qwen/qwen3-coder:free").images);
        assert_eq!(facts_of("somebody/new-model"), UNKNOWN);
        assert_eq!(title_of("gpt-6.2-sol"), "GPT-6.2 Sol");
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
