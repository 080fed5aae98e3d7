use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::agents::{AgentOrigin, AgentRegistry};
use crate::budget::{Figure, Period};
use crate::mode::{Access, CeilingKind, Mode, Network};
use crate::model::ModelId;
use crate::permission::compare;
use crate::policy::Layers;
use crate::server::ServerTransport;

const ROOT: &str = if cfg!(windows) { "C:/srv/production" } else { "/srv/production" };

fn checked(text: &str) -> CheckedPolicy {
    ManagedPolicy::parse("policy.yaml", text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn limits(text: &str) -> ManagedLimits {
    checked(text).limits(&SessionPlace { folders: vec!["/work".into()], remotes: Some(Vec::new()) })
}

fn limited_layers(policy: &str, modes_file: &str, owner: LayerOwner) -> Layers {
    let limits = limits(policy);
    let mut layers = limits.base_layers();
    layers.add("modes.yaml", modes_file, owner).unwrap();
    limits.apply(&mut layers);
    layers
}

#[test]
fn faults_have_their_place_and_a_suggestion() {
    for (text, expected) in [
        ("", "the file is empty"),
        (" \n\u{feff}\n", "the file is empty"),
        ("# nothing\n", "it has no keys"),
        ("max_mod: plan", "policy.yaml:1:1: unknown key `max_mod`"),
        ("max_mod: plan", "did you mean `max_mode`?"),
        ("max_mode: yolo", "policy.yaml:1:11: unknown mode \"yolo\": the modes are ask, plan, code"),
        ("max_mode: plan\nmax_mode: code", "the key `max_mode` is used twice"),
        ("max_mode: plan\n---\nmax_mode: code", "several documents"),
        ("max_mode: plan\n...\n---\n{}", "several documents"),
        ("max_mode: [plan]", "max_mode: expected a text"),
        ("- max_mode: plan", "expected keys with values"),
        ("max_mode: \"plan", "unclosed quote"),
        ("max_mode:", "`max_mode` has no value"),
        ("max_mode: ~", "`max_mode` has no value"),
        ("allowed: {models: }", "`allowed.models` has no value"),
        ("allowed:\n  models:\n  # - anthropic/*\n", "`allowed.models` has no value"),
        ("places: [{max_mode: plan, paths: null}]", "`places.paths` has no value"),
        ("allowed: {modes: []}", "at least one"),
        ("allowed: {agents: []}", "at least one"),
        ("allowed: {modes: [plan, mine]}", "unknown mode \"mine\""),
        ("allowed: {models: [anthropic]}", "policy.yaml:1:20: \"anthropic\": a model is PROVIDER/NAME"),
        ("allowed: {hosts: ['https://a.example']}", "it has no port"),
        ("allowed: {hosts: ['a/b']}", "a host has one of the forms"),
        ("allowed: {programs: [./gemini]}", "an absolute path, a name, or *"),
        ("allowed: {servers: [{name: a}]}", "the name alone proves nothing"),
        ("allowed: {servers: [{name: a, url: x, args: [b]}]}", "`args` go with a `command`"),
        ("permissions: {allow: [shell]}", "a policy allows nothing"),
        ("permissions: {deny: ['shell(']}", "is not a rule"),
        ("places: [{max_mode: plan}]", "`paths` or `repositories`"),
        ("places: [{max_mode: plan, paths: [srv]}]", "is not an absolute path"),
        ("places: [{max_mode: plan, repositories: ['https://a/b']}]", "HOST/PATH"),
        ("places: [{paths: [/srv]}]", "the key `max_mode` is missing"),
        ("require: {recod: true}", "did you mean `record`?"),
        ("require: {record: yes please}", "record: expected true or false"),
        ("budgets: {day: {tokens: -1}}", "tokens: expected a whole number"),
        ("budgets: {day: {cost_usd: -1}}", "budgets: day: cost_usd is a number from 0"),
        (
            "hooks: [{id: a, on: [call], kind: deny, command: [guard]}]",
            "policy.yaml:1:1: hooks: a: `command` begins with the absolute path",
        ),
        ("telemetry: {required: maybe}", "required: expected true or false"),
        ("telemetry: {endpoint: 'ftp://x'}", "telemetry: "),
        ("user_may: {define_modes: 1}", "define_modes: expected true or false"),
        ("modes: [{id: m}]", "needs `access`"),
        ("modes: [{id: m, extends: none}]", "unknown mode \"none\""),
        ("a: &a {b: *a}", "unknown key"),
        ("max_mode: *plan", "needs quotes"),
    ] {
        let error = ManagedPolicy::parse("policy.yaml", text).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    for text in [
        "{}",
        "telemetry: {required: true}",
        "hooks: [{id: a, on: [call], kind: deny, command: [/opt/guard]}]",
        "max_mode: PLAN",
        "max_mode: architect",
        "\u{feff}max_mode: plan",
        "--- \nmax_mode: plan\n",
    ] {
        checked(text);
    }
}

#[test]
fn anchors_and_tags_mean_what_they_say() {
    let both = limits("allowed: {modes: &m [plan]}\nmax_mode: !!str plan\n");
    assert!(both.allows_mode("plan") && !both.allows_mode("code"));
    assert_eq!(both.ceilings[0].id, "plan");
    for text in
        ["<<: {max_mode: code}\nmax_mode: plan", "max_mode: plan\n<<: {max_mode: code}", "? max_mode\n: plan"]
    {
        assert_eq!(limits(text).ceilings[0].id, "plan", "{text}");
    }
    for (text, expected) in [("true", true), ("on", true), ("'true'", true), ("false", false), ("off", false)]
    {
        assert_eq!(limits(&format!("require: {{record: {text}}}")).require.record, expected, "{text}");
    }
}

/// A user's mode that replaces a built-in one, or has the name of one, does not change the highest mode.
#[test]
fn highest_mode_is_that_of_the_policy() {
    let wide = "{access: full, shell: full, network: allow, permission: auto";
    for (policy, modes_file) in [
        ("max_mode: plan", format!("modes: [{wide}, id: plan}}]")),
        ("max_mode: architect", format!("modes: [{wide}, id: plan, name: Plan}}]")),
        ("max_mode: PLAN", "modes: [{id: plan, extends: code}]".into()),
        ("{modes: [{id: safe, extends: plan}], max_mode: safe}", format!("modes: [{wide}, id: safe}}]")),
        (
            "{modes: [{id: plan, extends: plan, shell: off}], max_mode: plan}",
            format!("modes: [{wide}, id: plan}}]"),
        ),
    ] {
        let ceilings = limits(policy).ceilings;
        assert_eq!(ceilings.len(), 1, "{policy}");
        assert_eq!(ceilings[0].access, Access::ReadOnly, "{policy}");
        assert!(matches!(ceilings[0].kind, CeilingKind::Policy), "{policy}");
        let layers = limited_layers(policy, &modes_file, LayerOwner::User);
        assert!(layers.modes.resolve("code").is_ok(), "{policy}");
    }
    assert!(limits("{}").ceilings.is_empty(), "the control");
}

#[test]
fn modes_of_the_policy_cannot_be_replaced() {
    let policy = "modes: [{id: review, extends: plan, shell: off}]";
    let replaced = "modes: [{id: review, extends: code}, {id: mine, extends: review}]";
    let layers = limited_layers(policy, replaced, LayerOwner::User);
    let review = layers.modes.resolve("review").unwrap();
    assert_eq!(review.access, Access::ReadOnly);
    assert!(layers.modes.resolve("mine").is_ok(), "the control: users extend it");
    let only = limited_layers(
        "user_may: {define_modes: false}",
        "modes: [{id: mine, extends: code}]",
        LayerOwner::User,
    );
    assert!(only.modes.resolve("mine").is_err() && only.modes.resolve("code").is_ok());
}

#[test]
fn allowed_modes_have_the_meaning_of_the_policy() {
    let policy = "allowed: {modes: [architect, Review]}\nmodes: [{id: review, extends: ask}]";
    let replaced = "modes: [{id: plan, extends: code}, {id: other, extends: code}]\ndefault_mode: other";
    let layers = limited_layers(policy, replaced, LayerOwner::User);
    let ids: Vec<&str> = layers.modes.iter().map(|mode| mode.id.as_str()).collect();
    assert_eq!(ids, ["plan", "review"]);
    assert_eq!(layers.modes.resolve("plan").unwrap().access, Access::ReadOnly);
    assert_eq!(layers.default_mode.as_deref(), Some("plan"));
    let all = limited_layers("{}", replaced, LayerOwner::User);
    assert_eq!(all.modes.resolve("plan").unwrap().access, Access::Full, "the control");
    assert_eq!(all.default_mode.as_deref(), Some("other"), "the control");
}

#[test]
fn places_match_folders_around_and_below_and_unknown_remotes() {
    let policy = checked(&format!(
        "places: [{{paths: ['{ROOT}'], max_mode: plan}}, {{repositories: ['github.com/acme/*'], max_mode: ask}}]"
    ));
    let here = |folders: &[String], remotes: Option<&[&str]>| {
        let place = SessionPlace {
            folders: folders.iter().map(PathBuf::from).collect(),
            remotes: remotes.map(|all| all.iter().map(|remote| (*remote).to_owned()).collect()),
        };
        let ids: Vec<String> = policy.limits(&place).ceilings.iter().map(|mode| mode.id.clone()).collect();
        ids.join(" ")
    };
    let above = Path::new(ROOT).parent().unwrap().to_str().unwrap().to_owned();
    let none = Some(&[][..]);
    for (folders, remotes, expected) in [
        (vec![ROOT.to_owned()], none, "plan"),
        (vec![format!("{ROOT}/app")], none, "plan"),
        (vec![above.clone()], none, "plan"),
        (vec!["/work".to_owned(), format!("{ROOT}/app")], none, "plan"),
        (vec![format!("{ROOT}2")], none, ""),
        (vec!["/work".to_owned()], none, ""),
        (vec!["/work".to_owned()], Some(&["github.com/acme/app"][..]), "ask"),
        (vec!["/work".to_owned()], Some(&["github.com/other/app"][..]), ""),
        (vec!["/work".to_owned()], None, "ask"),
        (vec![ROOT.to_owned()], Some(&["github.com/acme/app"][..]), "plan ask"),
    ] {
        assert_eq!(here(&folders, remotes), expected, "{folders:?} {remotes:?}");
    }
}

#[test]
fn agents_are_limited_by_id_and_external_ones_by_program() {
    let users = "[{id: explore, prompt: x}, {id: mine, prompt: y}, {id: gemini, harness: {command: gemini, args: [--acp]}}]";
    let mut agents = AgentRegistry::default();
    agents.add(&serde_saphyr::from_str::<Vec<_>>(users).unwrap(), AgentOrigin::User).unwrap();
    for (policy, expected) in [
        ("{}", "general explore* mine* gemini*"),
        ("allowed: {agents: [general, EXPLORE]}", "general explore"),
        ("allowed: {agents: [mine, gemini]}", "mine*"),
        ("allowed: {agents: [gemini], programs: [gemini --acp]}", "gemini*"),
        ("allowed: {programs: [other]}", "general explore* mine*"),
        ("allowed: {agents: [none]}", "explore"),
        ("user_may: {define_agents: false}", "general explore"),
    ] {
        let limited = limits(policy).limit_agents(&agents, &|_| None);
        let ids = limited.iter().map(|agent| {
            let mark = if agent.origin == AgentOrigin::BuiltIn { "" } else { "*" };
            format!("{}{mark}", agent.id)
        });
        assert_eq!(ids.collect::<Vec<_>>().join(" "), expected, "{policy}");
    }
}

#[test]
fn listed_program_is_started_by_its_path() {
    let program = if cfg!(windows) { "C:/bin/agent" } else { "/usr/bin/agent" };
    let limits = limits(&format!(
        "allowed: {{programs: ['{program}'], hosts: [a.example]}}\nrequire: {{sandbox: true}}"
    ));
    let definition = serde_saphyr::from_str("{command: agent, env: {PATH: /evil}}").unwrap();
    let limited = limits.limit_external_agent(&definition, &|_| Some(program.into())).unwrap();
    assert_eq!(limited.command, program);
    assert!(limited.requires_broker && limited.host_limit.is_some());
    let refused = limits.limit_external_agent(&definition, &|_| Some("/home/u/bin/agent".into()));
    assert!(refused.unwrap_err().contains("by your organisation's policy"));
}

#[test]
fn users_widen_no_agent_if_the_policy_says_so() {
    let strict = limits("user_may: {widen_agents: false}");
    for (sandbox, expected) in [
        ("{state_dirs: ['~/.gemini']}", None),
        ("{state_dirs: ['~/.gemini', '~/project']}", Some("state directories")),
        ("{state_dirs: [], write_dirs: ['~/project']}", Some("directories to change")),
        ("{state_dirs: [], hosts: [a.example]}", Some("hosts")),
        ("{state_dirs: [], sockets: [docker]}", Some("sockets")),
    ] {
        let definition = serde_saphyr::from_str(&format!("{{command: gemini, sandbox: {sandbox}}}")).unwrap();
        let limited = strict.limit_external_agent(&definition, &|_| None).map(drop);
        assert_eq!(limited.is_err(), expected.is_some(), "{sandbox}: {limited:?}");
        assert!(limited.err().unwrap_or_default().contains(expected.unwrap_or_default()), "{sandbox}");
        assert!(ManagedLimits::default().limit_external_agent(&definition, &|_| None).is_ok(), "the control");
    }
}

#[test]
fn servers_need_the_name_and_the_whole_command() {
    let limits = limits(
        "allowed: {servers: [{name: files, command: /usr/bin/files, args: [--read]}, {name: far, url: 'https://a.example/mcp'}]}",
    );
    let program = |command: &str, args: &[&str]| ServerTransport::Program {
        command: command.into(),
        args: args.iter().map(|word| (*word).to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
    };
    let address = |url: &str| ServerTransport::Address { url: url.into(), headers: Vec::new() };
    for (name, transport, expected) in [
        ("files", program("/usr/bin/files", &["--read"]), true),
        ("files", program("/usr/bin/files", &["--read", "--write"]), false),
        ("files", program("/usr/bin/files", &[]), false),
        ("files", program("files", &["--read"]), false),
        ("Files", program("/usr/bin/files", &["--read"]), false),
        ("other", program("/usr/bin/files", &["--read"]), false),
        ("files", address("https://a.example/mcp"), false),
        ("far", address("https://a.example/mcp"), true),
        ("far", address("https://a.example/mcp@evil"), false),
    ] {
        assert_eq!(limits.allows_server(name, &transport), expected, "{name} {transport:?}");
    }
    assert!(super::ManagedLimits::default().allows_server("any", &program("any", &[])), "the control");
}

#[test]
fn rules_come_first_and_users_cannot_allow_what_they_ask() {
    let policy = "permissions: {deny: ['read_file(**/.env)'], ask: [shell]}";
    let layers = limited_layers(policy, "permissions: {allow: [shell], deny: [fetch]}", LayerOwner::User);
    let rules: Vec<_> = layers.rules.iter().collect();
    assert_eq!(
        rules,
        [("deny", "read_file(**/.env)"), ("deny", "fetch"), ("ask", "shell"), ("allow", "shell")]
    );
    let layers =
        limited_layers("user_may: {allow_calls: false}", "permissions: {allow: [shell]}", LayerOwner::User);
    assert_eq!(layers.rules.iter().count(), 0);
}

#[test]
fn stricter_budget_counts_at_the_prices_of_the_policy() {
    let users = |text: &str| {
        let settings: BudgetSettings = serde_saphyr::from_str(text).unwrap();
        let free = serde_saphyr::from_str("{a/b: {input: 0, output: 0}}").unwrap();
        Budgets {
            limits: settings.limits().unwrap(),
            prices: Prices::new(free).unwrap(),
            ..Budgets::default()
        }
    };
    let both = |policy: &str, user: &str| limits(policy).limit_budgets(&users(user));
    let tokens = |budgets: &Budgets| budgets.limits.get(Period::Day, Figure::Tokens);
    assert_eq!(tokens(&both("budgets: {day: {tokens: 5}}", "{day: {tokens: 9}}")), Some(5));
    assert_eq!(tokens(&both("budgets: {day: {tokens: 5}}", "{day: {tokens: 3}}")), Some(3));
    assert_eq!(tokens(&both("budgets: {day: {tokens: 5}}", "{}")), Some(5));
    assert_eq!(tokens(&both("{}", "{day: {tokens: 9}}")), Some(9));
    assert_eq!(both("budgets: {day: {cost_usd: 5}}", "{}").prices, Prices::default());
    assert_eq!(both("budgets: {day: {tokens: 5}}", "{}").prices, users("{}").prices, "the control");
}

/// No value of any key makes a session allow more than without the policy.
#[test]
fn strictest_limits_exceed_no_other_policy() {
    let strictest = ManagedLimits::strictest(&Diagnostic::of_file("policy.yaml", "it is broken"));
    let ceiling: &Mode = &strictest.ceilings[0];
    assert_eq!((ceiling.access, ceiling.network), (Access::ReadOnly, Network::Deny));
    for mode in Modes::built_in().iter() {
        assert!(!compare::allows_more(&strictest.ceilings, &[Arc::new(mode.clone())]), "{}", mode.id);
    }
    assert!(!strictest.models.admit(&ModelId::new("anthropic/claude-opus-5-5")));
    assert!(strictest.models.admit(&ModelId::new("offline")));
    assert!(!strictest.hosts.as_ref().unwrap().allow_server("api.anthropic.com", 443));
    assert!(strictest.require.names().iter().all(|(_, is_set)| *is_set));
    assert!(strictest.user_may.names().iter().all(|(_, may)| !may));
    assert!(strictest.fault.as_ref().unwrap().contains("it is broken"));
}
