//! The title of the window: the mode, whether a question is open, and the title of the program. Pure.

use std::collections::BTreeSet;

use crate::terminal_run::control::TerminalReport;
use crate::text;

const MAX_TITLE: usize = 200;

#[derive(Debug, Default)]
pub(super) struct WindowTitle {
    mode: Option<String>,
    /// Numbers of the open questions.
    questions: BTreeSet<u64>,
    /// The program's own title, or at first its name.
    program: String,
    is_outdated: bool,
    /// The terminal keeps the earlier title.
    is_saved: bool,
}

impl WindowTitle {
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated && self.mode.is_some()
    }

    pub(super) fn report(&mut self, report: &TerminalReport) {
        match report {
            TerminalReport::State { mode, program, .. } => {
                self.mode = Some(mode.clone());
                self.program_changed(program.clone());
            }
            TerminalReport::Mode(mode) | TerminalReport::Unconfirmed(mode) => {
                self.mode = Some(mode.clone());
                self.is_outdated = true;
            }
            TerminalReport::Asked(question) => {
                self.is_outdated |= self.questions.is_empty();
                self.questions.insert(question.number);
            }
            TerminalReport::Closed(number) => {
                self.is_outdated |= self.questions.remove(number) && self.questions.is_empty();
            }
            _ => {}
        }
    }

    pub(super) fn program_changed(&mut self, title: String) {
        self.program = title;
        self.is_outdated = true;
    }

    /// Sets the title. The first call has the terminal keep the earlier one.
    pub(super) fn update(&mut self) -> String {
        self.is_outdated = false;
        let save = if std::mem::replace(&mut self.is_saved, true) { "" } else { "\x1b[22;2t" };
        let mode = self.mode.as_deref().unwrap_or_default();
        let question = if self.questions.is_empty() { "" } else { " ?" };
        let title = text::visible_line(&format!("[{mode}{question}] {}", self.program));
        format!("{save}\x1b]2;{}\x07", text::start(&title, MAX_TITLE))
    }

    /// Restores the earlier title, if another was set.
    pub(super) fn restored(self) -> String {
        if self.is_saved { "\x1b[23;2t".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal_run::control::TerminalQuestion;

    #[test]
    fn title_tells_of_open_questions() {
        let mut title = WindowTitle::default();
        title.report(&TerminalReport::Mode("ask".into()));
        title.update();
        for number in [1, 2] {
            let question =
                TerminalQuestion { number, title: String::new(), text: String::new(), options: Vec::new() };
            title.report(&TerminalReport::Asked(question));
        }
        assert!(title.is_outdated() && title.update().contains("[ask ?] "));
        title.report(&TerminalReport::Closed(1));
        assert!(!title.is_outdated(), "one is open");
        title.report(&TerminalReport::Closed(2));
        assert!(title.is_outdated() && title.update().contains("[ask] "));
    }

    #[test]
    fn title_has_the_mode_and_that_of_the_program() {
        let mut title = WindowTitle::default();
        title.program_changed("early".into());
        assert!(!title.is_outdated(), "the mode is not known");
        title.report(&TerminalReport::Mode("plan".into()));
        assert_eq!(title.update(), "\x1b[22;2t\x1b]2;[plan] early\x07");
        assert!(!title.is_outdated());
        title.program_changed("a\x07\x1b[31m".into());
        let set = title.update();
        assert!(set.starts_with("\x1b]2;[plan] a") && set.matches(['\x07', '\x1b']).count() == 2, "{set:?}");
        assert_eq!(title.restored(), "\x1b[23;2t");
        assert_eq!(WindowTitle::default().restored(), "");
    }
}
