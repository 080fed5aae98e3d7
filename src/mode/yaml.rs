//! Writes a complete mode as YAML, for `modes show` and the event log. Pure.

use std::fmt::Write;

use serde::Serialize;

use super::{Mode, ToolGlobs};

impl Mode {
    /// Writes every key that has a value, own or inherited. The output is deterministic.
    pub fn to_yaml(&self) -> String {
        // A new field must be written below, or left out on purpose: an audit decides again from this text.
        let Self {
            id: _,
            kind: _,
            name: _,
            description: _,
            prompt: _,
            subagent_prompt: _,
            access: _,
            permission: _,
            shell: _,
            network: _,
            tools: _,
            write_paths: _,
            tool_list: _,
            model: _,
            thinking: _,
            max_steps: _,
            exits_to: _,
            in_band_switch: _,
            reminder_position: _,
            under: _,
        } = self;
        let mut text = String::new();
        let mut write_key = |key: &str, value: &str| {
            writeln!(text, "{key}: {value}").expect("writing to a string cannot fail");
        };
        write_key("id", &id(&self.id));
        write_key("name", &quoted(&self.name));
        write_key("description", &quoted(&self.description));
        if let Some(under) = &self.under {
            write_key("# under", under);
        }
        write_key("access", &name(self.access));
        write_key("permission", &name(self.permission));
        write_key("shell", &name(self.shell));
        write_key("network", &name(self.network));
        if let Some(tools) = tool_lists(&self.tools) {
            write_key("tools", &tools);
        }
        if let Some(paths) = &self.write_paths {
            write_key("write_paths", &list(&paths.patterns));
        }
        if let Some(list) = self.tool_list {
            write_key("tool_list", &name(list));
        }
        if let Some(model) = &self.model {
            write_key("model", &quoted(model));
        }
        if let Some(thinking) = self.thinking {
            write_key("thinking", thinking.as_str());
        }
        write_key("max_steps", &self.max_steps.to_string());
        if let Some(to) = &self.exits_to {
            write_key("exits_to", &id(to));
        }
        write_key("in_band_switch", &name(self.in_band_switch));
        write_key("reminder_position", &name(self.reminder_position));
        text.push_str(&prompt(&self.prompt));
        if let Some(words) = &self.subagent_prompt {
            text.push_str(&block("subagent_prompt", words));
        }
        text
    }
}

/// `None` for all tools.
pub fn tool_lists(tools: &ToolGlobs) -> Option<String> {
    let allow = tools.allow.as_ref().map(|allow| format!("allow: {}", list(&allow.patterns)));
    let deny = Some(&tools.deny.patterns).filter(|patterns| !patterns.is_empty());
    let deny = deny.map(|patterns| format!("deny: {}", list(patterns)));
    let lists: Vec<String> = allow.into_iter().chain(deny).collect();
    (!lists.is_empty()).then(|| format!("{{{}}}", lists.join(", ")))
}

pub fn prompt(words: &str) -> String {
    block("prompt", words)
}

fn block(key: &str, words: &str) -> String {
    if words.trim().is_empty() {
        return String::new();
    }
    // The first line sets a block's indentation, and blocks have no escapes.
    if words.starts_with(char::is_whitespace) || words.contains(|c| c != '\n' && c != '\t' && is_escaped(c)) {
        return format!("{key}: {}\n", quoted(words));
    }
    let lines = words.trim_end().lines().map(|line| format!("  {line}\n"));
    format!("{key}: |\n{}", lines.collect::<String>())
}

fn id(id: &str) -> String {
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.iter().any(|word| id.eq_ignore_ascii_case(word));
    if is_word { quoted(id) } else { id.to_owned() }
}

pub fn quoted(text: &str) -> String {
    escaped(&serde_json::Value::from(text).to_string())
}

pub fn list(patterns: &[String]) -> String {
    escaped(&serde_json::Value::from(patterns).to_string())
}

/// JSON is valid YAML except for some characters, which occur only inside strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_escaped(c) {
            write!(text, "\\u{:04x}", u32::from(c)).expect("writing to a string cannot fail");
        } else {
            text.push(c);
        }
    }
    text
}

/// True for characters that YAML rejects unescaped or reads as a line end.
fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// The value's name in YAML.
fn name(value: impl Serialize) -> String {
    serde_json::json!(value).as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::definition::ModeDefinition;

    #[test]
    fn printed_modes_parse_back_unchanged() {
        let words = [
            "One line.",
            "Two\n\nlines\n",
            "  indented\nand not",
            "\n\n  after nothing",
            "a\ttab\n\t\tand two",
            "\r\nreturns\r\n",
            "bell \u{7} and delete \u{7f}",
            "next \u{85} line \u{2028} separator \u{feff} mark",
            "# no comment\n--- \n...\n",
            "'\"{[: &*!|>%@`",
            "trailing \nspaces  \n   \nend",
        ];
        let ids = ["m", "null", "true", "no", "on", "y", "e1", "nan", "inf"];
        for (id, words) in ids.iter().flat_map(|id| words.map(|words| (id, words))) {
            let (id, message) = (quoted(id), quoted(words));
            let text = format!(
                "id: {id}\nname: {message}\ndescription: {message}\naccess: edit\nexits_to: {id}\nprompt: {message}\n"
            );
            let read = |text: &str| {
                let definition = serde_saphyr::from_str::<ModeDefinition>(text);
                definition.unwrap_or_else(|error| panic!("{error}\n{text}")).complete(None).unwrap()
            };
            let (mode, again) = (read(&text), read(&read(&text).to_yaml()));
            assert_eq!(
                (&mode.name, &mode.exits_to, mode.prompt.trim_end()),
                (&again.name, &again.exits_to, again.prompt.trim_end())
            );
            assert_eq!((mode.name.as_str(), mode.to_yaml()), (words, again.to_yaml()));
        }
    }
}
