//! The sentence that the offline model carries out, with the same tools and permissions as any model. Pure.
//!
//! ```text
//! sentence = "create" FILE "with" TEXT
//! FILE     = word | quoted
//! TEXT     = quoted | any text, to the end of the prompt
//! quoted   = '"' text '"' | "'" text "'" | "`" text "`"
//! ```
//!
//! Both keywords may have capitals. A keyword between quotes is text.

use serde_json::json;

use super::{CallResult, call};
use crate::model::ModelEvent;

const WITH: &str = "with";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Creation {
    pub file: String,
    pub text: String,
}

pub(super) fn parse(prompt: &str) -> Option<Creation> {
    let (verb, rest) = prompt.trim().split_once(char::is_whitespace)?;
    let at = keyword(rest).filter(|_| verb.eq_ignore_ascii_case("create"))?;
    let (file, text) = (rest[..at].trim(), rest[at + WITH.len()..].trim());
    Some(Creation { file: name(file)?, text: unquoted(text).to_owned() })
}

impl Creation {
    pub(super) const TOOLS: [&str; 2] = ["read_file", "write_file"];

    /// Takes the results of the calls so far.
    pub(super) fn next(&self, read: Option<&CallResult<'_>>, changed: Option<&CallResult<'_>>) -> ModelEvent {
        let Self { file, text } = self;
        match (read, changed) {
            (_, Some(CallResult { failed: true, text, .. })) => {
                ModelEvent::Text(format!("Not done: {text}\n"))
            }
            (_, Some(CallResult { text, .. })) => ModelEvent::Text(format!("{text}\n")),
            (None, None) => call("look", "read_file", json!({ "path": file })),
            (Some(CallResult { failed: false, .. }), None) => {
                ModelEvent::Text(format!("Not done: {file} exists already.\n"))
            }
            (Some(_), None) => {
                let ending = if text.ends_with('\n') { "" } else { "\n" };
                call("change", "write_file", json!({ "path": file, "content": format!("{text}{ending}") }))
            }
        }
    }
}

fn keyword(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '`' | '\'') && before.is_whitespace() => quote = Some(c),
            None => {
                let word = text.get(at..at + WITH.len()).is_some_and(|word| word.eq_ignore_ascii_case(WITH));
                let ends = text[at..].chars().nth(WITH.len()).is_none_or(char::is_whitespace);
                if before.is_whitespace() && word && ends {
                    return Some(at);
                }
            }
        }
        before = c;
    }
    None
}

fn unquoted(text: &str) -> &str {
    let inner = ['"', '`', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.unwrap_or(text)
}

fn name(text: &str) -> Option<String> {
    let inner = unquoted(text);
    let is_quoted = inner != text;
    let fits = !inner.is_empty() && (is_quoted || !inner.contains(char::is_whitespace));
    fits.then(|| inner.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_prompts_are_parsed() {
        let create = |file: &str, text: &str| Some(Creation { file: file.to_owned(), text: text.to_owned() });
        let cases = [
            ("create notes.md with \"hello with love\"", create("notes.md", "hello with love")),
            ("Create `a b.txt` with x\ny", create("a b.txt", "x\ny")),
            ("CREATE 'a with b' With c with d", create("a with b", "c with d")),
            ("create a file with care", None),
            ("where is create with?", None),
            ("replace a with b", None),
            ("create", None),
        ];
        for (prompt, creation) in cases {
            assert_eq!(parse(prompt), creation, "{prompt}");
        }
    }
}
