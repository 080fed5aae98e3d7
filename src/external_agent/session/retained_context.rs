//! Tracks whether an external agent has context, and whether a restart would lose it. Pure.

use super::message::ContextState;

#[derive(Debug, Default)]
pub struct RetainedContext {
    /// `None` if the agent cannot load its session.
    session_id: Option<String>,
    has_context: bool,
    /// True if the agent failed to load a session although it claims to be able to.
    is_unreliable: bool,
}

impl RetainedContext {
    pub fn stored(session_id: Option<String>, has_context: bool) -> Self {
        Self { session_id, has_context, is_unreliable: false }
    }

    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    pub fn is_lost_by_restart(&self) -> bool {
        self.has_context && self.session_id.is_none()
    }

    pub fn add(&mut self) {
        self.has_context = true;
    }

    /// Notes that the user accepts the loss of the context.
    pub fn discard(&mut self) {
        self.has_context = false;
    }

    /// Returns the reason, possibly empty, if context was lost.
    pub fn started(&mut self, session_id: Option<&str>, context: ContextState) -> Option<String> {
        let lost_context = match context {
            ContextState::Resumed => None,
            ContextState::New(why) => {
                let had_context = std::mem::take(&mut self.has_context);
                self.is_unreliable |= had_context && why.is_some();
                had_context.then(|| why.map(|why| format!(" ({why})")).unwrap_or_default())
            }
        };
        self.session_id = session_id.filter(|_| !self.is_unreliable).map(str::to_owned);
        lost_context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_context_is_reported_once() {
        let mut context = RetainedContext::default();
        assert_eq!(context.started(Some("s1"), ContextState::New(None)), None, "there was no context");
        context.add();
        assert_eq!((context.session_id(), context.is_lost_by_restart()), (Some("s1"), false));
        // The loaded context survives this start.
        assert_eq!(context.started(Some("s1"), ContextState::Resumed), None);
        assert_eq!(
            context.started(Some("s2"), ContextState::New(Some("no file".into()))),
            Some(" (no file)".into())
        );
        assert_eq!((context.session_id(), context.is_lost_by_restart()), (None, false));
        context.add();
        assert!(context.is_lost_by_restart());
        context.discard();
        assert_eq!(
            context.started(Some("s3"), ContextState::New(None)),
            None,
            "the loss was reported already"
        );
        assert_eq!(context.session_id(), None);
        let mut context = RetainedContext::stored(None, true);
        assert_eq!(context.started(None, ContextState::New(None)), Some(String::new()));
    }
}
