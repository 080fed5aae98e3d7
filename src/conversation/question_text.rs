//! The part of a question about a call that the client does not show, as a message. Pure.

use std::path::PathBuf;

use super::acp_updates::claim_warning;
use crate::client::ClientDisplay;
use crate::conversation::content::{TEXT, ToolContent, clip};
use crate::line_diff::{self, lines};
use crate::text::code_block;

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
    /// The parts that the client would not show before its user answers. `claim` names an MCP server and its tool.
    pub fn unseen(&self, display: ClientDisplay, claim: Option<(&str, &str)>) -> Option<String> {
        let warning =
            claim.filter(|_| !display.text).map(|(server, tool)| claim_warning(server, tool) + "\n");
        let parts = self.content.iter().filter_map(|content| match content {
            ToolContent::Text(text) => Some(text.clone()).filter(|_| !display.text && !self.is_in_title),
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
        let text = warning.into_iter().chain(parts).collect::<Vec<_>>().join("\n");
        (!text.is_empty()).then(|| clip(text.trim_end(), TEXT).into_owned() + "\n\n")
    }
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
            let text = preview(is_in_title).unseen(display, None);
            let expected = (!expected.is_empty()).then(|| expected.join("\n").trim_end().to_owned() + "\n\n");
            assert_eq!(text, expected, "{display:?} {is_in_title}");
        }
    }

    #[test]
    fn names_are_relative_to_the_folder() {
        for (folder, name) in [("/w", "a.txt"), ("/other", "/w/a.txt")] {
            let preview = CallPreview { folder: folder.into(), ..preview(true) };
            let text = preview.unseen(ClientDisplay::UNKNOWN, None).unwrap_or_default();
            assert!(text.contains(&format!("--- {name}\n+++ {name}\n")), "{text}");
        }
    }

    #[test]
    fn claim_is_told_where_the_content_is_not_shown() {
        let empty = CallPreview::default();
        let claim = Some(("files", "mcp__files__list"));
        assert_eq!(empty.unseen(ClientDisplay::ALL, claim), None);
        let text = empty.unseen(ClientDisplay::UNKNOWN, claim).unwrap_or_default();
        assert!(
            text.starts_with("The MCP server files claims that mcp__files__list is read-only."),
            "{text}"
        );
    }

    #[test]
    fn long_text_is_cut() {
        let content = vec![ToolContent::Text("\u{1}".repeat(100_000))];
        let text = CallPreview { content, ..CallPreview::default() }.unseen(ClientDisplay::UNKNOWN, None);
        let text = text.unwrap_or_default();
        assert!(
            text.len() < TEXT && text.trim_end().ends_with("more bytes are not shown]"),
            "{}",
            text.len()
        );
    }
}
