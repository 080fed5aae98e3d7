//! Reduces a JSON Schema to the keywords that Gemini documents, with references replaced by what they refer to. Pure.

use serde_json::{Map, Value, json};

/// Levels of schemas in each other, also where references lead in a circle.
const MAX_DEPTH: usize = 10;

/// Schemas of the result. References can multiply.
const MAX_SCHEMAS: usize = 300;

const KEPT: [&str; 9] =
    ["type", "title", "description", "minItems", "maxItems", "minimum", "maximum", "format", "enum"];

const FORMATS: [&str; 3] = ["date-time", "date", "time"];

pub(super) fn reduce(schema: &Value) -> Value {
    let mut reduction = Reduction { root: schema, left: MAX_SCHEMAS };
    reduction.schema(schema, 0)
}

struct Reduction<'a> {
    root: &'a Value,
    left: usize,
}

impl Reduction<'_> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Value {
        let Value::Object(members) = schema else { return json!({}) };
        if depth > MAX_DEPTH || self.left == 0 {
            return without_parts(members);
        }
        self.left -= 1;
        let target = members.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        if let Some(Value::Object(target)) = target.and_then(|pointer| self.root.pointer(pointer)) {
            let mut whole = target.clone();
            whole.extend(members.iter().filter(|(keyword, _)| *keyword != "$ref").map(own));
            // A reference to a reference counts as a level, so that a circle of them ends.
            return self.schema(&Value::Object(whole), depth + 1);
        }
        let merged = match members.get("allOf") {
            Some(Value::Array(all)) => self.merged(members, all),
            _ => members.clone(),
        };
        self.object(&merged, depth)
    }

    /// The members of all parts; the schema's own come first.
    fn merged(&self, members: &Map<String, Value>, all: &[Value]) -> Map<String, Value> {
        let mut merged: Map<String, Value> =
            members.iter().filter(|(keyword, _)| *keyword != "allOf").map(own).collect();
        for part in all {
            let target = part["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
            let part = target.and_then(|pointer| self.root.pointer(pointer)).unwrap_or(part);
            for (keyword, value) in part.as_object().into_iter().flatten() {
                match (merged.get_mut(keyword), value) {
                    (None, value) if keyword != "allOf" => {
                        merged.insert(keyword.clone(), value.clone());
                    }
                    (Some(Value::Object(known)), Value::Object(more)) if keyword == "properties" => {
                        for (name, value) in more {
                            known.entry(name.clone()).or_insert_with(|| value.clone());
                        }
                    }
                    (Some(Value::Array(known)), Value::Array(more)) if keyword == "required" => {
                        known.extend(more.iter().cloned());
                    }
                    _ => {}
                }
            }
        }
        merged
    }

    fn object(&mut self, members: &Map<String, Value>, depth: usize) -> Value {
        let mut reduced = Map::new();
        for (keyword, value) in members {
            let value = match (keyword.as_str(), value) {
                ("type", Value::Array(names)) => match types(names) {
                    Types::One(name) => name,
                    Types::Several(list) => {
                        reduced.insert("anyOf".into(), list);
                        continue;
                    }
                },
                ("format", value) if value.as_str().is_none_or(|name| !FORMATS.contains(&name)) => continue,
                ("enum", Value::Array(values)) => match choices(values) {
                    Some(values) => values,
                    None => continue,
                },
                ("const", value) => match choices(std::slice::from_ref(value)) {
                    Some(values) if !members.contains_key("enum") => {
                        reduced.insert("enum".into(), values);
                        continue;
                    }
                    _ => continue,
                },
                ("properties", Value::Object(properties)) => properties
                    .iter()
                    .map(|(name, value)| (name.clone(), self.schema(value, depth + 1)))
                    .collect::<Map<_, _>>()
                    .into(),
                ("additionalProperties", value @ Value::Bool(_)) | ("required", value) => value.clone(),
                ("items" | "additionalProperties", value) => self.schema(value, depth + 1),
                ("anyOf" | "oneOf", Value::Array(branches)) => {
                    let branches: Vec<Value> =
                        branches.iter().map(|value| self.schema(value, depth + 1)).collect();
                    if !reduced.contains_key("anyOf") && !branches.is_empty() {
                        reduced.insert("anyOf".into(), branches.into());
                    }
                    continue;
                }
                ("prefixItems", Value::Array(parts)) => {
                    parts.iter().map(|value| self.schema(value, depth + 1)).collect::<Vec<_>>().into()
                }
                (keyword, value) if KEPT.contains(&keyword) => value.clone(),
                _ => continue,
            };
            reduced.insert(keyword.clone(), value);
        }
        keep_known_required(&mut reduced);
        Value::Object(reduced)
    }
}

fn own((keyword, value): (&String, &Value)) -> (String, Value) {
    (keyword.clone(), value.clone())
}

/// What remains of a schema whose parts cannot be described.
fn without_parts(members: &Map<String, Value>) -> Value {
    let name = members.get("type").filter(|name| name.is_string() && *name != "array");
    let description = members.get("description").map(|text| ("description".to_owned(), text.clone()));
    name.map(|name| ("type".to_owned(), name.clone()))
        .into_iter()
        .chain(description)
        .collect::<Map<_, _>>()
        .into()
}

enum Types {
    One(Value),
    Several(Value),
}

/// An optional argument may be left out, so null is not needed.
fn types(names: &[Value]) -> Types {
    let real: Vec<&Value> = names.iter().filter(|name| **name != "null").collect();
    match real.as_slice() {
        [] => Types::One("null".into()),
        [one] => Types::One((*one).clone()),
        several => Types::Several(several.iter().map(|name| schema_of_type(name)).collect::<Vec<_>>().into()),
    }
}

fn schema_of_type(name: &Value) -> Value {
    match name.as_str() {
        Some("array") => json!({ "type": "array", "items": {} }),
        _ => json!({ "type": name }),
    }
}

/// The texts and numbers among them; `None` if there are others that would be forbidden then.
fn choices(values: &[Value]) -> Option<Value> {
    let values: Vec<&Value> = values.iter().filter(|value| !value.is_null()).collect();
    (!values.is_empty() && values.iter().all(|value| value.is_string() || value.is_number()))
        .then(|| values.into_iter().cloned().collect::<Vec<_>>().into())
}

fn keep_known_required(reduced: &mut Map<String, Value>) {
    let Some(Value::Array(required)) = reduced.get("required") else { return };
    let properties = reduced.get("properties").and_then(Value::as_object);
    let mut known_names: Vec<Value> = Vec::new();
    for name in required {
        let is_property =
            name.as_str().is_some_and(|name| properties.is_some_and(|it| it.contains_key(name)));
        if is_property && !known_names.contains(name) {
            known_names.push(name.clone());
        }
    }
    if known_names.is_empty() {
        reduced.shift_remove("required");
    } else if known_names != *required {
        reduced.insert("required".into(), known_names.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_reduced_to_documented_keywords() {
        let check = |schema: Value, expected: Value| assert_eq!(reduce(&schema), expected, "{schema}");
        let plain = json!({ "type": "object", "properties": { "a": { "type": "string", "enum": ["x"] } }, "required": ["a"] });
        check(plain.clone(), plain);
        check(
            json!({ "type": ["string", "null"], "pattern": "^a", "default": "a" }),
            json!({ "type": "string" }),
        );
        check(
            json!({ "type": ["string", "array"] }),
            json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": {} }] }),
        );
        check(json!({ "const": "a" }), json!({ "enum": ["a"] }));
        check(json!({ "const": true }), json!({}));
        check(json!({ "enum": ["a", null] }), json!({ "enum": ["a"] }));
        check(json!({ "type": "string", "format": "uri" }), json!({ "type": "string" }));
        check(json!({ "type": "string", "format": "date" }), json!({ "type": "string", "format": "date" }));
        check(json!({ "oneOf": [{ "const": 1 }, true] }), json!({ "anyOf": [{ "enum": [1] }, {}] }));
        check(json!({ "type": "object", "required": ["a"] }), json!({ "type": "object" }));
        let whole = json!({
            "type": "object",
            "properties": {
                "a": { "$ref": "#/$defs/x", "description": "own" },
                "b": { "allOf": [{ "$ref": "#/$defs/y" }, { "properties": { "q": { "type": "null" } }, "required": ["q"] }] },
            },
            "$defs": {
                "x": { "type": "string", "description": "theirs" },
                "y": { "type": "object", "properties": { "p": { "type": "number" } }, "required": ["p"] },
            },
        });
        check(
            whole,
            json!({ "type": "object", "properties": {
                "a": { "type": "string", "description": "own" },
                "b": { "type": "object", "properties": { "p": { "type": "number" }, "q": { "type": "null" } }, "required": ["p", "q"] },
            } }),
        );
    }

    #[test]
    fn circles_of_references_end() {
        let list = json!({ "type": "object", "properties": { "next": { "$ref": "#" } } });
        let mut at = reduce(&list);
        for _ in 0..5 {
            at = at["properties"]["next"].take();
            assert_eq!(at["type"], "object");
        }
        assert!(!reduce(&list).to_string().contains("$ref"));
        let tree = json!({ "type": "object", "properties": { "a": { "$ref": "#" }, "b": { "$ref": "#" }, "c": { "$ref": "#" } } });
        assert!(reduce(&tree).to_string().len() < 40_000);
        let circle = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } });
        assert_eq!(reduce(&circle)["properties"]["a"], json!({}));
    }
}
