//! What Modegate refused since the agent's last prompt, for the agent's model. The agent's tools see only errors such as
//! "Permission denied", which do not name Modegate.

use super::AgentOutput;
use crate::acp::ContentBlock;

/// Most sentences of a note.
const MAX_SENTENCES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct ModelNote(Vec<String>);

impl ModelNote {
    /// Each sentence counts once.
    pub(super) fn add(&mut self, sentence: &str) {
        let sentence = sentence.trim();
        if self.0.len() < MAX_SENTENCES && !self.0.iter().any(|earlier| earlier == sentence) {
            self.0.push(sentence.to_owned());
        }
    }

    /// Adds the notices for the user.
    pub(super) fn add_notices(&mut self, outputs: &[AgentOutput]) {
        for output in outputs {
            if let AgentOutput::NoticeInTurn(text) = output {
                self.add(text);
            }
        }
    }

    /// The note for the next prompt. `None` if nothing was refused.
    pub(super) fn take(&mut self) -> Option<String> {
        let sentences = std::mem::take(&mut self.0);
        (!sentences.is_empty()).then(|| {
            format!(
                "Note by Modegate, which limits this agent; the user was told, too. Since the last prompt:\n- {}",
                sentences.join("\n- ")
            )
        })
    }
}

/// Adds a note behind a prompt. A command of the agent stays as it is.
pub(super) fn noted(mut content: Vec<ContentBlock>, note: Option<String>) -> Vec<ContentBlock> {
    let is_command =
        matches!(content.first(), Some(ContentBlock::Text(first)) if first.text.starts_with('/'));
    content.extend(note.filter(|_| !is_command).map(ContentBlock::from));
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_has_each_sentence_once_and_follows_the_prompt() {
        let mut note = ModelNote::default();
        assert_eq!(note.take(), None);
        for number in [1, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
            note.add(&format!("Refused {number}.\n\n"));
        }
        let text = note.take().unwrap();
        assert!(
            text.contains(":\n- Refused 1.\n- Refused 2.\n") && text.ends_with("\n- Refused 8."),
            "{text}"
        );
        assert_eq!(note.take(), None, "once");
        let prompt = |text: &str| vec![ContentBlock::from(text.to_owned())];
        assert_eq!(noted(prompt("Go on"), Some("note".into())), [prompt("Go on"), prompt("note")].concat());
        assert_eq!(noted(prompt("/compact"), Some("note".into())), prompt("/compact"));
        assert_eq!(noted(prompt("Go on"), None), prompt("Go on"));
    }
}
