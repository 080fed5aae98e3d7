//! Programs that run their arguments as a command, and how many of their words stand before it. Pure.

use crate::permission::CommandWord;

/// A program that runs the words behind its own options.
pub(super) struct CommandRunner {
    pub(super) name: &'static str,
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options with a value, attached or as the next word.
    valued: &'static [&'static str],
    /// Number of words between the options and the command.
    operands: usize,
    takes_assignments: bool,
}

const fn runner(name: &'static str) -> CommandRunner {
    CommandRunner { name, flags: &[], valued: &[], operands: 0, takes_assignments: false }
}

#[rustfmt::skip]
const RUNNERS: &[CommandRunner] = &[
    CommandRunner { flags: &["-i", "-", "-0", "-v", "--ignore-environment", "--null", "--debug"], valued: &["-u", "--unset", "-C", "--chdir", "-a", "--argv0"], takes_assignments: true, ..runner("env") },
    runner("nohup"),
    CommandRunner { flags: &["-c", "-f", "-w", "--ctty", "--fork", "--wait"], ..runner("setsid") },
    CommandRunner { valued: &["-i", "-o", "-e", "--input", "--output", "--error"], ..runner("stdbuf") },
    CommandRunner { flags: &["-f", "-p", "-v", "--foreground", "--preserve-status", "--verbose"], valued: &["-k", "-s", "--kill-after", "--signal"], operands: 1, ..runner("timeout") },
    CommandRunner { valued: &["-n", "--adjustment"], ..runner("nice") },
    CommandRunner { flags: &["-t", "--ignore"], valued: &["-c", "-n", "--class", "--classdata"], ..runner("ionice") },
    CommandRunner { flags: &["-b", "-f", "-i", "-o", "-r", "--batch", "--fifo", "--idle", "--other", "--rr"], operands: 1, ..runner("chrt") },
    CommandRunner { flags: &["-c", "--cpu-list"], operands: 1, ..runner("taskset") },
    CommandRunner { flags: &["-a", "-p", "-q", "-v", "--append", "--portability", "--quiet", "--verbose"], valued: &["-f", "-o", "--format", "--output"], ..runner("time") },
    CommandRunner { flags: &["-p"], ..runner("command") },
    CommandRunner { flags: &["-c", "-l"], valued: &["-a"], ..runner("exec") },
    runner("builtin"),
    CommandRunner {
        flags: &["-A", "-b", "-B", "-E", "-H", "-i", "-k", "-n", "-N", "-P", "-S", "-s", "--askpass", "--background", "--preserve-env", "--set-home", "--login", "--non-interactive", "--stdin", "--shell"],
        valued: &["-C", "-c", "-D", "-g", "-h", "-p", "-R", "-r", "-T", "-t", "-U", "-u", "--chdir", "--group", "--host", "--prompt", "--user", "--other-user"],
        takes_assignments: true, ..runner("sudo")
    },
    CommandRunner { flags: &["-L", "-n", "-s"], valued: &["-C", "-u"], ..runner("doas") },
    CommandRunner {
        flags: &["-0", "-o", "-p", "-r", "-t", "-x", "--null", "--no-run-if-empty", "--verbose", "--exit", "--interactive", "--open-tty", "-i", "-l", "-e"],
        valued: &["-I", "-L", "-n", "-P", "-s", "-d", "-a", "-E", "--max-args", "--max-procs", "--delimiter", "--arg-file", "--max-chars", "--process-slot-var"],
        ..runner("xargs")
    },
    runner("busybox"),
    runner("toybox"),
    CommandRunner { flags: &["-a", "-c", "-f", "-i", "-q", "-y"], valued: &["-e", "-o", "-p", "-s", "-u", "-S", "-P"], ..runner("strace") },
];

pub(super) fn find(name: &str) -> Option<&'static CommandRunner> {
    RUNNERS.iter().find(|runner| runner.name == name)
}

impl CommandRunner {
    /// Returns the command and the runner's own words before it, or `None` if an option is unknown.
    pub(super) fn split<'a>(
        &self,
        words: &'a [CommandWord],
    ) -> Option<(&'a [CommandWord], &'a [CommandWord])> {
        let mut at = 0;
        while let Some(option) = words.get(at).and_then(option_text) {
            match options_length(&option, self.flags, self.valued) {
                // An unknown value may be several words.
                Some(2) if matches!(words.get(at + 1), Some(CommandWord::Any)) => return None,
                Some(length) => at += length,
                // `nice -5` and `chrt -20`.
                None if self.name == "nice"
                    && option[1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') =>
                {
                    at += 1;
                }
                None => return None,
            }
            if option == "--" {
                break;
            }
        }
        while self.takes_assignments && words.get(at).is_some_and(is_assignment) {
            at += 1;
        }
        for _ in 0..self.operands {
            // Unknown words may contain the command.
            at += usize::from(words.get(at) != Some(&CommandWord::Any));
        }
        Some(words.split_at(at.min(words.len())))
    }
}

fn option_text(word: &CommandWord) -> Option<String> {
    match word {
        CommandWord::Text(text) if text.starts_with('-') => Some(text.clone()),
        // The value is attached: `-n$X` is read like `-nx`.
        CommandWord::Start(text) if text.starts_with('-') => Some(format!("{text}x")),
        _ => None,
    }
}

fn is_assignment(word: &CommandWord) -> bool {
    match word {
        CommandWord::Text(text) | CommandWord::Start(text) => text.contains('='),
        CommandWord::Any => false,
    }
}

/// Returns the number of words of an option, or `None` if it is unknown.
pub(super) fn options_length(option: &str, flags: &[&str], valued: &[&str]) -> Option<usize> {
    if option == "--" || flags.contains(&option) {
        return Some(1);
    }
    if valued.contains(&option) {
        return Some(2);
    }
    if option.starts_with("--") {
        let (name, _) = option.split_once('=')?;
        return (valued.contains(&name) || flags.contains(&name)).then_some(1);
    }
    // Short options in one word, of which the last may have a value.
    let letters = option.strip_prefix('-')?;
    for (at, letter) in letters.char_indices() {
        let option = format!("-{letter}");
        if valued.contains(&&*option) {
            return Some(if at + letter.len_utf8() == letters.len() { 2 } else { 1 });
        }
        if !flags.contains(&&*option) {
            return None;
        }
    }
    (!letters.is_empty()).then_some(1)
}
