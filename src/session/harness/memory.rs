//! What somebody else's agent knows of what it was told in this session, and whether that outlives its process. Pure.

use super::keeper::Knows;

/// Its memory.
#[derive(Debug, Default)]
pub(in crate::session) struct Memory {
    /// Its own session, if it can take it up again.
    its: Option<String>,
    /// It was told something.
    has_some: bool,
    /// It says that it takes its sessions up again, and did not when there was something in one: it is not believed again.
    forgets: bool,
}

impl Memory {
    /// That of a session of old.
    pub fn of_old(its: Option<String>, has_some: bool) -> Self {
        Self { its, has_some, forgets: false }
    }

    /// Its own session, which its next start is to take up.
    pub fn its(&self) -> Option<&str> {
        self.its.as_deref()
    }

    /// Whether another start of it would lose something.
    pub fn would_be_lost(&self) -> bool {
        self.has_some && self.its.is_none()
    }

    /// It is told something.
    pub fn add(&mut self) {
        self.has_some = true;
    }

    /// Whoever would miss something knows that it is lost.
    pub fn give_up(&mut self) {
        self.has_some = false;
    }

    /// It was started: `its` is its session, if it says that it can take it up again. Returns what is to be said if something
    /// was lost: why, if that is known.
    pub fn begin(&mut self, its: Option<&str>, knows: Knows) -> Option<String> {
        let lost = match knows {
            Knows::All => None,
            Knows::Nothing(why) => {
                let had_some = std::mem::take(&mut self.has_some);
                self.forgets |= had_some && why.is_some();
                had_some.then(|| why.map(|why| format!(" ({why})")).unwrap_or_default())
            }
        };
        self.its = its.filter(|_| !self.forgets).map(str::to_owned);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_once_and_one_that_forgets_is_not_believed_again() {
        let mut memory = Memory::default();
        assert_eq!(memory.begin(Some("s1"), Knows::Nothing(None)), None, "there was nothing");
        memory.add();
        assert_eq!((memory.its(), memory.would_be_lost()), (Some("s1"), false));
        // It takes it up, and still has it when it is started once more.
        assert_eq!(memory.begin(Some("s1"), Knows::All), None);
        assert_eq!(
            memory.begin(Some("s2"), Knows::Nothing(Some("no file".into()))),
            Some(" (no file)".into())
        );
        assert_eq!((memory.its(), memory.would_be_lost()), (None, false));
        memory.add();
        assert!(memory.would_be_lost());
        memory.give_up();
        assert_eq!(memory.begin(Some("s3"), Knows::Nothing(None)), None, "it is known already");
        assert_eq!(memory.its(), None);
        let mut memory = Memory::of_old(None, true);
        assert_eq!(memory.begin(None, Knows::Nothing(None)), Some(String::new()));
    }
}
