//! Describes to the model the difference of a saved file from the sent text: editors may change final newlines,
//! line endings and formatting when they save. Pure.

use crate::tool::file::last_seen::LastSeen;
use crate::tool::file::text_file::TextFile;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SaveDifference {
    pub note: String,
    /// The note shows all differences, so the model knows the saved file.
    pub is_whole: bool,
}

pub(super) fn not_saved(name: &str) -> SaveDifference {
    let note =
        format!("[The editor has the change of {name} and has not saved it: the file on disk is as before.]");
    SaveDifference { note, is_whole: false }
}

pub(super) fn not_saved_for_user(name: &str) -> String {
    format!("The editor has the change of {name}, but has not saved it: the file on disk is as before.\n\n")
}

/// True if the editor shows another text than the disk has. An editor may show `old`, the earlier text of the disk,
/// until it has loaded the file again.
pub(super) fn is_other_text(on_disk: &TextFile, shown: &str, old: Option<&[u8]>) -> bool {
    let old_file = old.and_then(|bytes| TextFile::decode(bytes).ok());
    on_disk.shown_as(shown).is_some() && old_file.is_none_or(|old| old.shown_as(shown).is_some())
}

pub(super) fn other_text(name: &str) -> String {
    format!(
        "[{name} is changed on disk, but the editor still shows another text, which is not saved. The user has to choose one of \
         the two there.]"
    )
}

pub(super) fn other_text_for_user(name: &str) -> String {
    format!(
        "{name} is changed on disk, but your editor still shows another text, which is not saved. If you save it there, the \
         change is lost; to keep the change, reload the file.\n\n"
    )
}

/// `saved` is `None` if the file cannot be read as text.
pub(super) fn describe(name: &str, sent: &[u8], saved: Option<&TextFile>) -> SaveDifference {
    let whole_difference = |note: String| SaveDifference { note: format!("[{note}]"), is_whole: true };
    let sent_file = TextFile::decode(sent).ok();
    let (Some(sent_file), Some(saved)) = (sent_file, saved) else {
        let note = format!("[The editor saved {name} with a difference. Read it again.]");
        return SaveDifference { note, is_whole: false };
    };
    let [old, new] = [&sent_file.text, &saved.text].map(|text| text.replace("\r\n", "\n"));
    if old == new {
        let changed_form =
            if sent_file.text == saved.text { "another encoding" } else { "other line endings" };
        return whole_difference(format!("The editor saved {name} with {changed_form}."));
    }
    let [old_end, new_end] = [&old, &new].map(|text| text.len() - text.trim_end_matches('\n').len());
    if old[..old.len() - old_end] == new[..new.len() - new_end] {
        let newlines = if new_end == 1 { "newline" } else { "newlines" };
        return whole_difference(format!(
            "The editor saved {name} with {new_end} {newlines} at its end instead of {old_end}."
        ));
    }
    let changed = format!("The editor saved {name} with a difference, such as formatting.");
    match LastSeen::of(&sent_file).changes(&saved.text) {
        Some((listing, true)) => {
            whole_difference(format!("{changed} Its lines that differ:\n{}", listing.trim_end_matches('\n')))
        }
        Some((listing, false)) => {
            let note = format!("[{changed} Some of its lines that differ:\n{listing}Read it again.]");
            SaveDifference { note, is_whole: false }
        }
        None => SaveDifference { note: format!("[{changed} Read it again.]"), is_whole: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(sent: &str, saved: &str) -> SaveDifference {
        describe("f", sent.as_bytes(), Some(&TextFile::decode(saved.as_bytes()).unwrap()))
    }

    #[test]
    fn notes_name_what_the_editor_changed() {
        for (sent, saved, expected) in [
            ("a", "a\n", "[The editor saved f with 1 newline at its end instead of 0.]"),
            ("a\n", "a", "[The editor saved f with 0 newlines at its end instead of 1.]"),
            ("a\n", "a\n\n", "[The editor saved f with 2 newlines at its end instead of 1.]"),
            ("a\nb\n", "a\r\nb\r\n", "[The editor saved f with other line endings.]"),
            ("\u{feff}a\n", "a\n", "[The editor saved f with another encoding.]"),
            (
                "a\n x\nb\n",
                "a\nx\nb\n",
                "[The editor saved f with a difference, such as formatting. Its lines that differ:\n@@ -2,1 +2,1 @@\n     2\tx]",
            ),
        ] {
            assert_eq!(difference(sent, saved), SaveDifference { note: expected.into(), is_whole: true });
        }
    }

    #[test]
    fn text_in_the_editor_is_compared_with_the_disk() {
        let on_disk = TextFile::decode(b"new\n").unwrap();
        for (shown, old, expected) in [
            ("new\n", None, false),
            ("new", None, false),
            ("new\r\n", None, false),
            ("dirty\n", None, true),
            ("old\n", Some("old\n"), false),
            ("typed\n", Some("old\n"), true),
        ] {
            assert_eq!(is_other_text(&on_disk, shown, old.map(str::as_bytes)), expected, "{shown:?} {old:?}");
        }
    }

    #[test]
    fn unknown_differences_need_a_read() {
        for unknown in [difference(&"a\n".repeat(100), &"b\n".repeat(100)), describe("f", b"a", None)] {
            assert!(unknown.note.ends_with("Read it again.]") && !unknown.is_whole, "{unknown:?}");
        }
    }
}
