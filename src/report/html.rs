//! Writes HTML. All text and all attribute values are escaped here, so no other module writes a character of
//! foreign text into a page.

use std::fmt::Write;

use crate::text;

#[derive(Debug, Default)]
pub(super) struct Html(String);

/// Name and value of an attribute. Names are constants.
pub(super) type Attribute<'a> = (&'static str, &'a str);

impl Html {
    pub(super) fn open(&mut self, tag: &'static str, attributes: &[Attribute<'_>]) {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            write!(self.0, " {name}=\"").expect("writing to a string cannot fail");
            self.escape(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    pub(super) fn close(&mut self, tag: &'static str) {
        write!(self.0, "</{tag}>").expect("writing to a string cannot fail");
    }

    /// Ends a line of the file, between elements that ignore it.
    pub(super) fn newline(&mut self) {
        self.0.push('\n');
    }

    /// Characters that are invisible or reorder others are shown as escapes.
    pub(super) fn text(&mut self, text: &str) {
        self.escape(&text::visible(text));
    }

    pub(super) fn element(&mut self, tag: &'static str, class: &str, text: &str) {
        let class = [("class", class)];
        self.open(tag, if class[0].1.is_empty() { &[] } else { &class });
        self.text(text);
        self.close(tag);
    }

    /// Markup of this crate, which contains no foreign text.
    pub(super) fn constant(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    pub(super) fn into_page(self) -> String {
        self.0
    }

    fn escape(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_attributes_are_escaped() {
        let mut html = Html::default();
        html.open("p", &[("title", "a\" onload='x' <&>")]);
        html.text("</p><script>&amp;\u{202e}\u{0}");
        html.close("p");
        html.element("b", "", "x");
        assert_eq!(
            html.into_page(),
            "<p title=\"a&quot; onload=&#39;x&#39; &lt;&amp;&gt;\">&lt;/p&gt;&lt;script&gt;&amp;amp;\\u{202e}\\u{0}</p><b>x</b>"
        );
    }
}
