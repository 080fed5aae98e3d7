//! Neutralises text that looks like one of Modegate's own tags, reversibly. Pure.
//!
//! Models recognise a reminder by its tag, which no other text in a request may open or close. [`neutralise`]
//! is for text that stays in place, [`NeutralisedText`] for text between tags. A model that copies text into the
//! arguments of a call means the text in the file: [`restore`].

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

const NAMES: [&str; 2] = ["systemreminder", "systemnote"];

/// Stands between the bracket and the rest of a foreign tag. Punctuation, so [`names_a_tag`] skips it, and no
/// language writes it behind a bracket.
const MARK: char = '¬';

/// How pages write about a tag without opening it. Stays as it is.
const ESCAPED: &str = "&lt;";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeutralisedText(String);

impl NeutralisedText {
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        match neutralise(&text) {
            Cow::Borrowed(_) => Self(text),
            Cow::Owned(safe) => Self(safe),
        }
    }

    /// Together with `into_note`, the only code that writes Modegate's tags.
    pub fn into_reminder(self) -> String {
        format!("<system-reminder>\n{}\n</system-reminder>", self.0.trim_end())
    }

    pub fn into_note(self) -> String {
        format!("<system-note>\n{}\n</system-note>", self.0.trim_end())
    }
}

impl fmt::Display for NeutralisedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts a mark behind the bracket of everything that looks like a tag: in any case, with punctuation or invisible
/// characters inside, with look-alike brackets or letters, or with a character reference as the bracket. All other
/// text stays as it is. [`restore`] is the inverse.
pub fn neutralise(text: &str) -> Cow<'_, str> {
    let mut safe = String::new();
    let mut copied = 0;
    for at in tags(text) {
        safe.push_str(&text[copied..at]);
        safe.push(MARK);
        copied = at;
    }
    rest(text, copied, safe)
}

/// Removes the marks of [`neutralise`], for text that a model copied from its context: the marks do not decide what
/// looks like a tag, so each has its bracket.
pub fn restore(text: &str) -> Cow<'_, str> {
    let mut restored = String::new();
    let mut copied = 0;
    for at in tags(text).filter(|at| text[*at..].starts_with(MARK)) {
        restored.push_str(&text[copied..at]);
        copied = at + MARK.len_utf8();
    }
    rest(text, copied, restored)
}

fn rest(text: &str, copied: usize, mut changed: String) -> Cow<'_, str> {
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    changed.push_str(&text[copied..]);
    Cow::Owned(changed)
}

/// Applies `change` to all strings and names of a JSON value.
pub fn map_strings(value: Value, change: fn(&str) -> Cow<'_, str>) -> Value {
    let owned = |text: String| match change(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(changed) => changed,
    };
    match value {
        Value::String(text) => Value::String(owned(text)),
        Value::Array(values) => values.into_iter().map(|value| map_strings(value, change)).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (owned(name), map_strings(value, change)));
            Value::Object(members.collect())
        }
        value => value,
    }
}

/// The positions behind the brackets of everything that looks like a tag.
fn tags(text: &str) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at = next_bracket(text, at)?;
            if names_a_tag(&text[at..]) {
                return Some(at);
            }
        }
    })
}

/// Returns the position behind the bracket.
fn next_bracket(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    loop {
        at += bytes[at..]
            .iter()
            .position(|byte| matches!(byte, b'<' | b'&' | 0xc2 | 0xcb | 0xe1..=0xe3 | 0xef))?;
        let end = match bytes[at] {
            b'<' => Some(at + 1),
            b'&' => reference_to_bracket(&bytes[at..]).map(|length| at + length),
            _ => text[at..].chars().next().filter(|c| is_bracket(*c)).map(|c| at + c.len_utf8()),
        };
        if end.is_some() {
            return end;
        }
        at = text.ceil_char_boundary(at + 1);
    }
}

/// Brackets that resemble `<`.
const BRACKETS: &str = "\u{ab}\u{2c2}\u{1438}\u{2039}\u{226a}\u{226e}\u{227a}\u{22d6}\u{2329}\u{276c}\u{276e}\
    \u{2770}\u{27e8}\u{27ea}\u{29fc}\u{2a9d}\u{3008}\u{300a}\u{fe3d}\u{fe3f}\u{fe64}\u{ff1c}";

fn is_bracket(c: char) -> bool {
    c == '<' || (!c.is_ascii() && BRACKETS.contains(c))
}

/// Length of `&#60;`, `&#x3c;` or `&LT;` at the start, with any zeros and an optional semicolon.
fn reference_to_bracket(bytes: &[u8]) -> Option<usize> {
    let rest = |prefix: &str| {
        let start = bytes.get(..prefix.len())?;
        start.eq_ignore_ascii_case(prefix.as_bytes()).then_some(prefix.len())
    };
    let number = |prefix: &str, digits: &str| {
        let mut at = rest(prefix)?;
        at += bytes[at..].iter().take_while(|byte| **byte == b'0').count();
        let is_match = bytes.get(at..at + digits.len())?.eq_ignore_ascii_case(digits.as_bytes());
        is_match.then_some(at + digits.len())
    };
    let is_escaped = bytes.starts_with(ESCAPED.as_bytes());
    let end =
        number("&#x", "3c").or_else(|| number("&#", "60")).or_else(|| rest("&lt").filter(|_| !is_escaped))?;
    Some(end + usize::from(bytes.get(end) == Some(&b';')))
}

/// Stops at the next bracket, so that [`tags`] is linear.
fn names_a_tag(rest: &str) -> bool {
    let mut open = NAMES;
    for c in rest.chars() {
        if is_bracket(c) || c == '>' {
            return false;
        }
        let Some(letter) = letter(c) else { continue };
        for name in &mut open {
            *name = name.strip_prefix(letter).unwrap_or("!");
        }
        if open.contains(&"") {
            return true;
        }
        if open == ["!"; NAMES.len()] {
            return false;
        }
    }
    false
}

/// The Latin letter that a character resembles; `None` for punctuation, spaces and invisible characters.
/// Other characters map to themselves.
fn letter(c: char) -> Option<char> {
    let number = u32::from(c);
    let of = |first: u32| char::from_u32(u32::from('a') + (number - first) % 26);
    let like = match c {
        'A'..='Z' => of(u32::from('A')),
        '\u{ff21}'..='\u{ff3a}' => of(0xff21),
        '\u{ff41}'..='\u{ff5a}' => of(0xff41),
        '\u{24b6}'..='\u{24e9}' => of(0x24b6),
        '\u{1d400}'..='\u{1d6a3}' => of(0x1d400),
        '\u{1f130}'..='\u{1f149}' => of(0x1f130),
        '\u{1f150}'..='\u{1f169}' => of(0x1f150),
        '\u{1f170}'..='\u{1f189}' => of(0x1f170),
        _ => LOOK_ALIKES.iter().find(|(_, all)| !c.is_ascii() && all.contains(c)).map(|(letter, _)| *letter),
    };
    like.or_else(|| (c.is_alphanumeric() && !is_mark(c)).then_some(c))
}

/// True for combining marks and invisible letters.
fn is_mark(c: char) -> bool {
    matches!(
        c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{115f}' | '\u{1160}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}' | '\u{3164}' | '\u{ffa0}' | '\u{e0000}'..='\u{e01ef}'
    )
}

/// Letters of other scripts, with accents or in other styles.
const LOOK_ALIKES: [(char, &str); 10] = [
    ('d', "ďđḋḍḏԁժᏧᗪᴅⅾⅮⅆ"),
    ('e', "èéêëēĕėęěẹẻẽеёєҽЕЁЄΕεℯℰ℮ᴇⅇЭ"),
    ('i', "ìíîïĩīĭįıỉịіїІЇΙιɩɪⅰⅠℐℑℹӀǀ"),
    ('m', "ḿṁṃмМΜϺᴍⅿⅯℳ"),
    ('n', "ñńņňŉṅṇոռпΝηɴℕИ"),
    ('o', "òóôõöøōŏőơọỏоОΟοօᴏℴ"),
    ('r', "ŕŗřṙṛгГᴦʀℛℜℝᏒ"),
    ('s', "śŝşšșṡṣѕЅꜱʂՏ"),
    ('t', "ţťŧțṫṭтТΤτᴛ"),
    ('y', "ýÿŷỳỵуўҮүУΥγʏ"),
];

#[cfg(test)]
pub mod tests;
