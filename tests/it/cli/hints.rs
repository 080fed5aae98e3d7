//! Errors about command lines: all begin alike, and they name the command or option that fits.

use super::sessions::CliFixture;

#[test]
fn command_lines_of_other_agents_get_a_tip() {
    let fixture = CliFixture::new();
    for (arguments, tip) in [
        (&["fix the bug"][..], "tip: to run it as a prompt: modegate -p \"TEXT\""),
        (&["exec", "fix it"], "tip: to run one prompt: modegate -p"),
        (&["login"], "tip: to store the key of a provider: modegate setup"),
        (&["version"], "tip: the version: modegate --version"),
        (&["update"], "tip: Modegate does not update itself"),
        (&["plan"], "tip: to choose a mode: --mode plan"),
        (&["--print", "x"], "tip: to run one prompt: -p"),
        (&["--yolo"], "tip: to allow changes without questions: --mode code"),
        (&["-p", "x", "--permission-mode", "plan"], "tip: to choose what is allowed: --mode"),
        (&["-p", "x", "--output-format", "json"], "tip: to choose the output: --output"),
        (&["-m", "gpt", "-p", "x"], "tip: to choose a model: --model"),
        (&["-c", "-p", "x"], "--continue"),
        (&["fix", "the", "bug"], "tip: to run all words as one prompt, quote them: modegate -p \"TEXT\""),
        (&["-p", "explain", "greeting", "please"], "tip: to run all words as one prompt, quote them"),
        (&["--mode", "plan", "explain"], "tip: to run it as a prompt"),
        (&["sessions", "resume"], "tip: to continue a session: modegate --resume ID"),
        (&["store", "set-aside"], "tip: to set the store aside: modegate store reset"),
        (&["setup", "openai"], "tip: to store the key of a provider: modegate setup --provider openai"),
        // Near words stay clap's, and so do those behind a command.
        (&["sesions"], "a similar subcommand exists: 'sessions'"),
        (&["modes", "explan"], "a similar subcommand exists: 'explain'"),
    ] {
        let (code, output, errors) = fixture.run(arguments);
        assert_eq!((code, output.as_str()), (2, ""), "{arguments:?}: {errors}");
        assert!(errors.contains(tip), "{arguments:?}: {errors}");
    }
    for (arguments, other) in [
        (&["sessions", "login"][..], "modegate setup"),
        (&["sessions", "prun"], "'prune'"),
        (&["memories", "stale"], "'delete'"),
        (&["setup", "nano"], "--provider"),
        (&["--mode", "plan", "explain"], "'replay'"),
    ] {
        let (code, _, errors) = fixture.run(arguments);
        assert!(code == 2 && !errors.contains(other), "{arguments:?}: {errors}");
    }
}

#[test]
fn all_errors_begin_alike() {
    let fixture = CliFixture::new();
    for arguments in [
        &["exec"][..],
        &["--nope"],
        &["-p"],
        &["--max-steps", "x", "-p", "x"],
        &["--mode", "paln", "-p", "x"],
        &["--model", "gpt", "-p", "x"],
        &["--agent", "nobody", "-p", "x"],
        &["--resume", "zzz", "-p", "x"],
        &["--resume", "x", "--continue", "-p", "x"],
        &["--mode", "code", "-p", "x"],
        &["--model", "offline", "-p", "/udno"],
        &["--model", "scripted:nothing.jsonl", "-p", "x"],
        &["report", "nothing"],
        &["sessions", "show", "nothing"],
        &["store", "salvage"],
        &["audit", "nothing"],
        &["man", "--mode", "plan"],
        &["--mode", "plan", "man"],
    ] {
        let (code, _, errors) = fixture.run(arguments);
        assert!(code != 0, "{arguments:?}");
        let last = errors.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
        let is_ours =
            |line: &str| ["modegate: ", "Usage: ", "For more"].iter().any(|start| line.starts_with(start));
        let others: Vec<_> = last.filter(|line| !is_ours(line)).collect();
        assert!(errors.contains("modegate: ") && others.is_empty(), "{arguments:?}: {errors}");
    }
}

#[test]
fn misspelt_slash_command_needs_no_model() {
    let fixture = CliFixture::new();
    let (code, _, errors) = fixture.run(&["--mode", "code", "-p", "/udno"]);
    assert_eq!(code, 1);
    assert!(errors.contains("there is no command /udno: did you mean /undo?"), "{errors}");
    for prompt in ["/etc/hosts", "/xyzzy", "undo"] {
        let (_, _, errors) = fixture.run(&["--mode", "plan", "--model", "offline", "-p", prompt]);
        assert!(!errors.contains("did you mean"), "the control: {prompt}: {errors}");
    }
}
