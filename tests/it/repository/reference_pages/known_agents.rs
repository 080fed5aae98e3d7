//! `docs/reference/known-agents.md`, from the profiles of known agents.

use modegate::external_agent::known::{MODELS, PROVIDERS, known_agents};
use modegate::external_agent::profile::{AgentProfile, ProfilePath};

use super::Page;

/// The version that was started with `wrap --check`, and its own mode in the sandbox unless the profile has it.
const TRIED: [(&str, &str, &str); 9] = [
    ("claude", "claude-agent-acp 0.49.0", "a common id (`plan`)"),
    ("codex", "codex-acp 0.16.0, 2.6.0", ""),
    ("copilot", "1.0.102", "a common id (`…#plan`)"),
    ("gemini", "0.61.0", "a common id (`plan`)"),
    ("goose", "no: from its documentation", "a common id"),
    ("kimi", "1.3", "none: it has no modes"),
    ("opencode", "1.18.33", "a common id (`plan`)"),
    ("qwen", "0.15.10", "a common id (`plan`)"),
    ("vibe", "3.0.2", "a common id (`ask`)"),
];

const CLAUDE: &str = "claude keeps its first settings, logins and trusted folders in `~/.claude.json`, beside its state directory. \
     There it makes new files, which is refused in every mode, and a single file cannot be a state directory. Set \
     `CLAUDE_CONFIG_DIR` to `~/.claude`, in Modegate's environment or in `env`: claude then keeps the file in that \
     directory. Copy `~/.claude.json` there first to keep what it has.";

#[test]
fn known_agents_page_matches_the_profiles() {
    let agents = known_agents();
    let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, TRIED.map(|(name, ..)| name), "each known agent has a row");
    let mut page = Page::new("Known agents");
    page.paragraph(
        "Modegate knows these [external agents](external-agents.md), by the program's name or, for runners such as \
         `npx` and `node`, by their first argument. A variable replaces the first part of a path if it is an absolute \
         path.",
    );
    page.heading(2, "State directories and modes");
    page.table(
        ["agent", "state directories", "variables that move them", "mode in the sandbox", "started here"],
        agents.iter().zip(TRIED).map(|(agent, (_, version, mode))| {
            let variables = listed(agent.state_dirs.iter().filter_map(|place| place.variable.clone()));
            [
                agent.name.clone(),
                paths(&agent.state_dirs),
                variables,
                own_mode(agent, mode),
                version.to_owned(),
            ]
        }),
    );
    page.paragraph(
        "\"Started here\" means: `modegate wrap --check`, on Linux 6.18, in November 2026, in a home directory with no \
         more than the settings of a model.",
    );
    page.heading(2, "Settings of claude");
    page.paragraph(CLAUDE);
    page.heading(2, "Hosts");
    let any = ["any".to_owned(), hosts(MODELS.map(str::to_owned).iter())];
    let of_agents = agents.iter().filter_map(|agent| {
        let providers: Vec<String> = PROVIDERS.iter().map(|host| (*host).to_owned()).collect();
        let providers = if agent.has_many_providers { providers } else { Vec::new() };
        let hosts = hosts(agent.hosts.iter().chain(&providers));
        (!hosts.is_empty()).then(|| [agent.name.clone(), hosts])
    });
    page.table(["agent", "hosts, port 443"], std::iter::once(any).chain(of_agents));
    page.paragraph(
        "Those of claude, codex, gemini and qwen were read from their packages, the others from their documentation. \
         Hosts of Amazon Bedrock, Vertex AI and Azure depend on your account: name them with `--allow-host`.",
    );
    page.heading(2, "Addresses in settings");
    page.paragraph(
        "When an agent starts, Modegate reads the addresses of models in these files of the user, never in those of a \
         project. A file with a syntax error names none.",
    );
    page.table(
        ["agent", "files", "keys, at any depth"],
        agents.iter().filter(|agent| !agent.settings.is_empty()).map(|agent| {
            [agent.name.clone(), paths(&agent.settings), listed(agent.address_keys.iter().cloned())]
        }),
    );
    page.paragraph(
        "All but opencode's lie in a state directory: an agent can name a host there that counts from its next start \
         on. `modegate wrap --check` lists the hosts.",
    );
    page.heading(2, "Other directories");
    page.table(
        ["agent", "directories"],
        agents.iter().filter(|agent| !agent.settings_dirs.is_empty()).map(|agent| {
            [
                agent.name.clone(),
                format!(
                    "{} has to exist: Modegate creates it if it is missing, and the agent cannot \
             write there",
                    paths(&agent.settings_dirs)
                ),
            ]
        }),
    );
    page.heading(2, "Your own profiles");
    page.paragraph(
        "The file `external-agents.yaml` in `~/.config/modegate` adds agents, or replaces these, for `wrap` and `run`. \
         Only this file counts, and none of a project. `wrap --check` prints an entry for an agent that is not known, \
         with the hosts and folders that it was refused.",
    );
    page.code(
        "yaml",
        "- name: my-agent # a part of the command\n  state_dirs: [{ path: '~/.my-agent', variable: MY_AGENT_HOME }]\n  \
         hosts: ['models.example.com:443']",
    );
    page.table(
        ["key", "meaning"],
        [
            ("`name`", "a part of the command"),
            ("`state_dirs`", "directories that the agent writes in every mode: `path`, `variable` that replaces it, and `below`, the part behind the variable"),
            ("`write_dirs`", "directories that it changes in modes that allow changes, in the same form"),
            ("`hosts`", "hosts that it reaches in read-only modes"),
            ("`has_many_providers`", "adds the hosts of opencode"),
            ("`settings`, `address_keys`", "files with addresses of models, and the keys of the addresses"),
            ("`settings_dirs`", "directories that have to exist, and that it does not write"),
            ("`sandboxed`", "`modes`, `args` and `variables` that select its own mode in the sandbox"),
        ]
        .map(|(key, meaning)| [key.to_owned(), meaning.to_owned()]),
    );
    page.check("known-agents.md");
}

fn listed(texts: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for text in texts.map(|text| format!("`{text}`")) {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen.join(", ")
}

fn paths(places: &[ProfilePath]) -> String {
    listed(places.iter().map(|place| match &place.below {
        Some(below) => format!("{}/{below}", place.path),
        None => place.path.clone(),
    }))
}

fn hosts<'a>(hosts: impl Iterator<Item = &'a String>) -> String {
    listed(hosts.map(|host| host.strip_suffix(":443").unwrap().to_owned()))
}

/// `common` describes the mode of an agent whose profile names none.
fn own_mode(agent: &AgentProfile, common: &str) -> String {
    let sandboxed = &agent.sandboxed;
    assert_eq!(sandboxed.modes.is_empty(), !common.is_empty(), "{}", agent.name);
    if sandboxed.modes.is_empty() {
        return common.to_owned();
    }
    let modes: Vec<String> = sandboxed.modes.iter().map(|mode| format!("`{mode}`")).collect();
    let how = match (sandboxed.args.is_empty(), sandboxed.variables.is_empty()) {
        (false, false) => ", set by arguments and a variable",
        (false, true) => ", set by arguments",
        (true, false) => ", set by a variable",
        (true, true) => "",
    };
    format!("{}{how}", modes.join(" or "))
}
