//! Prices of models: list prices of their vendors as data, and the user's own prices, which take precedence. Pure.
//!
//! A price is of the standard rate, without discounts, regions or faster service, so a cost is an estimate. A model
//! without a row has no price: its requests count in tokens, and not in cost.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::model::{ModelId, Usage};

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Input that is not cached, per million tokens.
    pub input: f64,
    /// Input read from the provider's cache. Default: as `input`.
    pub cached_input: Option<f64>,
    /// Input written to the provider's cache. Default: as `input`.
    pub cache_write: Option<f64>,
    /// Output, thoughts included.
    pub output: f64,
}

/// Prices by model. A user's key is PROVIDER/NAME, or NAME for every provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices(BTreeMap<String, ModelPrice>);

struct KnownPrice {
    /// Exact name of the model, which a date may follow.
    model: &'static str,
    price: ModelPrice,
    /// Price of a whole request with more input tokens than this.
    long: Option<(u64, ModelPrice)>,
    /// Day on which the price was read, in ISO 8601. `docs/internals/sources.md` names the pages.
    noted: &'static str,
}

const fn price(input: f64, cached_input: f64, cache_write: f64, output: f64) -> ModelPrice {
    ModelPrice { input, cached_input: Some(cached_input), cache_write: Some(cache_write), output }
}

const fn row(model: &'static str, price: ModelPrice) -> KnownPrice {
    KnownPrice { model, price, long: None, noted: NOTED }
}

/// `OpenAI` doubles the prices of input in long requests, and adds half of that of output.
const fn openai(model: &'static str, standard: ModelPrice, long: ModelPrice) -> KnownPrice {
    KnownPrice { model, price: standard, long: Some((272_000, long)), noted: NOTED }
}

const NOTED: &str = "2026-11-27";

/// Cache writes of Anthropic are those for five minutes. Gemini 4 Carbon costs half until 30 November 2026. Gemini 3.8
/// Flash costs this until 31 December 2026, and then twice as much for input and output.
const ROWS: [KnownPrice; 11] = [
    row("claude-opus-5-5", price(4.0, 0.2, 5.0, 20.0)),
    row("claude-fable-5-2", price(8.0, 0.2, 10.0, 40.0)),
    row("claude-sonnet-5-5", price(2.0, 0.1, 2.5, 10.0)),
    KnownPrice {
        model: "claude-haiku-5-5",
        price: price(0.1, 0.01, 0.125, 0.5),
        long: Some((100_000, price(0.5, 0.05, 0.625, 2.5))),
        noted: NOTED,
    },
    openai("gpt-6.2-sol", price(2.0, 0.1, 2.5, 10.0), price(4.0, 0.2, 5.0, 15.0)),
    openai("gpt-6.2-astra", price(8.0, 0.4, 10.0, 40.0), price(16.0, 0.8, 20.0, 60.0)),
    openai("gpt-6.1-terra", price(1.0, 0.05, 1.25, 5.0), price(2.0, 0.1, 2.5, 7.5)),
    openai("gpt-6-luna", price(0.1, 0.01, 0.125, 0.5), price(0.2, 0.02, 0.25, 0.75)),
    row("gemini-4-hydrogen", price(1.5, 0.075, 1.5, 7.5)),
    row("gemini-4-carbon", price(4.0, 0.2, 4.0, 20.0)),
    row("gemini-3.8-flash", price(0.75, 0.075, 0.75, 3.75)),
];

/// Models that run in this process.
const FREE: [&str; 2] = ["offline", "scripted"];

impl Prices {
    /// Returns an error that names the model whose price is no amount of dollars.
    pub fn new(own: BTreeMap<String, ModelPrice>) -> Result<Self, String> {
        for (model, ModelPrice { input, cached_input, cache_write, output }) in &own {
            let mut amounts =
                [Some(*input), *cached_input, *cache_write, Some(*output)].into_iter().flatten();
            if amounts.any(|amount| !(0.0..=1e6).contains(&amount)) {
                return Err(format!("prices: {model}: a price is a number of dollars from 0 to 1000000"));
            }
        }
        Ok(Self(own))
    }

    /// Cost of a request in millionths of a dollar, rounded up: at the user's price, or as the provider reports it, or
    /// at the list price. `None` if the price is unknown.
    pub fn cost(&self, model: &ModelId, usage: &Usage) -> Option<u64> {
        if let Some(own) = self.own_price(model) {
            return Some(own.cost(usage));
        }
        if let Some(billionths) = usage.cost {
            return Some(billionths.div_ceil(1000));
        }
        let is_free = FREE.contains(&model.parts().map_or(model.as_str(), |(provider, _)| provider));
        if is_free {
            return Some(0);
        }
        let known = known_price(model)?;
        let input = usage.used.saturating_sub(usage.output);
        let price = known.long.filter(|(above, _)| input > *above).map_or(known.price, |(_, long)| long);
        Some(price.cost(usage))
    }

    /// True if a request's cost is known before the provider reports one.
    pub fn knows(&self, model: &ModelId) -> bool {
        self.cost(model, &Usage::default()).is_some()
    }

    /// Day on which the list price was noted. `None` if the user's price, or no price, applies.
    pub fn noted(&self, model: &ModelId) -> Option<&'static str> {
        let is_own = self.own_price(model).is_some();
        known_price(model).filter(|_| !is_own).map(|known| known.noted)
    }

    fn own_price(&self, model: &ModelId) -> Option<&ModelPrice> {
        let name = model.parts().map_or(model.as_str(), |(_, name)| name);
        self.0.get(model.as_str()).or_else(|| self.0.get(name))
    }
}

impl ModelPrice {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "tokens of a request are far below 2^52, and no price is negative"
    )]
    fn cost(&self, usage: &Usage) -> u64 {
        let Usage { used, cache_read, cache_write, output, .. } = *usage;
        let fresh = used.saturating_sub(output).saturating_sub(cache_read).saturating_sub(cache_write);
        let parts = [
            (fresh, self.input),
            (cache_read, self.cached_input.unwrap_or(self.input)),
            (cache_write, self.cache_write.unwrap_or(self.input)),
            (output, self.output),
        ];
        // Dollars per million tokens are millionths of a dollar per token.
        parts.iter().map(|(tokens, price)| *tokens as f64 * price).sum::<f64>().ceil() as u64
    }
}

/// Ignores a vendor before a slash.
fn known_price(model: &ModelId) -> Option<&'static KnownPrice> {
    let (_, name) = model.parts()?;
    let bare = name.rsplit('/').next().unwrap_or(name);
    ROWS.iter().find(|row| bare.strip_prefix(row.model).is_some_and(is_version))
}

/// True for nothing, and for a date. Other endings name other models.
fn is_version(ending: &str) -> bool {
    let digits = ending.strip_prefix('-').unwrap_or_default().replace('-', "");
    ending.is_empty() || (digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalog::PROVIDERS;

    const USAGE: Usage =
        Usage { used: 1100, size: 0, cache_read: 500, cache_write: 200, output: 100, cost: None };

    fn own(model: &str, price: ModelPrice) -> Prices {
        Prices::new(BTreeMap::from([(model.to_owned(), price)])).unwrap()
    }

    #[test]
    fn cost_is_the_sum_of_four_kinds_of_tokens() {
        for (model, cost) in [
            // 300 × 4 + 500 × 0.2 + 200 × 5 + 100 × 20
            ("anthropic/claude-opus-5-5", Some(4300)),
            ("anthropic/claude-opus-5-5-20261001", Some(4300)),
            ("openai/anthropic/claude-opus-5-5", Some(4300)),
            ("anthropic/claude-opus-5-5-fast", None),
            ("anthropic/claude-opus-4-1", None),
            ("openai/somebody/new-model", None),
            ("ollama/qwen3-coder", None),
            ("offline", Some(0)),
            ("scripted", Some(0)),
        ] {
            assert_eq!(Prices::default().cost(&ModelId::new(model), &USAGE), cost, "{model}");
        }
    }

    #[test]
    fn long_request_costs_more_as_a_whole() {
        let cost = |input: u64| {
            let usage = Usage { used: input + 1000, output: 1000, ..Usage::default() };
            Prices::default().cost(&ModelId::new("openai-responses/gpt-6.2-sol"), &usage)
        };
        assert_eq!(cost(272_000), Some(272_000 * 2 + 10_000));
        assert_eq!(cost(272_001), Some(272_001 * 4 + 15_000));
    }

    #[test]
    fn own_price_precedes_the_report_and_the_list() {
        let price = ModelPrice { input: 1.0, cached_input: None, cache_write: None, output: 2.0 };
        let reported = Usage { cost: Some(2_000_500), ..USAGE };
        let opus = ModelId::new("anthropic/claude-opus-5-5");
        assert_eq!(Prices::default().cost(&opus, &reported), Some(2001));
        for key in ["anthropic/claude-opus-5-5", "claude-opus-5-5"] {
            assert_eq!(own(key, price).cost(&opus, &reported), Some(1200), "{key}");
        }
        assert_eq!(own("openai/claude-opus-5-5", price).cost(&opus, &reported), Some(2001), "the control");
        let unknown = ModelId::new("ollama/qwen3-coder");
        assert_eq!(own("qwen3-coder", price).cost(&unknown, &USAGE), Some(1200));
        let bad = ModelPrice { input: -1.0, ..price };
        assert!(Prices::new(BTreeMap::from([("a".to_owned(), bad)])).unwrap_err().contains("prices: a"));
    }

    #[test]
    fn every_offered_model_of_a_vendor_has_a_price() {
        for provider in PROVIDERS.iter().filter(|provider| provider.id != "ollama") {
            for name in provider.models {
                let model = ModelId::new(format!("{}/{name}", provider.id));
                assert!(Prices::default().noted(&model).is_some(), "{model}");
            }
        }
    }
}
