//! Completion scripts and the manual page cover the whole command line.

use std::process::Command;

use super::sessions::CliFixture;

fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_modegate")).args(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn manual_page_and_completions_name_commands_and_options() {
    let page = run(&["man"]);
    for text in [
        "modegate \\- An ACP",
        ".SH MODEGATE SESSIONS LIST",
        ".SH MODEGATE DOCTOR",
        "\\-\\-max\\-mode",
        ".SH EXIT STATUS",
        ".SH ENVIRONMENT",
        ".SH FILES\n",
        ".SH EXAMPLES",
    ] {
        assert!(page.contains(text), "{text}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]);
        for text in ["sessions", "doctor", "max-mode"] {
            assert!(script.contains(text), "{shell} {text}");
        }
    }
    // A line that begins with a dot and is no request would be lost.
    let requests = page.lines().filter(|line| line.starts_with(['.', '\'']));
    for request in requests {
        let name = request[1..].split(' ').next().unwrap();
        assert!(
            ["IP", "SH", "SS", "TH", "TP", "RS", "RE", "PP", "br", "ie", "el", "nr", "ad", "hy", "ds"]
                .contains(&name),
            "{request}"
        );
    }
    // The script is too long for an argument.
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), run(&["completions", "bash"])).unwrap();
    assert!(Command::new("bash").arg("-n").arg(script.path()).status().unwrap().success());
}

/// Completes the last word in bash. Returns the words that are offered.
fn complete(fixture: &CliFixture, words: &[&str]) -> Vec<String> {
    let script = fixture.path("completions.bash");
    std::fs::write(&script, run(&["completions", "bash"])).unwrap();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_modegate")).parent().unwrap();
    let line = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _modegate modegate \"${{COMP_WORDS[COMP_CWORD]}}\" \
         \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.join(" "),
        words.len() - 1
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &line])
        .current_dir(fixture.work())
        .env("HOME", fixture.path("."))
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn values_of_options_are_completed() {
    let fixture = CliFixture::new();
    let file = fixture.path(".config/modegate/modes.yaml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "modes:\n  - {id: poetry, extends: plan}\n").unwrap();
    assert_eq!(complete(&fixture, &["modegate", "--mode", "p"]), ["plan", "poetry"]);
    assert_eq!(complete(&fixture, &["modegate", "--max-mode", "co"]), ["code"]);
    assert_eq!(complete(&fixture, &["modegate", "--agent", "gen"]), ["general"]);
    assert_eq!(complete(&fixture, &["modegate", "--model", "off"]), ["offline"]);
    assert_eq!(complete(&fixture, &["modegate", "--resume", "la"]), ["last"]);
    assert_eq!(complete(&fixture, &["modegate", "sess"]), ["sessions"], "clap's own");
    assert_eq!(complete(&fixture, &["modegate", "val"]), [""], "the command of the scripts is hidden");
    assert!(!run(&["man"]).contains("VALUES"));
    assert_eq!(complete(&fixture, &["modegate", "modes", "show", "p"]), ["plan", "poetry"]);
    assert_eq!(complete(&fixture, &["modegate", "modes", "explain", "plan", "p"]), [""], "a tool");
    assert_eq!(complete(&fixture, &["modegate", "sessions", "show", "l"]), ["last"]);
    assert_eq!(complete(&fixture, &["modegate", "sessions", "set-mode", "l"]), ["last"]);
    assert_eq!(complete(&fixture, &["modegate", "sessions", "delete", "last", "l"]), ["last"]);
    assert_eq!(complete(&fixture, &["modegate", "report", "l"]), ["last"]);
    assert_eq!(complete(&fixture, &["modegate", "modes", "l"]), ["list", "log"], "the control");
    for (shell, text) in [
        (
            "zsh",
            "':rule -- The rule, as `list` prints it:{compadd -- ${(f)\"$(modegate __values rules 2>/dev/null)\"}}'",
        ),
        (
            "zsh",
            "'*::ids -- Ids of the sessions to delete:{compadd -- $(modegate __values sessions 2>/dev/null)}'",
        ),
        ("zsh", "':mode -- Id of the mode that decides:{compadd -- $(modegate __values modes 2>/dev/null)}'"),
        ("fish", "__fish_seen_subcommand_from revoke\" -f -a \"(modegate __values rules 2>/dev/null)\""),
        ("zsh", "MODE:{compadd -- $(modegate __values modes 2>/dev/null)}'"),
        ("zsh", "':id -- Id of the session:{compadd -- $(modegate __values sessions 2>/dev/null)}'"),
        ("fish", "-r -f -a \"(modegate __values models 2>/dev/null)\""),
    ] {
        assert!(run(&["completions", shell]).contains(text), "{shell}: {text}");
    }
}

#[test]
fn revocable_rules_are_values() {
    let fixture = CliFixture::new();
    fixture.run(&["permissions", "deny", "shell(git push *)"]);
    fixture.run(&["permissions", "allow", "fetch"]);
    assert_eq!(fixture.run(&["__values", "rules"]).1, "shell(git push *)\nfetch\n");
}

#[test]
fn version_begins_with_that_of_the_package() {
    assert!(run(&["--version"]).starts_with(concat!("modegate ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn subcommands_reject_and_hide_unused_options() {
    let play = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate")).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for (arguments, words) in [
        (
            ["--mode", "plan", "doctor"],
            "doctor does not take --mode; before its name it takes --cwd, --store",
        ),
        (["--store", "memory", "man"], "man does not take --store; options go behind its name"),
        (["skills", "--store", "memory"], "does not use the option"),
    ] {
        let (code, text) = play(&arguments);
        assert!(code == Some(2) && text.contains(words), "{arguments:?}: {text}");
    }
    assert_eq!(play(&["--cwd", "/", "agents", "list"]).0, Some(0), "the control");
    for (arguments, has_cwd, has_store) in [
        (&["sessions", "list"][..], true, true),
        (&["doctor"], true, true),
        (&["replay"], false, false),
        (&["scripts", "list"], false, false),
        (&["scripts", "run"], true, true),
        (&["skills", "list"], true, false),
        (&["audit"], true, true),
    ] {
        let text = play(&[arguments, &["--help"]].concat()).1;
        assert_eq!((text.contains("--cwd"), text.contains("--store")), (has_cwd, has_store), "{text}");
    }
}
