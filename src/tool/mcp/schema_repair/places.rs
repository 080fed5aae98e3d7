//! Finds the schemas within a schema. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The JSON pointer of a reference within the same schema.
pub(super) fn pointer(reference: &str) -> Option<String> {
    let path = reference.strip_prefix('#')?;
    (path.is_empty() || path.starts_with('/')).then(|| path.replace("%24", "$").replace("%20", " "))
}

/// Members of a schema that are schemas, by their kind.
pub(super) const NAMED: [&str; 5] =
    ["properties", "$defs", "definitions", "patternProperties", "dependentSchemas"];
pub(super) const LISTED: [&str; 4] = ["prefixItems", "anyOf", "oneOf", "allOf"];
pub(super) const SINGLE: [&str; 11] = [
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

pub(super) fn collect_places(schema: &Value, place: String, places: &mut BTreeSet<String>) {
    let Value::Object(members) = schema else { return };
    for (keyword, value) in members {
        match value {
            Value::Object(named) if NAMED.contains(&&**keyword) => {
                for (name, value) in named {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    collect_places(value, format!("{place}/{keyword}/{name}"), places);
                }
            }
            Value::Array(list) if LISTED.contains(&&**keyword) => {
                for (index, value) in list.iter().enumerate() {
                    collect_places(value, format!("{place}/{keyword}/{index}"), places);
                }
            }
            value if SINGLE.contains(&&**keyword) => {
                collect_places(value, format!("{place}/{keyword}"), places);
            }
            _ => {}
        }
    }
    places.insert(place);
}

pub(super) fn for_each_schema(
    schema: &mut Map<String, Value>,
    work: &mut impl FnMut(&mut Map<String, Value>),
) {
    work(schema);
    for (keyword, value) in schema {
        let is_named = NAMED.contains(&&**keyword);
        let (is_listed, is_single) = (LISTED.contains(&&**keyword), SINGLE.contains(&&**keyword));
        match value {
            Value::Object(named) if is_named => {
                named
                    .values_mut()
                    .filter_map(Value::as_object_mut)
                    .for_each(|one| for_each_schema(one, work));
            }
            Value::Array(list) if is_listed => {
                list.iter_mut().filter_map(Value::as_object_mut).for_each(|one| for_each_schema(one, work));
            }
            Value::Object(one) if is_single => for_each_schema(one, work),
            _ => {}
        }
    }
}
