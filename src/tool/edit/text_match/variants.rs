//! Other readings of a text that a model wrote: without prefixes of a tool's output, and without an escape too
//! much. Pure.

use std::borrow::Cow;

use super::Replacement;

const MAX_NAME: usize = 1000;

const LINE_NUMBERS: &str = "line numbers";

const SEARCH_PREFIXES: &str = "the prefixes of search_files";

/// A reading of the old and the new text.
pub(super) struct Variant<'a> {
    pub replacement: Replacement<'a>,
    pub ignored: Option<&'static str>,
    /// True if a prefix of every line was removed.
    pub is_prefix: bool,
}

impl Variant<'_> {
    pub(super) fn left_out() -> Self {
        let replacement = Replacement { old: "".into(), new: "".into(), is_lines: true };
        Self { replacement, ignored: Some("the lines left out"), is_prefix: false }
    }
}

/// The texts as they are, and the other readings.
pub(super) fn variants<'a>(old: &'a str, new: &'a str, file: &str) -> Vec<Variant<'a>> {
    let variant = |old, new, ignored, is_prefix| Variant {
        replacement: Replacement { old, new, is_lines: ignored == Some(SEARCH_PREFIXES) },
        ignored,
        is_prefix,
    };
    let mut variants = vec![variant(Cow::Borrowed(old), Cow::Borrowed(new), None, false)];
    let mut add = |texts: Option<(String, String)>, ignored, is_prefix| {
        variants.extend(
            texts.map(|(old, new)| variant(Cow::Owned(old), Cow::Owned(new), Some(ignored), is_prefix)),
        );
    };
    add(without_numbers(old, new, numbered), LINE_NUMBERS, true);
    add(without_search_prefixes(old, new), SEARCH_PREFIXES, true);
    add(unescaped(old, new), "an escape too much", false);
    add(without_entities(old, new, file), "HTML entities", false);
    variants
}

/// The texts without the prefixes of their lines, and the name of the prefixes.
pub(in crate::tool::edit) fn without_prefixes(
    old: &str,
    new: &str,
) -> Option<(String, String, &'static str)> {
    let numbered = without_numbers(old, new, numbered).map(|(old, new)| (old, new, LINE_NUMBERS));
    let prefixed = || without_search_prefixes(old, new).map(|(old, new)| (old, new, SEARCH_PREFIXES));
    numbered.or_else(prefixed).filter(|(old, ..)| !old.is_empty())
}

/// Removes the prefixes with line numbers. Every line of `old` needs one, and the numbers have to follow each other.
fn without_numbers(
    old: &str,
    new: &str,
    prefixed: impl Fn(&str) -> Option<(usize, &str)>,
) -> Option<(String, String)> {
    let mut numbers = Vec::new();
    let mut bare = String::new();
    for line in old.split_inclusive('\n') {
        let (number, rest) = prefixed(line)?;
        if numbers.last().is_some_and(|last| last + 1 != number) {
            return None;
        }
        numbers.push(number);
        bare.push_str(rest);
    }
    let is_numbered = new.split_inclusive('\n').all(|line| prefixed(line).is_some());
    let new = new.split_inclusive('\n').map(|line| match prefixed(line) {
        Some((number, rest)) if is_numbered || numbers.contains(&number) => rest,
        _ => line,
    });
    Some((bare, new.collect()))
}

/// The number and the rest of a line as `read_file` shows it.
pub(super) fn numbered(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.trim_start_matches(' ').split_once('\t')?;
    Some((digits(number)?, rest))
}

fn digits(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Removes `path:12:` and `path-11-`, if the lines have one path, and only one reading. The rest is whole lines.
fn without_search_prefixes(old: &str, new: &str) -> Option<(String, String)> {
    let first = old.lines().next()?;
    let mut readings = first
        .match_indices([':', '-'])
        .filter(|(at, _)| *at < MAX_NAME && is_file_name(&first[..*at]))
        .filter_map(|(at, _)| {
            let name = &first[..at];
            without_numbers(old, new, |line| searched(line, name))
        });
    let reading = readings.next()?;
    readings.next().is_none().then_some(reading)
}

fn is_file_name(name: &str) -> bool {
    name.contains(['.', '/']) && !name.contains([':', '\t'])
}

fn searched<'a>(line: &'a str, name: &str) -> Option<(usize, &'a str)> {
    let rest = line.strip_prefix(name)?;
    let mark = rest.chars().next().filter(|mark| matches!(mark, ':' | '-'))?;
    let (number, rest) = rest[1..].split_once(mark)?;
    Some((digits(number)?, rest))
}

/// Undoes one level of escapes, as in a JSON string. In the new text, only escapes of a kind that the old text has are
/// known to be too much.
fn unescaped(old: &str, new: &str) -> Option<(String, String)> {
    let known = escape_kinds(old);
    if known.is_empty() || !escape_kinds(new).iter().all(|kind| known.contains(kind)) {
        return None;
    }
    // Both forms in one text have two readings.
    if mixes_escapes(old, &known) || mixes_escapes(new, &known) {
        return None;
    }
    Some((unescape(old)?, unescape(new)?))
}

/// The characters after a backslash.
fn escape_kinds(text: &str) -> Vec<char> {
    let mut chars = text.chars();
    let mut kinds = Vec::new();
    while let Some(c) = chars.next() {
        if c == '\\' {
            kinds.extend(chars.next());
        }
    }
    kinds
}

/// True if the text has a character both with and without an escape.
fn mixes_escapes(text: &str, kinds: &[char]) -> bool {
    kinds.iter().any(|kind| match kind {
        'n' => text.trim_end_matches('\n').contains('\n') && escape_kinds(text).contains(kind),
        '"' | '\'' => {
            let escaped = text.matches(&format!("\\{kind}")).count();
            escaped > 0 && text.matches(*kind).count() > escaped
        }
        _ => false,
    })
}

/// `None` for an escape that JSON does not have.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                c @ ('"' | '\'' | '\\' | '/') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(plain)
}

const ENTITIES: [(&str, &str); 6] =
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&apos;", "'"), ("&amp;", "&")];

/// Replaces the entities of a text that was written as HTML, unless the file has entities of its own.
fn without_entities(old: &str, new: &str, file: &str) -> Option<(String, String)> {
    if !has_entities(old) || has_entities(file) || mixes_entities(old) || mixes_entities(new) {
        return None;
    }
    Some((decoded(old), decoded(new)))
}

fn has_entities(text: &str) -> bool {
    ENTITIES.iter().any(|(entity, _)| text.contains(entity))
}

fn mixes_entities(text: &str) -> bool {
    ENTITIES[..2].iter().any(|(entity, plain)| text.contains(entity) && text.contains(plain))
}

fn decoded(text: &str) -> String {
    ENTITIES.iter().fold(text.to_owned(), |text, (entity, plain)| text.replace(entity, plain))
}

/// Splits texts that leave out lines between two parts: `# ... existing code ...`. The new text leaves them out, too.
pub(super) fn elision<'a>(old: &'a str, new: &'a str) -> Option<[Replacement<'a>; 2]> {
    let (old, new) = (around_elision(old)?, around_elision(new)?);
    if ![old.0, old.1].iter().all(|anchor| anchor.contains(char::is_alphanumeric)) {
        return None;
    }
    Some([(old.0, new.0), (old.1, new.1)].map(|(old, new)| Replacement {
        old: Cow::Borrowed(old),
        new: Cow::Borrowed(new),
        is_lines: true,
    }))
}

/// The texts before and after the only line that stands for others.
fn around_elision(text: &str) -> Option<(&str, &str)> {
    let mut found = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if is_elision(line) {
            if found.is_some() {
                return None;
            }
            found = Some((&text[..at], &text[at + line.len()..]));
        }
        at += line.len();
    }
    found.filter(|(before, after)| !before.trim().is_empty() && !after.trim().is_empty())
}

/// True for a line of dots, perhaps in a comment, with at most a few words about the lines.
fn is_elision(line: &str) -> bool {
    let is_comment = comment(line).is_some();
    let body = comment(line).unwrap_or(line.trim());
    let rest = body.trim_matches(['.', '…', ' ']);
    let is_dotted = body.starts_with("...") || body.starts_with('…');
    let ends_dotted = body.ends_with("...") || body.ends_with('…');
    is_dotted && (rest.is_empty() || (is_comment && (ends_dotted || rest.split(' ').count() <= 4)))
}

/// The text of a line that is only a comment.
pub(super) fn comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let open = ["//", "#", "/*", "<!--", "--", ";;", "%", "{/*"];
    let close = ["*/}", "*/", "-->"];
    let body = open.iter().find_map(|mark| line.strip_prefix(mark))?;
    Some(close.iter().find_map(|mark| body.strip_suffix(mark)).unwrap_or(body).trim())
}
