//! The user's words in a prompt, without additions of clients: files, selections, earlier messages, wrappers. Pure.

use crate::acp::ContentBlock;
use crate::text::shorten;

const MAX_TITLE: usize = 80;

/// Element in which avante wraps the user's new message, and the last few before it.
const MESSAGE: &str = "previous_user_message";

pub(crate) const WRAPPERS: [&str; 4] = [MESSAGE, "user_message", "user_prompt", "user_query"];

const REPLY: &str = "<previous_assistant_message>";

const CLIENT_GENERATED: [&str; 3] = [REPLY, "<system_context>", "<selected_code>"];

pub(crate) struct Typed<'a> {
    pub(crate) texts: Vec<(usize, &'a str)>,
    /// Blocks at whose start a widening command counts.
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Returns the text blocks that the user may have typed, without earlier messages that a client repeats.
pub(crate) fn typed(content: &[ContentBlock]) -> Option<Typed<'_>> {
    let texts = content.iter().enumerate().filter_map(|(block, content)| match content {
        ContentBlock::Text(text) => Some((block, text.text.as_str())),
        _ => None,
    });
    let (generated, texts): (Vec<_>, Vec<_>) =
        texts.partition(|(_, text)| CLIENT_GENERATED.iter().any(|tag| text.trim_start().starts_with(tag)));
    let (messages, others): (Vec<_>, Vec<_>) =
        texts.into_iter().partition(|(_, text)| inside(text, MESSAGE).is_some());
    // Without replies the newest message is the first; with replies it is the last.
    let newest = if generated.iter().any(|(_, text)| text.trim_start().starts_with(REPLY)) {
        messages.last()
    } else {
        messages.first()
    };
    let edges = if others.is_empty() {
        newest.map(|(block, _)| (*block, *block))
    } else {
        others.first().zip(others.last()).map(|(first, last)| (first.0, last.0))
    };
    let (first, last) = edges?;
    let repeats = messages.len() > 1;
    let current = newest.filter(|_| !repeats || others.is_empty()).copied();
    let mut texts: Vec<(usize, &str)> = others.into_iter().chain(current).collect();
    texts.sort_by_key(|(block, _)| *block);
    for (_, text) in &mut texts {
        let whole = *text;
        *text = WRAPPERS.iter().find_map(|name| inside(whole, name)).unwrap_or(whole);
    }
    Some(Typed { texts, first, last })
}

fn inside<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.trim().strip_prefix('<')?.strip_prefix(name)?.strip_prefix('>')?;
    rest.strip_suffix('>')?.strip_suffix(name)?.strip_suffix("</")
}

/// Returns the title of a session with this first prompt: the first line of the user's words, if there are any.
pub(crate) fn title(content: &[ContentBlock]) -> Option<String> {
    let texts = typed(content)?.texts;
    let mut lines = texts.iter().flat_map(|(_, text)| text.lines().map(str::trim));
    let line = texts
        .iter()
        .find_map(|(_, text)| first_words(text))
        .or_else(|| lines.find(|line| !line.is_empty() && fence(line).is_none()))?;
    Some(shorten(line, MAX_TITLE).into_owned())
}

/// Returns the first line that is not quoted code, an element, or the name of a file.
fn first_words(text: &str) -> Option<&str> {
    let mut until: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if let Some(end) = &until {
            if line.ends_with(end.as_str()) {
                until = None;
            }
        } else if let Some(fence) = fence(line) {
            until = Some(fence.to_owned());
        } else if let Some(name) = opened_element(line) {
            let end = format!("</{name}>");
            until = text.contains(&end).then_some(end);
        } else if !line.is_empty() && !is_element(line) && !is_file_name(line) {
            return Some(line);
        }
    }
    None
}

fn fence(line: &str) -> Option<&'static str> {
    ["```", "~~~"].into_iter().find(|fence| line.starts_with(fence))
}

/// The name of an element whose start tag is the whole line.
fn opened_element(line: &str) -> Option<&str> {
    let tag = line.strip_prefix('<')?.strip_suffix('>').filter(|tag| !tag.contains(['<', '>']))?;
    let name = tag.split_whitespace().next()?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    (is_name && !tag.ends_with('/')).then_some(name)
}

fn is_element(line: &str) -> bool {
    line.starts_with('<') && line.ends_with('>')
}

/// True for a link or a mention alone, and for a place such as `src/retry.py:1-4`.
fn is_file_name(line: &str) -> bool {
    let is_link = line.trim_start_matches('@').starts_with('[')
        && line.ends_with(')')
        && line.matches("](").count() == 1;
    let is_one_word = !line.contains(char::is_whitespace);
    let place = line.rsplit_once(':').map_or("", |(_, place)| place);
    let is_place =
        !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-' || byte == b',');
    is_link || (is_one_word && (is_place || line.starts_with('@') || line.starts_with("file://")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::ResourceLink;

    #[test]
    fn titles_are_the_users_words() {
        for (text, expected) in [
            ("  \nFix the retry\nand test it", "Fix the retry"),
            ("src/retry.py:1-1\n\n```python\nimport os\n```\n\nWhat is this?", "What is this?"),
            ("src/retry.py:12\nWhat is this?", "What is this?"),
            ("@src/retry.py\nWhat is this?", "What is this?"),
            ("@src/retry.py what is this?", "@src/retry.py what is this?"),
            ("[retry.py](file:///p/retry.py)\nWhat is this?", "What is this?"),
            ("See [a](b) and [c](d)", "See [a](b) and [c](d)"),
            ("<file path=\"a.rs\">\nfn main() {}\n</file>\nExplain", "Explain"),
            ("<previous_user_message>Explain it</previous_user_message>", "Explain it"),
            ("<br>\nExplain", "Explain"),
            ("is a < b and b > c?", "is a < b and b > c?"),
            ("why: 12", "why: 12"),
            ("```\ncode only\n```", "code only"),
            ("src/retry.py:1-1", "src/retry.py:1-1"),
        ] {
            assert_eq!(title(&[text.into()]).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(title(&["  \n".into()]), None);
        assert_eq!(title(&[]), None);
    }

    #[test]
    fn title_skips_blocks_without_the_users_words() {
        let link = ContentBlock::ResourceLink(ResourceLink::new("a.rs", "file:///p/a.rs"));
        let blocks =
            [link, "src/a.rs:3-4".into(), "<selected_code>x</selected_code>".into(), "Explain".into()];
        assert_eq!(title(&blocks).as_deref(), Some("Explain"));
    }
}
