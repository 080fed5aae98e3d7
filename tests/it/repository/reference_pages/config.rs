//! `docs/reference/config.md`, from the types that read the file.

use modegate::config::user_file::{self, UserFile};
use modegate::mode::ToolList;
use modegate::model::Effort;
use modegate::model::catalog::PROVIDERS;
use modegate::process::shell::Sandbox;
use modegate::store::Sync;
use schemars::JsonSchema;
use serde_json::Value;

use super::constants::{Constant, read};
use super::{Page, type_of, without_default};

const EXAMPLE: &str = r#"
model: openai/qwen3-coder
small_model: openai/another-model
reasoning_effort: high
tool_list: mask
shell:
  read: [~/reference]
  write: [/srv/build]
run:
  key: ctrl-x
  questions: bell
fetch:
  allow_private: ["localhost:8080", "wiki.corp", "127.0.0.1:*"]
  proxy: http://proxy.corp:3128
providers:
  openai:
    base_url: https://llm.example.org/v1
    key_command: pass show llm
    models: [{ name: qwen3-coder, context: 262144, images: false }, another-model]
"#;

pub(super) struct Key {
    pub path: String,
    pub kind: String,
    pub text: String,
    pub default: Option<String>,
}

#[test]
fn config_page_has_every_key() {
    let keys = keys();
    let mut page = Page::new("`config.yaml`");
    page.paragraph(
        "Your own settings are in `$XDG_CONFIG_HOME/modegate/config.yaml` (default: `~/.config/modegate/config.yaml`). \
         `modegate setup` writes `setup.yaml` beside it, in the same format; a key in `config.yaml` takes precedence. A \
         project has no such file.",
    );
    page.code("yaml", EXAMPLE.trim_start());
    page.paragraph(
        "A test reads this example. Every key is optional. An unknown key is an error that names it.",
    );
    page.heading(2, "Keys");
    page.table(
        ["key", "type", "default", "meaning"],
        keys.into_iter()
            .map(|key| [format!("`{}`", key.path), key.kind, key.default.unwrap_or_default(), key.text]),
    );
    page.heading(2, "When the file is read");
    page.list([
        "The models, the effort and the providers: at the start, and again for a new session if a file has changed."
            .to_owned(),
        "All other keys: at the start of Modegate.".to_owned(),
        "`modegate doctor` reports a file that cannot be used, obsolete keys, and paths in `shell` that do not exist."
            .to_owned(),
    ]);
    page.paragraph(
        "Modes, rules, agents and MCP servers are in the [modes file](modes-file.md). Which model answers, and where a \
         key is sent: [providers](providers.md).",
    );
    page.check("config.md");
}

#[test]
fn config_page_example_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(user_file::CONFIG), EXAMPLE).unwrap();
    let file = user_file::read(Some(folder.path())).unwrap();
    assert_eq!(file.model.as_deref(), Some("openai/qwen3-coder"));
    file.fetch.unwrap().to_fetch_client().unwrap();
}

#[test]
fn config_page_defaults_match_the_code() {
    let Constant::Time(reading) = read("config.rs", "READING_TIME") else { panic!("a time") };
    let lower = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let keys = keys();
    for (path, expected) in [
        ("reasoning_effort", Effort::default().as_str().to_owned()),
        ("tool_list", lower(&ToolList::default())),
        ("shell.sandbox", lower(&Sandbox::default())),
        ("store.sync", lower(&Sync::default())),
        ("fast_answer_ms", reading.as_millis().to_string()),
    ] {
        let key = keys.iter().find(|key| key.path == path).unwrap();
        assert_eq!(key.default.as_ref(), Some(&expected), "{path}");
    }
    let providers = keys.iter().find(|key| key.path == "providers").unwrap();
    assert!(PROVIDERS.iter().all(|provider| providers.text.contains(provider.id)));
}

fn keys() -> Vec<Key> {
    keys_of::<UserFile>(&[])
}

/// The keys of a file, without those within `others`, which another page has.
pub(super) fn keys_of<T: JsonSchema>(others: &[&str]) -> Vec<Key> {
    let schema = schemars::schema_for!(T).to_value();
    let mut keys = Vec::new();
    add(&mut keys, "", &schema, &schema);
    let is_within = |key: &Key| {
        others
            .iter()
            .any(|other| key.path.strip_prefix(other).is_some_and(|rest| rest.starts_with(['.', '['])))
    };
    keys.retain(|key| !is_within(key));
    keys
}

/// Adds the keys of an object, each before those within it.
fn add(keys: &mut Vec<Key>, prefix: &str, object: &Value, whole: &Value) {
    for (name, property) in object["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let (text, default) = without_default(property["description"].as_str().unwrap_or_default());
        let object = object_of(property, whole);
        let kind = match object {
            Some(_) => "object".to_owned(),
            None => type_of(property, whole),
        };
        assert!(!text.is_empty(), "{path} has no description");
        keys.push(Key { path: path.clone(), kind, text, default });
        match object {
            Some(object) if object["properties"].is_object() => add(keys, &format!("{path}."), object, whole),
            Some(map) => {
                let value = object_of(&map["additionalProperties"], whole).unwrap();
                add(keys, &format!("{path}.ID."), value, whole);
            }
            None => {
                let items = &property["items"];
                let referred = items["$ref"].as_str().and_then(|path| path.rsplit('/').next());
                let item = referred.map_or(items, |name| &whole["$defs"][name]);
                if item["properties"].is_object() {
                    add(keys, &format!("{path}[]."), item, whole);
                }
                let kinds = item["anyOf"].as_array().into_iter().flatten();
                for object in kinds.filter_map(|kind| object_of(kind, whole)) {
                    add(keys, &format!("{path}[]."), object, whole);
                }
            }
        }
    }
}

/// Returns the object that a property is or refers to.
fn object_of<'a>(property: &'a Value, whole: &'a Value) -> Option<&'a Value> {
    if let Some(name) = property["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return object_of(&whole["$defs"][name], whole);
    }
    if let Some(kinds) = property["anyOf"].as_array() {
        let mut objects =
            kinds.iter().filter(|kind| kind["type"] != "null").map(|kind| object_of(kind, whole));
        return match (objects.next(), objects.next()) {
            (Some(object), None) => object,
            _ => None,
        };
    }
    (property["type"] == "object").then_some(property)
}
