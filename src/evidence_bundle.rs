//! The file of `modegate audit --export`: all that an audit reads of a session, sealed with a key. Pure.
//!
//! The seal covers the bytes of the payload, so a file that was changed, even in its spaces, is refused.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ids::hash;
use crate::signing::{PublicKey, Signature, SigningKey};
use crate::store::evidence::Evidence;

/// Changes when older versions of Modegate would misread a file.
const FORMAT: &str = "modegate evidence 1";

/// The one member that files of all versions have.
#[derive(Deserialize)]
struct BundleFormat {
    format: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BundleFile<P> {
    format: String,
    payload: P,
    seal: Signature,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// Version of the Modegate that wrote the file.
    pub version: String,
    /// Milliseconds since 1970.
    pub exported_at: i64,
    pub evidence: Evidence,
    /// The event log, with prompts, answers and results, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Value>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    #[error("it is no file of `modegate audit --export`: {0}")]
    Unreadable(String),
    #[error("its format is {0:?}, and this Modegate reads {FORMAT:?}: use a newer one")]
    Newer(String),
    #[error("its seal does not match its contents: it was changed after the export")]
    Changed,
}

impl Bundle {
    /// Returns the text of the file.
    pub fn seal(&self, key: &SigningKey) -> String {
        let payload = serde_json::to_string(self).expect("evidence is texts and numbers");
        let seal = key.sign_evidence(&hash(&payload));
        let payload = RawValue::from_string(payload).expect("it was just written as JSON");
        let file = BundleFile { format: FORMAT.to_owned(), payload, seal };
        serde_json::to_string(&file).expect("evidence is texts and numbers") + "\n"
    }

    /// Returns the contents of a file, and the key that sealed it.
    pub fn open(text: &str) -> Result<(Self, PublicKey), BundleError> {
        let unreadable = |error: serde_json::Error| BundleError::Unreadable(error.to_string());
        let BundleFormat { format } = serde_json::from_str(text).map_err(unreadable)?;
        if format != FORMAT {
            return Err(BundleError::Newer(format));
        }
        let file: BundleFile<&RawValue> = serde_json::from_str(text).map_err(unreadable)?;
        if !file.seal.is_of_evidence(&hash(file.payload.get())) {
            return Err(BundleError::Changed);
        }
        let bundle = serde_json::from_str(file.payload.get()).map_err(unreadable)?;
        Ok((bundle, file.seal.key))
    }
}
