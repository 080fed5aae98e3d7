//! Removes secret values from program output for the log and for the user. Pure.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// Shorter values would match parts of words.
const MIN_SECRET_LENGTH: usize = 6;

#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<[SecretString]>);

impl Secrets {
    /// Includes each value and each of its lines.
    pub fn new<'a>(values: impl Iterator<Item = &'a SecretString>) -> Self {
        let parts = |value: &SecretString| -> Vec<SecretString> {
            let whole = value.expose_secret();
            let lines =
                whole.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET_LENGTH && *line != whole);
            let whole = std::iter::once(whole).filter(|whole| whole.len() >= MIN_SECRET_LENGTH);
            whole.chain(lines).map(SecretString::from).collect()
        };
        Self(values.flat_map(parts).collect())
    }

    /// Length of the longest secret. Text must be searched this far beyond a cut.
    pub fn longest(&self) -> usize {
        self.0.iter().map(|secret| secret.expose_secret().len()).max().unwrap_or_default()
    }

    /// Replaces each secret with `***`.
    pub fn take_out(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.0.iter().map(ExposeSecret::expose_secret) {
            if text.contains(secret) {
                text = text.replace(secret, "***");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_whole_and_line_by_line() {
        let values =
            ["hidden-value".into(), "-----BEGIN\nMIIsecret\n".into(), "abc".into(), SecretString::from("")];
        let secrets = Secrets::new(values.iter());
        assert_eq!(secrets.take_out("a hidden-value, MIIsecret, abc"), "a ***, ***, abc");
        assert_eq!(secrets.longest(), "-----BEGIN\nMIIsecret\n".len());
    }
}
