//! `docs/reference/tools.md`: the part about every tool is made from the tools themselves.

use std::fmt::Write;

use modegate::agents::{AgentRegistry, Origin};
use modegate::permission::Effect;
use modegate::process::shell::Sandbox;
use modegate::store::entry::effect;
use modegate::tool::{ToolSpec, Toolset};
use serde_json::Value;

use crate::support::shell;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/tools.md");
const BEGIN: &str = "<!-- made from the tools: UPDATE_EXPECT=1 cargo test tools_page -->\n";
const END: &str = "<!-- end -->\n";

/// What a schema wants, in a word or two. What it refers to is looked up in the whole of it.
fn kind(property: &Value, whole: &Value) -> String {
    if let Some(name) = property["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return kind(&whole["$defs"][name], whole);
    }
    if let Some(words) = property["enum"].as_array() {
        return words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if let Some(kinds) = property["anyOf"].as_array().or(property["oneOf"].as_array()) {
        let kinds: Vec<String> = kinds.iter().map(|it| kind(it, whole)).filter(|it| it != "null").collect();
        return kinds.join(" or ");
    }
    if let Some(word) = property["const"].as_str() {
        return format!("`{word}`");
    }
    match &property["type"] {
        Value::String(kind) if kind == "array" => {
            format!("list of {}", self::kind(&property["items"], whole))
        }
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .filter(|kind| *kind != "null")
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "any".into(),
    }
}

fn section(page: &mut String, spec: &ToolSpec) {
    let (name, does) = (&spec.name, effect(spec.effect));
    let limit = match spec.effect {
        // Whoever works has as long as it takes.
        Effect::Delegate => String::new(),
        _ => format!(", at most {} s", spec.timeout.as_secs()),
    };
    write!(page, "\n### `{name}`\n\n*{does}*{limit}. {}\n", spec.description).unwrap();
    let schema = spec.schema.to_value();
    let Some(properties) = schema["properties"].as_object().filter(|all| !all.is_empty()) else {
        return;
    };
    page.push_str("\n| argument | | |\n| --- | --- | --- |\n");
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in properties {
        let kind = kind(property, &schema);
        let needed = if required.contains(&name.as_str()) { "" } else { ", optional" };
        let about =
            property["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        writeln!(page, "| `{name}` | {kind}{needed} | {about} |").unwrap();
        let items = &property["items"];
        let referred = items["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let item = referred.map_or(items, |definition| &schema["$defs"][definition]);
        let required: Vec<&str> =
            item["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (part, property) in item["properties"].as_object().into_iter().flatten() {
            let needed = if required.contains(&part.as_str()) { "" } else { ", optional" };
            let about =
                property["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
            writeln!(page, "| `{name}[].{part}` | {}{needed} | {about} |", self::kind(property, &schema))
                .unwrap();
        }
    }
}

#[test]
fn the_page_has_every_tool_as_it_is() {
    if !modegate::sandbox::support().read_only() || !modegate::sandbox::support().workspace() {
        // Two of the tools are told about differently here.
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let workspace = modegate::workspace::Workspace::new(folder.path(), &[]).unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let (tools, _) = tools.for_session(&workspace);
    let mut agents = AgentRegistry::default();
    agents
        .add(
            &serde_saphyr::from_str::<Vec<_>>("[{id: reviewer, description: One of your own}]").unwrap(),
            Origin::User,
        )
        .unwrap();
    let tools = tools
        .with_agents(&agents)
        .with_skills(&crate::skills::some(folder.path(), &[("one", "One.", "Do it.")]));
    let mut made = String::new();
    for tool in tools.iter() {
        section(&mut made, tool.spec());
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("where the part begins");
    let (there, after) = rest.split_once(END).expect("where it ends");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return std::fs::write(PAGE, format!("{before}{BEGIN}{made}\n{END}{after}")).unwrap();
    }
    assert_eq!(
        there,
        format!("{made}\n"),
        "run UPDATE_EXPECT=1 cargo test tools_page, and read the difference"
    );
}
