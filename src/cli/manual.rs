//! Sections of the manual page that clap's definition of the command line does not have.

use std::io::{self, Write};

use super::EXIT_CODES;
use crate::model::catalog::PROVIDERS;

/// Environment variables with their meanings, apart from those of providers. Several names are separated by commas.
pub const VARIABLES: [(&str, &str); 9] = [
    ("MODEGATE_MODEL", "model of new sessions, unless `--model` names one; precedes `model` in config.yaml"),
    ("MODEGATE_SMALL_MODEL", "model of read-only sub-agents; precedes `small_model` in config.yaml"),
    (
        "MODEGATE_LOG",
        "log level on stderr: `off`, `error` (default of `-p` and commands), `warn` (default with an editor), `info`, `debug` or `trace`",
    ),
    ("XDG_CONFIG_HOME", "folder of `modegate/config.yaml`, `modes.yaml` and others; default: `~/.config`"),
    ("XDG_DATA_HOME", "folder of the session store, `modegate/modegate.db`; default: `~/.local/share`"),
    ("HOME", "home folder; ignored with a warning unless it is an absolute path"),
    (
        "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY",
        "proxies for model providers and MCP servers, except on this machine; `fetch` ignores them",
    ),
    ("NO_COLOR", "no colours on a terminal, unless it is empty"),
    ("TERM", "`dumb` means a terminal without colours and without the live line of a headless run"),
];

const FILES: [(&str, &str); 7] = [
    ("~/.config/modegate/config.yaml", "settings: models, budgets, hooks, network"),
    ("~/.config/modegate/modes.yaml", "modes, rules, agents, MCP servers and checks"),
    ("~/.config/modegate/permissions.yaml", "rules that `modegate permissions` has written"),
    ("~/.config/modegate/setup.yaml", "models and keys that `modegate setup` has stored"),
    ("~/.local/share/modegate/modegate.db", "sessions, audit logs and memories"),
    (".modegate/modes.yaml", "the same as `modes.yaml`, of a project"),
    ("/etc/modegate/policy.yaml", "the policy of an organisation"),
];

const EXAMPLES: [(&str, &str); 6] = [
    ("modegate --mode plan -p \"where is the retry logic?\"", "Answer a question, and change nothing."),
    ("modegate --continue --mode code -p \"now write it\"", "Continue the session in another mode."),
    ("git diff | modegate --mode plan -p \"review this\"", "Review piped text."),
    ("modegate sessions undo last", "Undo the last turn that changed files."),
    ("modegate run --mode plan -- COMMAND", "Run a terminal program that cannot change anything."),
    ("modegate setup zed", "Print the entry for the settings of an editor."),
];

pub(super) fn write(page: &mut impl Write) -> io::Result<()> {
    writeln!(page, ".SH EXIT STATUS")?;
    writeln!(page, "{}.", escaped(EXIT_CODES))?;
    writeln!(page, ".SH ENVIRONMENT")?;
    for (names, meaning) in VARIABLES {
        item(page, names, meaning)?;
    }
    for provider in PROVIDERS {
        item(page, &provider.key_variables.join(", "), &format!("key for {}", provider.title))?;
        item(page, provider.url_variable, &format!("address for {}", provider.title))?;
    }
    writeln!(page, ".SH FILES")?;
    for (path, meaning) in FILES {
        item(page, path, meaning)?;
    }
    writeln!(page, ".SH EXAMPLES")?;
    for (command, effect) in EXAMPLES {
        item(page, command, effect)?;
    }
    Ok(())
}

fn item(page: &mut impl Write, name: &str, meaning: &str) -> io::Result<()> {
    writeln!(page, ".TP\n{}\n{}", escaped(name), escaped(&meaning.replace('`', "")))
}

/// A line that begins with a dot or an apostrophe would be a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
