//! What Modegate and the wrapper that an editor starts for it know, and nobody else does: each shows the other that it knows
//! it, and neither sends it. So it makes no difference who may reach or replace the socket at which they meet.

use std::fmt::Write;
use std::io;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes of a token.
const LENGTH: usize = 32;

/// Bytes of a signature: hexadecimal digits.
pub(super) const SIGNATURE: usize = 64;

/// A secret of one command.
#[derive(Clone)]
pub(super) struct Token(hmac::Key);

/// What a signature is for: one of these is none of the others.
#[derive(Debug, Clone, Copy)]
pub(super) enum Says {
    /// The wrapper: it is the one that was started for this command. There is no content.
    Here,
    /// Modegate: this is to be run.
    Order,
    /// The supervisor: this has happened. Each happens once.
    Report,
}

impl Token {
    /// A new one, and the text by which it is handed on.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn new() -> io::Result<(Self, String)> {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system has no randomness"))?;
        let text = hex(&bytes);
        Ok((Self::of(&text), text))
    }

    /// The one that was handed on as this text.
    pub(super) fn of(text: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))
    }

    /// Signs a content: [`SIGNATURE`] bytes.
    pub(super) fn sign(&self, says: Says, content: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        signing.update(says.name());
        signing.update(content);
        hex(signing.sign().as_ref())
    }

    /// Puts the signature before a content.
    pub(super) fn seal(&self, says: Says, content: &[u8]) -> Vec<u8> {
        [self.sign(says, content).as_bytes(), content].concat()
    }

    /// The content behind a signature, if it is that of this content.
    pub(super) fn unseal<'a>(&self, says: Says, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (signature, content) = sealed.split_at_checked(SIGNATURE)?;
        (self.sign(says, content).as_bytes() == signature).then_some(content)
    }
}

impl Says {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Here => b"here:",
            Self::Order => b"order:",
            Self::Report => b"report:",
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_token_can_say_something_and_only_what_it_is_for() {
        let (token, text) = Token::new().unwrap();
        let sealed = token.seal(Says::Order, b"x");
        assert_eq!(Token::of(&text).unseal(Says::Order, &sealed), Some(&b"x"[..]));
        assert_eq!(token.unseal(Says::Report, &sealed), None);
        assert_eq!(Token::new().unwrap().0.unseal(Says::Order, &sealed), None);
        let mut other = sealed.clone();
        *other.last_mut().unwrap() = b'y';
        assert_eq!(token.unseal(Says::Order, &other), None);
        assert_eq!(token.unseal(Says::Order, b"x"), None);
    }
}
