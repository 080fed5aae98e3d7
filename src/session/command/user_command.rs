//! User-defined slash commands: Markdown files whose text becomes the prompt. Pure.
//!
//! ```text
//! file = [ "---" YAML "---" ] { text | "$ARGUMENTS" | "$1" | … | "$9" }
//! ```
//!
//! A project's commands are untrusted. They run only when the user types them, under the current mode.

use serde::Deserialize;

use crate::front_matter;
use crate::yaml_error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserCommand {
    pub name: String,
    pub description: String,
    pub hint: Option<String>,
    body: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Header {
    description: Option<String>,
    argument_hint: Option<String>,
}

impl UserCommand {
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        if name.is_empty() || !name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_')) {
            return Err(format!("{name:?} is not a valid name: use lower-case letters, digits, - and _"));
        }
        let (header, body) = front_matter::split(text)?;
        let header = match header.filter(|header| !header.trim().is_empty()) {
            None => Header::default(),
            Some(header) => serde_saphyr::from_str(header).map_err(|error| {
                let why = yaml_error::describe_with_place(&error, header);
                format!("{why} (a header may have description and argument-hint)")
            })?,
        };
        if body.trim().is_empty() {
            return Err("the command has no text".into());
        }
        let first = body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let description =
            header.description.unwrap_or_else(|| first.trim_start_matches('#').trim().to_owned());
        Ok(Self {
            name: name.to_owned(),
            description: description.lines().next().unwrap_or_default().to_owned(),
            hint: header.argument_hint,
            body: body.trim().to_owned(),
        })
    }

    /// Replaces `$ARGUMENTS` by all arguments and `$1` to `$9` by single ones. Quotes group words. Without
    /// placeholders, the arguments follow the text.
    pub fn prompt(&self, typed: &str) -> String {
        let words = words(typed);
        let mut text = String::with_capacity(self.body.len() + typed.len());
        let mut rest = self.body.as_str();
        let mut has_place = false;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix("ARGUMENTS") {
                text.push_str(typed);
                rest = after;
                has_place = true;
            } else if let Some(number) = rest.chars().next().and_then(|c| c.to_digit(10)).filter(|n| *n > 0) {
                text.push_str(words.get(number as usize - 1).map_or("", String::as_str));
                rest = &rest[1..];
                has_place = true;
            } else {
                text.push('$');
            }
        }
        text.push_str(rest);
        if !has_place && !typed.is_empty() {
            text.push_str("\n\n");
            text.push_str(typed);
        }
        text
    }
}

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, typed: &str, expected: &str) {
        assert_eq!(UserCommand::parse("c", body).unwrap().prompt(typed), expected);
    }

    #[test]
    fn arguments_fill_the_placeholders() {
        check("Review $ARGUMENTS now.", "a b", "Review a b now.");
        check("Fix $1 in $2; $3.", "'the bug' src/x.rs", "Fix the bug in src/x.rs; .");
        check("Say hello.", "", "Say hello.");
        check("Say hello.", "to all", "Say hello.\n\nto all");
        check("It costs $ 5 or $x.", "", "It costs $ 5 or $x.");
        check("$ARGUMENTS", "$1 $ARGUMENTS", "$1 $ARGUMENTS");
    }

    #[test]
    fn description_comes_from_the_header_or_first_line() {
        let command = UserCommand::parse(
            "r",
            "---\ndescription: Look twice\nargument-hint: FILE\n---\n\nLook at $1.\n",
        );
        let command = command.unwrap();
        assert_eq!((command.description.as_str(), command.hint.as_deref()), ("Look twice", Some("FILE")));
        assert_eq!(command.prompt("a"), "Look at a.");
        assert_eq!(UserCommand::parse("r", "# Look\nmore").unwrap().description, "Look");
        assert_eq!(UserCommand::parse("r", "---\r\ndescription: D\r\n---\r\nX\r\n").unwrap().prompt(""), "X");
    }

    #[test]
    fn invalid_user_commands_are_reported() {
        for (name, text, message) in [
            ("Bad Name", "x", "is not a valid name"),
            ("c", " \n", "the command has no text"),
            ("c", "---\ndescription: x\n", "no closing --- line"),
            ("c", "---\nallowed-tools: Bash\n---\nx", "a header may have description and argument-hint"),
        ] {
            let error = UserCommand::parse(name, text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
