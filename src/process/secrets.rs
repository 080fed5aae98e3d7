//! Taking what is secret out of what a program says for the log and for people. Pure.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

/// Values this short are no secrets, and parts of words.
const SHORTEST: usize = 6;

/// The values that a program was given, and what its address is sent.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<[SecretString]>);

impl Secrets {
    /// Values, each also by its lines.
    pub fn new<'a>(values: impl Iterator<Item = &'a SecretString>) -> Self {
        let parts = |value: &SecretString| -> Vec<SecretString> {
            let whole = value.expose_secret();
            let lines = whole.lines().map(str::trim).filter(|line| line.len() >= SHORTEST && *line != whole);
            let whole = std::iter::once(whole).filter(|whole| whole.len() >= SHORTEST);
            whole.chain(lines).map(SecretString::from).collect()
        };
        Self(values.flat_map(parts).collect())
    }

    /// The length of the longest: what is cut has to be this much longer before it is looked at.
    pub fn longest(&self) -> usize {
        self.0.iter().map(|secret| secret.expose_secret().len()).max().unwrap_or_default()
    }

    /// A text without them.
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
    fn a_secret_goes_whole_and_by_its_lines() {
        let values =
            ["hidden-value".into(), "-----BEGIN\nMIIsecret\n".into(), "abc".into(), SecretString::from("")];
        let secrets = Secrets::new(values.iter());
        assert_eq!(secrets.take_out("a hidden-value, MIIsecret, abc"), "a ***, ***, abc");
        assert_eq!(secrets.longest(), "-----BEGIN\nMIIsecret\n".len());
    }
}
