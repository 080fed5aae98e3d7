//! Hash chain of a session's entries. Each hash covers the one before, so a last hash kept elsewhere reveals
//! any changed, removed or inserted entry. Without one, an attacker can rewrite the whole chain, because it
//! contains no secret (`docs/security/overview.md`). Pure.

use serde::{Deserialize, Serialize};

use crate::ids::hash;

/// Part of the first hash, so that another format starts differently.
const FORMAT: &str = "modegate chain 1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub length: u64,
    pub hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub number: u64,
    pub body: String,
    pub hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("entry {0} is missing")]
    Missing(u64),
    #[error("entry {0} was modified")]
    Changed(u64),
}

impl Head {
    pub fn start(session: &str) -> Self {
        Self { length: 0, hash: hash(&format!("{FORMAT}\n{session}")) }
    }

    /// Returns the next entry, which [`Self::follow`] makes part of the chain.
    pub fn next(&self, body: String) -> Link {
        let number = self.length + 1;
        let hash = hash(&format!("{}\n{number}\n{body}", self.hash));
        Link { number, body, hash }
    }

    pub fn follow(&mut self, link: &Link) {
        (self.length, self.hash) = (link.number, link.hash.clone());
    }
}

pub fn verify<'a>(session: &str, links: impl Iterator<Item = &'a Link>) -> Result<Head, Broken> {
    let mut head = Head::start(session);
    for link in links {
        let expected = head.next(link.body.clone());
        if link.number != expected.number {
            return Err(Broken::Missing(expected.number));
        }
        if link.hash != expected.hash {
            return Err(Broken::Changed(link.number));
        }
        head.follow(link);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(bodies: &[&str]) -> Vec<Link> {
        let mut head = Head::start("s");
        let next = |body: &&str| {
            let link = head.next((*body).to_owned());
            head.follow(&link);
            link
        };
        bodies.iter().map(next).collect()
    }

    fn check(links: &[Link], expected: &Result<u64, Broken>) {
        assert_eq!(&verify("s", links.iter()).map(|head| head.length), expected);
    }

    #[test]
    fn changed_missing_and_reordered_links_break_the_chain() {
        let whole = chain(&["a", "b", "c"]);
        check(&whole, &Ok(3));
        assert_eq!(verify("other", whole.iter()), Err(Broken::Changed(1)), "a chain belongs to one session");
        let mut changed = whole.clone();
        changed[1].body = "B".into();
        check(&changed, &Err(Broken::Changed(2)));
        check(&[whole[0].clone(), whole[2].clone()], &Err(Broken::Missing(2)));
        check(&whole[1..], &Err(Broken::Missing(1)));
        let mut swapped = whole.clone();
        swapped.swap(0, 1);
        check(&swapped, &Err(Broken::Missing(1)));
        let mut inserted = whole.clone();
        inserted.insert(1, Link { number: 2, ..whole[2].clone() });
        check(&inserted, &Err(Broken::Changed(2)));
        // Only a last hash kept elsewhere reveals a removed end.
        check(&whole[..2], &Ok(2));
        assert_ne!(whole[1].hash, whole[2].hash);
    }
}
