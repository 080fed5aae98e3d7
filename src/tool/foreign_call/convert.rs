//! Reads the value of another agent's argument as that of an own argument. Pure.

use serde_json::{Map, Value};

use super::table::PATHS;
use super::{blocks, is_same};

/// How a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// As it is.
    Plain,
    /// A word in any case, with blanks or hyphens between its parts.
    Case,
    /// True for false.
    Negated,
    /// Nothing for this value; others as they are.
    NonDefault(&'static str),
    /// A number of lines around a match; of several, the largest.
    Most,
    /// A number above the maximum of seconds is in milliseconds.
    Seconds,
    Milliseconds,
    /// A list of words: a command with its arguments, or a shell with a script.
    CommandWords,
    /// The last line, where the own argument is the number of lines.
    LastLine,
    /// The first and the last line.
    LineRange,
    /// A file type of ripgrep, as a glob.
    FileType,
    /// The kind of result of a search.
    SearchForm,
    /// An agent's id; the general agents of others are the default one.
    AgentName,
    /// Texts, or objects with a label.
    TextOrLabel,
    /// A patch, or blocks of SEARCH and REPLACE for the file that another argument names.
    PatchOrBlocks,
    /// A list with one edit: its new text. The old one becomes an argument of its own.
    SingleEdit,
}

/// The result of a conversion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Converted {
    Value(Value),
    /// The value is the default.
    Nothing,
    /// The value has no meaning here.
    Unknown,
}

/// Longest timeout in seconds that a command can have.
const MAX_SECONDS: u64 = 1800;

const SHELLS: [&str; 4] = ["bash", "sh", "zsh", "dash"];

const FILE_TYPES: [(&str, &str); 16] = [
    ("py", "*.{py,pyi}"),
    ("python", "*.{py,pyi}"),
    ("rust", "*.rs"),
    ("rs", "*.rs"),
    ("js", "*.{js,jsx,mjs,cjs}"),
    ("ts", "*.{ts,tsx,mts,cts}"),
    ("tsx", "*.tsx"),
    ("go", "*.go"),
    ("java", "*.java"),
    ("c", "*.{c,h}"),
    ("cpp", "*.{cpp,cc,cxx,hpp,hh,hxx,h}"),
    ("md", "*.{md,markdown}"),
    ("json", "*.json"),
    ("yaml", "*.{yaml,yml}"),
    ("html", "*.{html,htm}"),
    ("css", "*.css"),
];

/// `others` are the own arguments that are known already.
pub(super) fn convert(form: ValueForm, value: &Value, others: &mut Map<String, Value>) -> Converted {
    let converted = match form {
        ValueForm::Case => {
            value.as_str().map(|word| word.trim().to_lowercase().replace([' ', '-'], "_").into())
        }
        ValueForm::Negated => boolean(value).map(|is_true| (!is_true).into()),
        ValueForm::NonDefault(default) if plain_text(value) == default => return Converted::Nothing,
        ValueForm::Plain | ValueForm::NonDefault(_) => Some(value.clone()),
        ValueForm::Most => {
            let other = others.get("context").and_then(number);
            number(value).max(other).map(Value::from)
        }
        ValueForm::Seconds if number(value).is_none_or(|time| time <= MAX_SECONDS) => Some(value.clone()),
        ValueForm::Seconds | ValueForm::Milliseconds => number(value).map(|time| time.div_ceil(1000).into()),
        ValueForm::CommandWords => command_line(value),
        ValueForm::LastLine => line_count(value, others.get("line")),
        ValueForm::LineRange => return line_range(value, others),
        ValueForm::FileType => {
            let known = FILE_TYPES.iter().find(|(name, _)| value.as_str() == Some(name));
            known.map(|(_, glob)| (*glob).into())
        }
        ValueForm::SearchForm => match value.as_str() {
            Some("files_with_matches" | "files") => Some("files".into()),
            Some("content" | "count") => Some(value.clone()),
            _ => None,
        },
        ValueForm::AgentName => match value.as_str() {
            Some("general-purpose" | "general" | "default" | "") => return Converted::Nothing,
            _ => Some(value.clone()),
        },
        ValueForm::TextOrLabel => texts(value),
        ValueForm::PatchOrBlocks => patch(value, others),
        ValueForm::SingleEdit => single_edit(value, others),
    };
    converted.map_or(Converted::Unknown, Converted::Value)
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn boolean(value: &Value) -> Option<bool> {
    match plain_text(value).as_str() {
        "true" | "True" => Some(true),
        "false" | "False" => Some(false),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn command_line(value: &Value) -> Option<Value> {
    let words = match value {
        Value::Array(words) => words.iter().map(Value::as_str).collect::<Option<Vec<&str>>>()?,
        _ => return Some(value.clone()),
    };
    let line = match words.as_slice() {
        [shell, "-c" | "-lc", script] if SHELLS.contains(&shell.rsplit('/').next().unwrap_or_default()) => {
            (*script).to_owned()
        }
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    Some(line.into())
}

/// A word that the shell reads as it is.
fn quoted(word: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+=".contains(c);
    // A word with `=` could be an assignment, and one with `-` an option, as in the list.
    if !word.is_empty() && word.chars().all(is_safe) && !word.contains('=') {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn line_count(last: &Value, first: Option<&Value>) -> Option<Value> {
    let first = first.map_or(Some(1), number)?.max(1);
    let count = number(last)?.checked_sub(first)? + 1;
    Some(count.into())
}

/// A negative last line means the end of the file.
fn line_range(value: &Value, others: &mut Map<String, Value>) -> Converted {
    let range = match value {
        Value::String(text) => serde_json::from_str(text).ok(),
        value => Some(value.clone()),
    };
    let Some([first, last]) = range.as_ref().and_then(Value::as_array).map(Vec::as_slice) else {
        return Converted::Unknown;
    };
    if number(first).is_none() || others.contains_key("line") {
        return Converted::Unknown;
    }
    others.insert("line".into(), first.clone());
    if last.as_i64() == Some(-1) {
        return Converted::Nothing;
    }
    line_count(last, Some(first)).map_or(Converted::Unknown, Converted::Value)
}

fn label(item: &Value) -> Option<Value> {
    match item {
        Value::Object(members) => {
            ["label", "text", "title", "value"].iter().find_map(|key| members.get(*key)).cloned()
        }
        item => Some(item.clone()),
    }
}

fn texts(value: &Value) -> Option<Value> {
    let items = match value {
        Value::String(text) => serde_json::from_str::<Value>(text).ok()?,
        value => value.clone(),
    };
    items.as_array()?.iter().map(label).collect::<Option<Vec<Value>>>().map(Value::Array)
}

fn patch(value: &Value, others: &mut Map<String, Value>) -> Option<Value> {
    let Some(text) = value.as_str().filter(|text| blocks::has_blocks(text)) else {
        return Some(value.clone());
    };
    let mut paths =
        others.keys().filter(|name| *name == "path" || PATHS.iter().any(|known| is_same(known, name)));
    let name = paths.next().filter(|_| paths.next().is_none())?.clone();
    let patch = blocks::patch(others[&name].as_str()?, text)?;
    others.shift_remove(&name);
    Some(patch.into())
}

fn single_edit(value: &Value, others: &mut Map<String, Value>) -> Option<Value> {
    let [Value::Object(edit)] = value.as_array()?.as_slice() else { return None };
    let text =
        |names: [&str; 2]| names.into_iter().find_map(|name| edit.get(name)).filter(|text| text.is_string());
    let (old, new) = (text(["old_string", "old_text"])?, text(["new_string", "new_text"])?);
    let is_all = edit.get("replace_all");
    let is_known = edit.len() == 2 + usize::from(is_all.is_some());
    if !is_known || ["old_text", "new_text"].iter().any(|name| others.contains_key(*name)) {
        return None;
    }
    others.insert("old_text".into(), old.clone());
    others.extend(is_all.map(|is_all| ("replace_all".to_owned(), is_all.clone())));
    Some(new.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_others_have_one_meaning_or_none() {
        let check = |form: ValueForm, value: Value, expected: Option<Value>| {
            let mut others =
                Map::from_iter([("line".to_owned(), json!(5)), ("context".to_owned(), json!(3))]);
            let converted = match convert(form, &value, &mut others) {
                Converted::Value(value) => Some(value),
                Converted::Nothing => Some(Value::Null),
                Converted::Unknown => None,
            };
            assert_eq!(converted, expected, "{form:?} {value}");
        };
        check(ValueForm::Case, json!("In Progress"), Some(json!("in_progress")));
        check(ValueForm::Negated, json!("False"), Some(json!(true)));
        check(ValueForm::Negated, json!("no"), None);
        check(ValueForm::NonDefault("1"), json!("1"), Some(Value::Null));
        check(ValueForm::NonDefault("1"), json!(3), Some(json!(3)));
        check(ValueForm::Seconds, json!(120_000), Some(json!(120)));
        check(ValueForm::Seconds, json!("2500"), Some(json!(3)));
        check(ValueForm::Seconds, json!(1800), Some(json!(1800)));
        check(ValueForm::Seconds, json!("soon"), Some(json!("soon")));
        check(ValueForm::Milliseconds, json!(500), Some(json!(1)));
        check(ValueForm::Most, json!(2), Some(json!(3)));
        check(ValueForm::CommandWords, json!(["/bin/bash", "-lc", "a && b"]), Some(json!("a && b")));
        check(ValueForm::CommandWords, json!(["bash", "-c", "a", "b"]), Some(json!("bash -c a b")));
        check(
            ValueForm::CommandWords,
            json!(["rg", "a b", "$x", "it's"]),
            Some(json!(r"rg 'a b' '$x' 'it'\''s'")),
        );
        check(ValueForm::CommandWords, json!(["A=1", ""]), Some(json!("'A=1' ''")));
        check(ValueForm::CommandWords, json!(["a", 1]), None);
        check(ValueForm::LastLine, json!(9), Some(json!(5)));
        check(ValueForm::LastLine, json!(4), None);
        check(ValueForm::LineRange, json!([1, 2]), None);
        check(ValueForm::FileType, json!("rust"), Some(json!("*.rs")));
        check(ValueForm::FileType, json!("cobol"), None);
        check(ValueForm::SearchForm, json!("files_with_matches"), Some(json!("files")));
        check(ValueForm::SearchForm, json!("json"), None);
        check(ValueForm::AgentName, json!("general-purpose"), Some(Value::Null));
        check(
            ValueForm::TextOrLabel,
            json!([{ "label": "a", "description": "x" }, "b"]),
            Some(json!(["a", "b"])),
        );
        check(ValueForm::TextOrLabel, json!([{ "x": 1 }]), None);
    }

    #[test]
    fn blocks_and_single_edits_need_the_other_arguments() {
        let read = |form: ValueForm, value: Value, others: Value| {
            let Value::Object(mut others) = others else { panic!("an object") };
            let converted = match convert(form, &value, &mut others) {
                Converted::Value(value) => Some(value),
                _ => None,
            };
            (converted, Value::Object(others))
        };
        let blocks = json!("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE");
        let patch = json!("*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch\n");
        let form = ValueForm::PatchOrBlocks;
        assert_eq!(read(form, blocks.clone(), json!({ "file_path": "f" })), (Some(patch), json!({})));
        assert_eq!(read(form, blocks, json!({})), (None, json!({})));
        assert_eq!(read(form, json!("--- a\n"), json!({ "path": "f" })).1, json!({ "path": "f" }));
        let form = ValueForm::SingleEdit;
        let edit = json!({ "old_string": "a", "new_string": "b", "replace_all": true });
        assert_eq!(
            read(form, json!([edit]), json!({ "path": "f" })),
            (Some(json!("b")), json!({ "path": "f", "old_text": "a", "replace_all": true }))
        );
        for (edits, others) in [
            (json!([edit, edit]), json!({})),
            (json!([edit]), json!({ "old_text": "a" })),
            (json!([{ "old_string": "a", "new_string": "b", "regex": true }]), json!({})),
            (json!([]), json!({})),
        ] {
            assert_eq!(read(form, edits, others.clone()), (None, others));
        }
    }

    #[test]
    fn range_of_lines_becomes_its_first_line_and_their_number() {
        let read = |range: Value| {
            let mut others = Map::new();
            let converted = convert(ValueForm::LineRange, &range, &mut others);
            (converted, others.get("line").cloned())
        };
        assert_eq!(read(json!([3, 7])), (Converted::Value(json!(5)), Some(json!(3))));
        assert_eq!(read(json!("[3, -1]")), (Converted::Nothing, Some(json!(3))));
        assert_eq!(read(json!([7, 3])).0, Converted::Unknown);
        assert_eq!(read(json!(3)).0, Converted::Unknown);
    }
}
