//! The part of a question that the client does not show, as a message or in the question's title. Pure.

use std::path::{Path, PathBuf};

use super::acp_updates::claim_warning;
use crate::acp::{ContentBlock, ToolCallContent, ToolCallUpdateFields};
use crate::client::ClientDisplay;
use crate::conversation::content::{TEXT, ToolContent, clip};
use crate::line_diff::{self, lines};
use crate::text::{code_block, one_line, shorten, visible_line};

/// The preview of a call for a permission request.
#[derive(Debug, Clone, Default)]
pub struct CallPreview {
    pub content: Vec<ToolContent>,
    /// True if the title says all that the texts say.
    pub is_in_title: bool,
    /// Paths in it are relative to it, so that a narrow client cuts off less.
    pub folder: PathBuf,
}

impl CallPreview {
    /// The preview of a call of an external agent.
    pub fn of_update(fields: &ToolCallUpdateFields, folder: &Path) -> Self {
        let title = fields.title.as_deref().unwrap_or_default();
        let content = fields.content.iter().flatten().filter_map(|content| match content {
            ToolCallContent::Diff(diff) => Some(ToolContent::Diff {
                path: diff.path.clone(),
                old: diff.old_text.clone(),
                new: diff.new_text.clone(),
                line: None,
            }),
            ToolCallContent::Content(content) => match &content.content {
                ContentBlock::Text(text) if text.text.trim() != title => Some(ToolContent::text(&text.text)),
                _ => None,
            },
            _ => None,
        });
        Self { content: content.collect(), is_in_title: false, folder: folder.to_owned() }
    }

    /// The parts that the client would not show before its user answers. `claim` names an MCP server and its tool.
    pub fn unseen(&self, title: &str, display: ClientDisplay, claim: Option<(&str, &str)>) -> Option<String> {
        let is_title_cut = display.question_width.is_some_and(|width| is_longer(title, width));
        let cut_title = (is_title_cut && !self.is_in_title).then(|| title.to_owned() + "\n");
        let warning =
            claim.filter(|_| !display.text).map(|(server, tool)| claim_warning(server, tool) + "\n");
        let parts = self.content.iter().filter_map(|content| match content {
            ToolContent::Text(text) => {
                let is_shown = display.text || (self.is_in_title && !is_title_cut);
                (!is_shown).then(|| text.clone())
            }
            ToolContent::Diff { path, old, new, .. } => {
                let is_shown = if old.is_some() { display.changes } else { display.new_files };
                let name = path.strip_prefix(&self.folder).unwrap_or(path).display().to_string();
                (!is_shown).then(|| diff(&name, old.as_deref(), new))
            }
            ToolContent::Block(_)
            | ToolContent::Operation(_)
            | ToolContent::Session(_)
            | ToolContent::Terminal { .. } => None,
        });
        let text = cut_title.into_iter().chain(warning).chain(parts).collect::<Vec<_>>().join("\n");
        (!text.is_empty()).then(|| clip(text.trim_end(), TEXT).into_owned() + "\n")
    }

    /// The title of a question that stands away from the chat: with the words of a short change, or with the size
    /// of a longer one. `has_message` if the chat has the unseen parts.
    pub fn title_away_from_chat(&self, title: &str, width: usize, has_message: bool) -> String {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for content in &self.content {
            let ToolContent::Diff { old, new, .. } = content else { continue };
            let (before, after) = (lines(old.as_deref().unwrap_or_default()), lines(new));
            for hunk in line_diff::hunks(&before, &after) {
                let (old_lines, new_lines) = hunk.changed(&before, &after);
                removed.extend(old_lines);
                added.extend(new_lines);
            }
        }
        if removed.is_empty() && added.is_empty() {
            return if has_message {
                with_place(title, "all of it is in the chat", width)
            } else {
                title.to_owned()
            };
        }
        let change = one_line_change(&removed, &added).filter(|_| self.content.len() == 1);
        let whole = change.map(|change| format!("{title}: {change}"));
        whole.filter(|whole| !is_longer(whole, width)).unwrap_or_else(|| {
            with_place(title, &format!("+{} -{}, see the chat", added.len(), removed.len()), width)
        })
    }
}

fn is_longer(text: &str, width: usize) -> bool {
    text.chars().count() > width
}

/// The lines with their signs. `None` if there are more, and for changes of the end or the indentation of a line.
fn one_line_change(removed: &[&str], added: &[&str]) -> Option<String> {
    let (old, new) = (removed.first(), added.first());
    let has_more = removed.len() > 1 || added.len() > 1;
    let is_cut = [old, new].into_iter().flatten().any(|line| !line.ends_with('\n'));
    let hides_margin = old.zip(new).is_some_and(|(old, new)| margins(old) != margins(new));
    if has_more || is_cut || hides_margin {
        return None;
    }
    let parts = old.map(|line| signed("-", line)).into_iter().chain(new.map(|line| signed("+", line)));
    Some(parts.collect::<Vec<_>>().join(" "))
}

fn signed(sign: &str, line: &str) -> String {
    format!("{sign}{}", visible_line(line.trim()))
}

fn margins(line: &str) -> (&str, &str) {
    let start = line.len() - line.trim_start().len();
    (&line[..start], &line[line.trim_end().len().max(start)..])
}

fn with_place(title: &str, place: &str, width: usize) -> String {
    let place = format!(" ({place})");
    shorten(&one_line(title, width), width.saturating_sub(place.len() + 1)).into_owned() + &place
}

fn diff(name: &str, old: Option<&str>, new: &str) -> String {
    let (before, after) = (lines(old.unwrap_or_default()), lines(new));
    let hunks = line_diff::hunks(&before, &after);
    let old_name = if old.is_some() { name } else { "/dev/null" };
    if hunks.is_empty() {
        return format!("{name} is a new file without content.\n");
    }
    let text = line_diff::unified((old_name, name), &before, &after, &hunks);
    code_block("diff", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview(is_in_title: bool) -> CallPreview {
        let file = |old: Option<&str>, new: &str| ToolContent::Diff {
            path: "/w/a.txt".into(),
            old: old.map(str::to_owned),
            new: new.into(),
            line: None,
        };
        let content = vec![ToolContent::text("words"), file(Some("a\n"), "b\n"), file(None, "c\n")];
        CallPreview { content, is_in_title, ..CallPreview::default() }
    }

    const TITLE: &str = "Edit a.txt";
    const WORDS: &str = "words";
    const CHANGE: &str = "```diff\n--- /w/a.txt\n+++ /w/a.txt\n@@ -1 +1 @@\n-a\n+b\n```\n";
    const NEW_FILE: &str = "```diff\n--- /dev/null\n+++ /w/a.txt\n@@ -0,0 +1 @@\n+c\n```\n";

    #[test]
    fn text_has_what_the_client_does_not_show() {
        let all = ClientDisplay::ALL;
        for (display, is_in_title, expected) in [
            (all, false, vec![]),
            (ClientDisplay { text: false, ..all }, false, vec![WORDS]),
            (ClientDisplay { text: false, ..all }, true, vec![]),
            (ClientDisplay { changes: false, ..all }, false, vec![CHANGE]),
            (ClientDisplay { new_files: false, ..all }, false, vec![NEW_FILE]),
            (ClientDisplay::UNKNOWN, false, vec![WORDS, CHANGE, NEW_FILE]),
            (ClientDisplay::UNKNOWN, true, vec![CHANGE, NEW_FILE]),
        ] {
            let text = preview(is_in_title).unseen(TITLE, display, None);
            let expected = (!expected.is_empty()).then(|| expected.join("\n").trim_end().to_owned() + "\n");
            assert_eq!(text, expected, "{display:?} {is_in_title}");
        }
    }

    #[test]
    fn names_are_relative_to_the_folder() {
        for (folder, name) in [("/w", "a.txt"), ("/other", "/w/a.txt")] {
            let preview = CallPreview { folder: folder.into(), ..preview(true) };
            let text = preview.unseen(TITLE, ClientDisplay::UNKNOWN, None).unwrap_or_default();
            assert!(text.contains(&format!("--- {name}\n+++ {name}\n")), "{text}");
        }
    }

    #[test]
    fn claim_is_told_where_the_content_is_not_shown() {
        let empty = CallPreview::default();
        let claim = Some(("files", "mcp__files__list"));
        assert_eq!(empty.unseen(TITLE, ClientDisplay::ALL, claim), None);
        let text = empty.unseen(TITLE, ClientDisplay::UNKNOWN, claim).unwrap_or_default();
        assert!(
            text.starts_with("The MCP server files claims that mcp__files__list is read-only."),
            "{text}"
        );
    }

    #[test]
    fn long_text_is_cut() {
        let content = vec![ToolContent::Text("\u{1}".repeat(100_000))];
        let text = CallPreview { content, ..CallPreview::default() };
        let text = text.unseen(TITLE, ClientDisplay::UNKNOWN, None);
        let text = text.unwrap_or_default();
        assert!(
            text.len() < TEXT && text.trim_end().ends_with("more bytes are not shown]"),
            "{}",
            text.len()
        );
    }

    #[test]
    fn title_away_from_the_chat_has_a_short_change_or_its_place() {
        let diff = |old: Option<&str>, new: &str| ToolContent::Diff {
            path: "/w/a.txt".into(),
            old: old.map(str::to_owned),
            new: new.into(),
            line: None,
        };
        let long = format!("{}\n", "x".repeat(80));
        for (content, has_message, expected) in [
            (vec![diff(Some("a\n"), "b\n")], true, "Edit a.txt: -a +b"),
            (vec![diff(Some("a\nx\n"), "a\n")], true, "Edit a.txt: -x"),
            (vec![diff(None, "  c\u{202e}\n")], true, "Edit a.txt: +c\\u{202e}"),
            (vec![diff(Some("a\n"), "b\nc\n")], true, "Edit a.txt (+2 -1, see the chat)"),
            (vec![diff(None, &long)], true, "Edit a.txt (+1 -0, see the chat)"),
            // One line cannot show these.
            (vec![diff(Some("a\n"), " a\n")], true, "Edit a.txt (+1 -1, see the chat)"),
            (vec![diff(Some("a\n"), " b\n")], true, "Edit a.txt (+1 -1, see the chat)"),
            (vec![diff(Some("a\n"), "a \n")], true, "Edit a.txt (+1 -1, see the chat)"),
            (vec![diff(Some("a\n"), "a")], true, "Edit a.txt (+1 -1, see the chat)"),
            (vec![diff(None, "a\n"), ToolContent::text(WORDS)], true, "Edit a.txt (+1 -0, see the chat)"),
            (vec![ToolContent::text(WORDS)], true, "Edit a.txt (all of it is in the chat)"),
            (vec![], false, "Edit a.txt"),
        ] {
            let preview = CallPreview { content, ..CallPreview::default() };
            assert_eq!(preview.title_away_from_chat(TITLE, 80, has_message), expected);
        }
        let cut = CallPreview::default().title_away_from_chat(&"y".repeat(100), 80, true);
        assert_eq!(cut, format!("{}… (all of it is in the chat)", "y".repeat(52)));
    }

    #[test]
    fn title_that_is_cut_is_in_the_message() {
        let display = ClientDisplay { question_width: Some(4), ..ClientDisplay::UNKNOWN };
        for (content, is_in_title, expected) in [
            (vec![], false, Some("Edit a.txt\n")),
            (vec![ToolContent::text(TITLE)], true, Some("Edit a.txt\n")),
            (vec![ToolContent::text(WORDS)], false, Some("Edit a.txt\n\nwords\n")),
        ] {
            let preview = CallPreview { content, is_in_title, ..CallPreview::default() };
            assert_eq!(preview.unseen(TITLE, display, None).as_deref(), expected);
            let wide = ClientDisplay { question_width: Some(40), ..display };
            let words = (!is_in_title && expected != Some("Edit a.txt\n")).then_some("words\n");
            assert_eq!(preview.unseen(TITLE, wide, None).as_deref(), words);
        }
    }
}
