//! Compares the signed heads of a session with its chain.

use std::collections::BTreeSet;

use crate::ids::time_text;
use crate::signing::{PublicKey, SignedHead};
use crate::store::evidence::Evidence;

/// The valid signatures of an audit that agree with the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signatures {
    pub keys: BTreeSet<PublicKey>,
    /// Number of the last entry that a signature covers. 0 without a signature.
    pub last: u64,
}

/// Returns the signatures, of the expected key alone if there is one, and the findings.
pub(super) fn check(evidence: &Evidence, expected: Option<&PublicKey>) -> (Signatures, Vec<String>) {
    let (mut signatures, mut findings) = (Signatures::default(), Vec::new());
    for head in &evidence.signed_heads {
        match fault(evidence, head) {
            Some(fault) => findings.push(fault),
            None if expected.is_none_or(|key| *key == head.signature.key) => {
                signatures.last = signatures.last.max(head.length);
                signatures.keys.insert(head.signature.key.clone());
            }
            None => {}
        }
    }
    if let Some(key) = expected.filter(|_| signatures.keys.is_empty()) {
        findings.push(format!("no entry is signed with the key given with --key: {key}"));
    }
    (signatures, findings)
}

fn fault(evidence: &Evidence, head: &SignedHead) -> Option<String> {
    let SignedHead { length, hash, at, .. } = head;
    if !head.is_valid(&evidence.session.id.0) {
        return Some(format!("the signature of entry {length} is not valid"));
    }
    let at = time_text(*at);
    match evidence.links.iter().find(|link| link.number == *length) {
        None => Some(format!("entry {length} was signed at {at} UTC and is missing")),
        Some(link) if link.hash != *hash => {
            Some(format!("entry {length} is not the one that was signed at {at} UTC"))
        }
        Some(_) => None,
    }
}
