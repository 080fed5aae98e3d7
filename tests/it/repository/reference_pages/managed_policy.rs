//! `docs/reference/managed-policy.md`, from the types that read the policy of an organisation.

use modegate::config::managed_file;
use modegate::managed_policy::{MAX_FILE, ManagedPolicy, Requirements, UserChoices};

use super::Page;
use super::config::keys_of;

const EXAMPLE: &str = r#"
max_mode: ask
places:
  - paths: ["/srv/production"]
    repositories: ["github.com/acme/infrastructure"]
    max_mode: plan
modes:
  - id: review
    extends: plan
    shell: "off"
allowed:
  modes: [ask, plan, review]
  agents: [general, explore]
  programs: ["/usr/local/bin/gemini --acp"]
  models: ["anthropic/*", "openai/gpt-6-luna"]
  hosts: ["api.anthropic.com:443", "*.corp.example"]
  servers:
    - { name: github, command: /usr/local/bin/github-mcp-server, args: [stdio] }
    - { name: docs, url: "https://mcp.corp.example/docs" }
permissions:
  deny: ["read_file(**/.env)", "shell(git push *)"]
  ask: ["fetch"]
budgets: { day: { cost_usd: 20, tokens: 5000000 } }
prices: { openai/llm: { input: 1, output: 4 } }
telemetry: { endpoint: "https://otel.corp.example", required: true }
hooks: [{ id: guard, on: [call], kind: deny, command: [/opt/corp/guard] }]
require: { sandbox: true, broker: true, record: true, signatures: true }
user_may:
  define_modes: false
  define_agents: false
  allow_calls: false
  trust_projects: false
  accept_all: false
  choose_store: false
  widen_agents: false
"#;

#[test]
fn managed_policy_page_has_every_key() {
    let mut page = Page::new("The policy file");
    page.paragraph(&format!(
        "The policy of an organisation is in `{}`, and has at most {} KiB. The [guide](../guides/managed-policy.md) says who may \
         write it, and what it does not hold.",
        managed_file::PLACE,
        MAX_FILE / 1024
    ));
    page.code("yaml", EXAMPLE.trim_start());
    page.paragraph(
        "A test reads this example. Every key is optional, apart from those of the entries of a list. An unknown key makes \
         the whole file unusable, and then the strictest limits count. `modegate schema policy` prints the JSON Schema.",
    );
    page.heading(2, "Keys");
    let keys = keys_of::<ManagedPolicy>(&["modes", "permissions", "budgets", "prices", "telemetry"]);
    page.table(
        ["key", "type", "default", "meaning"],
        keys.into_iter()
            .map(|key| [format!("`{}`", key.path), key.kind, key.default.unwrap_or_default(), key.text]),
    );
    page.paragraph(
        "`modes` has the keys of the [modes file](modes-file.md), `permissions` its rules \
         ([permissions](../guides/permissions.md#rules)), \
         `budgets`, `prices`, `telemetry` and `hooks` those of [config.yaml](config.md).",
    );
    page.check("managed-policy.md");
}

#[test]
fn managed_policy_example_uses_every_key() {
    let policy = ManagedPolicy::parse("policy.yaml", EXAMPLE).unwrap_or_else(|error| panic!("{error}"));
    let ManagedPolicy {
        max_mode,
        places,
        modes,
        allowed,
        permissions,
        budgets,
        prices,
        telemetry,
        hooks,
        require,
        user_may,
    } = policy.definition().clone();
    assert!(!hooks.is_empty() && budgets.is_some() && !prices.is_empty() && telemetry.is_some());
    assert!(max_mode.is_some() && !modes.is_empty());
    assert!(places.iter().any(|place| !place.paths.is_empty() && !place.repositories.is_empty()));
    let lists = [allowed.modes.is_some(), allowed.agents.is_some(), allowed.programs.is_some()];
    let others = [allowed.models.is_some(), allowed.hosts.is_some(), allowed.servers.is_some()];
    assert!(lists.iter().chain(&others).all(|is_set| *is_set));
    assert!(!permissions.deny.is_empty() && !permissions.ask.is_empty());
    assert!(require.names().iter().all(|(_, is_set)| *is_set));
    assert!(user_may.names().iter().all(|(_, may)| !may));
    assert!(Requirements::default().names().iter().all(|(_, is_set)| !is_set), "the defaults on the page");
    assert!(UserChoices::default().names().iter().all(|(_, may)| *may), "the defaults on the page");
}
