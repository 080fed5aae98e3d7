//! Ed25519 signatures of chain heads and of evidence files. The only module that names the signatures of `ring`.
//!
//! Holds keys and makes texts of them; other modules read and write the files. A private key is never printed.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::chain::Head;

/// Each kind of signed text begins differently, so that no signature passes for another.
const HEAD: &str = "modegate head 1";
const EVIDENCE: &str = "modegate evidence 1";

const PREFIX: &str = "ed25519:";

/// Characters in a line of a PEM file.
const PEM_LINE: usize = 64;

pub struct SigningKey(Ed25519KeyPair);

/// A public key as text: `ed25519:` and the 32 bytes in base64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublicKey(String);

/// A signature in base64, with the key that verifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub key: PublicKey,
    pub value: String,
}

/// The head of a session's chain as it was at a time, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedHead {
    pub length: u64,
    pub hash: String,
    pub at: i64,
    pub signature: Signature,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it has no Ed25519 key in PKCS #8 and PEM, as `openssl genpkey -algorithm ed25519` writes it")]
    NoKey,
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public()).finish()
    }
}

impl SigningKey {
    /// Returns a new key as the text of a PEM file.
    pub fn generate() -> Result<SecretString, KeyError> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::NoRandomness)?;
        let base64 = STANDARD.encode(document.as_ref());
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        for line in base64.as_bytes().chunks(PEM_LINE) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        Ok(pem.into())
    }

    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| KeyError::NoKey)?;
        // Keys of other programs lack the public half.
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .map(Self)
            .map_err(|_| KeyError::NoKey)
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(format!("{PREFIX}{}", STANDARD.encode(self.0.public_key())))
    }

    pub fn sign_head(&self, session: &str, head: &Head, at: i64) -> SignedHead {
        let Head { length, hash } = head.clone();
        let signature = self.sign(&head_text(session, length, &hash, at));
        SignedHead { length, hash, at, signature }
    }

    /// `hash` is that of the file's payload.
    pub fn sign_evidence(&self, hash: &str) -> Signature {
        self.sign(&format!("{EVIDENCE}\n{hash}"))
    }

    fn sign(&self, text: &str) -> Signature {
        Signature { key: self.public(), value: STANDARD.encode(self.0.sign(text.as_bytes())) }
    }
}

impl PublicKey {
    /// For a stored text. One that is no key verifies nothing.
    pub fn unchecked(text: String) -> Self {
        Self(text)
    }

    /// Fails with a sentence if the text is no public key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.strip_prefix(PREFIX).and_then(|base64| STANDARD.decode(base64).ok());
        match bytes {
            Some(bytes) if bytes.len() == 32 => Ok(Self(text.to_owned())),
            _ => Err(format!(
                "a key is {PREFIX} and 44 characters, as `modegate audit --public-key` prints it"
            )),
        }
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SignedHead {
    pub fn is_valid(&self, session: &str) -> bool {
        let Self { length, hash, at, signature } = self;
        signature.verifies(&head_text(session, *length, hash, *at))
    }
}

impl Signature {
    /// True if the key has signed an evidence file whose payload has this hash.
    pub fn is_of_evidence(&self, hash: &str) -> bool {
        self.verifies(&format!("{EVIDENCE}\n{hash}"))
    }

    fn verifies(&self, text: &str) -> bool {
        let decoded = (
            self.key.0.strip_prefix(PREFIX).and_then(|key| STANDARD.decode(key).ok()),
            STANDARD.decode(&self.value),
        );
        let (Some(key), Ok(signature)) = decoded else { return false };
        UnparsedPublicKey::new(&ED25519, key).verify(text.as_bytes(), &signature).is_ok()
    }
}

fn head_text(session: &str, length: u64, hash: &str, at: i64) -> String {
    format!("{HEAD}\n{session}\n{length}\n{hash}\n{at}")
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    /// Written by `openssl genpkey -algorithm ed25519`, which leaves out the public half.
    const OF_OPENSSL: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIBK8roXxa7nTSi3FAoKo5pYimzKOFInly3TGKBjBCqK7\n-----END PRIVATE KEY-----\n";

    fn key() -> SigningKey {
        SigningKey::from_pem(SigningKey::generate().unwrap().expose_secret()).unwrap()
    }

    #[test]
    fn each_part_of_a_signed_head_counts() {
        let key = key();
        let signed = key.sign_head("s", &Head { length: 2, hash: "ab".into() }, 7);
        assert!(signed.is_valid("s"), "the control");
        let other = super::tests::key().sign_head("s", &Head { length: 2, hash: "ab".into() }, 7);
        for (changed, session) in [
            (SignedHead { length: 3, ..signed.clone() }, "s"),
            (SignedHead { hash: "ac".into(), ..signed.clone() }, "s"),
            (SignedHead { at: 8, ..signed.clone() }, "s"),
            (SignedHead { signature: other.signature.clone(), at: 9, ..signed.clone() }, "s"),
            (
                SignedHead {
                    signature: Signature { key: other.signature.key, ..signed.signature.clone() },
                    ..signed.clone()
                },
                "s",
            ),
            (
                SignedHead {
                    signature: Signature { value: "no base64".into(), ..signed.signature.clone() },
                    ..signed.clone()
                },
                "s",
            ),
            (signed.clone(), "t"),
        ] {
            assert!(!changed.is_valid(session), "{changed:?} {session}");
        }
        let sealed = key.sign_evidence("s\n2\nab\n7");
        assert!(sealed.is_of_evidence("s\n2\nab\n7") && !sealed.is_of_evidence("s"));
        assert!(!SignedHead { signature: sealed, ..signed }.is_valid("s"), "another kind of text");
    }

    #[test]
    fn keys_of_openssl_can_be_used_and_other_files_cannot() {
        let key = SigningKey::from_pem(OF_OPENSSL).unwrap();
        assert!(key.sign_evidence("x").is_of_evidence("x"));
        assert_eq!(PublicKey::parse(&key.public().to_string()), Ok(key.public()));
        for text in ["", "key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert_eq!(SigningKey::from_pem(text).unwrap_err(), KeyError::NoKey, "{text}");
        }
        for text in ["", "ed25519:", "ed25519:AAAA", "rsa:AAAA", &key.public().to_string()[1..]] {
            assert!(PublicKey::parse(text).unwrap_err().contains("modegate audit --public-key"), "{text}");
        }
    }

    #[test]
    fn private_key_is_not_printed() {
        let shown = format!("{:?}", key());
        assert!(shown.starts_with("SigningKey(PublicKey(\"ed25519:"), "{shown}");
    }
}
