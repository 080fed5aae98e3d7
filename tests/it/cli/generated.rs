//! Completion scripts and the manual page name the whole command line.

use std::process::Command;

fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_modegate")).args(arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn manual_page_and_completions_name_commands_and_options() {
    let page = run(&["man"]);
    for text in
        ["modegate \\- An ACP", ".SH MODEGATE SESSIONS LIST", ".SH MODEGATE DOCTOR", "\\-\\-max\\-mode"]
    {
        assert!(page.contains(text), "{text}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]);
        for text in ["sessions", "doctor", "max-mode"] {
            assert!(script.contains(text), "{shell} {text}");
        }
    }
    let is_bash = Command::new("bash").args(["-n", "-c", &run(&["completions", "bash"])]).status().unwrap();
    assert!(is_bash.success());
}

#[test]
fn version_begins_with_that_of_the_package() {
    assert!(run(&["--version"]).starts_with(concat!("modegate ", env!("CARGO_PKG_VERSION"))));
}
