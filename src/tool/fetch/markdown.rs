//! HTML as Markdown: headings, lists, links with whole addresses, tables and code. Pure.

use std::io::Read;
use std::rc::Rc;

use html2text::render::{TaggedLine, TextDecorator};
use html2text::{Element, Handle, RcDom, config};
use url::Url;

/// Columns; longer lines are broken.
const WIDTH: usize = 160;

/// How deep elements are nested in what is shown. Pages that people write stay far below.
const DEPTH: usize = 100;

/// All elements and texts of a page, each as often as it is deep, are at most this many: a second or two of work.
const WORK: usize = 2_000_000;

/// The highest number with which a list begins; a higher one counts from 1.
const MAX_START: i64 = 1_000_000_000;

/// What a piece of text is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Mark {
    #[default]
    None,
    Code,
    Preformatted,
}

/// Markdown's signs.
#[derive(Debug, Clone)]
struct Markdown {
    base: Url,
    /// Where the link that is open leads; none where it leads nowhere else.
    link: Option<String>,
}

/// Reads a page. Relative links are those of `base`. Says whether something was nested too deeply to be shown.
pub fn from_html(source: &mut dyn Read, base: &Url) -> Result<(String, bool), String> {
    let failed = |error: html2text::Error| error.to_string();
    let config = config::with_decorator(Markdown { base: base.clone(), link: None })
        .no_table_borders()
        .allow_width_overflow()
        .no_link_wrapping();
    let dom = config.parse_html(source).map_err(failed)?;
    let is_cut = cut(&dom);
    let tree = config.dom_to_render_tree(&dom).map_err(failed)?;
    let lines = config.render_to_lines(tree, WIDTH).map_err(failed)?;
    let mut text = String::new();
    let mut is_fenced = false;
    for line in &lines {
        if is_preformatted(line) != is_fenced {
            is_fenced = !is_fenced;
            text.push_str("```\n");
        }
        text.push_str(write(line).trim_end());
        text.push('\n');
    }
    if is_fenced {
        text.push_str("```\n");
    }
    Ok((text, is_cut))
}

/// Leaves out what is nested too deeply: the time and room that it takes grow much faster than the page.
fn cut(dom: &RcDom) -> bool {
    let mut level = vec![Rc::clone(&dom.document)];
    let mut work = 0;
    for depth in 1..=DEPTH {
        let next: Vec<_> = level.iter().flat_map(|node| node.children.borrow().clone()).collect();
        work += next.len() * depth;
        next.iter().for_each(tame);
        if work > WORK {
            break;
        }
        level = next;
    }
    level.iter().fold(false, |is_cut, node| {
        let left_out = std::mem::take(&mut *node.children.borrow_mut());
        is_cut || !left_out.is_empty()
    })
}

/// Takes out the number with which a list begins, where counting on from there would have no end.
fn tame(node: &Handle) {
    if let Element { attrs, .. } = &node.data {
        let is_low =
            |text: &str| text.parse().is_ok_and(|start: i64| (-MAX_START..=MAX_START).contains(&start));
        attrs.borrow_mut().retain(|attribute| &*attribute.name.local != "start" || is_low(&attribute.value));
    }
}

fn is_preformatted(line: &TaggedLine<Vec<Mark>>) -> bool {
    line.tagged_strings().any(|piece| piece.tag.contains(&Mark::Preformatted))
}

fn write(line: &TaggedLine<Vec<Mark>>) -> String {
    let mut text = String::new();
    for piece in line.tagged_strings() {
        let is_code = piece.tag.contains(&Mark::Code) && !piece.tag.contains(&Mark::Preformatted);
        let sign = if is_code { "`" } else { "" };
        text.extend([sign, &piece.s, sign]);
    }
    text
}

impl TextDecorator for Markdown {
    type Annotation = Mark;

    fn decorate_link_start(&mut self, url: &str) -> (String, Mark) {
        let target = self.base.join(url).ok();
        let leads = |target: &Url| matches!(target.scheme(), "http" | "https") && !url.starts_with('#');
        self.link = target.filter(leads).map(String::from);
        (if self.link.is_some() { "[" } else { "" }.into(), Mark::None)
    }

    fn decorate_link_end(&mut self) -> String {
        self.link.take().map(|target| format!("]({target})")).unwrap_or_default()
    }

    fn decorate_em_start(&self) -> (String, Mark) {
        ("*".into(), Mark::None)
    }

    fn decorate_em_end(&self) -> String {
        "*".into()
    }

    fn decorate_strong_start(&self) -> (String, Mark) {
        ("**".into(), Mark::None)
    }

    fn decorate_strong_end(&self) -> String {
        "**".into()
    }

    fn decorate_strikeout_start(&self) -> (String, Mark) {
        ("~~".into(), Mark::None)
    }

    fn decorate_strikeout_end(&self) -> String {
        "~~".into()
    }

    fn decorate_code_start(&self) -> (String, Mark) {
        (String::new(), Mark::Code)
    }

    fn decorate_code_end(&self) -> String {
        String::new()
    }

    fn decorate_preformat_first(&self) -> Mark {
        Mark::Preformatted
    }

    fn decorate_preformat_cont(&self) -> Mark {
        Mark::Preformatted
    }

    fn decorate_image(&mut self, _: &str, title: &str) -> (String, Mark) {
        (if title.is_empty() { String::new() } else { format!("[picture: {title}]") }, Mark::None)
    }

    fn header_prefix(&self, level: usize) -> String {
        "#".repeat(level) + " "
    }

    fn quote_prefix(&self) -> String {
        "> ".into()
    }

    fn unordered_item_prefix(&self) -> String {
        "- ".into()
    }

    fn ordered_item_prefix(&self, number: i64) -> String {
        format!("{number}. ")
    }

    fn make_subblock_decorator(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_like_the_markdown_that_one_would_write() {
        let page = "<html><head><title>T</title><style>x{}</style><script>alert(1)</script></head><body>\
            <h2>Title</h2><p>Some <b>bold</b>, <i>slanted</i> and <code>code</code> with <a href='../y?q=1'>a link</a>, \
            <a href='#here'>another</a> and <a href='javascript:x()'>a third</a>.</p><ul><li>one<li>two<ul><li>deep</ul></ul>\
            <ol><li>a<li>b</ol><pre><code>fn main() {\n    x();\n}\n</code></pre>\
            <table><tr><th>A<th>B<tr><td>1<td>two words</table><blockquote>said</blockquote><img src=i alt=pic>";
        let base = Url::parse("https://x.example/a/b/").unwrap();
        let (text, is_cut) = from_html(&mut page.as_bytes(), &base).unwrap();
        assert!(!is_cut);
        let expected = "## Title\n\nSome **bold**, *slanted* and `code` with [a link](https://x.example/a/y?q=1), another and \
            a third.\n- one\n- two\n  - deep\n1. a\n2. b\n\n```\nfn main() {\n    x();\n}\n```\n\nA B\n1 two words\n\n> said\n\n\
            [picture: pic]\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_nested_beyond_all_measure_is_left_out() {
        let base = Url::parse("https://x.example/").unwrap();
        for tag in ["<blockquote>a", "<ul><li>a", "<table><tr><td>a<td>", "<div>a"] {
            let (text, is_cut) = from_html(&mut tag.repeat(3000).as_bytes(), &base).unwrap();
            assert!(is_cut && text.contains('a') && text.len() < 100_000, "{tag}: {}", text.len());
        }
        let broad = "<blockquote>".repeat(90) + &"<p>x".repeat(60_000);
        let (text, is_cut) = from_html(&mut broad.as_bytes(), &base).unwrap();
        assert!(is_cut && text.len() < 1_000_000, "{}", text.len());
    }
}
