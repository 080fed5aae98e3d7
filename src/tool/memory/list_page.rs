//! Pages of long lists. The model continues after the last entry that it got. Pure.

/// Maximum bytes of a page, unless its first line is longer.
const PAGE: usize = 30_000;

/// The lines of named entries, as many as fit, or `none` if there are no entries.
pub(in crate::tool) fn list_page<'a>(
    entries: impl ExactSizeIterator<Item = (&'a str, String)>,
    none: &str,
) -> String {
    let (count, mut text, mut last) = (entries.len(), String::new(), None);
    for (number, (name, line)) in entries.enumerate() {
        if let Some(last) = last.filter(|_| text.len() + line.len() > PAGE) {
            return format!("{text}[{} more. Continue with after {last}.]", count - number);
        }
        text.push_str(&line);
        last = Some(name);
    }
    if text.is_empty() { none.to_owned() } else { text }
}
