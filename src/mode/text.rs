//! A mode in the format in which modes are written, complete: what `modes show` prints and what the record keeps. Pure.

use std::fmt::Write;

use super::{Access, Consent, InBand, Mode, Network, ReminderPosition, ShellUse, ToolList};

impl Mode {
    /// Every key that has a value, whether it was written or inherited. The same mode gives the same text.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        let mut put = |key: &str, value: &str| {
            writeln!(text, "{key}: {value}").expect("writing to a string cannot fail");
        };
        put("id", &self.id);
        put("name", &quoted(&self.name));
        put("description", &quoted(&self.description));
        if let Some(under) = &self.under {
            put("# under", under);
        }
        put("access", access(self.access));
        put("permission", if self.permission == Consent::Ask { "ask" } else { "auto" });
        put("shell", shell(self.shell));
        put("network", network(self.network));
        let mut tools = Vec::new();
        if let Some(allow) = &self.tools.allow {
            tools.push(format!("allow: {}", list(&allow.patterns)));
        }
        if !self.tools.deny.patterns.is_empty() {
            tools.push(format!("deny: {}", list(&self.tools.deny.patterns)));
        }
        if !tools.is_empty() {
            put("tools", &format!("{{{}}}", tools.join(", ")));
        }
        if let Some(paths) = &self.write_paths {
            put("write_paths", &list(&paths.patterns));
        }
        match self.tool_list {
            Some(ToolList::Hide) => put("tool_list", "hide"),
            Some(ToolList::Mask) => put("tool_list", "mask"),
            None => {}
        }
        if let Some(model) = &self.model {
            put("model", &quoted(model));
        }
        if let Some(thinking) = self.thinking {
            put("thinking", thinking.as_str());
        }
        put("max_steps", &self.max_steps.to_string());
        if let Some(to) = &self.exits_to {
            put("exits_to", to);
        }
        put("in_band_switch", in_band(self.in_band_switch));
        let tail = self.reminder_position == ReminderPosition::Tail;
        put("reminder_position", if tail { "tail" } else { "before_prompt" });
        if !self.prompt.trim().is_empty() {
            text.push_str("prompt: |\n");
            for line in self.prompt.trim_end().lines() {
                writeln!(text, "  {line}").expect("writing to a string cannot fail");
            }
        }
        text
    }
}

/// JSON strings are YAML strings.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn list(patterns: &[String]) -> String {
    serde_json::Value::from(patterns).to_string()
}

fn access(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "read_only",
        Access::Edit => "edit",
        Access::Full => "full",
    }
}

fn shell(shell: ShellUse) -> &'static str {
    match shell {
        ShellUse::Off => "off",
        ShellUse::ReadOnly => "read_only",
        ShellUse::Full => "full",
    }
}

fn network(network: Network) -> &'static str {
    match network {
        Network::Allow => "allow",
        Network::Ask => "ask",
        Network::Deny => "deny",
    }
}

fn in_band(in_band: InBand) -> &'static str {
    match in_band {
        InBand::Off => "off",
        InBand::Parse => "parse",
        InBand::Instruct => "instruct",
    }
}
