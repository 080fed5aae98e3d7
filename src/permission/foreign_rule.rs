//! Translates rules in the spelling of Claude Code: `Bash(git push:*)`, `Edit(src/**)`. Pure.
//!
//! ```text
//! rule    = TOOL [ "(" [ CONTENT ] ")" ]
//! CONTENT = words [ ":*" ]             Bash
//!         | [ "/" ] [ "/" ] PATH       Read, Edit, Write: "//" from the root, "/" from the session's folder
//!         | "domain:" HOST             WebFetch
//! ```
//!
//! A rule that denies or asks may become wider, and a rule that allows never does. An audit reads rules that
//! are translated already.

use std::borrow::Cow;

use super::facts::SERVER_TOOLS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind {
    Deny,
    Ask,
    Allow,
}

impl RuleKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Allow => "allow",
        }
    }
}

/// Tools that change files, for rules that deny or ask.
const CHANGING: &str = "{apply_patch,delete_file,edit_file,move_file,write_file}";

/// Returns the rule in Modegate's own spelling, or an error if it can match nothing.
pub fn translate(kind: RuleKind, rule: &str) -> Result<Cow<'_, str>, String> {
    let (tool, pattern) = match rule.split_once('(') {
        Some((tool, rest)) => match rest.strip_suffix(')') {
            Some(pattern) => (tool, Some(pattern).filter(|pattern| !matches!(*pattern, "" | "*"))),
            None => return Ok(rule.into()),
        },
        None => (rule, None),
    };
    let allows = kind == RuleKind::Allow;
    let nothing = |reason: &str| Err(format!("{rule:?} can match nothing: {reason}"));
    let own_tool = match tool {
        "Bash" => "shell",
        "Edit" | "MultiEdit" | "NotebookEdit" if allows => "{edit_file,write_file}",
        "Write" if allows => "write_file",
        "Edit" | "MultiEdit" | "NotebookEdit" | "Write" => CHANGING,
        "Read" => "read_file",
        "Glob" => "find_files",
        "Grep" => "search_files",
        "LS" => "list_directory",
        "WebFetch" => "fetch",
        "TodoWrite" => "todo",
        "Task" | "Agent" => "delegate",
        "BashOutput" | "KillShell" | "WebSearch" | "Skill" | "SlashCommand" | "ExitPlanMode"
        | "PowerShell" => {
            return nothing("Modegate has no such tool");
        }
        _ => return Ok(server_rule(tool, pattern, allows).map_or(rule.into(), Cow::Owned)),
    };
    let Some(pattern) = pattern else { return Ok(own_tool.to_owned().into()) };
    let pattern = match tool {
        "Bash" => commands(pattern),
        "WebFetch" => match pattern.strip_prefix("domain:") {
            Some(domain) => domain.to_owned(),
            None => return nothing("a pattern for WebFetch is domain:HOST"),
        },
        "TodoWrite" => return nothing("a rule for this tool has no pattern"),
        "Task" | "Agent" if allows => return nothing("a rule that allows this tool has no pattern"),
        "Task" | "Agent" => pattern.to_owned(),
        _ => paths(pattern, allows).map_err(|reason| format!("{rule:?} cannot be used: {reason}"))?,
    };
    Ok(match pattern.as_str() {
        "*" => own_tool.to_owned().into(),
        pattern => format!("{own_tool}({pattern})").into(),
    })
}

/// `mcp__github` means all tools of a server.
fn server_rule(tool: &str, pattern: Option<&str>, allows: bool) -> Option<String> {
    let server = tool.strip_prefix(SERVER_TOOLS)?;
    let is_name = !server.is_empty() && !server.contains("__") && !server.contains(['*', '?', '[', '{']);
    (is_name && pattern.is_none() && !allows).then(|| format!("{tool}__*"))
}

/// `git push:*` means the words `git push` and more. Only `*` is a wildcard.
fn commands(pattern: &str) -> String {
    let pattern = match pattern.strip_suffix(":*") {
        Some("") => return "*".into(),
        Some(words) => Cow::Owned(format!("{} *", words.trim_end())),
        None => Cow::Borrowed(pattern),
    };
    pattern.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '?' | '[' | ']' | '{' | '}' => escaped.extend(['[', c, ']']),
            '\\' => escaped.push_str("\\\\"),
            c => escaped.push(c),
        }
        escaped
    })
}

/// Patterns for files follow gitignore: `//a` is absolute, `/a` and `./a` are below the session's folder, and
/// a name alone is meant in each folder.
fn paths(pattern: &str, allows: bool) -> Result<String, &'static str> {
    if pattern.starts_with('!') {
        return Err("a pattern that excludes is not supported");
    }
    let (pattern, is_folder) = match pattern.strip_suffix('/') {
        Some(folder) if !folder.is_empty() => (folder, true),
        _ => (pattern, false),
    };
    let path = if let Some(absolute) = pattern.strip_prefix("//") {
        format!("/{absolute}")
    } else if let Some(home) = pattern.strip_prefix("~/") {
        if allows {
            return Err("write the absolute path instead of ~");
        }
        format!("/**/{home}")
    } else if let Some(below) = pattern.strip_prefix("./").or_else(|| pattern.strip_prefix('/')) {
        below.to_owned()
    } else if pattern.contains('/') || allows {
        pattern.to_owned()
    } else {
        format!("**/{pattern}")
    };
    let path = path.replace(['{', '}'], "?");
    let last = path.rsplit('/').next().unwrap_or_default();
    if is_folder {
        Ok(format!("{path}/**"))
    } else if allows || last.contains('*') {
        Ok(path)
    } else {
        // A folder's name means the files in it, too.
        Ok(format!("{{{path},{path}/**}}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_claude_code_are_translated() {
        const FILES: &str = "{apply_patch,delete_file,edit_file,move_file,write_file}";
        let changing = |pattern: &str| format!("{FILES}({pattern})");
        for (rule, denies, allows) in [
            ("Bash(git push:*)", Ok("shell(git push *)".to_owned()), Ok("shell(git push *)")),
            ("Bash(git commit)", Ok("shell(git commit)".into()), Ok("shell(git commit)")),
            ("Bash(git * main)", Ok("shell(git * main)".into()), Ok("shell(git * main)")),
            ("Bash(ls [a]?)", Ok("shell(ls [[]a[]][?])".into()), Ok("shell(ls [[]a[]][?])")),
            ("Bash(:*)", Ok("shell".into()), Ok("shell")),
            ("Bash", Ok("shell".into()), Ok("shell")),
            ("Edit(src/**)", Ok(changing("src/**")), Ok("{edit_file,write_file}(src/**)")),
            ("Write(docs/*.md)", Ok(changing("docs/*.md")), Ok("write_file(docs/*.md)")),
            ("Read(.env)", Ok("read_file({**/.env,**/.env/**})".into()), Ok("read_file(.env)")),
            ("Read(./secrets/)", Ok("read_file(secrets/**)".into()), Ok("read_file(secrets/**)")),
            ("Read(//etc/**)", Ok("read_file(/etc/**)".into()), Ok("read_file(/etc/**)")),
            ("Read(/src/*)", Ok("read_file(src/*)".into()), Ok("read_file(src/*)")),
            ("Read(~/.ssh/**)", Ok("read_file(/**/.ssh/**)".into()), Err("absolute path")),
            ("Read", Ok("read_file".into()), Ok("read_file")),
            ("WebFetch(domain:docs.rs)", Ok("fetch(docs.rs)".into()), Ok("fetch(docs.rs)")),
            ("mcp__github", Ok("mcp__github__*".into()), Ok("mcp__github")),
            ("mcp__github__get", Ok("mcp__github__get".into()), Ok("mcp__github__get")),
            // Modegate's own spelling stays.
            ("shell(git push *)", Ok("shell(git push *)".into()), Ok("shell(git push *)")),
            ("*(**/.env)", Ok("*(**/.env)".into()), Ok("*(**/.env)")),
            ("WebFetch(docs.rs)", Err("domain:HOST"), Err("domain:HOST")),
            ("WebSearch", Err("no such tool"), Err("no such tool")),
            ("Task(explore)", Ok("delegate(explore)".into()), Err("no pattern")),
            ("TodoWrite(x)", Err("no pattern"), Err("no pattern")),
        ] {
            let check = |kind: RuleKind, expected: Result<&str, &str>| match (translate(kind, rule), expected)
            {
                (Ok(own), Ok(expected)) => assert_eq!(own, expected, "{kind:?} {rule}"),
                (Err(reason), Err(words)) => assert!(reason.contains(words), "{reason}"),
                (own, _) => panic!("{kind:?} {rule}: {own:?}"),
            };
            check(RuleKind::Deny, denies.as_deref().map_err(|words| *words));
            check(RuleKind::Ask, denies.as_deref().map_err(|words| *words));
            check(RuleKind::Allow, allows);
        }
    }
}
