//! Programs that get code in another language, and programs that never run their arguments. Pure.

/// The use that a program makes of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentUse {
    Inert,
    /// Uses them as data, apart from those with blanks or expansions, which may be code.
    MayBeCode,
    MayRun,
}

/// Programs that never run an argument.
#[rustfmt::skip]
const INERT: &[&str] = &[
    ":", "apropos", "apt-cache", "ar", "base32", "base64", "basename", "black", "cal", "cat", "cd", "chgrp", "chmod", "chown", "cksum", "clear",
    "cloc", "cmp", "column", "comm", "cp", "curl", "cut", "date", "dd", "df", "dig", "dirname", "dirs", "dmesg", "du", "echo", "egrep", "eslint",
    "exa", "exit", "expand", "expr", "eza", "false", "fgrep", "file", "fmt", "fold", "free", "fuser", "getent", "grep", "groups", "gunzip", "gzip",
    "head", "hexdump", "host", "hostname", "iconv", "id", "info", "isort", "jobs", "join", "jq", "kill", "killall", "last", "link", "ln", "locate",
    "logger", "ls", "lsblk", "lscpu", "lsof", "md5sum", "mkdir", "mkfifo", "mktemp", "mount", "mv", "mypy", "netstat", "nl", "nm", "nproc",
    "nslookup", "numfmt", "objdump", "od", "openssl", "paste", "patch", "pgrep", "ping", "pip", "pip3", "pkill", "popd", "pr", "prettier", "ps",
    "pushd", "pwd", "pyright", "pytest", "readelf", "readlink", "realpath", "return", "rev", "rm", "rmdir", "ruff", "rustfmt", "seq", "set",
    "sha1sum", "sha256sum", "sha512sum", "shift", "shopt", "shuf", "size", "sleep", "ss", "stat", "strings", "strip", "stty", "sum", "sync", "tac",
    "tail", "tee", "tokei", "touch", "tput", "tr", "tree", "true", "truncate", "tsc", "tty", "type", "ulimit", "umask", "umount", "uname",
    "unexpand", "uniq", "unlink", "unzip", "uptime", "vmstat", "w", "wc", "whatis", "whereis", "which", "who", "whoami", "xxd", "xz", "yes", "yq",
    "zcat", "zstd",
];

/// Programs and builtins that use a few arguments as code, such as `split --filter`, `sort --compress-program` and
/// `zip --unzip-command`.
#[rustfmt::skip]
const MAY_BE_CODE: &[&str] = &[
    "[", "[[", "ag", "alias", "apt", "apt-get", "bat", "bind", "cargo", "clang", "cmake", "compgen", "complete", "declare", "diff", "docker",
    "dpkg", "export", "g++", "gcc", "getopts", "gh", "git", "go", "gradle", "helm", "hg", "java", "javac", "jj", "kubectl", "ldd", "let", "local",
    "make", "mapfile", "mvn", "mysql", "ninja", "npm", "pnpm", "podman", "printf", "psql", "read", "readarray", "readonly", "rg", "rsync", "rustc",
    "scp", "sort", "split", "sqlite3", "svn", "systemctl", "tar", "terraform", "test", "typeset", "unset", "uv", "wait", "wget", "yarn", "zip",
];

/// Sub-commands that run their arguments.
#[rustfmt::skip]
const RUNNING: &[(&str, &[&str])] = &[
    ("git", &["bisect", "difftool", "filter-branch", "rebase", "submodule"]),
    ("docker", &["compose", "container", "exec", "run"]), ("podman", &["container", "exec", "run"]), ("kubectl", &["exec", "run"]),
    ("npm", &["exec", "x"]), ("pnpm", &["dlx", "exec", "x"]), ("yarn", &["dlx", "exec", "run"]), ("uv", &["run", "tool"]), ("cargo", &["run", "watch"]), ("go", &["run"]),
];

pub(super) fn arguments_of(name: &str, subcommand: Option<&str>) -> ArgumentUse {
    let may_run = RUNNING.iter().any(|(program, subcommands)| {
        *program == name && subcommand.is_none_or(|subcommand| subcommands.contains(&subcommand))
    });
    if INERT.contains(&name) {
        ArgumentUse::Inert
    } else if MAY_BE_CODE.contains(&name) && !may_run {
        ArgumentUse::MayBeCode
    } else {
        ArgumentUse::MayRun
    }
}

pub(super) fn is_shell(name: &str) -> bool {
    matches!(name, "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" | "mksh" | "fish" | "rbash")
}

/// Interpreters of other languages. A version may follow the name: `python3.12`.
#[rustfmt::skip]
const INTERPRETERS: &[&str] = &[
    "python", "perl", "ruby", "node", "nodejs", "deno", "bun", "php", "lua", "luajit", "Rscript", "julia", "tclsh", "expect", "osascript", "pwsh", "powershell", "guile", "ghci",
    "awk", "gawk", "mawk", "nawk", "sed", "gsed",
];

pub(super) fn is_interpreter(name: &str) -> bool {
    INTERPRETERS.contains(&name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

/// True if the interpreter gets its program as its first operand.
pub(super) fn has_code_operand(name: &str) -> bool {
    matches!(name, "awk" | "gawk" | "mawk" | "nawk" | "sed" | "gsed")
}

/// Names with which code starts programs, or makes code of text. The code of `sed` and `awk` has few of them.
#[rustfmt::skip]
const STARTING: &[&str] = &[
    "system", "popen", "subprocess", "exec", "spawn", "child_process", "fork", "eval", "ctypes", "importlib", "__import__", "getattr", "compile",
    "getline", "qx", "pty", "Process", "shell", "Kernel", "Open3", "io.popen", "Invoke", "Start-Process",
];

/// True if code of another language may start any program.
pub(super) fn may_start_programs(code: &str) -> bool {
    code.contains('`') || STARTING.iter().any(|name| code.contains(name))
}
