//! The methods of both versions in `docs/reference/acp.md`, from the tables of methods.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use jsonrpsee::core::server::Methods;
use modegate::rpc::{dispatch, v2};

use super::check_table;
use crate::support::TestClient;

const HEAD: &str = "| version 1 | version 2 | support | test |\n| --- | --- | --- | --- |\n";

/// A method in both versions. `None` if a version has none.
struct Row {
    version_1: Option<&'static str>,
    version_2: Option<&'static str>,
    support: &'static str,
    test: &'static str,
}

const fn both(method: &'static str, support: &'static str, test: &'static str) -> Row {
    Row { version_1: Some(method), version_2: Some(method), support, test }
}

const fn renamed(
    version_1: &'static str,
    version_2: &'static str,
    support: &'static str,
    test: &'static str,
) -> Row {
    Row { version_1: Some(version_1), version_2: Some(version_2), support, test }
}

const fn only_1(method: &'static str, support: &'static str, test: &'static str) -> Row {
    Row { version_1: Some(method), version_2: None, support, test }
}

const fn only_2(method: &'static str, support: &'static str, test: &'static str) -> Row {
    Row { version_1: None, version_2: Some(method), support, test }
}

const ROWS: &[Row] = &[
    both(
        "initialize",
        "must be the first request; may be repeated, in version 2 before the first other request",
        "`connect_initialize.play`, `v2_initialize.play`",
    ),
    renamed(
        "authenticate",
        "auth/login",
        "see [authentication](#authentication)",
        "`connect_initialize.play`, `models/remote`",
    ),
    renamed(
        "logout",
        "auth/logout",
        "see [authentication](#authentication)",
        "`connect_logout.play`, `protocol/version_2`",
    ),
    both(
        "session/new",
        "see [sessions](#sessions)",
        "`connect_errors.play`, `sessions_mcp_not_started.play`, `sessions/load`, `tools/mcp/servers`",
    ),
    only_1(
        "session/load",
        "replays the history before the answer",
        "`sessions_again.play`, `sessions/load`, `sessions/kills`",
    ),
    both(
        "session/resume",
        "opens a session; in version 2 with `replayFrom: {\"type\": \"start\"}` it replays the history, \
         `replay_complete`, the state, the answer",
        "`sessions_again.play`, `sessions/load`, `v2_conversation.play`",
    ),
    only_1(
        "session/fork",
        "copies a session; not part of the stable protocol",
        "`sessions_again.play`, `sessions/load`",
    ),
    both(
        "session/list",
        "the most recent first, 50 a page, filtered by `cwd`",
        "`sessions_again.play`, `sessions/load`",
    ),
    both(
        "session/close",
        "ends a running turn with `cancelled`; the session stays stored; in version 2 an unknown session is no error",
        "`sessions_again.play`, `sessions/load`",
    ),
    both(
        "session/delete",
        "closes and deletes; deleting twice succeeds",
        "`sessions_again.play`, `sessions/load`",
    ),
    both("session/prompt", "see [prompts](#prompts)", "`prompt_*.play`, `v2_*.play`"),
    only_1(
        "session/set_mode",
        "idle or during a turn ([modes](../guides/modes.md#switch-modes)); in version 2 the option `mode` alone",
        "`modes_*.play`, `protocol/stress`",
    ),
    both(
        "session/set_config_option",
        "idle or during a turn; see [options](#options)",
        "`modes_*.play`, `v2_modes.play`, `protocol/stress`, `models/selection`",
    ),
    only_2("tool_call/cancel", "ends one running call; the turn goes on", "`protocol/version_2/calls`"),
    only_2(
        "terminal/cancel",
        "ends listed [background work](#background-work)",
        "`protocol/version_2/background`",
    ),
    both(
        "session/cancel",
        "ends the turn and all waiting prompts; in version 2 not listed background work",
        "`prompt_cancel.play`, `ask_cancel_while_asked.play`, `v2_cancel.play`",
    ),
    both(
        "$/cancel_request",
        "see [cancelled requests](#cancelled-requests)",
        "`prompt_cancel.play`, `v2_cancel.play`, `protocol/cancelled_requests`",
    ),
];

fn table() -> String {
    let mut table = HEAD.to_owned();
    let name = |method: Option<&str>| method.map_or_else(|| "–".to_owned(), |method| format!("`{method}`"));
    for Row { version_1, version_2, support, test } in ROWS {
        writeln!(table, "| {} | {} | {support} | {test} |", name(*version_1), name(*version_2)).unwrap();
    }
    table
}

/// The names in the tables of a version. The connection itself handles `$/cancel_request`.
fn served(requests: &Methods, notifications: &Methods) -> BTreeSet<&'static str> {
    let names = requests.method_names().chain(notifications.method_names());
    names.chain([dispatch::CANCEL_REQUEST]).collect()
}

#[tokio::test]
async fn protocol_page_has_the_methods_of_both_versions() {
    let agent = &TestClient::new().agent;
    let served_1 =
        served(&dispatch::requests(Arc::clone(agent)), &dispatch::notifications(Arc::clone(agent)));
    let served_2 = served(&v2::requests(Arc::clone(agent)), &v2::notifications(Arc::clone(agent)));
    assert_eq!(ROWS.iter().filter_map(|row| row.version_1).collect::<BTreeSet<_>>(), served_1);
    assert_eq!(ROWS.iter().filter_map(|row| row.version_2).collect::<BTreeSet<_>>(), served_2);
    check_table("docs/reference/acp.md", "| version 1 | version 2 | support |", &table());
}
