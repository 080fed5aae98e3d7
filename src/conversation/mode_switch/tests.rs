//! Blocks of every shape, split at every byte, and compared with a `CommonMark` parser.

use proptest::prelude::*;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::*;
use crate::conversation::growth::{FACTOR, check_linear};

/// The forwarded text and the switches found.
fn whole(text: &str) -> (String, FoundSwitch) {
    let mut reader = SwitchReader::default();
    let out = reader.push(text).into_owned() + &reader.flush();
    (out, reader.take())
}

fn one(analysis: &str, new_mode: Option<&str>) -> FoundSwitch {
    FoundSwitch::One(Switch { analysis: analysis.into(), new_mode: new_mode.map(str::to_owned) })
}

const BLOCK: &str = "```yaml\nmode_switch:\n  analysis: |\n    Long,\n    reasoned.\n  new_mode: code\n```\n";

fn before_lines(mark: &str, text: &str) -> String {
    text.lines().flat_map(|line| [mark, line, "\n"]).collect()
}

fn cases() -> Vec<(String, FoundSwitch, bool)> {
    let switch = || one("Long,\nreasoned.", Some("code"));
    let shown = |text: &str, found: FoundSwitch| (text.to_owned(), found, true);
    let hidden = |text: String, found: FoundSwitch| (text, found, false);
    vec![
        hidden(format!("Before.\n{BLOCK}After.\n"), switch()),
        hidden(BLOCK.trim_end().to_owned(), switch()),
        hidden(BLOCK.replace("yaml", "YAML title=x"), switch()),
        hidden(BLOCK.replace("```yaml", "  ~~~~ yml").replace("```\n", "~~~~~\n"), switch()),
        hidden(BLOCK.replace('\n', "\r\n"), switch()),
        hidden("```yaml\n\nmode_switch: {analysis: ' why '}\n```".into(), one("why", None)),
        hidden("```yaml\nmode_switch: {analysis: why, new_mode: ''}\n```".into(), one("why", None)),
        hidden(format!("{BLOCK}{BLOCK}"), FoundSwitch::Many),
        shown("No block.\n", FoundSwitch::Nothing),
        shown("```yaml\na: 1\n```\n", FoundSwitch::Nothing),
        shown("```yaml\n# mode_switch:\na: mode_switch\n```\n", FoundSwitch::Nothing),
        shown("```yaml\na: 1\n```\nmode_switch: {analysis: x}\n", FoundSwitch::Nothing),
        shown("```yaml\na: 1\nmode_switch: {analysis: x}\n```\n", FoundSwitch::Invalid(NOT_FIRST.into())),
        shown("mode_switch: {analysis: x, new_mode: code}\n", FoundSwitch::Nothing),
        shown(&BLOCK.replace("yaml", "rust"), FoundSwitch::Nothing),
        shown("```\na: 1\nmode_switch: {analysis: x}\n```\n", FoundSwitch::Nothing),
        shown("- ```yaml\n  a: 1\n  ```\n", FoundSwitch::Nothing),
        shown(&format!("````markdown\n{BLOCK}````\n"), FoundSwitch::Nothing),
        shown(&format!("~~~\n{BLOCK}~~~\n"), FoundSwitch::Nothing),
        shown("text ```yaml\nmode_switch: {analysis: x}\n", FoundSwitch::Nothing),
        shown("```yaml `x`\nmode_switch: {analysis: x}\n", FoundSwitch::Nothing),
    ]
}

#[test]
fn only_switch_blocks_are_found_and_removed() {
    for (text, found, is_shown) in cases() {
        let (out, was_found) = whole(&text);
        assert_eq!(was_found, found, "{text}");
        if is_shown {
            assert_eq!(out, text);
        } else {
            assert!(!out.contains("mode_switch") && !out.contains("```"), "{out}");
        }
    }
    assert_eq!(whole(&format!("Before.\n{BLOCK}After.\n")).0, "Before.\nAfter.\n");
}

/// The keys of a switch in YAML, in the spellings that a model may choose.
const SPELLINGS: [&str; 12] = [
    "mode_switch:\n  analysis: a\n  new_mode: code",
    "{\"mode_switch\": {\"analysis\": \"a\", \"new_mode\": \"code\"}}",
    "{\n  \"mode_switch\": {\n    \"analysis\": \"a\",\n    \"new_mode\": \"code\"\n  }\n}",
    "{mode_switch: {analysis: a, new_mode: code}}",
    "\"mode_switch\":\n  \"analysis\": a\n  'new_mode': \"code\"",
    "'mode_switch': {analysis: 'a', new_mode: 'code'}",
    "mode_switch :\n  analysis : a\n  new_mode : code",
    "  mode_switch:\n    analysis: a\n    new_mode: code",
    "? mode_switch\n: {analysis: a, new_mode: code}",
    "# Why: the plan is accepted.\nmode_switch:\n  analysis: a\n  new_mode: code",
    "---\nmode_switch:\n  analysis: a\n  new_mode: code",
    "mode_switch:\n  new_mode: code\n  analysis: >-\n    a",
];

#[test]
fn every_spelling_of_a_switch_applies_at_the_start_of_a_line() {
    for spelling in SPELLINGS {
        for indent in ["", " ", "  ", "   "] {
            let block = before_lines(indent, &format!("```yaml\n{spelling}\n```"));
            let text = format!("Next.\n\n{block}\nEnd.\n");
            assert_eq!(whole(&text), ("Next.\n\n\nEnd.\n".to_owned(), one("a", Some("code"))), "{text}");
        }
    }
}

#[test]
fn switches_in_other_places_are_reported_and_the_next_block_applies() {
    let in_container = |spelling: &str| {
        let block = format!("```yaml\n{spelling}\n```");
        let item = |marker: &str, indent: &str| {
            let lines: String = block.lines().skip(1).flat_map(|line| [indent, line, "\n"]).collect();
            format!("{marker}```yaml\n{lines}")
        };
        [
            before_lines("> ", &block),
            before_lines(">", &block),
            before_lines("> > ", &block),
            before_lines("    ", &block),
            format!("1. Next:\n\n{}", before_lines("     ", &block)),
            item("- ", "  "),
            item("* ", "  "),
            item("1. ", "   "),
            item("12) ", "    "),
            item("- > ", "  > "),
        ]
    };
    let not_yaml = |spelling: &str| {
        ["```", "~~~", "```json", "``` JSON", "~~~json5"].map(|opening| {
            let closing = &opening[..3];
            format!("{opening}\n{spelling}\n{closing}\n")
        })
    };
    for spelling in SPELLINGS {
        let texts = in_container(spelling).map(|text| (text, "list, a quote"));
        for (text, words) in
            texts.into_iter().chain(not_yaml(spelling).map(|text| (text, "marked as `yaml`")))
        {
            let (out, found) = whole(&text);
            assert_eq!(out, text);
            assert!(
                matches!(&found, FoundSwitch::Invalid(reason) if reason.contains(words)),
                "{text}: {found:?}"
            );
            let followed = format!("{text}\n{BLOCK}");
            assert_eq!(
                whole(&followed),
                (format!("{text}\n"), one("Long,\nreasoned.", Some("code"))),
                "{followed}"
            );
        }
    }
}

#[test]
fn switches_behind_another_key_are_reported() {
    for spelling in SPELLINGS {
        for before in ["other: 1\n", "- 1\n", "other:\n  "] {
            let text = format!("```yaml\n{before}{spelling}\n```\n");
            let (out, found) = whole(&text);
            assert_eq!(out, text);
            // The key of JSON in several lines is on the second.
            assert!(
                matches!(&found, FoundSwitch::Invalid(reason) if reason.contains("not the first key")),
                "{text}: {found:?}"
            );
        }
    }
    let list = "```yaml\n- mode_switch:\n    analysis: a\n```\n";
    assert_eq!(whole(list).1, FoundSwitch::Invalid(NOT_FIRST.into()));
}

#[test]
fn invalid_switch_blocks_stay_visible_and_are_reported() {
    for (text, words) in [
        ("```yaml\nmode_switch:\n  new_mode: code\n```\n", "analysis"),
        ("```yaml\nmode_switch: {analysis: '', new_mode: code}\n```\n", "empty"),
        ("```yaml\nmode_switch:\n  analysis:x\n  new_mode: code\n```\n", ""),
        ("```yaml\nmode_switch: {analysis: x, new_mode: code, force: true}\n```\n", "force"),
        ("```yaml\nmode_switch: {analysis: x}\nother: 1\n```\n", "other"),
        ("```yaml\nother: 1\nmode_switch: {analysis: x}\n```\n", "not the first key"),
        ("```yaml\nmode_switch: [code]\n```\n", ""),
        ("```yaml\nmode_switch: {analysis: x, new_mode: code}\n", "not closed"),
    ] {
        let (out, found) = whole(text);
        assert_eq!(out, text);
        assert!(
            matches!(&found, FoundSwitch::Invalid(reason) if reason.contains(words)),
            "{text}: {found:?}"
        );
    }
    let long = format!("```yaml\nmode_switch:\n  analysis: |\n{}```\n", "    x\n".repeat(4000));
    let (out, found) = whole(&long);
    assert_eq!(out, long);
    assert!(matches!(found, FoundSwitch::Invalid(reason) if reason.contains("longer")));
}

#[test]
fn switch_blocks_do_not_depend_on_chunk_boundaries() {
    for (text, ..) in cases() {
        let expected = whole(&text);
        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut reader = SwitchReader::default();
            let out = reader.push(&text[..cut]).into_owned() + &reader.push(&text[cut..]) + &reader.flush();
            assert_eq!((out, reader.take()), expected, "cut at {cut}: {text}");
        }
        let mut reader = SwitchReader::default();
        let mut out: String = text.chars().map(|c| reader.push(&c.to_string()).into_owned()).collect();
        out += &reader.flush();
        assert_eq!((out, reader.take()), expected, "in single characters: {text}");
    }
}

#[test]
fn ordinary_text_is_forwarded_immediately() {
    let mut reader = SwitchReader::default();
    for piece in [
        "Hello",
        " wor",
        "ld `x",
        "` and\n",
        "- a",
        " list\n",
        "```rust\n",
        "let x",
        " = 1;\n",
        "```\n",
        "end",
    ] {
        assert_eq!(reader.push(piece), piece);
    }
    // Only the first line of other YAML is buffered.
    assert_eq!(reader.push("\n```yaml\n"), "\n");
    assert_eq!(reader.push("a"), "```yaml\na");
    assert_eq!(reader.push(": 1"), ": 1");
}

/// The blocks of a text as a `CommonMark` parser sees them.
#[derive(Default)]
struct ParsedBlocks {
    /// YAML blocks with the key.
    keyed: usize,
    /// YAML blocks that are the switch of [`any_fence`], closed.
    complete: usize,
    /// Blocks without an info string that begin with the key.
    misplaced: usize,
}

fn blocks_of_a_parser(text: &str) -> ParsedBlocks {
    let mut blocks = ParsedBlocks::default();
    let mut block: Option<(String, String, bool)> = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let word = info.split_whitespace().next().unwrap_or_default().to_lowercase();
                // An unclosed block reaches to the end, without a fence on its last line.
                let last = text[range].trim_end().lines().last().unwrap_or_default().trim();
                let is_closed = last.len() >= 3 && last.chars().all(|c| c == '`' || c == '~');
                block = Some((word, String::new(), is_closed));
            }
            Event::Text(piece) => {
                if let Some((_, content, _)) = &mut block {
                    content.push_str(&piece);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some((language, content, is_closed)) = block.take() else { continue };
                if ["yaml", "yml"].contains(&language.as_str()) {
                    blocks.keyed += usize::from(content.lines().any(|line| line.starts_with("mode_switch:")));
                    blocks.complete += usize::from(is_closed && content == "mode_switch: {analysis: a}\n");
                } else if language.is_empty() {
                    blocks.misplaced += usize::from(content.starts_with("mode_switch:"));
                }
            }
            _ => {}
        }
    }
    blocks
}

fn any_fence() -> impl Strategy<Value = &'static str> {
    let other = prop::sample::select(vec![
        "```yml x",
        "````",
        "~~~",
        "~~~ YAML",
        "   ```yaml",
        "```rust",
        "``",
        "~~",
        "``` `",
        "```yaml ~",
        "text",
        "~~~~",
        " ```",
        "```  ",
        "```x```",
    ]);
    prop_oneof![
        6 => other,
        1 => Just("```yaml"),
        1 => Just("mode_switch: {analysis: a}"),
        1 => Just("```"),
        1 => Just("```yaml\nmode_switch: {analysis: a}\n```"),
    ]
}

proptest! {
    /// Fenced YAML blocks are those of a CommonMark parser.
    #[test]
    fn fences_match_a_commonmark_parser(lines in proptest::collection::vec(any_fence(), 0..12)) {
        let text = before_lines("", &lines.join("\n"));
        let mut reader = SwitchReader::default();
        reader.push(&text);
        reader.flush();
        let found = reader.take();
        let blocks = blocks_of_a_parser(&text);
        let is_expected = match (blocks.keyed, blocks.complete) {
            (0, _) if blocks.misplaced == 0 => found == FoundSwitch::Nothing,
            (1, 1) => found == one("a", None),
            (0 | 1, _) => matches!(found, FoundSwitch::Invalid(_)),
            _ => found == FoundSwitch::Many,
        };
        prop_assert!(is_expected, "{:?}: {}", found, text);
    }
}

/// Long pieces, fences, keys and blanks.
fn any_piece() -> impl Strategy<Value = String> {
    let long = (
        prop_oneof![Just("`"), Just("~"), Just(" "), Just("x"), Just("\t"), Just("\n"), Just("x\n")],
        1..40_000_usize,
    )
        .prop_map(|(text, count)| text.repeat(count));
    let short = prop_oneof![
        Just("```yaml\n"),
        Just("```yaml"),
        Just("~~~\n"),
        Just("```\n"),
        Just("```"),
        Just("mode_switch:"),
        Just("mode_switch:\n"),
        Just("mode_switch: {analysis: a, new_mode: code}\n"),
        Just("  analysis: |\n"),
        Just(" "),
        Just("\n"),
        Just("\r\n"),
        Just("é"),
    ]
    .prop_map(str::to_owned);
    prop_oneof![3 => short, 1 => long]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The buffer never exceeds a block, no other text is lost, and the split into pieces does not matter.
    #[test]
    fn buffered_text_is_bounded(pieces in proptest::collection::vec(any_piece(), 0..24), step in 1..5000_usize) {
        let text = pieces.concat();
        let mut reader = SwitchReader::default();
        let (mut given, mut out) = (0, String::new());
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = (step..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
            let (piece, more) = rest.split_at(end);
            given += piece.len();
            out += &reader.push(piece);
            rest = more;
            // Complete switches are removed, and only one incomplete block is buffered.
            prop_assert!(reader.line.len() + reader.pending_block.len() <= MAX_BLOCK + MAX_LINE + piece.len());
            if reader.found == FoundSwitch::Nothing {
                prop_assert!(given - out.len() <= MAX_BLOCK + MAX_LINE + piece.len());
            }
        }
        out += &reader.flush();
        let found = reader.take();
        if found == FoundSwitch::Nothing || matches!(found, FoundSwitch::Invalid(_)) {
            prop_assert!(out == text, "text was lost");
        }
        let (expected, expected_found) = whole(&text);
        prop_assert_eq!(found, expected_found);
        prop_assert!(out == expected, "the split changed the text");
    }
}

#[test]
fn endless_reply_is_read_in_linear_time() {
    for (start, more) in [
        ("", "`"),
        ("", "~"),
        ("```", "x"),
        ("~~~", "x "),
        ("```\n", "x"),
        ("```\n", "`"),
        ("```yaml\n", " "),
        ("```yaml\n", "\n"),
        ("```yaml\n", "  \n"),
        ("```yaml\nmode_switch:\n  analysis: |\n", "x"),
        ("", "```yaml\n \n```\n"),
        ("", "```yaml\nmode_switch:\n  \n"),
    ] {
        let read = |bytes: usize| {
            let count = bytes / more.len();
            let mut reader = SwitchReader::default();
            let mut passed = reader.push(start).len();
            for _ in 0..count {
                passed += reader.push(more).len();
            }
            passed += reader.flush().len();
            assert_eq!(passed, start.len() + count * more.len(), "{start:?} {more:?}");
        };
        // Within a block, and far beyond the longest one.
        for short in [MAX_BLOCK / FACTOR, 128 * 1024] {
            check_linear(&format!("{start:?} {more:?}"), short, read);
        }
    }
}
