//! Merges alternatives at the root of a schema into one object. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Adds the properties of the branches. An argument stays required if every way through the branches requires it.
pub(super) fn merge(members: &mut Map<String, Value>, branches: Vec<Value>, all: bool) {
    let mut common: Option<BTreeSet<String>> = None;
    let mut properties = match members.shift_remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    for branch in branches {
        let Value::Object(mut branch) = branch else { continue };
        if let Some(Value::Object(more)) = branch.shift_remove("properties") {
            for (name, value) in more {
                properties.entry(name).or_insert(value);
            }
        }
        let required: BTreeSet<String> = branch
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        common = Some(match common {
            None => required,
            Some(common) if all => common.union(&required).cloned().collect(),
            Some(common) => common.intersection(&required).cloned().collect(),
        });
        for keyword in ["$defs", "definitions"] {
            if let Some(definitions) = branch.shift_remove(keyword) {
                members.entry(keyword).or_insert(definitions);
            }
        }
    }
    members.insert("properties".into(), properties.into());
    let mut required: Vec<Value> =
        members.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    required.extend(common.into_iter().flatten().map(Value::from));
    let mut seen = BTreeSet::new();
    required.retain(|name| name.as_str().is_some_and(|name| seen.insert(name.to_owned())));
    members.insert("required".into(), required.into());
}
