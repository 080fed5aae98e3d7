//! Finds rules that can match nothing, which their author took for protection. Pure.

/// Tools whose calls have no path, command line, address or agent.
const WITHOUT_PATTERN: [&str; 8] = [
    "ask_user",
    "list_skills",
    "read_memories",
    "save_memory",
    "stop_background",
    "switch_mode",
    "todo",
    "view_background",
];

const FILE_TOOLS: [&str; 11] = [
    "apply_patch",
    "delete_file",
    "directory_tree",
    "edit_file",
    "find_files",
    "list_directory",
    "move_file",
    "read_file",
    "read_skill",
    "search_files",
    "write_file",
];

/// Returns an error if no call can match the rule, which is in Modegate's own spelling.
pub fn check_matches(rule: &str) -> Result<(), String> {
    let Some((tool, pattern)) = rule.strip_suffix(')').and_then(|rule| rule.split_once('(')) else {
        return Ok(());
    };
    let instead = |pattern: &str| format!("write {tool}({pattern})");
    let reason = if matches!(pattern, "" | "*") {
        None
    } else if WITHOUT_PATTERN.contains(&tool) {
        Some(format!("calls of this tool have no path, command or address; write {tool}"))
    } else if matches!(tool, "shell" | "shell_read_only") {
        match (pattern.strip_suffix(":*"), pattern.trim_start()) {
            (Some(words), _) => Some(instead(&format!("{words} *"))),
            (None, words) if words.len() < pattern.len() => Some(instead(words)),
            (None, _) => None,
        }
    } else if FILE_TOOLS.contains(&tool) {
        match pattern {
            pattern if pattern.starts_with('~') => Some("~ is not expanded; write an absolute path".into()),
            pattern if pattern.split('/').any(|part| part == "..") => {
                Some("paths have no `..`; write an absolute path".into())
            }
            pattern => match (pattern.strip_prefix("./"), pattern.strip_suffix('/')) {
                (Some(below), _) => Some(instead(below)),
                (None, Some(folder)) if !folder.is_empty() => Some(instead(&format!("{folder}/**"))),
                _ => None,
            },
        }
    } else {
        None
    };
    reason.map_or(Ok(()), |reason| Err(format!("{rule:?} can match nothing: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_match_nothing_are_errors() {
        for (rule, expected) in [
            ("shell(git push:*)", "write shell(git push *)"),
            ("shell( git push)", "write shell(git push)"),
            ("todo(a)", "write todo"),
            ("save_memory(x)", "write save_memory"),
            ("read_file(./src/**)", "write read_file(src/**)"),
            ("write_file(src/)", "write write_file(src/**)"),
            ("read_file(~/.ssh/**)", "absolute path"),
            ("read_file(../x)", "absolute path"),
        ] {
            let reason = check_matches(rule).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
        for rule in [
            "shell(git push *)",
            "shell(./x *)",
            "todo",
            "todo(*)",
            "read_file(/)",
            "*(./x)",
            "read_file(src/**)",
            "mcp__a__b(./x)",
            "delegate(explore)",
        ] {
            assert_eq!(check_matches(rule), Ok(()));
        }
    }
}
