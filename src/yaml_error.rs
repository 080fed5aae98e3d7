//! Describes errors of the YAML parser in sentences for users: the key, and the form of its value. Values of
//! the file other than keys and enums are left out, because they may be secrets. The caller adds the place.
//! Pure.

use serde_saphyr::Error;

use crate::mode::definition::near;

/// `source` is the text that the parser read.
pub fn describe(error: &Error, source: &str) -> String {
    let key = error.location().and_then(|place| key_at(source, place.line(), place.column()));
    let about = |text: &str| match key {
        Some(key) => format!("{key}: {text}"),
        None => text.to_owned(),
    };
    let key_name = key.unwrap_or("KEY");
    match error.without_snippet() {
        Error::AliasError { error, .. } => describe(error, source),
        Error::UnknownAnchor { .. } => {
            about("a text that begins with * needs quotes, such as \"*(**/.env)\"")
        }
        Error::SerdeUnknownField { field, expected, .. } => {
            format!(
                "unknown key `{field}`: the keys here are {}{}",
                expected.join(", "),
                hint(field, expected)
            )
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            let text = format!("unknown value `{variant}`: expected {}", expected.join(", "));
            about(&format!("{text}{}", hint(variant, expected)))
        }
        Error::SerdeMissingField { field, .. } => format!("the key `{field}` is missing"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` is used twice"),
        // The library names the expected form in text only.
        Error::Unexpected { expected: "sequence start", .. } => about(&format!(
            "expected a list, such as `{key_name}: [\"…\", \"…\"]`, or lines that begin with \"- \""
        )),
        Error::Unexpected { expected: "mapping start", .. } => about(&format!(
            "expected keys with values, such as `{key_name}: {{NAME: …}}`, or indented lines `NAME: …`"
        )),
        Error::Unexpected { expected: "string scalar", .. } => about("expected a text"),
        Error::InvalidScalar { ty, .. } if is_integer(ty) => {
            about(&format!("expected a whole number, such as `{key_name}: 60`"))
        }
        Error::InvalidBooleanStrict { .. } | Error::InvalidScalar { ty: "boolean", .. } => {
            about("expected true or false")
        }
        Error::Eof { .. } => "the text ends too early: is a ], a } or a quote missing?".into(),
        Error::ExternalMessage { msg, .. } => {
            format!("{msg}; is a ], a }} or a quote missing here, or on a line before?")
        }
        other => {
            let text = other.to_string();
            text.split(" at line ").next().unwrap_or(&text).to_owned()
        }
    }
}

/// Begins with the line and the column.
pub fn describe_with_place(error: &Error, source: &str) -> String {
    let place = error.location().map(|place| format!("line {}, column {}: ", place.line(), place.column()));
    format!("{}{}", place.unwrap_or_default(), describe(error, source))
}

fn hint(unknown: &str, known: &[&str]) -> String {
    near(unknown, known).map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}

fn is_integer(ty: &str) -> bool {
    ty.strip_prefix(['u', 'i']).is_some_and(|bits| bits == "size" || bits.parse::<u8>().is_ok())
}

/// Returns the key whose value is at this place, on the same line or on a line above.
fn key_at(source: &str, line: u64, column: u64) -> Option<&str> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    let column = usize::try_from(column).ok()?.checked_sub(1)?;
    let text = source.lines().nth(at)?;
    let before = text.char_indices().nth(column).map_or(text, |(end, _)| &text[..end]);
    let before = before.trim_end();
    if let Some(key) = before.strip_suffix(':') {
        return last_word(key);
    }
    // A list of a flow: its key is before the bracket.
    if let Some((key, _)) = before.rsplit_once(": [") {
        return last_word(key);
    }
    if !before.trim_start_matches(['-', ' ']).is_empty() {
        return None;
    }
    let above = source.lines().take(at).filter(|line| !line.trim().is_empty());
    let above = above.filter(|line| !line.trim_start().starts_with('#'));
    let parent = above.filter(|line| indent_of(line) <= indent_of(text)).last()?;
    parent.trim_end().strip_suffix(':').and_then(last_word)
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn last_word(text: &str) -> Option<&str> {
    let word = text.rsplit([' ', '{', ',', '[']).next()?.trim_matches(['"', '\'']);
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ModeFile;

    #[test]
    fn errors_name_the_key_and_the_expected_form() {
        for (text, expected) in [
            ("permissions:\n  deny: [*(**/.env)]", "deny: a text that begins with * needs quotes"),
            ("permissions:\n  deny: \"*(**/.env)\"", "deny: expected a list, such as `deny: ["),
            ("modes: [{id: a, write_paths: docs}]", "write_paths: expected a list"),
            ("servers: {a: {command: b, args: /x}}", "args: expected a list"),
            ("servers:\n  - name: notes", "servers: expected keys with values, such as `servers: {NAME: …}`"),
            ("modes: {id: docs}", "modes: expected a list"),
            ("modes:\n  id: docs", "modes: expected a list"),
            ("servers: {a: {command: b, timeout: 60s}}", "timeout: expected a whole number"),
            ("servers: {a: {command: b, roots: maybe}}", "roots: expected true or false"),
            ("modes: [{id: a, acess: edit}]", "unknown key `acess`: the keys here are id, name"),
            ("modes: [{id: a, acess: edit}]", "; did you mean `access`?"),
            (
                "modes: [{id: a, access: write}]",
                "access: unknown value `write`: expected read_only, edit, full",
            ),
            ("modes: [{id: a, access: edits}]", "full; did you mean `edit`?"),
            ("modes: [{name: a}]", "the key `id` is missing"),
            ("modes: [{id: a, id: b}]", "the key `id` is used twice"),
            ("permissions:\n  deny: [\"a\"\n  ask: [b]", "missing here, or on a line before?"),
        ] {
            let error = serde_saphyr::from_str::<ModeFile>(text).unwrap_err();
            let message = describe(&error, text);
            assert!(message.contains(expected), "{text}: {message}: {error:?}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn key_is_found_on_the_line_or_above() {
        let text = "a:\n  b: [x, y]\n  c:\n  # note\n\n    - d\n";
        for (line, column, key) in [
            (2, 6, Some("b")),
            (2, 7, Some("b")),
            (6, 5, Some("c")),
            (1, 1, None),
            (9, 1, None),
            (0, 0, None),
        ] {
            assert_eq!(key_at(text, line, column), key, "{line}:{column}");
        }
    }
}
