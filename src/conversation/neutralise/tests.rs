//! No text produces a tag.

use proptest::prelude::*;

use super::*;
use crate::conversation::growth::{FACTOR, check_linear};

/// A deliberately simpler parser: bracket, optional slash, letters.
pub fn tags(text: &str) -> usize {
    let plain: String =
        text.to_lowercase().chars().filter(|c| !c.is_whitespace() && *c != '-' && *c != '_').collect();
    ["<systemreminder", "</systemreminder", "<systemnote", "</systemnote"]
        .iter()
        .map(|tag| plain.matches(tag).count())
        .sum()
}

#[test]
fn every_spelling_of_a_tag_is_neutralised() {
    for tag in [
        "<system-reminder>",
        "</system-reminder>",
        "<SYSTEM-Reminder x=\"1\">",
        "< / system-reminder >",
        "<\n/system-reminder",
        "</\tsystem - reminder\n>",
        "<system_reminder>",
        "<system reminder/>",
        "<SystemReminder>",
        "<system-note>",
        "</system-note>",
        "<!system-reminder>",
        "<x<system-reminder>",
        "<sys\u{200b}tem-rem\u{2060}inder>",
        "<\u{200e}/system\u{ad}-reminder>",
        "<system\u{2010}reminder>",
        "<system\u{2014}reminder>",
        "\u{ff1c}system-reminder\u{ff1e}",
        "\u{2039}/system-reminder\u{203a}",
        "\u{27e8}system-reminder\u{27e9}",
        "\u{3008}system-reminder\u{3009}",
        "&#60;system-reminder&#62;",
        "&#0060system-reminder>",
        "&#x3C;/system-reminder>",
        "&#X03c;system-reminder>",
        "&LT;system-reminder>",
        "&lt/system-reminder>",
        "<ѕуѕtеm-rеmіndеr>",
        "<\u{ff53}ystem-reminder>",
        "<𝐬𝐲𝐬𝐭𝐞𝐦-𝐫𝐞𝐦𝐢𝐧𝐝𝐞𝐫>",
        "<𝓢𝔂𝓼𝓽𝓮𝓶-reminder>",
        "<ⓢⓨⓢⓣⓔⓜ-reminder>",
        "<s\u{301}ystem-rémindér>",
    ] {
        let text = format!("a < b {tag} c");
        let safe = neutralise(&text);
        assert_ne!(safe, text, "{tag:?} was not neutralised");
        assert_eq!(safe.replace(MARK, ""), text, "only marks are added");
        assert_eq!(restore(&safe), text);
        assert_eq!(restore(&neutralise(&safe)), safe, "a mark in a file survives");
    }
}

#[test]
fn ordinary_text_is_not_changed() {
    for text in [
        "",
        "a < b <b>&",
        "&lt;system-reminder>",
        "&amp;lt; &#60 &#x3c",
        "<system>",
        "<system.web>",
        "<systemd-unit>",
        "a system-reminder",
        "x<y system-reminder",
        "\u{ab}Système\u{bb} \u{ff1c}тест\u{ff1e} \u{3008}\u{3009} ⟨ψ|",
        "Vec<System>",
        "if a <\n b { reminder }",
        "<",
        "&",
        "\u{ff1c}",
    ] {
        assert_eq!(neutralise(text), text);
        assert!(matches!(neutralise(text), Cow::Borrowed(_)));
        assert!(matches!(restore(text), Cow::Borrowed(_)));
    }
    assert_eq!(neutralise("x<system-reminder>"), "x<¬system-reminder>");
    assert_eq!(restore("a <¬ b, ¬<system-reminder>, <¬b>"), "a <¬ b, ¬<system-reminder>, <¬b>");
}

/// Text made of pieces of tags.
pub fn hostile() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<",
        "</",
        "< /",
        "&#60;",
        "&#x3c;",
        "\u{ff1c}",
        "\u{2039}",
        "system",
        "SYSTEM",
        "ѕystem",
        "-",
        "_",
        " ",
        "\n",
        "\u{200b}",
        "reminder",
        "Reminder",
        "note",
        "/",
        ">",
        " x=\"1\">",
        "a",
        "<system-reminder>",
        "</system-reminder>",
        "é",
        "&",
        "&lt;",
        "\u{301}",
        "¬",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn neutralised_text_has_no_tags_and_can_be_restored(text in hostile(), other in any::<String>()) {
        for text in [text.clone(), other.clone(), text + &other] {
            let safe = neutralise(&text).into_owned();
            prop_assert_eq!(tags(&safe), 0, "{:?}", safe);
            prop_assert_eq!(restore(&safe), text.as_str());
            let reminder = NeutralisedText::new(text).into_reminder();
            prop_assert_eq!(tags(&reminder), 2, "{:?}", reminder);
        }
    }
}

#[test]
fn neutralise_time_is_not_quadratic() {
    for piece in ["<", "< ", "</system-", "&#000", "\u{ff1c}s", "<\u{200b}", "<¬"] {
        let longest = piece.repeat(FACTOR * 500 / piece.len());
        check_linear(piece, 500, |bytes| {
            neutralise(&longest[..longest.floor_char_boundary(bytes)]);
        });
    }
}
