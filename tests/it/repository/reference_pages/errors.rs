//! `docs/reference/errors.md`, from the error types, the decision function, and messages in the code.

use std::path::PathBuf;
use std::sync::Arc;

use jsonrpsee_types::ErrorObjectOwned;
use modegate::acp::SessionId;
use modegate::error::AgentError;
use modegate::mode::{Mode, ShellUse};
use modegate::permission::{self, CallFacts, Ceilings, Effect, Grants, Scope, Target, Verdict};
use modegate::policy::{LayerOwner, Layers};
use serde_json::json;

use super::{Page, root, source};

/// Members of `data` of -32602, beside `details`.
const MEMBERS: [(&str, &str); 20] = [
    ("expected", "the type that is expected: an object as `params`, or a string as the value of an option"),
    ("reason", "why the parameters do not fit the method"),
    (
        "cwd",
        "the kind of path that is expected; for a session that is active in other folders, its directory",
    ),
    ("additionalDirectories", "the kind of paths that is expected"),
    ("cursor", "the kind of cursor that is expected"),
    ("validMethods", "authentication methods"),
    ("validModes", "ids of the modes"),
    ("validAgents", "ids of the agents"),
    ("validOptions", "ids of the config options"),
    ("validValues", "values of the config option"),
    ("validModels", "ids of the models"),
    ("validTypes", "types of content that a prompt may have"),
    ("validMimeTypes", "types of images that a prompt may have"),
    ("maxBytesInBase64", "the limit for an image"),
    ("maxBytesOfText", "the limit for all texts of the prompt"),
    ("agent", "the agent of the stored session, where only another agent runs"),
    ("sessionId", "the session for which the requested one, a sub-agent's, worked"),
    (
        "code",
        "`unsupported_mode`, with `modeId` and `possible`: an external agent's session cannot have the mode",
    ),
    ("promptBytes", "bytes of a prompt that is too long for the model"),
    ("contextTokens", "tokens that the model takes"),
];

/// Part of a message, its cause, and the remedy.
type Message = (&'static str, &'static str, &'static str);

/// Rules of refused calls of a brokered agent.
const BROKERED: [Message; 5] = [
    (
        permission::OUTSIDE,
        "Modegate refused a change of /home/u/.tool by mkdir: it is outside of the session's folders.",
        "start the session there, or add the folder to it",
    ),
    (
        permission::NAMESPACE,
        "Modegate refused a mount or a namespace of bwrap: in Modegate's sandbox, programs cannot make a sandbox or a \
         container of their own.",
        "switch the program's own sandbox off",
    ),
    (
        permission::TRACE,
        "Modegate refused that gdb reads or controls another process, as debuggers do.",
        "run it outside of Modegate",
    ),
    (permission::REJECTED, "The user rejected this change.", "none: the user decided"),
    (permission::UNANSWERED, "No answer came within 10 minutes.", "answer the request of a brokered agent"),
];

const FOR_USERS: [Message; 25] = [
    (
        "needs permission, and a headless run has no user to ask",
        "a call under `permission: ask`, or a read outside the session's folder, with `-p`",
        "use `--mode code`, an [`allow` rule](../guides/permissions.md#rules), or `--cwd DIR` for reading",
    ),
    (
        "no model is configured, and",
        "`-p` in a mode that changes something, without a provider",
        "set a key, run `modegate setup`, or choose `--model offline` ([models](../guides/models.md))",
    ),
    ("the answer is empty", "`-p` in `plan` without an answer", "look for denied calls on stderr"),
    (
        "The whole file is ignored, including its rules.",
        "a modes file has a fault; the session can do no more than `plan` allows",
        "correct the line that the message shows; `modegate modes check` repeats it",
    ),
    (
        "This session is stored in memory only",
        "the store cannot be used",
        "correct the cause in the message, or name another file with `--store FILE`",
    ),
    (
        "This session is not being recorded",
        "the store cannot be written, such as on a full disk",
        "correct the cause in the message; Modegate then stores the events that it has kept",
    ),
    (
        "the run is not recorded",
        "as before, with `-p`; the exit code is 1",
        "correct the cause, or choose `--store memory` ([sessions](../guides/session-store.md#a-store-that-cannot-be-written))",
    ),
    (
        "Stopped: the same call was refused again and again.",
        "the model repeats a refused call",
        "change the mode, or ask for something else",
    ),
    (
        "Stopped: leaving the mode was rejected three times.",
        "the model presents plan after plan",
        "describe the change that the plan needs",
    ),
    (
        "nothing was undone: ",
        "`/undo` or `modegate sessions undo`",
        "the rest of the message names the cause",
    ),
    (
        "the session is open in another process",
        "`session/load`, `session/delete`, `--resume`",
        "close it there, or end that process",
    ),
    (
        "the session is active here in other folders",
        "`session/load` with another `cwd`",
        "close the session first",
    ),
    ("call initialize first", "a request before `initialize`", "send `initialize`"),
    (
        "unsupported_mode",
        "a mode that limits more than an external agent's sandbox can",
        "choose one of the possible modes that the message names ([external agents](../guides/external-agents.md))",
    ),
    (
        "contains a key and is readable by others",
        "`config.yaml` or `setup.yaml` has a key",
        "run `chmod 600` on the file",
    ),
    (
        "nothing came from stdin within",
        "standard input of `-p` stays open and empty",
        "redirect it: `< /dev/null`",
    ),
    (
        "all changes that it attempts fail.",
        "`modegate run` or `wrap` begins in a mode that changes nothing; this is no error",
        "to allow changes, choose another mode: `--mode code`, or `modegate mode code` while it runs",
    ),
    (
        "the program waits for your answer",
        "a program of `modegate run` changes something in `ask`",
        "answer with `modegate mode`, or choose `--mode plan` or `--mode code` \
         ([terminal programs](../guides/terminal-programs.md))",
    ),
    (
        "limited to",
        "the session's mode permits more than `--max-mode`, a policy, or a modes file with a fault allows",
        "the rest of the message names the limit",
    ),
    (
        "could not be recorded, because",
        "`modegate run` in a mode that permits changes, and a store that cannot be written",
        "correct the cause, or choose `--mode plan`",
    ),
    (
        "file is not a database",
        "something else has written the file of the store",
        "`modegate store reset` sets it aside ([store](store.md))",
    ),
    (
        "another process has it open",
        "`modegate store salvage` or `reset` while an editor or a run uses the store",
        "end them: `modegate mode` names running programs",
    ),
    (
        "Retrying in",
        "the provider is busy, cannot be reached, or broke off its reply",
        "wait, or cancel the turn: Ctrl-C in a headless run",
    ),
    (
        "head of the audit log",
        "the end of a headless run; this is no error",
        "nothing; who keeps the line can show later that the log was not shortened ([audit log](audit-log.md))",
    ),
    (
        "there is nothing to type here",
        "`modegate` in a terminal without `-p`",
        "use `-p TEXT`, or set the command in an editor",
    ),
];

const FOR_MODELS: [Message; 15] = [
    (
        "There is no such tool.",
        "the name is wrong; the message names a similar tool, if there is one",
        "call a tool that is offered",
    ),
    (
        "has changed since you read it.",
        "a change of a file that changed, whose old text is not there as it is, or that replaces the whole; the new lines follow, if they are few",
        "repeat it for the new lines if they are shown, else read the file again",
    ),
    (
        "exists, and you have not read it. Read it first, or change a part of it with edit_file.",
        "`write_file` would replace a file that the model does not know",
        "read the file first",
    ),
    (
        "changed while the permission request was open. Read it again.",
        "a file changed before the user answered",
        "read the file again",
    ),
    (
        "is being changed by another session, an editor or a command,",
        "another writer keeps the file for ten seconds, such as an editor that asks its user",
        "try again later",
    ),
    (
        "a write would lose one of the two.",
        "the editor shows unsaved text, and the file has changed on disk",
        "the user saves or reloads the file in the editor",
    ),
    (
        "names (hard links), and an edit would change only this one.",
        "an edit of a file with several names",
        "change it with a command",
    ),
    (
        "The session's mode has changed and does not allow this call.",
        "a tighter mode ended the call",
        "go on within the new mode",
    ),
    (
        "The user rejected this call and all later calls like it.",
        "the user chose \"always reject\"",
        "do something else",
    ),
    ("took longer than", "the call's timeout is over", "divide the work; `shell` has an argument `timeout`"),
    (
        "Read-only sandbox: writes only below $TMPDIR and in build caches, no network beyond its own 127.0.0.1, no home folder.",
        "the first `shell_read_only` command of a session or after a summary, and those that print a refusal",
        "read in another way, or ask the user to leave the mode",
    ),
    (
        "Sandbox: writes only in the session's folders, $TMPDIR, /tmp and caches.",
        "a `shell` command failed and printed that a write was refused",
        "write there, or the user adds the folder to [`shell.write`](config.md#keys)",
    ),
    (
        "Only public servers and those in the user's settings can be fetched.",
        "`fetch` of a private address",
        "the user adds the server to [`fetch.allow_private`](config.md#keys)",
    ),
    ("nothing was fetched from there.", "the address redirects", "call `fetch` with the new address"),
    (
        "Only the MCP server ",
        "an MCP tool with a read-only hint, without a user to ask",
        "the user sets `trust_hints: true` for the server ([MCP](../guides/mcp.md))",
    ),
];

#[test]
fn errors_page_has_every_error() {
    let mut page = Page::new("Errors");
    page.paragraph(
        "Errors of requests, refusals of calls, and frequent messages with their remedy. A call that fails or is refused \
         is neither a JSON-RPC error nor the end of a turn: the model gets the message as the result of the call.",
    );
    json_rpc(&mut page);
    page.heading(2, "Refused calls");
    page.paragraph(
        "`_meta[\"modegate/denied\"]` of the failed call has the rule. The message is for the model; it never suggests a \
         way around the rule. `modegate modes explain MODE TOOL` decides a call without making it.",
    );
    page.table(["rule", "message, for example", "remedy for the user"], refusals());
    page.heading(2, "Messages for users");
    page.table(["message contains", "when", "remedy"], messages(&FOR_USERS));
    page.heading(2, "Messages for models");
    page.table(["message contains", "when", "remedy"], messages(&FOR_MODELS));
    page.paragraph("Exit codes: [command line](cli.md#exit-codes). Limits: [limits](limits.md).");
    page.check("errors.md");
}

fn json_rpc(page: &mut Page) {
    page.heading(2, "JSON-RPC errors");
    page.paragraph(
        "Every error has `data.details`, which repeats the message for clients that show only `data`. Control characters \
         are replaced by spaces, and a long message is cut.",
    );
    let errors = errors();
    let names: Vec<String> = errors
        .iter()
        .map(|(error, _)| format!("{error:?}").chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect();
    assert_eq!(names, variants(), "every variant of AgentError has a row, in this order");
    page.table(
        ["code", "message", "`data` beside `details`", "when"],
        errors.into_iter().map(|(error, when)| {
            let object = ErrorObjectOwned::from(error);
            let data: serde_json::Value = serde_json::from_str(object.data().unwrap().get()).unwrap();
            assert_eq!(data["details"], object.message());
            let members = data.as_object().unwrap().keys().filter(|key| *key != "details");
            let members: Vec<String> =
                members.map(|key| if key == "…" { "see below".into() } else { format!("`{key}`") }).collect();
            [object.code().to_string(), object.message().to_owned(), members.join(", "), when.to_owned()]
        }),
    );
    page.paragraph("Members of `data` of -32602:");
    page.table(["member", "value"], MEMBERS.map(|(name, text)| [format!("`{name}`"), text.to_owned()]));
    let code: String = [
        "rpc/dispatch.rs",
        "agent/open.rs",
        "agent/session_folders.rs",
        "agent/list.rs",
        "agent/initialize.rs",
    ]
    .into_iter()
    .chain([
        "session/command/set_option.rs",
        "session/turn/model_selection.rs",
        "external_agent/capability.rs",
    ])
    .chain([
        "session/subagent/handoff.rs",
        "session/handle.rs",
        "session/mode/effect.rs",
        "session/mode/policy.rs",
    ])
    .map(source)
    .collect();
    for (name, _) in MEMBERS {
        assert!(code.contains(&format!("\"{name}\"")), "no error has the member {name}");
    }
    for part in code.split("json!({ \"").skip(1) {
        let name = part.split('"').next().unwrap();
        let is_known =
            MEMBERS.iter().any(|(member, _)| *member == name) || ["length", "label"].contains(&name);
        assert!(is_known, "the member {name} is not on the page");
    }
}

/// An error of each kind with its cause, in the order of their definition.
fn errors() -> Vec<(AgentError, &'static str)> {
    let text = || "…".to_owned();
    vec![
        (AgentError::NotJson, "the line is no JSON; the answer has the id `null`"),
        (
            AgentError::InvalidRequest(text()),
            "not a request that is valid now: no request object, before `initialize`, too many waiting prompts, a session \
             that another process has open, an undo that is refused",
        ),
        (
            AgentError::MethodNotFound { method: text() },
            "the method is unknown, or its capability was not advertised",
        ),
        (AgentError::invalid_params("…", json!({ "…": null })), "a parameter is invalid"),
        (
            AgentError::UnsupportedVersion { requested: 0 },
            "version 2 is offered, and the client requests none that Modegate has",
        ),
        (AgentError::Cancelled, "the client has cancelled the request"),
        (
            AgentError::UnknownSession(SessionId::new("…")),
            "the session is unknown, or not active on this connection",
        ),
        (AgentError::SessionDied, "a defect of Modegate ended the session; load it again"),
        (
            AgentError::AuthRequired(text()),
            "the provider has no key, or rejects it, or the settings cannot be read; the message names the variable",
        ),
        (AgentError::Model(text()), "the provider or the external agent failed; the message is its own"),
        (AgentError::Unrecorded, "the store cannot be written"),
        (
            AgentError::ModeUnrecorded { mode: "code".into(), unrecorded: "plan".into() },
            "the store cannot be written while a mode is tightened",
        ),
        (AgentError::NoStore(text()), "a session is loaded while the store cannot be used"),
        (AgentError::Unreadable, "the store has the session but cannot read it"),
        (AgentError::Internal, "a defect of Modegate; the log has the cause"),
    ]
}

/// Reads the variants of `AgentError` from its definition.
fn variants() -> Vec<String> {
    let source = source("error.rs");
    let body = source.split("pub enum AgentError {").nth(1).unwrap().split("\n}").next().unwrap();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .filter(|line| line.starts_with(char::is_uppercase))
        .map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect()
}

const MODES: &str = r#"
modes:
  - {id: review, access: read_only, extends: plan, network: deny, tools: {deny: [todo]}}
  - {id: quiet, access: full, permission: auto}
  - {id: docs, extends: plan, access: edit, write_paths: ["docs/**"]}
"#;

#[allow(clippy::too_many_lines, reason = "one table")]
fn refusals() -> Vec<[String; 3]> {
    let mut layers = Layers::default();
    layers.add("modes.yaml", MODES, LayerOwner::User).unwrap();
    let mode = |id: &str| Arc::new(layers.modes.resolve(id).unwrap().clone());
    let edit = |path: &str, inside: Option<&str>| CallFacts {
        targets: vec![Target { path: PathBuf::from(path), inside: inside.map(PathBuf::from) }],
        ..CallFacts::of_tool("write_file", Effect::Edit)
    };
    let fetch = CallFacts::of_tool("fetch", Effect::Network);
    let shell = CallFacts { shell: ShellUse::Full, ..CallFacts::of_tool("shell", Effect::Execute) };
    let leaving = CallFacts { is_exit: true, ..CallFacts::of_tool("switch_mode", Effect::Session) };
    let mut rejected = Grants::default();
    rejected.reject("code", Scope::Tool("write_file".into()));
    let cases: [(&str, Option<Arc<Mode>>, CallFacts, &str); 10] = [
        ("no_mode", None, fetch.clone(), "none: this is a defect"),
        (
            "deny_rule",
            Some(mode("code")),
            fetch.clone(),
            "remove the rule: `modegate permissions revoke RULE`, or edit its file",
        ),
        (
            "tools",
            Some(mode("review")),
            CallFacts::of_tool("todo", Effect::Session),
            "change `tools` of the mode",
        ),
        (
            "access",
            Some(mode("plan")),
            edit("/w/a.rs", Some("a.rs")),
            "switch to a mode with more `access`, such as `code`",
        ),
        ("shell", Some(mode("quiet")), shell, "switch to a mode with `shell: full`"),
        (
            "write_paths",
            Some(mode("docs")),
            edit("/w/a.rs", Some("a.rs")),
            "change `write_paths` of the mode, or the mode",
        ),
        ("network", Some(mode("review")), fetch, "switch to a mode with `network: ask` or `allow`"),
        (
            "roots",
            Some(mode("code")),
            edit("/etc/hosts", None),
            "start a session in that folder, or add the folder to the session",
        ),
        ("exit", Some(mode("code")), leaving, "change the mode yourself: `/code`, the mode selector"),
        (
            "rejected_always",
            Some(mode("code")),
            edit("/w/a.rs", Some("a.rs")),
            "change the mode, or start a new session",
        ),
    ];
    let mut rows: Vec<[String; 3]> = cases
        .into_iter()
        .map(|(rule, mode, facts, remedy)| {
            let denies = rule == "deny_rule";
            let mut rules = permission::rules::Rules::default();
            if denies {
                let mut layers = Layers::default();
                layers.add("modes.yaml", "permissions: {deny: [fetch]}", LayerOwner::User).unwrap();
                rules = layers.rules;
            }
            let ceilings = Ceilings { modes: mode.into_iter().collect(), rules: vec![Arc::new(rules)] };
            let grants = if rule == "rejected_always" { rejected.clone() } else { Grants::default() };
            let Verdict::Deny(denial) = permission::decide(&ceilings, &grants, &facts) else {
                panic!("{rule}")
            };
            assert_eq!(denial.rule, rule);
            [format!("`{rule}`"), denial.message, remedy.to_owned()]
        })
        .collect();
    rows.push([
        "`unknown_tool`".into(),
        "There is no such tool. Did you mean read_file?".into(),
        "none: the model calls another tool".into(),
    ]);
    rows.push([
        format!("`{}`", permission::HOST),
        "The agent gemini tried to connect to example.com, which plan mode does not allow.".into(),
        "`--allow-host`, or `sandbox.hosts` of the agent; a mode that allows changes".into(),
    ]);
    rows.extend(BROKERED.map(|(rule, message, remedy)| [format!("`{rule}`"), message.into(), remedy.into()]));
    rows.push([
        format!("`{}`", permission::HOOK),
        "Refused by the hook guard: no deployments on Fridays. Do not try to get round it.".into(),
        "change the [hook](../guides/hooks.md), if it is yours".into(),
    ]);
    rows.push([
        format!("`{}`", permission::NO_USER),
        "The user could not be asked: no client is connected to answer.".into(),
        "an [`allow` rule](../guides/permissions.md#rules), a mode that does not ask, or an editor".into(),
    ]);
    rows.push([
        format!("`{}`", permission::UNRECORDED),
        "The call was not made, because it could not be recorded: the session store cannot be used: the disk is full. Only \
         the user can correct this."
            .into(),
        "free some space; or set `store: {unrecorded_changes: allow}` in `config.yaml`".into(),
    ]);
    let code = source("permission.rs");
    let quoted = |start: &'static str| {
        code.split(start)
            .skip(1)
            .map(|rest| rest.trim_start().trim_start_matches('"').split('"').next().unwrap().to_owned())
    };
    let constants = quoted("&str = \"");
    for rule in quoted("deny(\n").chain(quoted("deny(\"")).chain(quoted("rule: \"")).chain(constants) {
        assert!(rows.iter().any(|row| row[0] == format!("`{rule}`")), "the rule {rule} is not on the page");
    }
    rows
}

fn messages(messages: &[Message]) -> Vec<[String; 3]> {
    let code = all_code();
    messages
        .iter()
        .map(|(text, when, remedy)| {
            assert!(code.contains(text), "no message contains {text:?}");
            [text.trim_end_matches([':', ' ']).to_owned(), (*when).to_owned(), (*remedy).to_owned()]
        })
        .collect()
}

/// Returns all sources, with the strings that are broken over lines joined.
fn all_code() -> String {
    let (mut folders, mut code) = (vec![root().join("src")], String::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(path).unwrap();
                let mut parts = text.split("\\\n");
                code.push_str(parts.next().unwrap());
                parts.for_each(|part| code.push_str(part.trim_start()));
            }
        }
    }
    code
}
