//! Repairs the JSON Schema of a tool's arguments: a provider that refuses one schema refuses the whole request, and
//! with it every turn. Pure.
//!
//! The result is JSON Schema of 2020-12 that `OpenAI`, Anthropic and Gemini accept: its root is an object without
//! alternatives, its references resolve, and its property names consist of letters that all of them allow. A schema
//! that is right stays as it is, but for keywords such as `$schema` that say nothing about arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use self::branches::merge;
use self::keywords::{MAX_NAME, TYPES, is_accepted, is_valid, known_type};
use self::places::{collect_places, for_each_schema, pointer};

mod branches;
mod keywords;
mod places;

/// Levels of schemas in each other. `OpenAI` documents ten.
const MAX_DEPTH: usize = 10;

/// Keywords with which another part of a schema may describe a property.
const COMPOSING: [&str; 7] = ["allOf", "anyOf", "oneOf", "if", "$ref", "not", "dependentSchemas"];

#[derive(Debug)]
pub(super) struct RepairedSchema {
    pub schema: Value,
    /// Phrases without a full stop, such as "a has an invalid enum". Empty if nothing was repaired.
    pub faults: Vec<String>,
    /// Top-level properties whose names providers refuse: from the name for the model to the server's.
    pub renamed: BTreeMap<String, String>,
}

/// `None` is a tool without a schema. The error says why the tool cannot be offered.
pub(super) fn repair(given: Option<&Value>) -> Result<RepairedSchema, String> {
    let mut repair = Repair::default();
    let members = match given {
        Some(Value::Object(members)) => members.clone(),
        None | Some(Value::Null) => {
            repair.fault("it has no schema");
            Map::new()
        }
        Some(Value::Bool(true)) => {
            repair.fault("its schema is not an object");
            Map::new()
        }
        // PHP writes an empty object as an empty list.
        Some(Value::Array(list)) if list.is_empty() => {
            repair.fault("its schema is a list");
            Map::new()
        }
        Some(_) => return Err("its schema is not an object".into()),
    };
    let root = repair.root(members)?;
    let mut root = repair.schema(root, 0)?;
    // `OpenAI` demands them, also of a tool without arguments.
    root.entry("properties").or_insert_with(|| json!({}));
    // Without a reference, more of a schema may be missing.
    while repair.references(&mut root) {
        root = repair.schema(root, 0)?;
    }
    let renamed = std::mem::take(&mut repair.renamed);
    Ok(RepairedSchema { schema: Value::Object(root), faults: repair.faults, renamed })
}

#[derive(Default)]
struct Repair {
    /// Names of the members around the current one.
    path: Vec<String>,
    faults: Vec<String>,
    renamed: BTreeMap<String, String>,
}

impl Repair {
    fn fault(&mut self, what: &str) {
        let place = self.path.join(".");
        self.faults.push(if place.is_empty() { what.to_owned() } else { format!("{place} {what}") });
    }

    fn below<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(name.to_owned());
        let result = work(self);
        self.path.pop();
        result
    }

    /// Makes the root an object without alternatives: providers accept neither there.
    fn root(&mut self, mut members: Map<String, Value>) -> Result<Map<String, Value>, String> {
        if let Some(reference) = members.shift_remove("$ref") {
            let target = reference.as_str().and_then(pointer).and_then(|path| {
                let whole = Value::Object(members.clone());
                whole.pointer(&path).and_then(Value::as_object).filter(|_| !path.is_empty()).cloned()
            });
            let Some(target) = target else { return Err("its schema refers to one that is missing".into()) };
            self.fault("has a reference as its root");
            for (name, value) in target {
                members.entry(name).or_insert(value);
            }
            members.shift_remove("$ref");
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let Some(Value::Array(branches)) = members.shift_remove(keyword) else { continue };
            self.fault(&format!("has {keyword} at its root"));
            merge(&mut members, branches, keyword == "allOf");
        }
        for keyword in ["not", "if", "then", "else", "enum", "const", "dependentSchemas"] {
            if members.shift_remove(keyword).is_some() {
                self.fault(&format!("has {keyword} at its root"));
            }
        }
        let is_object = match members.get("type") {
            Some(Value::String(name)) if name == "object" => return Ok(members),
            Some(Value::String(name)) => known_type(name) == Some("object"),
            Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
            _ => true,
        };
        if !is_object {
            return Err("its schema is not of type object".into());
        }
        self.fault("is not said to be an object");
        // First, as servers write it.
        let mut root = Map::new();
        root.insert("type".into(), "object".into());
        members.shift_remove("type");
        root.extend(members);
        Ok(root)
    }

    /// The error says why the schema cannot be repaired.
    fn schema(&mut self, given: Map<String, Value>, depth: usize) -> Result<Map<String, Value>, String> {
        let mut repaired = Map::new();
        let mut required = self.required(given.get("required"));
        for (keyword, value) in given {
            let value = match keyword.as_str() {
                "$schema" | "$id" | "$anchor" | "$comment" | "$vocabulary" | "$dynamicAnchor"
                | "$recursiveAnchor" | "required" => continue,
                "type" => self.types(value),
                "properties" => Some(self.properties(value, depth, &mut required)?),
                "$defs" | "definitions" | "patternProperties" | "dependentSchemas" => {
                    // Definitions stand beside the schema, not in it.
                    let depth = if matches!(&*keyword, "$defs" | "definitions") { 1 } else { depth + 1 };
                    self.named_schemas(&keyword, value, depth)
                }
                "items" => self.items(value, depth, &mut repaired),
                "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.list(&keyword, value, depth),
                "additionalProperties"
                | "unevaluatedProperties"
                | "unevaluatedItems"
                | "contains"
                | "propertyNames"
                | "not"
                | "if"
                | "then"
                | "else"
                | "contentSchema" => self.below(&keyword, |repair| repair.subschema(value, depth + 1)),
                "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
                    self.fault(&format!("has {keyword} of an old draft"));
                    None
                }
                "additionalItems" | "dependencies" | "$dynamicRef" | "$recursiveRef" => {
                    self.fault(&format!("has {keyword} of an old draft"));
                    None
                }
                _ if is_valid(&keyword, &value) => Some(value),
                _ => {
                    self.fault(&format!("has an invalid {keyword}"));
                    None
                }
            };
            if let Some(value) = value {
                repaired.insert(keyword, value);
            }
        }
        self.complete(&mut repaired, required);
        Ok(repaired)
    }

    /// Adds the keys that the rest of the schema demands.
    fn complete(&mut self, repaired: &mut Map<String, Value>, mut required: Vec<String>) {
        let is_composed = COMPOSING.iter().any(|keyword| repaired.contains_key(*keyword));
        // Alternatives name required properties that the schema around them describes.
        let is_described = repaired.contains_key("properties") || self.path.is_empty();
        if is_described && !is_composed {
            let properties = repaired.get("properties").and_then(Value::as_object);
            let missing: Vec<String> = required
                .iter()
                .filter(|name| !properties.is_some_and(|properties| properties.contains_key(*name)))
                .cloned()
                .collect();
            for name in missing {
                if is_accepted(&name) {
                    self.fault(&format!("requires {name}, which it does not describe"));
                    let properties = repaired.entry("properties").or_insert_with(|| json!({}));
                    properties[name] = json!({});
                } else {
                    required.retain(|other| *other != name);
                }
            }
        }
        if !required.is_empty() {
            repaired.insert("required".into(), required.into());
        }
        let is_array = match repaired.get("type") {
            Some(Value::String(name)) => name == "array",
            Some(Value::Array(names)) => names.iter().any(|name| name == "array"),
            _ => false,
        };
        if is_array && !repaired.contains_key("items") {
            self.fault("is an array without items");
            repaired.insert("items".into(), json!({}));
        }
    }

    fn required(&mut self, given: Option<&Value>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let list = given.and_then(Value::as_array);
        for name in list.into_iter().flatten().filter_map(Value::as_str) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        if given.is_some_and(|given| list.is_none_or(|list| list.len() != names.len()) && !given.is_boolean())
        {
            self.fault("has an invalid required");
        }
        names
    }

    fn types(&mut self, given: Value) -> Option<Value> {
        match &given {
            Value::String(name) if TYPES.contains(&&**name) => Some(given),
            Value::String(name) => {
                self.fault(&format!("has the unknown type {name:?}"));
                known_type(name).map(Value::from)
            }
            Value::Array(names) => {
                let mut known_names: Vec<&str> =
                    names.iter().filter_map(Value::as_str).filter_map(known_type).collect();
                let is_complete = known_names.len() == names.len() && !known_names.is_empty();
                known_names.dedup();
                if is_complete
                    && known_names.iter().zip(names).all(|(known, name)| *known == name)
                    && known_names.len() == names.len()
                {
                    let distinct: BTreeSet<_> = known_names.iter().collect();
                    if distinct.len() == known_names.len() {
                        return Some(given);
                    }
                }
                self.fault("has an invalid list of types");
                let distinct: BTreeSet<_> = known_names.into_iter().collect();
                is_complete.then(|| distinct.into_iter().collect::<Vec<_>>().into())
            }
            _ => {
                self.fault("has an invalid type");
                None
            }
        }
    }

    fn properties(
        &mut self,
        given: Value,
        depth: usize,
        required: &mut Vec<String>,
    ) -> Result<Value, String> {
        let Value::Object(members) = given else {
            self.fault("has properties that are no object");
            return Ok(json!({}));
        };
        let names: BTreeSet<String> = members.keys().cloned().collect();
        let mut repaired = Map::new();
        for (name, value) in members {
            // A list of required properties that was put one level too low.
            if name == "required" && value.as_array().is_some_and(|list| list.iter().all(Value::is_string)) {
                self.fault("has its list of required properties among the properties");
                let list = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                required.extend(list.filter(|name| names.contains(*name)).map(str::to_owned));
                required.retain(|name| name != "required");
                let mut seen = BTreeSet::new();
                required.retain(|name| seen.insert(name.clone()));
                continue;
            }
            let is_required = required.contains(&name);
            if value.get("required") == Some(&Value::Bool(true)) && !is_required {
                self.fault(&format!("says in {name} that it is required"));
                required.push(name.clone());
            }
            if value == Value::Bool(false) {
                self.fault(&format!("forbids {name}"));
                required.retain(|other| *other != name);
                continue;
            }
            let accepted_name = match self.accepted_name(&name, depth, &names) {
                Some(shown) => shown,
                None if required.contains(&name) => {
                    return Err(format!("it requires the argument {name:?}, a name that providers refuse"));
                }
                None => {
                    self.fault(&format!("has the property {name:?}, a name that providers refuse"));
                    continue;
                }
            };
            for required in required.iter_mut().filter(|required| **required == name) {
                required.clone_from(&accepted_name);
            }
            let value = self.below(&name, |repair| repair.property(value, depth + 1))?;
            repaired.insert(accepted_name, value);
        }
        Ok(Value::Object(repaired))
    }

    /// `None` if there is none. Only names at the top level can be translated back in a call.
    fn accepted_name(&mut self, name: &str, depth: usize, taken: &BTreeSet<String>) -> Option<String> {
        if is_accepted(name) {
            return Some(name.to_owned());
        }
        if depth > 0 {
            return None;
        }
        let plain: String = name
            .chars()
            .map(|c| if is_accepted(&c.to_string()) { c } else { '_' })
            .take(MAX_NAME - 4)
            .collect();
        let plain = plain.trim_matches('_');
        let plain = if plain.is_empty() { "argument" } else { plain };
        let numbered = (2..1000).map(|number| format!("{plain}_{number}"));
        let accepted_name = std::iter::once(plain.to_owned())
            .chain(numbered)
            .find(|candidate| !taken.contains(candidate) && !self.renamed.contains_key(candidate))?;
        self.renamed.insert(accepted_name.clone(), name.to_owned());
        Some(accepted_name)
    }

    fn property(&mut self, given: Value, depth: usize) -> Result<Value, String> {
        match given {
            Value::Object(members) if depth < MAX_DEPTH => Ok(Value::Object(self.schema(members, depth)?)),
            given => Ok(self.other(given, depth)),
        }
    }

    /// `None` if it is dropped.
    fn subschema(&mut self, given: Value, depth: usize) -> Option<Value> {
        match given {
            Value::Bool(_) => Some(given),
            given => match self.property(given, depth) {
                Ok(schema) => Some(schema),
                Err(fault) => {
                    self.fault(&fault);
                    None
                }
            },
        }
    }

    /// A schema that is too deep, or none at all.
    fn other(&mut self, given: Value, depth: usize) -> Value {
        match given {
            Value::Object(members) => {
                let mut kept_members = Map::new();
                for keyword in ["type", "description", "title"] {
                    kept_members.extend(
                        members
                            .get(keyword)
                            .filter(|value| is_valid(keyword, value))
                            .map(|value| (keyword.to_owned(), value.clone())),
                    );
                }
                match kept_members.get("type").cloned() {
                    Some(Value::String(name)) if name == "array" => {
                        kept_members.insert("items".into(), json!({}));
                    }
                    Some(Value::String(name)) if TYPES.contains(&&*name) => {}
                    _ => {
                        kept_members.shift_remove("type");
                    }
                }
                if kept_members != members {
                    self.fault(&format!("is deeper than {depth} levels"));
                }
                Value::Object(kept_members)
            }
            Value::Bool(true) => json!({}),
            Value::String(name) => {
                self.fault("is not a schema");
                known_type(&name).map_or_else(
                    || json!({}),
                    |name| match name {
                        "array" => json!({ "type": name, "items": {} }),
                        name => json!({ "type": name }),
                    },
                )
            }
            _ => {
                self.fault("is not a schema");
                json!({})
            }
        }
    }

    fn named_schemas(&mut self, keyword: &str, given: Value, depth: usize) -> Option<Value> {
        let Value::Object(members) = given else {
            self.fault(&format!("has an invalid {keyword}"));
            return None;
        };
        let mut repaired = Map::new();
        for (name, value) in members {
            let value =
                self.below(keyword, |repair| repair.below(&name, |repair| repair.subschema(value, depth)));
            repaired.extend(value.map(|value| (name, value)));
        }
        Some(Value::Object(repaired))
    }

    fn items(&mut self, given: Value, depth: usize, repaired: &mut Map<String, Value>) -> Option<Value> {
        let Value::Array(list) = given else {
            return self.below("items", |repair| repair.subschema(given, depth + 1)).map(
                |items| match items {
                    Value::Bool(true) => json!({}),
                    items => items,
                },
            );
        };
        self.fault("has a list of items, of an old draft");
        if let Some(list) = self.list("prefixItems", Value::Array(list), depth) {
            repaired.insert("prefixItems".into(), list);
        }
        Some(json!({}))
    }

    fn list(&mut self, keyword: &str, given: Value, depth: usize) -> Option<Value> {
        let list = match given {
            Value::Array(list) => list,
            Value::Object(_) => {
                self.fault(&format!("has an invalid {keyword}"));
                vec![given]
            }
            _ => Vec::new(),
        };
        let schemas: Vec<Value> = list
            .into_iter()
            .filter_map(|value| self.below(keyword, |repair| repair.subschema(value, depth + 1)))
            .collect();
        if schemas.is_empty() {
            self.fault(&format!("has an invalid {keyword}"));
            return None;
        }
        Some(schemas.into())
    }

    /// Removes references that lead nowhere. Returns true if there were any.
    fn references(&mut self, root: &mut Map<String, Value>) -> bool {
        let whole = Value::Object(root.clone());
        let mut places = BTreeSet::new();
        collect_places(&whole, String::new(), &mut places);
        let mut lost_values = 0;
        for_each_schema(root, &mut |schema| {
            let Some(reference) = schema.get("$ref") else { return };
            let target = reference.as_str().and_then(pointer);
            if !target.is_some_and(|target| places.contains(&target)) {
                schema.shift_remove("$ref");
                lost_values += 1;
            }
        });
        if lost_values > 0 {
            self.fault("refers to schemas that are missing");
        }
        lost_values > 0
    }
}

#[cfg(test)]
mod tests;
