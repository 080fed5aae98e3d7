//! Removes secret values, as they are and escaped as in JSON, from program output for the log and for the
//! user. Other encodings (URL, Base64) are not recognised. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// Minimum bytes. Shorter values are not removed, because they would match parts of words.
const MIN_SECRET_LENGTH: usize = 6;

/// Sorted, the longest first: a secret may contain another.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<[SecretString]>);

impl Secrets {
    /// Includes each value and each of its lines.
    pub fn new<'a>(values: impl Iterator<Item = &'a SecretString>) -> Self {
        let mut parts: Vec<SecretString> = Vec::new();
        for value in values {
            let text = value.expose_secret();
            for part in std::iter::once(text).chain(text.lines().map(str::trim)) {
                let json = serde_json::Value::from(part).to_string();
                let escaped = &json[1..json.len() - 1];
                parts.extend([part, escaped].map(SecretString::from));
            }
        }
        parts.retain(|part| part.expose_secret().len() >= MIN_SECRET_LENGTH);
        let key =
            |part: &SecretString| (Reverse(part.expose_secret().len()), part.expose_secret().to_owned());
        parts.sort_by_key(key);
        parts.dedup_by(|one, other| one.expose_secret() == other.expose_secret());
        Self(parts.into())
    }

    /// In bytes. A caller that keeps only the start of a text passes so many bytes more to
    /// [`Self::redact_start`], because a secret may cross the cut.
    pub fn longest(&self) -> usize {
        self.0.first().map_or(0, |secret| secret.expose_secret().len())
    }

    /// Replaces each secret with `***`.
    pub fn redact(&self, text: &str) -> String {
        self.redact_start(text, text.len())
    }

    /// As [`Self::redact`], for what begins within the first `most` bytes of the original text: in the
    /// redacted text, the rest of a secret could move before a cut.
    pub fn redact_start(&self, text: &str, most: usize) -> String {
        let mut redacted = String::new();
        let mut at = 0;
        while at < most.min(text.len()) {
            let rest = &text[at..];
            let secret =
                self.0.iter().map(ExposeSecret::expose_secret).find(|secret| rest.starts_with(secret));
            match (secret, rest.chars().next()) {
                (Some(secret), _) => {
                    redacted.push_str("***");
                    at += secret.len();
                }
                (None, Some(c)) => {
                    redacted.push(c);
                    at += c.len_utf8();
                }
                (None, None) => break,
            }
        }
        redacted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let values: Vec<SecretString> = values.iter().copied().map(SecretString::from).collect();
        Secrets::new(values.iter())
    }

    #[test]
    fn secrets_are_redacted_whole_and_line_by_line() {
        let secrets = secrets(&["hidden-value", "-----BEGIN\nMIIsecret\n", "abc", ""]);
        assert_eq!(secrets.redact("a hidden-value, MIIsecret, abc"), "a ***, ***, abc");
        assert_eq!(secrets.redact("-----BEGIN\nMIIsecret\n"), "***");
        assert_eq!(secrets.longest(), "-----BEGIN\\nMIIsecret\\n".len());
    }

    #[test]
    fn longer_secret_is_redacted_before_its_part() {
        let secrets = secrets(&["abcdef", "abcdef-rest-of-token"]);
        assert_eq!(secrets.redact("abcdef-rest-of-token abcdef-other"), "*** ***-other");
    }

    #[test]
    fn secret_is_redacted_in_json() {
        let secrets = secrets(&["a\"b\\c-secret"]);
        assert_eq!(
            secrets.redact(&serde_json::json!({ "key": "a\"b\\c-secret" }).to_string()),
            "{\"key\":\"***\"}"
        );
    }

    #[test]
    fn cut_leaves_no_part_of_a_secret() {
        let secrets = secrets(&["secret"]);
        let text = format!("secret{}secre", ".".repeat(5));
        for most in 0..text.len() - "secre".len() {
            let redacted = secrets.redact_start(&text, most);
            assert_eq!(redacted.matches(|c: char| c.is_ascii_alphabetic()).count(), 0, "{redacted}");
        }
        assert_eq!(secrets.redact_start(&text, 8), "***..");
        assert_eq!(secrets.redact_start("äöü", 3), "äö");
    }
}
