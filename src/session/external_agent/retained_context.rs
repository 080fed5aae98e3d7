//! What somebody else's agent knows of what it was told in this session, and whether that outlives its process. Pure.

use super::run::ContextState;

/// Its memory.
#[derive(Debug, Default)]
pub(in crate::session) struct RetainedContext {
    /// Its own session, if it can take it up again.
    session_id: Option<String>,
    /// It was told something.
    has_context: bool,
    /// It says that it takes its sessions up again, and did not when there was something in one: it is not believed again.
    is_unreliable: bool,
}

impl RetainedContext {
    /// That of a session of old.
    pub fn stored(session_id: Option<String>, has_context: bool) -> Self {
        Self { session_id, has_context, is_unreliable: false }
    }

    /// Its own session, which its next start is to take up.
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// Whether another start of it would lose something.
    pub fn is_lost_by_restart(&self) -> bool {
        self.has_context && self.session_id.is_none()
    }

    /// It is told something.
    pub fn add(&mut self) {
        self.has_context = true;
    }

    /// Whoever would miss something knows that it is lost.
    pub fn discard(&mut self) {
        self.has_context = false;
    }

    /// It was started: `its` is its session, if it says that it can take it up again. Returns what is to be said if something
    /// was lost: why, if that is known.
    pub fn started(&mut self, session_id: Option<&str>, context: ContextState) -> Option<String> {
        let lost = match context {
            ContextState::Resumed => None,
            ContextState::New(why) => {
                let had_some = std::mem::take(&mut self.has_context);
                self.is_unreliable |= had_some && why.is_some();
                had_some.then(|| why.map(|why| format!(" ({why})")).unwrap_or_default())
            }
        };
        self.session_id = session_id.filter(|_| !self.is_unreliable).map(str::to_owned);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_once_and_one_that_forgets_is_not_believed_again() {
        let mut context = RetainedContext::default();
        assert_eq!(context.started(Some("s1"), ContextState::New(None)), None, "there was nothing");
        context.add();
        assert_eq!((context.session_id(), context.is_lost_by_restart()), (Some("s1"), false));
        // It takes it up, and still has it when it is started once more.
        assert_eq!(context.started(Some("s1"), ContextState::Resumed), None);
        assert_eq!(
            context.started(Some("s2"), ContextState::New(Some("no file".into()))),
            Some(" (no file)".into())
        );
        assert_eq!((context.session_id(), context.is_lost_by_restart()), (None, false));
        context.add();
        assert!(context.is_lost_by_restart());
        context.discard();
        assert_eq!(context.started(Some("s3"), ContextState::New(None)), None, "it is known already");
        assert_eq!(context.session_id(), None);
        let mut context = RetainedContext::stored(None, true);
        assert_eq!(context.started(None, ContextState::New(None)), Some(String::new()));
    }
}
