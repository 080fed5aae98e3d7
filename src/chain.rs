//! The chain of a session's record: each entry's hash covers the one before it, so that whoever kept the last hash can tell
//! whether anything before it was changed, left out or put in. Pure.
//!
//! It shows careless edits and our own bugs. It cannot show what somebody does who rewrites all of it and whose last hash
//! nobody has kept: there is no secret in it (`docs/security.md`).

use crate::ids::hash;

/// What a chain's first hash is made of besides the session, so that another format begins differently.
const FORMAT: &str = "modegate chain 1";

/// Where a chain has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// How many entries there are.
    pub length: u64,
    /// The hash of the last, or what the first will cover.
    pub hash: String,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its place, from 1.
    pub number: u64,
    /// What it says, as JSON.
    pub body: String,
    /// Its hash, in hexadecimal digits.
    pub hash: String,
}

/// Where a chain does not hold together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// An entry is not there.
    #[error("entry {0} is missing")]
    Missing(u64),
    /// An entry, or one before it, is not what it was when it was written.
    #[error("entry {0} is not what was written")]
    Changed(u64),
}

impl Head {
    /// That of a session without entries.
    pub fn start(session: &str) -> Self {
        Self { length: 0, hash: hash(&format!("{FORMAT}\n{session}")) }
    }

    /// The next entry. The chain has it only when [`Self::follow`] is told so.
    pub fn next(&self, body: String) -> Link {
        let number = self.length + 1;
        let hash = hash(&format!("{}\n{number}\n{body}", self.hash));
        Link { number, body, hash }
    }

    /// Goes on to an entry.
    pub fn follow(&mut self, link: &Link) {
        (self.length, self.hash) = (link.number, link.hash.clone());
    }
}

/// Whether a session's entries hold together; where they end.
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
    fn whatever_is_changed_left_out_or_put_in_is_seen() {
        let whole = chain(&["a", "b", "c"]);
        check(&whole, &Ok(3));
        assert_eq!(verify("other", whole.iter()), Err(Broken::Changed(1)), "it is that session's alone");
        let mut changed = whole.clone();
        changed[1].body = "B".into();
        check(&changed, &Err(Broken::Changed(2)));
        check(&[whole[0].clone(), whole[2].clone()], &Err(Broken::Missing(2)));
        check(&whole[1..], &Err(Broken::Missing(1)));
        let mut swapped = whole.clone();
        swapped.swap(0, 1);
        check(&swapped, &Err(Broken::Missing(1)));
        // The end can be cut off: only who kept the last hash sees it.
        check(&whole[..2], &Ok(2));
        assert_ne!(whole[1].hash, whole[2].hash);
    }
}
