//! The three sentences that the offline model carries out, with the same tools and permissions as any model.
//! Pure.
//!
//! - `create FILE with TEXT`
//! - `replace TEXT by TEXT in FILE`
//! - `append TEXT to FILE`
//!
//! Texts and file names may be quoted (`"`, `'` or backticks). Without quotes a text ends at the next keyword
//! or the end of the prompt, and a file name is one word.

use serde_json::json;

use super::{CallResult, call, unnumbered};
use crate::model::ModelEvent;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OfflineAction {
    Create { file: String, text: String },
    Replace { old: String, new: String, file: String },
    Append { text: String, file: String },
}

pub(super) fn parse(prompt: &str) -> Option<OfflineAction> {
    let prompt = prompt.trim();
    let (verb, rest) = prompt.split_once(char::is_whitespace)?;
    match verb.to_lowercase().as_str() {
        "create" => {
            let (file, text) = split(rest, "with")?;
            Some(OfflineAction::Create { file: name(file)?, text: quoted(text) })
        }
        "replace" => {
            let (old, rest) = split(rest, "by")?;
            let (new, file) = split_last(rest, "in")?;
            Some(OfflineAction::Replace { old: quoted(old), new: quoted(new), file: name(file)? })
        }
        "append" => {
            let (text, file) = split_last(rest, "to")?;
            Some(OfflineAction::Append { text: quoted(text), file: name(file)? })
        }
        _ => None,
    }
}

impl OfflineAction {
    pub(super) fn tools(&self) -> &'static [&'static str] {
        match self {
            Self::Create { .. } | Self::Append { .. } => &["read_file", "write_file"],
            Self::Replace { .. } => &["edit_file"],
        }
    }

    pub(super) fn next(&self, read: Option<&CallResult<'_>>, changed: Option<&CallResult<'_>>) -> ModelEvent {
        if let Some(changed) = changed {
            let text = if changed.failed {
                format!("Not done: {}\n", changed.text)
            } else {
                format!("{}\n", changed.text)
            };
            return ModelEvent::Text(text);
        }
        match (self, read) {
            (Self::Replace { old, new, file }, _) => {
                call("change", "edit_file", json!({ "path": file, "old_text": old, "new_text": new }))
            }
            (Self::Create { file, .. } | Self::Append { file, .. }, None) => {
                call("look", "read_file", json!({ "path": file }))
            }
            (Self::Create { file, .. }, Some(CallResult { failed: false, .. })) => {
                ModelEvent::Text(format!("Not done: {file} exists already. Use replace or append.\n"))
            }
            (Self::Create { file, text }, Some(_)) => {
                call("change", "write_file", json!({ "path": file, "content": with_newline(text) }))
            }
            (Self::Append { .. }, Some(CallResult { failed: true, text, .. })) => {
                ModelEvent::Text(format!("Not done: {text}\n"))
            }
            (Self::Append { text, file }, Some(CallResult { text: read, .. })) => match content(read) {
                Some(old) => {
                    let content = old + &with_newline(text);
                    call("change", "write_file", json!({ "path": file, "content": content }))
                }
                None => ModelEvent::Text(format!(
                    "Not done: {file} is empty, too long, or not UTF-8. Use create or replace.\n"
                )),
            },
        }
    }
}

/// The whole content of a file as `read_file` returned it; `None` if a part of it is missing.
fn content(read: &str) -> Option<String> {
    read.lines()
        .map(|line| unnumbered(line).filter(|line| !line.ends_with(" more characters]")).map(with_newline))
        .collect()
}

fn with_newline(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn split<'a>(text: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    places(text, keyword).first().map(|at| cut(text, *at, keyword))
}

fn split_last<'a>(text: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    places(text, keyword).last().map(|at| cut(text, *at, keyword))
}

fn cut<'a>(text: &'a str, at: usize, keyword: &str) -> (&'a str, &'a str) {
    (text[..at].trim(), text[at + keyword.len()..].trim())
}

fn places(text: &str, keyword: &str) -> Vec<usize> {
    let mut quote = None;
    let mut places = Vec::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '`' | '\'') && before.is_whitespace() => quote = Some(c),
            None => {
                let word =
                    text.get(at..at + keyword.len()).is_some_and(|word| word.eq_ignore_ascii_case(keyword));
                let ends = text[at..].chars().nth(keyword.len()).is_none_or(char::is_whitespace);
                if before.is_whitespace() && word && ends {
                    places.push(at);
                }
            }
        }
        before = c;
    }
    places
}

fn quoted(text: &str) -> String {
    let inner = ['"', '`', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.unwrap_or(text).to_owned()
}

fn name(text: &str) -> Option<String> {
    let bare = quoted(text);
    let plain = text == bare;
    let bare = if plain { bare.trim_end_matches('.').to_owned() } else { bare };
    let fits = !bare.is_empty() && (!plain || !bare.contains(char::is_whitespace));
    fits.then_some(bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_replace_and_append_prompts_are_parsed() {
        let s = str::to_owned;
        let create = |file, text| Some(OfflineAction::Create { file: s(file), text: s(text) });
        let replace =
            |old, new, file| Some(OfflineAction::Replace { old: s(old), new: s(new), file: s(file) });
        let append = |text, file| Some(OfflineAction::Append { text: s(text), file: s(file) });
        let cases = [
            ("create notes.md with \"hello with love\"", create("notes.md", "hello with love")),
            ("Create `a b.txt` with x\ny", create("a b.txt", "x\ny")),
            ("replace 'a by b' by c in d in src/lib.rs.", replace("a by b", "c in d", "src/lib.rs")),
            ("append to be or not to be to poem.txt", append("to be or not to be", "poem.txt")),
            ("create a file with care", None),
            ("where is create with?", None),
            ("replace it", None),
            ("append", None),
        ];
        for (prompt, action) in cases {
            assert_eq!(parse(prompt), action, "{prompt}");
        }
    }
}
