//! Converts HTML to Markdown. Pure.
//!
//! Reads a stream of tags without a tree, so time and memory are linear in the page at any nesting depth.

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};
use url::Url;

/// Deeper levels are displayed at this depth.
const MAX_DEPTH: usize = 12;

const HIDDEN: [&str; 7] = ["iframe", "noscript", "script", "style", "svg", "template", "title"];

const PARAGRAPHS: [&str; 16] = [
    "address", "article", "aside", "details", "dl", "fieldset", "figure", "footer", "form", "header", "hr",
    "main", "nav", "p", "section", "table",
];

const LINES: [&str; 10] =
    ["body", "br", "caption", "dd", "div", "dt", "figcaption", "legend", "option", "summary"];

/// Resolves relative links against `base`.
pub(super) fn from_html(html: &str, base: &Url) -> String {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut page = MarkdownPage {
        base,
        text: String::new(),
        gap: MarkdownGap::None,
        blocks: Vec::new(),
        marks: Vec::new(),
        heading: None,
        code: None,
        tables: 0,
        rows: 0,
        row: None,
        hidden: None,
    };
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => page.start(&tag),
            Token::EndTag(tag) => page.end(&String::from_utf8_lossy(&tag.name)),
            Token::String(text) => page.characters(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    page.finish()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MarkdownGap {
    None,
    Space,
    Line,
    Paragraph,
}

#[derive(Debug)]
enum MarkdownBlock {
    Quote,
    List(Option<i64>),
    /// The marker; true once its line was written.
    Item(String, bool),
}

/// A sign is written before the element's first text, and again in each further paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sign {
    Bold,
    Italic,
    Struck,
    Code,
    Link(String),
}

impl Sign {
    fn of(element: &str) -> Option<Self> {
        match element {
            "b" | "strong" => Some(Self::Bold),
            "em" | "i" => Some(Self::Italic),
            "del" | "s" | "strike" => Some(Self::Struck),
            "code" | "kbd" | "samp" | "tt" => Some(Self::Code),
            _ => None,
        }
    }

    fn opening(&self) -> &'static str {
        match self {
            Self::Bold => "**",
            Self::Italic => "*",
            Self::Struck => "~~",
            Self::Code => "`",
            Self::Link(_) => "[",
        }
    }

    fn closing(&self) -> String {
        match self {
            Self::Link(target) => format!("]({target})"),
            other => other.opening().into(),
        }
    }
}

#[derive(Debug)]
struct MarkdownMark {
    sign: Sign,
    depth: usize,
    is_written: bool,
}

struct MarkdownPage<'a> {
    base: &'a Url,
    text: String,
    gap: MarkdownGap,
    blocks: Vec<MarkdownBlock>,
    /// In opening order, each sign once.
    marks: Vec<MarkdownMark>,
    heading: Option<usize>,
    code: Option<String>,
    /// Open tables. An inner table becomes text of the outer cell.
    tables: usize,
    rows: usize,
    row: Option<Vec<String>>,
    /// The open hidden element, with its nesting depth.
    hidden: Option<(&'static str, usize)>,
}

impl MarkdownPage<'_> {
    fn start(&mut self, tag: &StartTag<()>) {
        let name = String::from_utf8_lossy(&tag.name);
        let attribute = |name: &str| {
            tag.attributes.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        if let Some((hidden, count)) = &mut self.hidden {
            *count += usize::from(*hidden == name);
            return;
        }
        if let Some(hidden) = HIDDEN.into_iter().find(|hidden| *hidden == name) {
            let is_empty = tag.self_closing && hidden == "svg";
            self.hidden = (!is_empty).then_some((hidden, 1));
            return;
        }
        if let Some(code) = &mut self.code {
            if name == "br" {
                code.push('\n');
            }
            return;
        }
        if let Some(sign) = Sign::of(&name) {
            return self.open(sign);
        }
        match &*name {
            "a" => {
                self.close(|sign| matches!(sign, Sign::Link(_)));
                let href = attribute("href").filter(|href| !href.trim_start().starts_with('#'));
                let target = href.and_then(|href| self.base.join(&href).ok());
                if let Some(target) = target.filter(|target| matches!(target.scheme(), "http" | "https")) {
                    self.open(Sign::Link(target.into()));
                }
            }
            "img" => {
                let title = attribute("alt").unwrap_or_default();
                let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
                if !title.is_empty() {
                    self.word(&format!("[picture: {title}]"));
                }
            }
            "table" => {
                self.tables += 1;
                self.rows = if self.tables == 1 { 0 } else { self.rows };
                self.block(MarkdownGap::Paragraph);
            }
            "tr" | "td" | "th" if self.tables == 1 => {
                if name == "tr" {
                    self.end_row();
                }
                self.end_marks();
                self.gap = if self.row.is_some() { MarkdownGap::None } else { self.gap };
                let row = self.row.get_or_insert_default();
                row.extend((name != "tr").then(String::new));
            }
            _ if self.row.is_some() => self.gap = self.gap.max(self.gap_of(&name)),
            "pre" => {
                self.block(MarkdownGap::Paragraph);
                self.code = Some(String::new());
            }
            "blockquote" => {
                self.block(MarkdownGap::Paragraph);
                self.blocks.push(MarkdownBlock::Quote);
            }
            "ol" | "ul" => {
                let is_inner =
                    self.blocks.iter().rev().take(2).any(|block| matches!(block, MarkdownBlock::Item(..)));
                self.block(if is_inner { MarkdownGap::Line } else { MarkdownGap::Paragraph });
                let first = attribute("start").and_then(|start| start.trim().parse().ok()).unwrap_or(1);
                self.blocks.push(MarkdownBlock::List((name == "ol").then_some(first)));
            }
            "li" => {
                self.block(MarkdownGap::Line);
                self.leave(|block| matches!(block, MarkdownBlock::List(_)), false);
                // An item outside a list ends the previous item.
                self.blocks.pop_if(|block| matches!(block, MarkdownBlock::Item(..)));
                let number = match self.blocks.last_mut() {
                    Some(MarkdownBlock::List(Some(next))) => {
                        *next = next.saturating_add(1);
                        Some(next.saturating_sub(1))
                    }
                    _ => None,
                };
                let marker = number.map_or("- ".into(), |number| format!("{number}. "));
                self.blocks.push(MarkdownBlock::Item(marker, false));
            }
            "hr" => {
                self.block(MarkdownGap::Paragraph);
                self.word("---");
                self.block(MarkdownGap::Paragraph);
            }
            _ => {
                let gap = self.gap_of(&name);
                if gap > MarkdownGap::Space {
                    self.block(gap);
                    self.heading = heading(&name);
                }
            }
        }
    }

    fn end(&mut self, name: &str) {
        if let Some((hidden, count)) = &mut self.hidden {
            *count -= usize::from(*hidden == name);
            if *count == 0 {
                self.hidden = None;
            }
            return;
        }
        if self.code.is_some() {
            if name == "pre" {
                self.end_code();
            }
            return;
        }
        if let Some(sign) = Sign::of(name) {
            return self.close(|open| *open == sign);
        }
        match name {
            "a" => self.close(|sign| matches!(sign, Sign::Link(_))),
            "table" => {
                if self.tables == 1 {
                    self.end_row();
                }
                self.tables = self.tables.saturating_sub(1);
                self.block(MarkdownGap::Paragraph);
            }
            "tr" if self.tables == 1 => self.end_row(),
            _ if self.row.is_some() => self.gap = self.gap.max(self.gap_of(name)),
            "blockquote" => {
                self.block(MarkdownGap::Paragraph);
                self.leave(|block| matches!(block, MarkdownBlock::Quote), true);
            }
            "ol" | "ul" => {
                self.end_marks();
                self.leave(|block| matches!(block, MarkdownBlock::List(_)), true);
                let is_inner = matches!(self.blocks.last(), Some(MarkdownBlock::Item(..)));
                self.block(if is_inner { MarkdownGap::Line } else { MarkdownGap::Paragraph });
            }
            _ => {
                let gap = self.gap_of(name);
                if gap > MarkdownGap::Space {
                    self.block(gap);
                    self.heading = None;
                }
            }
        }
    }

    fn gap_of(&self, name: &str) -> MarkdownGap {
        let gap = if PARAGRAPHS.contains(&name) || heading(name).is_some() {
            MarkdownGap::Paragraph
        } else if LINES.contains(&name) {
            MarkdownGap::Line
        } else if self.row.is_some()
            && matches!(name, "blockquote" | "li" | "ol" | "pre" | "td" | "th" | "tr" | "ul")
        {
            MarkdownGap::Space
        } else {
            MarkdownGap::None
        };
        if self.row.is_some() { gap.min(MarkdownGap::Space) } else { gap }
    }

    fn characters(&mut self, text: &str) {
        if self.hidden.is_some() {
            return;
        }
        if let Some(code) = &mut self.code {
            return code.push_str(text);
        }
        for (number, word) in text.split(|c: char| c.is_ascii_whitespace()).enumerate() {
            if number > 0 {
                self.gap = self.gap.max(MarkdownGap::Space);
            }
            if !word.is_empty() {
                self.word(word);
            }
        }
    }

    fn word(&mut self, word: &str) {
        let gap = std::mem::replace(&mut self.gap, MarkdownGap::None);
        if let Some(row) = &mut self.row {
            if row.is_empty() {
                row.push(String::new());
            }
            let cell = row.last_mut().expect("a cell was added where there was none");
            if gap > MarkdownGap::None && !cell.is_empty() {
                cell.push(' ');
            }
            open_marks(&mut self.marks, cell);
            cell.push_str(&word.replace('|', "\\|"));
            return;
        }
        self.fill(gap);
        open_marks(&mut self.marks, &mut self.text);
        self.text.push_str(word);
    }

    fn fill(&mut self, gap: MarkdownGap) {
        match gap {
            _ if self.text.is_empty() => {}
            MarkdownGap::None => return,
            MarkdownGap::Space => return self.text.push(' '),
            MarkdownGap::Line => self.text.push('\n'),
            MarkdownGap::Paragraph => self.text.push_str("\n\n"),
        }
        let prefix = self.prefix();
        self.text.push_str(&prefix);
        if let Some(level) = self.heading.take() {
            self.text.extend(["#".repeat(level).as_str(), " "]);
        }
    }

    fn prefix(&mut self) -> String {
        let indents = self.blocks.iter_mut().filter(|block| !matches!(block, MarkdownBlock::List(_)));
        let mut prefix = String::new();
        for block in indents.take(MAX_DEPTH) {
            match block {
                MarkdownBlock::Quote => prefix.push_str("> "),
                MarkdownBlock::Item(marker, is_written) if *is_written => {
                    prefix.push_str(&" ".repeat(marker.len()));
                }
                MarkdownBlock::Item(marker, is_written) => {
                    prefix.push_str(marker);
                    *is_written = true;
                }
                MarkdownBlock::List(_) => {}
            }
        }
        prefix
    }

    fn block(&mut self, gap: MarkdownGap) {
        self.end_marks();
        let gap = if self.row.is_some() { gap.min(MarkdownGap::Space) } else { gap };
        self.gap = self.gap.max(gap);
    }

    /// Closes blocks down to the innermost match, if any; closes the match if `with_it`.
    fn leave(&mut self, is_meant: impl Fn(&MarkdownBlock) -> bool, with_it: bool) {
        // A page can trigger this search at each tag, so its depth is limited.
        let place = self.blocks.iter().rev().take(4 * MAX_DEPTH).position(is_meant);
        if let Some(above) = place {
            self.blocks.truncate(self.blocks.len() - above - usize::from(with_it));
        }
    }

    fn open(&mut self, sign: Sign) {
        match self.marks.iter_mut().find(|mark| mark.sign == sign) {
            Some(mark) => mark.depth += 1,
            None => self.marks.push(MarkdownMark { sign, depth: 1, is_written: false }),
        }
    }

    fn close(&mut self, is_meant: impl Fn(&Sign) -> bool) {
        let Some(at) = self.marks.iter().position(|mark| is_meant(&mark.sign)) else { return };
        self.marks[at].depth -= 1;
        if self.marks[at].depth == 0 {
            self.close_from(at);
            self.marks.remove(at);
        }
    }

    /// Closes all marks; the next text opens them again.
    fn end_marks(&mut self) {
        self.close_from(0);
    }

    fn close_from(&mut self, at: usize) {
        let text = self.row.as_mut().and_then(|row| row.last_mut()).unwrap_or(&mut self.text);
        for mark in self.marks[at..].iter_mut().rev().filter(|mark| mark.is_written) {
            text.push_str(&mark.sign.closing());
            mark.is_written = false;
        }
    }

    fn end_row(&mut self) {
        self.end_marks();
        let Some(cells) = self.row.take() else { return };
        self.gap = MarkdownGap::Line;
        if cells.iter().all(String::is_empty) {
            return;
        }
        let is_first = self.rows == 0;
        self.fill(if is_first { MarkdownGap::Paragraph } else { MarkdownGap::Line });
        self.rows += 1;
        if let [cell] = &cells[..] {
            return self.text.push_str(cell);
        }
        self.text.push_str(&format!("| {} |", cells.join(" | ")));
        if is_first {
            self.fill(MarkdownGap::Line);
            self.text.push_str(&format!("|{}", " --- |".repeat(cells.len())));
        }
    }

    fn end_code(&mut self) {
        let Some(code) = self.code.take() else { return };
        let code = code.trim_matches('\n');
        if !code.trim().is_empty() {
            let mut fence = "```".to_owned();
            while code.contains(&fence) {
                fence.push('`');
            }
            let gap = self.gap;
            self.fill(gap);
            self.text.push_str(&fence);
            for line in code.lines().chain([fence.as_str()]) {
                self.fill(MarkdownGap::Line);
                self.text.push_str(line);
            }
        }
        self.gap = MarkdownGap::Paragraph;
    }

    fn finish(mut self) -> String {
        self.end_row();
        self.end_code();
        self.end_marks();
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text
    }
}

fn heading(name: &str) -> Option<usize> {
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(usize::from(level - b'0')),
        _ => None,
    }
}

fn open_marks(marks: &mut [MarkdownMark], text: &mut String) {
    for mark in marks.iter_mut().filter(|mark| !mark.is_written) {
        text.push_str(mark.sign.opening());
        mark.is_written = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(html: &str, expected: &str) {
        let base = Url::parse("https://x.example/a/b/").unwrap();
        assert_eq!(from_html(html, &base), expected, "{html}");
    }

    #[test]
    fn html_page_converts_to_markdown() {
        check(
            "<html><head><title>T</title><style>x{}</style><script>alert(1)</script></head><body>\
            <h2>Title</h2><p>Some <b>bold</b>, <i>slanted</i> and <code>code</code> with <a href='../y?q=1'>a link</a>, \
            <a href='#here'>another</a> and <a href='javascript:x()'>a third</a>.</p><ul><li>one<li>two<ul><li>deep</ul></ul>\
            <ol><li>a<li>b</ol><pre><code>fn main() {\n    x();\n}\n</code></pre>\
            <table><tr><th>A<th>B<tr><td>1<td>two words</table><blockquote>said</blockquote><img src=i alt=pic>",
            "## Title\n\nSome **bold**, *slanted* and `code` with [a link](https://x.example/a/y?q=1), another and a third.\n\n\
            - one\n- two\n  - deep\n\n1. a\n2. b\n\n```\nfn main() {\n    x();\n}\n```\n\n\
            | A | B |\n| --- | --- |\n| 1 | two words |\n\n> said\n\n[picture: pic]\n",
        );
    }

    #[test]
    fn emphasis_nests_and_ends_with_the_paragraph() {
        check("<b>a <i>b</b> c</i> d", "**a *b*** *c* d\n");
        check("<p><b>a<p>b</b> c", "**a**\n\n**b** c\n");
        check("<b><a href=/x>a</a></b>", "**[a](https://x.example/x)**\n");
        check("<a href=/x><b>a</b></a> <b></b>z", "[**a**](https://x.example/x) z\n");
        check("<b><strong>a</strong> b</b>", "**a b**\n");
    }

    #[test]
    fn nested_blocks_are_indented() {
        check("<blockquote><p>a<p>b</blockquote>c", "> a\n\n> b\n\nc\n");
        check("<ul><li><p>a</p><pre>x\n\ny</pre><li>b</ul>", "- a\n\n  ```\n  x\n  \n  y\n  ```\n\n- b\n");
        check("<ol start=9><li>a<li>b<p>c</ol>d", "9. a\n10. b\n\n    c\n\nd\n");
        check("<li>a</ul></blockquote><li>b", "- a\n\n- b\n");
        check("<pre>```</pre>", "````\n```\n````\n");
    }

    #[test]
    fn single_column_and_nested_tables_become_text() {
        check("<table><tr><td>a<tr><td>b</table>c", "a\nb\n\nc\n");
        check(
            "<table><tr><td>a|b<td><ul><li>c<li>d</ul><table><tr><td>e<td>f</table><td><p>g</table>h",
            "| a\\|b | c d e f | g |\n| --- | --- | --- |\n\nh\n",
        );
        check("<table>", "");
    }

    #[test]
    fn hidden_elements_omit_their_content() {
        check("a<svg><title>no</title><svg></svg>no</svg>b<svg/>c", "abc\n");
        check("a<script>'</p>' <b></script>b<template><p>no</template>c&amp;&eacute;", "abc&é\n");
    }

    #[test]
    fn deeply_nested_html_output_stays_proportional() {
        let base = Url::parse("https://x.example/").unwrap();
        let count = 100_000;
        for tag in [
            "<blockquote>a",
            "<ul><li>a",
            "<table><tr><td>a<td>",
            "<div>a",
            "<b>a<i>",
            "<ol><li></blockquote>a",
        ] {
            let page = tag.repeat(count);
            let text = from_html(&page, &base);
            assert!(
                text.matches('a').count() == count && text.len() < 60 * page.len(),
                "{tag}: {}",
                text.len()
            );
        }
    }
}
