//! Reads from a provider's error how large a request was and how large it may be. Pure.
//!
//! Servers say so in free text, so this only recognises the phrases that are known. A number that is not
//! certain is left out: the caller then tries smaller requests.

use serde_json::Value;

/// Tokens that a server named when it refused a request as too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Excess {
    /// The context of the model.
    pub limit: Option<u64>,
    /// Those of the request, more than `limit`. It may include the reply.
    pub requested: Option<u64>,
}

/// Smallest number that counts as the size of a context.
const SMALLEST: u64 = 256;

/// Phrases directly before the limit.
const BEFORE_LIMIT: [&str; 16] = [
    "maximum context length is",
    "maximum context length of",
    "context length is only",
    "context length of only",
    "context length is",
    "context length of",
    "context window is",
    "context window of",
    "maximum prompt length is",
    "maximum number of tokens allowed",
    "number of input tokens allowed is",
    "available context size",
    "must be <",
    "token limit of",
    "exceeds the limit of",
    "limit",
];

/// Phrases directly behind the limit.
const AFTER_LIMIT: [&str; 2] = ["maximum context length", "token context window"];

/// Phrases directly before the tokens of the request.
const BEFORE_REQUESTED: [&str; 14] = [
    "resulted in",
    "requested about",
    "requested",
    "you passed",
    "passed",
    "token count",
    "prompt contains",
    "request contains",
    "request has",
    "given",
    "keep the first",
    "your request of",
    "your prompt of",
    "the request",
];

impl Excess {
    /// Reads the body of an error, or its message.
    pub fn of(error: &str) -> Self {
        let members = serde_json::from_str::<Value>(error).map(|body| Self::of_members(&body));
        if let Ok(found @ Self { limit: Some(_), .. }) = members {
            return found;
        }
        let text = error.to_ascii_lowercase();
        let numbers = numbers(&text);
        let excess = comparison(&text, &numbers).unwrap_or_else(|| phrases(&numbers));
        excess.checked()
    }

    /// llama.cpp names both in members of their own.
    fn of_members(body: &Value) -> Self {
        let error = body.get("error").unwrap_or(body);
        Self { limit: error["n_ctx"].as_u64(), requested: error["n_prompt_tokens"].as_u64() }.checked()
    }

    fn checked(self) -> Self {
        let limit = self.limit.filter(|limit| *limit >= SMALLEST);
        Self {
            limit,
            requested: self.requested.filter(|requested| limit.is_none_or(|limit| *requested > limit)),
        }
    }
}

/// A number in a text, and the text around it without blanks and brackets.
struct TextNumber<'a> {
    value: u64,
    before: &'a str,
    after: &'a str,
}

fn numbers(text: &str) -> Vec<TextNumber<'_>> {
    let mut numbers = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(|c: char| c.is_ascii_digit()).map(|start| at + start) {
        let end = text[start..].find(|c| !is_number_char(c)).map_or(text.len(), |length| start + length);
        // `0.5` and `gpt-4` are no sizes.
        let is_word =
            text[..start].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
        if let Ok(value) = text[start..end].replace(',', "").parse()
            && !is_word
        {
            numbers.push(TextNumber {
                value,
                before: text[..start].trim_end_matches(is_around_number),
                after: text[end..].trim_start_matches(is_around_number),
            });
        }
        at = end;
    }
    numbers
}

fn is_around_number(c: char) -> bool {
    c.is_whitespace() || matches!(c, '(' | ')' | ':' | '=' | '`' | '"')
}

fn is_number_char(c: char) -> bool {
    c.is_ascii_digit() || c == ','
}

/// "213462 tokens > 200000 maximum", "190000 + 64000 > 200000".
fn comparison(text: &str, numbers: &[TextNumber<'_>]) -> Option<Excess> {
    let at = numbers.iter().position(|number| number.before.ends_with('>'))?;
    let parts = if text.contains(" + ") { 2 } else { 1 };
    let requested = numbers[at.saturating_sub(parts)..at].iter().map(|number| number.value).sum();
    Some(Excess { limit: Some(numbers[at].value), requested: Some(requested) })
}

fn phrases(numbers: &[TextNumber<'_>]) -> Excess {
    let is_requested =
        |number: &&TextNumber<'_>| BEFORE_REQUESTED.iter().any(|phrase| number.before.ends_with(phrase));
    Excess {
        limit: numbers.iter().find(|number| is_limit(number)).map(|number| number.value),
        requested: numbers.iter().find(is_requested).map(|number| number.value),
    }
}

fn is_limit(number: &TextNumber<'_>) -> bool {
    BEFORE_LIMIT.iter().any(|phrase| number.before.ends_with(phrase))
        || AFTER_LIMIT.iter().any(|phrase| number.after.starts_with(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: &str, limit: Option<u64>, requested: Option<u64>) {
        assert_eq!(Excess::of(error), Excess { limit, requested }, "{error}");
    }

    #[test]
    fn limits_are_read_from_the_errors_of_known_servers() {
        for (error, limit, requested) in [
            (
                "This model's maximum context length is 16000 tokens. However, your messages resulted in 21000 tokens.",
                16_000,
                21_000,
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 10192 tokens (8000 in the \
                 messages, 2192 in the completion). Please reduce the length of the messages or completion.",
                8_192,
                10_192,
            ),
            (
                "You passed 9001 input tokens and requested 512 output tokens. However, the model's context length is \
                 only 8192 tokens",
                8_192,
                9_001,
            ),
            (
                "This endpoint's maximum context length is 32768 tokens. However, you requested about 40123 tokens \
                 (39000 of text input, 1123 of tool input).",
                32_768,
                40_123,
            ),
            ("prompt is too long: 213462 tokens > 200000 maximum", 200_000, 213_462),
            (
                "input length and `max_tokens` exceed context limit: 190000 + 64000 > 200000, decrease input length",
                200_000,
                254_000,
            ),
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                1_048_576,
                1_200_000,
            ),
            (
                "Trying to keep the first 5129 tokens when context the overflows. However, the model is loaded with \
                 context length of only 4096 tokens",
                4_096,
                5_129,
            ),
            (
                "This model's maximum prompt length is 131,072 but the request contains 150,123 tokens.",
                131_072,
                150_123,
            ),
            (
                "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
                32_768,
                40_000,
            ),
            (
                "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
                4_096,
                5_000,
            ),
            (
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5012,"n_ctx":4096}}"#,
                4_096,
                5_012,
            ),
            (
                "Request too large for model `m-8b` on tokens per minute (TPM): Limit 6000, Requested 7213",
                6_000,
                7_213,
            ),
        ] {
            check(error, Some(limit), Some(requested));
        }
    }

    #[test]
    fn uncertain_numbers_are_left_out() {
        check("Your input exceeds the context window of this model.", None, None);
        check("context_length_exceeded for gpt-4 with 3 tools", None, None);
        check("This model's maximum context length is 8192 tokens.", Some(8_192), None);
        check("maximum context length is 8192 tokens, you requested 100 tokens", Some(8_192), None);
        check("maximum context length is 2 tokens", None, None);
        check("", None, None);
        check(r#"{"error":{"message":"too long","n_ctx":"many"}}"#, None, None);
    }
}
