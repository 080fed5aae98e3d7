//! Parses file names in a patch: quoting, and the prefixes that `git diff` adds. Pure.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PatchName {
    None,
    Path(String),
}

/// Parses a name, quoted or up to a tab. A time may follow the tab.
pub(super) fn read(text: &str) -> Result<PatchName, String> {
    let (name, time) = match text.strip_prefix('"') {
        Some(rest) => {
            let (name, rest) = unquote(rest)?;
            (name, rest)
        }
        None => match text.split_once('\t') {
            Some((name, time)) => (name.to_owned(), time),
            None => (text.to_owned(), ""),
        },
    };
    // GNU diff marks a missing file with the Unix epoch.
    let is_none = name == "/dev/null" || time.trim_start().starts_with("1970-01-01 00:00:00");
    match name.as_str() {
        "" => Err("a file name is missing".into()),
        _ if is_none => Ok(PatchName::None),
        _ => Ok(PatchName::Path(name)),
    }
}

pub(super) fn whole(text: &str) -> Result<String, String> {
    match text.strip_prefix('"') {
        Some(rest) => Ok(unquote(rest)?.0),
        None if text.is_empty() => Err("a file name is missing".into()),
        None => Ok(text.to_owned()),
    }
}

/// `None` if the split is ambiguous, as for renames.
pub(super) fn pair(text: &str) -> Option<(String, String)> {
    if let Some(rest) = text.strip_prefix('"') {
        let (old, rest) = unquote(rest).ok()?;
        return Some((old, whole(rest.strip_prefix(' ')?).ok()?));
    }
    if text.ends_with('"') {
        let (old, quoted) = text.split_once(" \"")?;
        return Some((old.to_owned(), unquote(quoted).ok()?.0));
    }
    // Names may contain spaces. Both names are equal except for prefixes of the same length.
    let middle = text.len() / 2;
    let (old, new) = (text.get(..middle)?, text.get(middle..)?.strip_prefix(' ')?);
    let same = old == new || (after_first(old).is_some() && after_first(old) == after_first(new));
    same.then(|| (old.to_owned(), new.to_owned()))
}

fn after_first(name: &str) -> Option<String> {
    name.get(1..).filter(|tail| tail.starts_with('/')).map(str::to_owned)
}

fn unquote(text: &str) -> Result<(String, &str), String> {
    let bad = || format!("the quoted name \"{text} cannot be read");
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter().copied().enumerate();
    while let Some((at, byte)) = rest.next() {
        match byte {
            b'"' => {
                let name = String::from_utf8(bytes).map_err(|_| format!("the name \"{text} is not UTF-8"))?;
                return Ok((name, &text[at + 1..]));
            }
            b'\\' => {
                let escaped = rest.next().ok_or_else(bad)?.1;
                bytes.push(match escaped {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'"' | b'\\' => escaped,
                    b'0'..=b'3' => {
                        let mut value = escaped - b'0';
                        for _ in 0..2 {
                            let digit = rest.next().map(|(_, digit)| digit);
                            let digit =
                                digit.filter(|digit| (b'0'..=b'7').contains(digit)).ok_or_else(bad)?;
                            value = (value << 3) | (digit - b'0');
                        }
                        value
                    }
                    _ => return Err(bad()),
                });
            }
            _ => bytes.push(byte),
        }
    }
    Err(bad())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefixes {
    None,
    /// A letter and a slash; the letters of the two sides differ.
    Letters(char, char),
}

impl Prefixes {
    /// Finds the common prefixes: `a/` and `b/`, or git's letters for the compared trees.
    pub(super) fn of<'a>(pairs: &(impl Iterator<Item = (Option<&'a str>, Option<&'a str>)> + Clone)) -> Self {
        let both = pairs.clone().find_map(|(old, new)| Some((prefix_letter(old?)?, prefix_letter(new?)?)));
        let (old_letter, new_letter) = both.unwrap_or(('a', 'b'));
        let fits =
            |name: Option<&str>, expected| name.is_none_or(|name| prefix_letter(name) == Some(expected));
        let all = pairs.clone().all(|(old, new)| fits(old, old_letter) && fits(new, new_letter));
        if all && old_letter != new_letter { Self::Letters(old_letter, new_letter) } else { Self::None }
    }

    pub(super) fn strip(self, name: &str) -> String {
        match self {
            Self::None => name.to_owned(),
            Self::Letters(..) => name.get(2..).unwrap_or(name).to_owned(),
        }
    }
}

fn prefix_letter(name: &str) -> Option<char> {
    let mut chars = name.chars();
    let first = chars.next().filter(|first| "abciow12".contains(*first))?;
    (chars.next() == Some('/') && chars.next().is_some()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_quoted_names_are_decoded() {
        let read = |text: &str| read(text).map_err(|_| ());
        let path = |name: &str| Ok(PatchName::Path(name.into()));
        assert_eq!(read(r#""a/na\303\257ve.txt""#), path("a/naïve.txt"));
        assert_eq!(read(r#""a/tab\there \"x\" \\""#), path("a/tab\there \"x\" \\"));
        assert_eq!(read("a/with space\t"), path("a/with space"));
        assert_eq!(read("a/f\t2024-01-01 10:00:00 +0000"), path("a/f"));
        assert_eq!(read("f\t1970-01-01 00:00:00.000000000 +0000"), Ok(PatchName::None));
        assert_eq!(read("/dev/null"), Ok(PatchName::None));
        for bad in ["", "\"a", r#""\9""#, r#""\377""#] {
            assert_eq!(read(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn git_header_splits_into_two_names() {
        let pair = |text| pair(text).map(|(old, new)| format!("{old}|{new}")).unwrap_or_default();
        assert_eq!(pair("a/f b/f"), "a/f|b/f");
        assert_eq!(pair("f f"), "f|f");
        assert_eq!(pair("a/x y b/x y"), "a/x y|b/x y");
        assert_eq!(pair(r#""a/\t" "b/\t""#), "a/\t|b/\t");
        assert_eq!(pair(r#"a/old "b/\t""#), "a/old|b/\t");
        assert_eq!(pair("a/old b/new"), "", "a rename");
    }

    #[test]
    fn prefixes_are_common_to_all_names() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let side = |name: &'static str| (!name.is_empty()).then_some(name);
            Prefixes::of(&pairs.iter().map(|(old, new)| (side(old), side(new))))
        };
        assert_eq!(of(&[("a/f", "b/f"), ("", "b/new")]), Prefixes::Letters('a', 'b'));
        assert_eq!(of(&[("i/f", "w/f")]), Prefixes::Letters('i', 'w'));
        assert_eq!(of(&[("", "b/new")]), Prefixes::Letters('a', 'b'));
        assert_eq!(of(&[("", "c/new")]), Prefixes::None);
        assert_eq!(of(&[("a/f", "a/f")]), Prefixes::None, "a folder");
        assert_eq!(of(&[("a/f", "b/f"), ("src/g", "src/g")]), Prefixes::None);
    }
}
