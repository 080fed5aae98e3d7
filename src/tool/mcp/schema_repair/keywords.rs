//! Values that the keywords of JSON Schema may have. Pure.

use serde_json::Value;

/// Characters of a property's name that Anthropic accepts.
pub(super) const MAX_NAME: usize = 64;

pub(super) const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Names of types in programming languages and in other dialects.
pub(super) const OTHER_TYPES: [(&str, &str); 18] = [
    ("int", "integer"),
    ("long", "integer"),
    ("float", "number"),
    ("double", "number"),
    ("decimal", "number"),
    ("bool", "boolean"),
    ("str", "string"),
    ("text", "string"),
    ("date", "string"),
    ("datetime", "string"),
    ("dict", "object"),
    ("map", "object"),
    ("record", "object"),
    ("list", "array"),
    ("tuple", "array"),
    ("set", "array"),
    ("none", "null"),
    ("nil", "null"),
];

pub(super) fn is_accepted(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

pub(super) fn known_type(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    let other = OTHER_TYPES.iter().find(|(other, _)| *other == name).map(|(_, known)| *known);
    TYPES.into_iter().find(|known| *known == name).or(other)
}

/// True if the keyword may have this value. Unknown keywords may have any.
pub(super) fn is_valid(keyword: &str, value: &Value) -> bool {
    match keyword {
        "$ref" | "title" | "description" | "format" | "pattern" | "contentEncoding" | "contentMediaType" => {
            value.is_string()
        }
        "type" => value.is_string() || value.is_array(),
        "enum" => value.as_array().is_some_and(|list| !list.is_empty() && is_distinct(list)),
        "examples" => value.is_array(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => value.is_u64(),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
        "dependentRequired" => {
            value.as_object().is_some_and(|members| members.values().all(is_list_of_names))
        }
        _ => true,
    }
}

fn is_list_of_names(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(Value::is_string) && is_distinct(list))
}

fn is_distinct(list: &[Value]) -> bool {
    list.iter().enumerate().all(|(at, value)| !list[..at].contains(value))
}
