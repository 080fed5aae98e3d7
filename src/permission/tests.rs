//! Tests of the decision table, the scope of grants, and properties of all ceilings and grants.

use proptest::prelude::*;

use super::*;
use crate::mode::Modes;

const EFFECTS: [Effect; 8] = [
    Effect::Read,
    Effect::Session,
    Effect::Delegate,
    Effect::Network,
    Effect::Edit,
    Effect::Execute,
    Effect::State,
    Effect::Unknown,
];

fn mode(yaml: &str) -> Mode {
    let definition: crate::mode::definition::ModeDefinition =
        serde_saphyr::from_str(&format!("id: m\nname: M\ndescription: d\n{yaml}")).unwrap();
    definition.complete(None).unwrap()
}

fn rules(yaml: &str) -> Rules {
    serde_saphyr::from_str::<rules::RuleTexts>(yaml).unwrap().compile(true).unwrap()
}

fn decide(modes: &[&Mode], grants: &Grants, call: &CallFacts) -> Verdict {
    let modes = modes.iter().map(|mode| Arc::new((*mode).clone())).collect();
    super::decide(&Ceilings { modes, rules: vec![Arc::default()] }, grants, call)
}

fn call(effect: Effect, targets: &[&str]) -> CallFacts {
    let target = |path: &&str| Target {
        path: Path::new("/root").join(path),
        inside: (!path.starts_with('/')).then(|| path.into()),
    };
    CallFacts { targets: targets.iter().map(target).collect(), ..CallFacts::of_tool("tool", effect) }
}

fn verdict(mode: &Mode, grants: &Grants, call: &CallFacts) -> &'static str {
    match decide(&[mode], grants, call) {
        Verdict::Allow => "allow",
        Verdict::Ask(_) => "ask",
        Verdict::Deny(denial) => denial.rule,
    }
}

#[test]
fn built_in_modes_decide_every_effect() {
    let modes = Modes::built_in();
    let row = |id: &str| {
        let mode = modes.resolve(id).unwrap();
        EFFECTS.map(|effect| verdict(mode, &Grants::default(), &call(effect, &[])))
    };
    assert_eq!(row("ask"), ["allow", "allow", "allow", "ask", "ask", "ask", "ask", "ask"]);
    assert_eq!(row("plan"), ["allow", "allow", "allow", "ask", "access", "access", "access", "access"]);
    assert_eq!(row("code"), ["allow"; 8]);
}

#[test]
fn writes_stay_inside_the_roots_and_the_write_paths() {
    let docs = mode("access: edit\npermission: auto\nnetwork: deny\nwrite_paths: ['docs/**']");
    let check = |targets: &[&str], expected| {
        assert_eq!(verdict(&docs, &Grants::default(), &call(Effect::Edit, targets)), expected, "{targets:?}");
    };
    check(&[], "allow");
    check(&["docs/a/b.md"], "allow");
    check(&["docs/a.md", "src/lib.rs"], "write_paths");
    check(&["/etc/hosts"], "roots");
    let code = Modes::built_in().resolve("code").unwrap().clone();
    assert_eq!(verdict(&code, &Grants::default(), &call(Effect::Edit, &["/etc/hosts"])), "roots");
}

#[test]
fn write_paths_deny_unknown_effects() {
    let wide = mode("access: full\npermission: auto");
    let narrow = mode("access: full\npermission: auto\nwrite_paths: ['docs/**']");
    for (mode, expected) in [(&wide, "allow"), (&narrow, "write_paths")] {
        assert_eq!(verdict(mode, &Grants::default(), &call(Effect::Unknown, &[])), expected);
        assert_eq!(verdict(mode, &Grants::default(), &call(Effect::State, &[])), "allow");
    }
}

#[test]
fn reads_outside_the_roots_ask_unless_granted() {
    let code = Modes::built_in().resolve("code").unwrap().clone();
    let mut grants = Grants::default();
    assert_eq!(verdict(&code, &grants, &call(Effect::Read, &["/etc/ssl/x"])), "ask");
    grants.allow("code", Scope::Below("tool".into(), "/etc".into()));
    assert_eq!(verdict(&code, &grants, &call(Effect::Read, &["/etc/ssl/x"])), "allow");
    assert_eq!(verdict(&code, &grants, &call(Effect::Read, &["/usr/x"])), "ask");
}

#[test]
fn grant_covers_only_its_own_target_in_a_call() {
    let code = Modes::built_in().resolve("code").unwrap().clone();
    let mut grants = Grants::default();
    grants.allow("code", Scope::Below("tool".into(), "/ext/a".into()));
    let both = call(Effect::Read, &["/ext/a", "/home/.ssh/id"]);
    let missing = vec![Scope::Below("tool".into(), "/home/.ssh/id".into())];
    assert_eq!(decide(&[&code], &grants, &both), Verdict::Ask(missing));
    assert_eq!(verdict(&code, &grants, &call(Effect::Read, &["/ext/a", "inside"])), "allow");
    grants.reject("code", Scope::Below("tool".into(), "/home/.ssh".into()));
    assert_eq!(verdict(&code, &grants, &both), "rejected_always");
}

#[test]
fn grants_apply_in_their_mode_and_lift_no_denial() {
    let modes = Modes::built_in();
    let (ask, plan) = (modes.resolve("ask").unwrap(), modes.resolve("plan").unwrap());
    let write = call(Effect::Edit, &["a.txt"]);
    let mut grants = Grants::default();
    grants.allow("code", Scope::Tool("tool".into()));
    assert_eq!(verdict(ask, &grants, &write), "ask");
    grants.allow("ask", Scope::Tool("tool".into()));
    grants.allow("plan", Scope::Tool("tool".into()));
    assert_eq!(verdict(ask, &grants, &write), "allow");
    assert_eq!(verdict(plan, &grants, &write), "access");
}

#[test]
fn reject_always_denies_in_its_mode_only() {
    let modes = Modes::built_in();
    let mut grants = Grants::default();
    grants.reject("ask", Scope::Tool("tool".into()));
    let write = call(Effect::Edit, &["a.txt"]);
    assert_eq!(verdict(modes.resolve("ask").unwrap(), &grants, &write), "rejected_always");
    assert_eq!(verdict(modes.resolve("code").unwrap(), &grants, &write), "allow");
}

#[test]
fn no_ceilings_deny_everything() {
    assert!(matches!(decide(&[], &Grants::default(), &call(Effect::Read, &[])), Verdict::Deny(_)));
}

fn any_mode() -> impl Strategy<Value = Mode> {
    let access = prop::sample::select(vec!["read_only", "edit", "full"]);
    let permission = prop::sample::select(vec!["ask", "auto"]);
    let network = prop::sample::select(vec!["allow", "ask", "deny"]);
    let tools = prop::sample::select(vec!["{}", "{allow: []}", "{allow: ['t*']}", "{deny: ['tool']}"]);
    let paths = prop::sample::select(vec!["", "write_paths: []", "write_paths: ['docs/**']"]);
    (access, permission, network, tools, paths).prop_map(|(access, permission, network, tools, paths)| {
        mode(&format!(
            "access: {access}\npermission: {permission}\nnetwork: {network}\ntools: {tools}\n{paths}"
        ))
    })
}

fn strictness(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::Ask(_) => 1,
        Verdict::Deny(_) => 2,
    }
}

proptest! {
    #[test]
    fn additional_ceiling_never_allows_more(
        modes in prop::collection::vec(any_mode(), 1..4),
        extra in any_mode(),
        effect in prop::sample::select(EFFECTS.to_vec()),
        target in prop::sample::select(vec!["docs/a.md", "src/lib.rs", "/etc/hosts"]),
        granted in any::<bool>(),
    ) {
        let mut grants = Grants::default();
        if granted {
            grants.allow("m", Scope::Tool("tool".into()));
        }
        let call = call(effect, &[target]);
        let ceilings: Vec<&Mode> = modes.iter().collect();
        let before = decide(&ceilings, &grants, &call);
        let mut more = ceilings.clone();
        more.push(&extra);
        let after = decide(&more, &grants, &call);
        prop_assert!(strictness(&after) >= strictness(&before));
        more[1..].reverse();
        prop_assert_eq!(strictness(&decide(&more, &grants, &call)), strictness(&after));
    }

    #[test]
    fn grants_never_change_a_denial(
        mode in any_mode(),
        effect in prop::sample::select(EFFECTS.to_vec()),
        target in prop::sample::select(vec!["docs/a.md", "src/lib.rs", "/etc/hosts"]),
    ) {
        let call = call(effect, &[target]);
        let mut grants = Grants::default();
        let before = decide(&[&mode], &grants, &call);
        grants.allow("m", Scope::Tool("tool".into()));
        grants.allow("m", Scope::Below("tool".into(), "/".into()));
        let after = decide(&[&mode], &grants, &call);
        prop_assert_eq!(matches!(before, Verdict::Deny(_)), matches!(after, Verdict::Deny(_)));
    }
}

/// A tool that claims to read asks wherever an unknown effect would ask or be denied. It is never denied.
#[test]
fn claimed_readers_ask_unless_changes_are_allowed() {
    let of = |server: &str, flips| CallFacts {
        claim: Some(Claim { server: server.into(), flips }),
        ..CallFacts::of_tool(format!("mcp__{server}__look"), Effect::Read)
    };
    let doubted = CallFacts { claim: None, effect: Effect::Unknown, ..of("s", 0) };
    let believed = CallFacts { claim: None, ..of("s", 0) };
    let built_in = Modes::built_in();
    let mut modes: Vec<Mode> = built_in.iter().cloned().collect();
    for text in [
        "access: edit\npermission: auto",
        "access: full\npermission: auto\nwrite_paths: ['a/**']",
        "access: full\npermission: auto",
    ] {
        modes.push(mode(text));
    }
    let none = Grants::default();
    for mode in &modes {
        let runs = verdict(mode, &none, &doubted) == "allow";
        assert_eq!(verdict(mode, &none, &of("s", 0)), if runs { "allow" } else { "ask" }, "{mode:?}");
        assert_eq!(verdict(mode, &none, &believed), "allow", "{mode:?}");
        // A second ceiling counts as well.
        let plan = built_in.resolve("plan").unwrap();
        assert!(matches!(decide(&[mode, plan], &none, &of("s", 0)), Verdict::Ask(_)), "{mode:?}");
        if runs {
            continue;
        }
        let (id, scope) = (mode.id.as_str(), Scope::Claims("s".into(), 0));
        assert_eq!(decide(&[mode], &none, &of("s", 0)), Verdict::Ask(vec![scope.clone()]));
        let mut grants = Grants::default();
        grants.allow("another", scope.clone());
        assert_eq!(verdict(mode, &grants, &of("s", 0)), "ask", "a grant applies only in its mode");
        grants.allow(id, scope.clone());
        assert_eq!(verdict(mode, &grants, &of("s", 0)), "allow");
        assert_eq!(verdict(mode, &grants, &of("other", 0)), "ask", "another server");
        assert_eq!(
            verdict(mode, &grants, &of("s", 1)),
            "ask",
            "the server claims more than the grant covers"
        );
        assert_ne!(verdict(mode, &grants, &doubted), "allow", "a granted claim allows no changes");
        grants.reject(id, scope);
        assert_eq!(verdict(mode, &grants, &of("s", 0)), "rejected_always");
        let mut grants = Grants::default();
        grants.allow(id, Scope::Tool("mcp__s__look".into()));
        assert_eq!(verdict(mode, &grants, &of("s", 7)), "allow", "a grant for the tool covers its claims");
        grants.reject(id, Scope::Tool("mcp__s__look".into()));
        assert_eq!(verdict(mode, &grants, &of("s", 7)), "rejected_always");
    }
}

fn line(tool: &str, texts: &[&str], is_understood: bool) -> CallFacts {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let line = texts.join(" && ");
    let parts =
        if texts.len() > 1 { texts.iter().cloned().map(CommandScope::line).collect() } else { vec![] };
    let commands = Commands::Line {
        plain: texts.clone(),
        texts,
        is_understood,
        always: vec![CommandScope::line(line.clone())],
        parts,
        invocations: None,
        before: None,
        line,
    };
    CallFacts { shell: ShellUse::Full, commands, ..CallFacts::of_tool(tool, Effect::Execute) }
}

#[test]
fn rules_deny_then_ask_then_allow_below_the_mode() {
    let modes = Modes::built_in();
    let rules = Arc::new(rules(
        "deny: ['read_file(**/.env)', 'shell(rm *)', 'mcp__*']\nask: ['shell(git push *)', write_file]\nallow: ['shell(git *)', 'tool(/opt/**)', write_file, 'shell(make)']",
    ));
    let check = |mode: &str, call: &CallFacts, expected: &str| {
        let ceilings = Ceilings { modes: modes.ceilings(mode).unwrap(), rules: vec![Arc::clone(&rules)] };
        let found = match super::decide(&ceilings, &Grants::default(), call) {
            Verdict::Allow => "allow",
            Verdict::Ask(_) => "ask",
            Verdict::Deny(denial) => denial.rule,
        };
        assert_eq!(found, expected, "{mode}: {call:?}");
        let explained = explain(&ceilings, call);
        let begins = match expected {
            "allow" => "allowed",
            "ask" => "asked",
            _ => "denied",
        };
        assert!(explained.starts_with(begins), "{explained}");
    };
    let named = |tool: &str, targets: &[&str]| CallFacts { tool: tool.into(), ..call(Effect::Read, targets) };
    check("code", &named("read_file", &["src/.env"]), "deny_rule");
    check("code", &named("read_file", &[".env"]), "deny_rule");
    check("code", &named("read_file", &["src/env"]), "allow");
    check("code", &named("read_file", &[]), "allow");
    check("code", &CallFacts::of_tool("mcp__x", Effect::Unknown), "deny_rule");
    check("ask", &named("tool", &["/opt/x/y"]), "allow");
    check("ask", &named("tool", &["/opt/x", "/etc/x"]), "ask");
    check("code", &CallFacts::of_tool("write_file", Effect::Edit), "ask");
    check("plan", &CallFacts::of_tool("write_file", Effect::Edit), "access");
    check("ask", &line("shell", &["git status"], true), "allow");
    check("ask", &line("shell", &["git status", "ls"], true), "ask");
    check("ask", &line("shell", &["git status"], false), "ask");
    check("ask", &line("shell", &["make"], true), "allow");
    check("ask", &line("shell", &["make x"], true), "ask");
    check("code", &line("shell", &["git push"], true), "ask");
    check("code", &line("shell", &["sh -c x"], false), "ask");
    check("code", &line("shell", &["rm x"], true), "deny_rule");
    check("code", &line("shell", &["ls", "rm -rf x"], false), "deny_rule");
    check("code", &line("shell", &["rm"], true), "deny_rule");
    check("code", &line("shell", &["rmdir x"], true), "allow");
    check("plan", &line("shell", &["git status"], true), "access");
}

/// Records of earlier versions do not contain the programs of a line.
#[test]
fn old_records_are_decided_by_comparing_words() {
    let rules =
        rules("deny: ['shell(git push *)']\nask: ['shell(make *)']\nallow: ['shell(ls *)', 'shell(cat *)']");
    let ceilings =
        Ceilings { modes: Modes::built_in().ceilings("ask").unwrap(), rules: vec![Arc::new(rules)] };
    let decide = |call: &CallFacts| match super::decide(&ceilings, &Grants::default(), call) {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Ask(_) => ask_reason(&ceilings, call).to_string(),
        Verdict::Deny(denial) => denial.rule.to_owned(),
    };
    let old = |texts: &[&str], is_understood| line("shell", texts, is_understood);
    assert_eq!(decide(&old(&["git push x"], true)), "deny_rule");
    assert_eq!(decide(&old(&["git -C . push"], true)), "permission: ask");
    assert!(decide(&old(&["for i in 1"], false)).contains("deny shell(git push *)"));
    assert_eq!(decide(&old(&["ls", "cat"], true)), "permission: ask", "one rule had to match all commands");
    // The controls: the same with the programs of the line.
    let new = |text: &str| {
        let words = text.split(' ').map(|word| CommandWord::Text(word.into())).collect();
        let commands = vec![Invocation { words, essential: None }];
        let mut call = line("shell", &[text], false);
        if let Commands::Line { invocations, .. } = &mut call.commands {
            *invocations = Some(Box::new(Invocations { commands, ..Invocations::default() }));
        }
        call
    };
    assert_eq!(decide(&new("true")), "permission: ask");
    assert_eq!(decide(&new("git push x")), "deny_rule");
    let mut both = old(&["ls", "cat"], true);
    if let Commands::Line { invocations, .. } = &mut both.commands {
        *invocations = Some(Box::default());
    }
    assert_eq!(decide(&both), "allow");
}

fn fetch(scheme: &str, host: &str, port: Option<u16>, path: &str, plain: &str) -> CallFacts {
    let address = Address {
        url: format!("{scheme}://{host}{path}"),
        scheme: scheme.into(),
        host: host.into(),
        port,
        path: path.into(),
        plain_path: plain.into(),
    };
    CallFacts { address: Some(address), ..CallFacts::of_tool("fetch", Effect::Network) }
}

#[test]
fn address_rules_match_hosts_and_never_url_paths() {
    let of = |host: &str, path: &str| fetch("https", host, None, path, path);
    let check = |pattern: &str, call: &CallFacts, denies: bool, allows: bool| {
        let found = ["deny", "allow"].map(|kind| {
            let rules = rules(&format!("{kind}: ['fetch({pattern})']"));
            if kind == "deny" { rules.denying(call).is_some() } else { !rules.allowing(call).is_empty() }
        });
        assert_eq!(found, [denies, allows], "{pattern} {call:?}");
    };
    check("https://docs.rs/*", &of("docs.rs", "/a/b?c=d"), true, true);
    check("https://docs.rs", &of("docs.rs", "/a"), true, true);
    check("docs.rs", &of("docs.rs", "/"), true, true);
    check("DOCS.rs/a*", &of("docs.rs", "/a"), true, true);
    check("https://docs.rs/*", &fetch("http", "docs.rs", None, "/", "/"), false, false);
    check("https://docs.rs/*", &of("docs.rs.evil.example", "/"), false, false);
    check("https://docs.rs/*", &of("evil.example", "/https://docs.rs/"), false, false);
    check("*.rs", &of("evil.example", "/x.rs"), false, false);
    check("https://*.rs/*", &of("evil.example", "/x.rs/y"), false, false);
    check("*", &of("evil.example", "/"), true, true);
    // Another port is a different server for allow, and the same server for deny.
    let other_port = fetch("http", "localhost", Some(8080), "/", "/");
    check("localhost", &other_port, true, false);
    check("localhost:8080", &other_port, true, true);
    // Another spelling of a path is the same path for deny.
    check("h/secret*", &fetch("https", "h", None, "/%73ecret", "/secret"), true, false);
    // An allow rule for a path that is never the plain form matches nothing.
    for (rule, is_usable) in [("fetch(h/a;b)", false), ("fetch(h/a)", true), ("*(src//a)", true)] {
        let rule = rules::Rule::parse(rule).unwrap();
        assert_eq!(rule.check_allow().is_ok(), is_usable);
    }
    // File patterns match no addresses, and address patterns match no files.
    for pattern in ["/etc/**", "{src/a,src/b}"] {
        let all = rules(&format!("deny: ['*({pattern})']"));
        assert!(all.denying(&of("etc", "/x")).is_none() && all.denying(&of("src", "/a")).is_none());
        let reason = rules::Rule::parse(&format!("fetch({pattern})")).unwrap_err();
        assert!(reason.contains("is not a rule"), "{reason}");
    }
    assert!(
        rules("deny: ['read_file({src/a,src/b})']")
            .denying(&CallFacts { tool: "read_file".into(), ..call(Effect::Read, &["src/b"]) })
            .is_some()
    );
}

#[test]
fn origin_grants_cover_a_single_scheme_and_port() {
    let modes = Modes::built_in();
    let ask = modes.resolve("ask").unwrap();
    let mut grants = Grants::default();
    let call = fetch("https", "docs.rs", None, "/a", "/a");
    let scope = Scope::Origin("fetch".into(), "https://docs.rs".into());
    assert_eq!(decide(&[ask], &grants, &call), Verdict::Ask(vec![scope.clone()]));
    grants.allow("ask", scope.clone());
    assert_eq!(verdict(ask, &grants, &fetch("https", "docs.rs", None, "/b", "/b")), "allow");
    assert_eq!(verdict(ask, &grants, &fetch("http", "docs.rs", None, "/a", "/a")), "ask");
    assert_eq!(verdict(ask, &grants, &fetch("https", "docs.rs", Some(8443), "/a", "/a")), "ask");
    assert_eq!(verdict(modes.resolve("plan").unwrap(), &grants, &call), "ask", "inert in another mode");
    grants.reject("code", scope);
    assert_eq!(verdict(modes.resolve("code").unwrap(), &grants, &call), "rejected_always");
    let offline = mode("access: read_only\nnetwork: deny");
    grants.allow("m", Scope::Origin("fetch".into(), "https://docs.rs".into()));
    assert_eq!(verdict(&offline, &grants, &call), "network", "never lifts a denial");
}

#[test]
fn invalid_permission_rules_are_reported() {
    for (text, words) in [
        ("", "names no tool"),
        ("shell(", "does not end with )"),
        ("a b", "names no tool"),
        ("x([)", "unclosed"),
        ("fetch(https://{a/b,c})", "unclosed"),
        ("*(https://x:port/*)", "is not a port"),
        ("fetch(ftp://x)", "neither http nor https"),
    ] {
        let error = rules::Rule::parse(text).unwrap_err();
        assert!(error.contains(words) && error.contains("TOOL(PATTERN)"), "{error}");
    }
}

#[test]
fn allows_more_compares_modes() {
    let modes = Modes::built_in();
    let of = |id: &str| modes.resolve(id).unwrap().clone();
    let docs = mode("access: edit\nwrite_paths: ['docs/**']");
    let listed = mode("access: read_only\ntools: {allow: [read_file]}");
    for (new, old, expected) in [
        (&of("code"), &of("plan"), true),
        (&of("ask"), &of("plan"), true),
        (&of("code"), &of("ask"), true),
        (&of("plan"), &of("code"), false),
        (&of("ask"), &of("code"), false),
        (&docs, &of("plan"), true),
        (&of("plan"), &docs, true),
        (&of("ask"), &docs, true),
        (&of("plan"), &listed, true),
        (&listed, &of("plan"), false),
        (&docs, &docs, false),
    ] {
        assert_eq!(compare::allows_more(&[new], &[old]), expected, "{} after {}", new.id, old.id);
    }
    let (code, plan) = (of("code"), of("plan"));
    assert!(!compare::allows_more(&[&code, &plan], &[&plan]), "a further ceiling limits the mode");
}

#[test]
fn any_covering_grant_allows_a_command_line() {
    let ask = Modes::built_in().resolve("ask").unwrap().clone();
    let run = |scope: CommandScope| Scope::Run("shell".into(), scope);
    let (program, exact) = (CommandScope::program("`ls` here".into()), CommandScope::line("ls a".into()));
    let of = |always: Vec<CommandScope>| {
        let mut call = line("shell", &["ls a"], true);
        if let Commands::Line { always: all, .. } = &mut call.commands {
            *all = always;
        }
        call
    };
    let call = of(vec![program.clone(), exact.clone()]);
    assert_eq!(decide(&[&ask], &Grants::default(), &call), Verdict::Ask(vec![run(program.clone())]));
    for scope in [&program, &exact] {
        let mut grants = Grants::default();
        grants.allow("ask", run(scope.clone()));
        assert_eq!(decide(&[&ask], &grants, &call), Verdict::Allow);
        let mut grants = Grants::default();
        grants.allow("ask", run(scope.clone().within(Some("sub"))));
        assert_eq!(verdict(&ask, &grants, &call), "ask", "in another folder");
        let mut grants = Grants::default();
        grants.reject("ask", run(scope.clone()));
        assert_eq!(verdict(&ask, &grants, &call), "rejected_always");
    }
    // A call that cannot be shown in full has no "always" option.
    assert_eq!(decide(&[&ask], &Grants::default(), &of(Vec::new())), Verdict::Ask(Vec::new()));
    // Grants of an earlier version allow nothing.
    let mut grants = Grants::default();
    grants.allow("ask", Scope::Command("shell".into(), "ls".into()));
    grants.allow("ask", Scope::Command("shell".into(), "ls a".into()));
    assert_eq!(verdict(&ask, &grants, &call), "ask");
}

#[test]
fn line_needs_its_own_grant_and_inherits_part_rejections() {
    let ask = Modes::built_in().resolve("ask").unwrap().clone();
    let run = |text: &str| Scope::Run("shell".into(), CommandScope::line(text.into()));
    let both = line("shell", &["make a", "make b"], true);
    let mut grants = Grants::default();
    grants.allow("ask", run("make a"));
    grants.allow("ask", run("make b"));
    assert_eq!(decide(&[&ask], &grants, &both), Verdict::Ask(vec![run("make a && make b")]));
    grants.allow("ask", run("make a && make b"));
    assert_eq!(verdict(&ask, &grants, &both), "allow");
    grants.reject("ask", run("make b"));
    assert_eq!(verdict(&ask, &grants, &both), "rejected_always");
    assert_eq!(verdict(&ask, &grants, &line("shell", &["make a"], true)), "allow", "the control");
    // Rejections of an earlier version still apply.
    for (old, words, expected) in [
        ("git push", "git push x", "rejected_always"),
        ("git push (in sub)", "git push", "rejected_always"),
        ("git push", "git pushes", "ask"),
        ("git push", "git", "ask"),
    ] {
        let mut grants = Grants::default();
        grants.reject("ask", Scope::Command("shell".into(), old.into()));
        assert_eq!(verdict(&ask, &grants, &line("shell", &["ls", words], true)), expected, "{old}: {words}");
    }
}

#[test]
fn read_file_path_rules_apply_to_every_reading_tool() {
    let named = |tool: &str, path: &[&str]| CallFacts { tool: tool.into(), ..call(Effect::Read, path) };
    let verdict = |rule: &str, facts: &CallFacts| {
        let kinds = ["deny", "ask", "allow"].map(|kind| rules(&format!("{kind}: ['{rule}']")));
        let [deny, ask, allow] = &kinds;
        [deny.denying(facts).is_some(), ask.asking(facts).is_some(), !allow.allowing(facts).is_empty()]
    };
    let readers = [
        "search_files",
        "edit_file",
        "apply_patch",
        "move_file",
        "read_skill",
        "find_files",
        "list_directory",
        "directory_tree",
    ];
    for tool in readers {
        assert_eq!(
            verdict("read_file(secret/**)", &named(tool, &["secret/a"])),
            [true, true, false],
            "{tool}"
        );
        assert_eq!(verdict("read_*(secret/**)", &named(tool, &["secret/a"]))[..2], [true, true], "{tool}");
        assert_eq!(verdict("read_file(secret/**)", &named(tool, &["open/a"])), [false; 3], "{tool}");
        assert_eq!(verdict("write_file(secret/**)", &named(tool, &["secret/a"])), [false; 3], "{tool}");
        // Without a pattern, the rule also applies to tools with the same effect.
        let does_the_same = tool == "search_files";
        assert_eq!(verdict("read_file", &named(tool, &[])), [does_the_same, does_the_same, false], "{tool}");
    }
    for tool in ["write_file", "delete_file", "shell", "mcp__s__read"] {
        assert_eq!(verdict("read_file(secret/**)", &named(tool, &["secret/a"])), [false; 3], "{tool}");
    }
}

#[test]
fn files_below_a_search_are_decided_individually() {
    let below = |text: &str, searched: &str| {
        let ceilings = Ceilings {
            modes: Modes::built_in().ceilings("plan").unwrap(),
            rules: vec![Arc::new(rules(text))],
        };
        let facts = CallFacts { tool: "search_files".into(), ..call(Effect::Read, &[searched]) };
        let files = FilesBelow::new(ceilings, Grants::default(), facts);
        ["src/a", "src/b", "c"].map(|path| files.admits(&call(Effect::Read, &[path]).targets[0]))
    };
    assert_eq!(below("{}", "."), [true; 3]);
    assert_eq!(below("deny: ['read_file(src/a)']", "."), [false, true, true]);
    assert_eq!(below("deny: ['search_files(src/**)', '*(c)']", "."), [false; 3]);
    assert_eq!(below("ask: ['read_file(src/a)']", "."), [false, true, true]);
    // The same rule already asked about the search itself.
    assert_eq!(below("ask: [search_files]", "."), [true; 3]);
    assert_eq!(below("ask: ['read_file(src/**)']", "src/a"), [true, true, true]);
    assert_eq!(below("ask: [search_files, 'read_file(src/a)']", "."), [false, true, true]);
}
