//! `modegate permissions`: rules in other spellings, and rules that can match nothing.

use std::fs;

use super::headless::run;
use crate::support::requirements::require_sandbox;

#[test]
fn rules_of_claude_code_are_shown_as_what_they_mean() {
    let dir = tempfile::tempdir().unwrap();
    let permissions = |arguments: &[&str]| run(dir.path(), &[&["permissions"], arguments].concat());
    let (code, output, _) = permissions(&["deny", "Bash(git push:*)"]);
    assert_eq!(code, 0);
    assert!(
        output.starts_with("Bash(git push:*) means shell(git push *)\ndeny shell(git push *): "),
        "{output}"
    );
    let (_, output, _) = run(dir.path(), &["modes", "explain", "code", "shell", "git -C . push"]);
    assert!(output.contains("The rule deny shell(git push *) does not allow this"), "{output}");
    let (_, output, _) = run(dir.path(), &["modes", "explain", "code", "shell", "git -C . pull"]);
    assert!(output.contains("allowed in code"), "the control: {output}");
    // The user's file may have the other spelling.
    let file = dir.path().join("home/.config/modegate/modes.yaml");
    fs::write(&file, "permissions: {allow: ['Bash(ls:*)', 'shell(grep *)']}\n").unwrap();
    let (_, output, _) = permissions(&["list"]);
    let line = output.lines().find(|line| line.contains("shell(ls *)")).unwrap_or_default();
    assert!(line.starts_with("allow shell(ls *)") && line.ends_with(" (written Bash(ls:*))"), "{output}");
    let (_, output, _) = run(dir.path(), &["modes", "explain", "ask", "shell", "ls | grep x"]);
    assert!(output.contains("allowed in ask by the rules allow shell(ls *), shell(grep *)"), "{output}");
    assert_eq!(permissions(&["revoke", "Bash(git push:*)"]).0, 0);
    assert!(!permissions(&["list"]).1.contains("push"));
}

#[test]
fn rules_that_can_match_nothing_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    for (rule, hint) in [
        ("shell(git push:*)", "write shell(git push *)"),
        ("read_file(./src/**)", "write read_file(src/**)"),
        ("WebSearch", "Modegate has no such tool"),
    ] {
        let (code, _, errors) = run(dir.path(), &["permissions", "deny", rule]);
        assert!(code == 2 && errors.contains(hint), "{code} {errors}");
        let file = dir.path().join("home/.config/modegate/modes.yaml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("permissions: {{deny: ['{rule}']}}\n")).unwrap();
        let (code, output, _) = run(dir.path(), &["permissions", "list"]);
        assert!(code == 1 && output.contains(hint), "{code} {output}");
        fs::write(&file, "permissions: {deny: ['shell(git push *)']}\n").unwrap();
        assert_eq!(run(dir.path(), &["permissions", "list"]).0, 0, "the control");
    }
}

#[test]
fn files_with_a_wrong_rule_are_not_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("home/.config/modegate/permissions.yaml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (rule, is_stored) in [("shell(ls", false), ("shell(ls)", true)] {
        let text = format!("# mine\npermissions: {{allow: ['{rule}']}}\n");
        fs::write(&file, &text).unwrap();
        let (code, output, errors) = run(dir.path(), &["permissions", "allow", "shell(pwd)"]);
        assert_eq!(
            (code == 0, fs::read_to_string(&file).unwrap() != text),
            (is_stored, is_stored),
            "{output}"
        );
        let is_told = errors.contains("TOOL or TOOL(PATTERN). Nothing was changed");
        assert_eq!(is_told, !is_stored, "{errors}");
    }
}

/// The effect of a rule about changes on commands depends on the broker, and another rule may count first. The command
/// that adds the rule tells both.
#[test]
fn added_rules_say_what_they_do_not_do() {
    require_sandbox();
    let dir = tempfile::tempdir().unwrap();
    let add = |kind: &str, rule: &str| run(dir.path(), &["permissions", kind, rule]).1;
    let explained = || run(dir.path(), &["modes", "explain", "code", "shell", "rm src/a"]).1;
    let about_commands = "commands of `shell` can";
    let (denied, asked) = ("cannot change these files either", "without a question about them");
    assert!(!explained().contains("change the files of"), "the control");
    for (kind, rule, expected) in [
        ("deny", "Edit(src/**)", Some(denied)),
        ("deny", "delete_file(Cargo.lock)", Some(denied)),
        ("ask", "write_file(docs/**)", Some(asked)),
        ("allow", "edit_file(tests/**)", None),
        ("deny", "read_file(.env)", None),
        ("deny", "apply_patch", None),
        ("deny", "shell(rm *)", None),
    ] {
        let output = add(kind, rule);
        assert_eq!(output.contains(about_commands), expected.is_some(), "{output}");
        assert!(output.contains(expected.unwrap_or_default()), "{output}");
    }
    let denying = "{apply_patch,delete_file,edit_file,move_file,write_file}(src/**), delete_file(Cargo.lock)";
    let asking = "A command can change the files of write_file(docs/**) without a question about them.";
    let text = explained();
    assert!(text.contains(&format!("A command cannot change the files of {denying}.")), "{text}");
    assert!(text.contains(asking), "{text}");
    // The user can switch the sandbox off.
    let settings = dir.path().join("home/.config/modegate/config.yaml");
    fs::write(&settings, "shell: {sandbox: off}\n").unwrap();
    let output = add("deny", "Edit(lib/**)");
    assert!(output.contains("can change these files nevertheless") && output.contains("without the broker"));
    let text = explained();
    assert!(text.contains(&format!("A command can change the files of {denying},")), "{text}");
    assert!(text.contains(", because commands run without the broker."), "{text}");
    fs::remove_file(&settings).unwrap();
    let output = add("allow", "shell(rm *)");
    assert!(output.contains("without effect as long as deny shell(rm *) counts first"), "{output}");
}
