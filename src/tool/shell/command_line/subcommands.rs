//! Programs with sub-commands, and their options before the sub-command. Pure.
//!
//! An option that is not in the table stays in the words, where a rule takes it for an option with or without
//! a value.

use super::runners::options_length;
use crate::permission::CommandWord;

struct SubcommandProgram {
    names: &'static [&'static str],
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options with a value, attached or as the next word.
    valued: &'static [&'static str],
}

#[rustfmt::skip]
const PROGRAMS: &[SubcommandProgram] = &[
    SubcommandProgram {
        names: &["git"],
        flags: &["-p", "-P", "-v", "-h", "--paginate", "--no-pager", "--bare", "--no-replace-objects", "--no-lazy-fetch", "--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-optional-locks", "--no-advice", "--version", "--help", "--exec-path", "--html-path", "--man-path", "--info-path"],
        valued: &["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env", "--attr-source"],
    },
    SubcommandProgram { names: &["cargo"], flags: &["-v", "-q", "-V", "-h", "--verbose", "--quiet", "--locked", "--offline", "--frozen", "--list", "--version"], valued: &["--color", "--config", "-Z", "-C", "--explain"] },
    SubcommandProgram { names: &["npm"], flags: &["-g", "-s", "-q", "-d", "-y", "--global", "--silent", "--json", "--yes", "--workspaces", "--no-audit", "--no-fund"], valued: &["-w", "-C", "--prefix", "--workspace", "--registry", "--loglevel", "--userconfig", "--cache"] },
    SubcommandProgram { names: &["pnpm"], flags: &["-r", "-s", "-w", "--recursive", "--silent", "--workspace-root"], valued: &["-C", "-F", "--dir", "--filter", "--loglevel", "--reporter"] },
    SubcommandProgram { names: &["yarn"], flags: &["-s", "--silent", "--verbose", "--json"], valued: &["--cwd", "--cache-folder", "--modules-folder"] },
    SubcommandProgram { names: &["docker", "podman", "nerdctl"], flags: &["-D", "-v", "--debug", "--tls", "--tlsverify", "--remote"], valued: &["-c", "-H", "-l", "--config", "--context", "--host", "--log-level", "--tlscacert", "--tlscert", "--tlskey", "--namespace", "--url", "--connection"] },
    SubcommandProgram {
        names: &["kubectl", "oc"], flags: &["--insecure-skip-tls-verify", "--match-server-version", "--warnings-as-errors", "--disable-compression"],
        valued: &["-n", "-s", "-v", "--namespace", "--context", "--kubeconfig", "--cluster", "--user", "--server", "--token", "--as", "--as-group", "--as-uid", "--cache-dir", "--certificate-authority", "--client-certificate", "--client-key", "--request-timeout", "--tls-server-name", "--v", "--vmodule", "--password", "--username"],
    },
    SubcommandProgram { names: &["helm"], flags: &["--debug", "--kube-insecure-skip-tls-verify"], valued: &["-n", "--namespace", "--kube-context", "--kubeconfig", "--kube-apiserver", "--kube-token", "--registry-config", "--repository-cache", "--repository-config", "--burst-limit", "--qps"] },
    SubcommandProgram { names: &["gh"], flags: &[], valued: &["-R", "--repo"] },
    SubcommandProgram { names: &["terraform", "tofu"], flags: &["-version", "-help"], valued: &["-chdir"] },
    SubcommandProgram { names: &["systemctl", "journalctl"], flags: &["-q", "-f", "-a", "--user", "--system", "--quiet", "--no-pager", "--no-block", "--now", "--force", "--all", "--no-ask-password", "--no-legend"], valued: &["-H", "-M", "-t", "-p", "-n", "-o", "-s", "--host", "--machine", "--type", "--state", "--property", "--lines", "--output", "--signal", "--job-mode", "--root"] },
    SubcommandProgram { names: &["aws"], flags: &["--debug", "--no-verify-ssl", "--no-paginate", "--no-sign-request", "--no-cli-pager"], valued: &["--profile", "--region", "--output", "--endpoint-url", "--query", "--color", "--ca-bundle", "--cli-read-timeout", "--cli-connect-timeout"] },
    SubcommandProgram { names: &["gcloud"], flags: &["-q", "--quiet"], valued: &["--project", "--account", "--configuration", "--format", "--verbosity", "--impersonate-service-account"] },
    SubcommandProgram { names: &["pip", "pip3"], flags: &["-q", "-v", "--isolated", "--no-input", "--require-virtualenv", "--disable-pip-version-check", "--no-cache-dir", "--no-color", "--quiet", "--verbose"], valued: &["--python", "--log", "--proxy", "--retries", "--timeout", "--cert", "--client-cert", "--cache-dir", "--exists-action", "--trusted-host"] },
    SubcommandProgram { names: &["uv"], flags: &["-n", "-q", "-v", "--offline", "--quiet", "--verbose", "--no-cache", "--no-config", "--no-progress", "--native-tls"], valued: &["--directory", "--project", "--config-file", "--cache-dir", "--color", "--allow-insecure-host"] },
    SubcommandProgram { names: &["poetry"], flags: &["-q", "-v", "-n", "--quiet", "--no-interaction", "--ansi", "--no-ansi", "--no-plugins", "--no-cache"], valued: &["-C", "-P", "--directory", "--project"] },
    SubcommandProgram { names: &["go"], flags: &[], valued: &["-C"] },
    SubcommandProgram { names: &["hg"], flags: &["-q", "-v", "-y", "--quiet", "--verbose", "--noninteractive", "--debug", "--traceback", "--time", "--profile"], valued: &["-R", "--repository", "--cwd", "--config", "--encoding", "--color", "--pager"] },
    SubcommandProgram { names: &["jj"], flags: &["--ignore-working-copy", "--ignore-immutable", "--quiet", "--debug", "--no-pager"], valued: &["-R", "--repository", "--at-operation", "--at-op", "--color", "--config", "--config-file", "--config-toml"] },
    SubcommandProgram { names: &["apt", "apt-get"], flags: &["-y", "-q", "-f", "-m", "-s", "-d", "--yes", "--quiet", "--no-install-recommends"], valued: &["-o", "-c", "-t", "--option", "--config-file", "--target-release"] },
    SubcommandProgram { names: &["make", "gmake"], flags: &["-b", "-B", "-d", "-e", "-i", "-k", "-n", "-q", "-r", "-R", "-s", "-S", "-t", "-w", "--always-make", "--ignore-errors", "--keep-going", "--silent", "--quiet", "--touch", "--dry-run", "--no-print-directory"], valued: &["-C", "-f", "-I", "-o", "-W", "--directory", "--file", "--makefile", "--include-dir"] },
];

/// Returns the words without the options before the sub-command, or `None` if there are none.
pub(super) fn without_options(name: &str, words: &[CommandWord]) -> Option<Vec<CommandWord>> {
    let program = PROGRAMS.iter().find(|program| program.names.contains(&name))?;
    let mut at = 1;
    while let Some(word) = words.get(at) {
        let option = match word {
            CommandWord::Text(text) => text.as_str(),
            // The rest of `--git-dir=$X` is a value, that of `-$X` may be anything.
            CommandWord::Start(text) if text.contains('=') || (text == "-j" && name.ends_with("make")) => {
                text.as_str()
            }
            CommandWord::Start(_) | CommandWord::Any => break,
        };
        if name == "cargo" && option.starts_with('+') {
            at += 1;
            continue;
        }
        if name.ends_with("make") && ["-j", "-l", "--jobs"].iter().any(|limit| option.starts_with(limit)) {
            let has_value =
                matches!(option, "-j" | "-l" | "--jobs") && words.get(at + 1).is_some_and(is_number);
            at += 1 + usize::from(has_value);
            continue;
        }
        let is_set = name.ends_with("make")
            && option.split_once('=').is_some_and(|(set, _)| !set.is_empty() && !set.starts_with('-'));
        if is_set {
            at += 1;
            continue;
        }
        if !option.starts_with('-') || option == "-" {
            break;
        }
        let length = options_length(option, program.flags, program.valued)
            .or_else(|| single_dash(option, program.valued));
        let Some(length) = length else { break };
        // An unknown value may be several words.
        if length == 2 && matches!(words.get(at + 1), Some(CommandWord::Any) | None) {
            break;
        }
        at += length;
    }
    (at > 1).then(|| words[..1].iter().chain(&words[at..]).cloned().collect())
}

/// True for the number of jobs, also for `$(nproc)`.
fn is_number(word: &CommandWord) -> bool {
    match word {
        CommandWord::Text(text) => text.bytes().all(|byte| byte.is_ascii_digit()),
        CommandWord::Start(start) => start.is_empty(),
        CommandWord::Any => false,
    }
}

/// `-chdir=DIR` of terraform.
fn single_dash(option: &str, valued: &[&str]) -> Option<usize> {
    let (name, _) = option.split_once('=')?;
    valued.contains(&name).then_some(1)
}
