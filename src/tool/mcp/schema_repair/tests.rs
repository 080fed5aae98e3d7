//! Faulty schemas in a table and made at random. Strict readers, written from what each provider documents, decide
//! whether the repaired schema would be accepted.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::places::{LISTED, NAMED, SINGLE};
use super::*;
use crate::model::schema::Schema;

/// The reason for which a provider refuses the schema; `None` if the provider accepts it.
type Verdict = Option<String>;

/// True if the metaschema of 2020-12 accepts the schema.
fn is_valid_schema(schema: &Value) -> bool {
    static METASCHEMA: LazyLock<(boon::Schemas, boon::SchemaIndex)> = LazyLock::new(|| {
        let mut schemas = boon::Schemas::new();
        let root =
            boon::Compiler::new().compile("https://json-schema.org/draft/2020-12/schema", &mut schemas);
        (schemas, root.unwrap())
    });
    METASCHEMA.0.validate(schema, METASCHEMA.1).is_ok()
}

/// `OpenAI`, functions without `strict`: the root is an object with properties and without alternatives, each schema is
/// valid JSON Schema, an array has items, and at most ten levels are in each other.
fn openai(schema: &Value) -> Verdict {
    if schema["type"] != "object" || !schema["properties"].is_object() {
        return Some("the root is not an object with properties".into());
    }
    let at_root = ["anyOf", "oneOf", "allOf", "enum", "not", "const", "$ref"];
    if let Some(keyword) = at_root.iter().find(|keyword| schema.get(**keyword).is_some()) {
        return Some(format!("{keyword} at the root"));
    }
    if !is_valid_schema(schema) {
        return Some("invalid JSON Schema".into());
    }
    every(schema, 0, &mut |one, depth| {
        let is_array =
            one["type"] == "array" || one["type"].as_array().is_some_and(|it| it.contains(&"array".into()));
        if is_array && one.get("items").is_none() {
            return Some("array schema missing items".into());
        }
        if let Some(reference) = one.get("$ref") {
            let path = reference.as_str().and_then(|text| text.strip_prefix('#'));
            if !path
                .is_some_and(|path| schema.pointer(path).is_some_and(|it| it.is_object() || it.is_boolean()))
            {
                return Some(format!("{reference} does not resolve"));
            }
        }
        (depth > 10).then(|| "more than ten levels".into())
    })
}

/// Anthropic: JSON Schema of 2020-12, an object without alternatives at the root, and names of properties within a
/// pattern.
fn anthropic(schema: &Value) -> Verdict {
    if schema["type"] != "object" || ["anyOf", "oneOf", "allOf"].iter().any(|it| schema.get(*it).is_some()) {
        return Some("input_schema".into());
    }
    if !is_valid_schema(schema) {
        return Some("JSON schema is invalid. It must match JSON Schema draft 2020-12".into());
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    every(schema, 0, &mut |one, _| {
        let names = one["properties"].as_object().into_iter().flatten().map(|(name, _)| name);
        let bad = |name: &&String| !(1..=64).contains(&name.len()) || !name.chars().all(is_plain);
        names.clone().find(bad).map(|name| format!("Property keys should match pattern: {name:?}"))
    })
}

/// Gemini, `parametersJsonSchema`: the documented keywords, choices of texts and numbers, and no required property
/// that is not described.
fn gemini(schema: &Value) -> Verdict {
    const KEYWORDS: [&str; 16] = [
        "type",
        "format",
        "title",
        "description",
        "enum",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "anyOf",
        "properties",
        "additionalProperties",
        "required",
        "$defs",
    ];
    if schema["type"] != "object" {
        return Some("parameters should be of type OBJECT".into());
    }
    every(schema, 0, &mut |one, depth| {
        for (keyword, value) in one.as_object().into_iter().flatten() {
            let is_right = match keyword.as_str() {
                "type" => value.as_str().is_some_and(|name| TYPES.contains(&name)),
                "format" => matches!(value.as_str(), Some("date-time" | "date" | "time")),
                "enum" => value.as_array().is_some_and(|list| {
                    !list.is_empty() && list.iter().all(|it| it.is_string() || it.is_number())
                }),
                "required" => value.as_array().is_some_and(|names| {
                    names
                        .iter()
                        .all(|name| one["properties"].get(name.as_str().unwrap_or_default()).is_some())
                }),
                "title" | "description" => value.is_string(),
                "minimum" | "maximum" => value.is_number(),
                "minItems" | "maxItems" => value.is_u64(),
                "anyOf" | "prefixItems" => value.as_array().is_some_and(|list| !list.is_empty()),
                keyword => KEYWORDS.contains(&keyword),
            };
            if !is_right {
                return Some(format!("Invalid JSON payload received: {keyword}: {value}"));
            }
        }
        (depth > 12).then(|| "too deep".into())
    })
}

/// The first verdict on a schema or one in it.
fn every(schema: &Value, depth: usize, judge: &mut impl FnMut(&Value, usize) -> Verdict) -> Verdict {
    let verdict = judge(schema, depth);
    let members = schema.as_object().into_iter().flatten();
    verdict.or_else(|| {
        members.into_iter().find_map(|(keyword, value)| {
            let below = match &**keyword {
                "$defs" | "definitions" => 0,
                _ => depth + 1,
            };
            match value {
                Value::Object(named) if NAMED.contains(&&**keyword) => {
                    named.values().find_map(|one| every(one, below, judge))
                }
                Value::Array(list) if LISTED.contains(&&**keyword) => {
                    list.iter().find_map(|one| every(one, below, judge))
                }
                value if SINGLE.contains(&&**keyword) => every(value, below, judge),
                _ => None,
            }
        })
    })
}

fn refusals(schema: &Value) -> Vec<String> {
    let reduced: Value = serde_json::from_str(Schema::from(schema).reduced().get()).unwrap();
    let verdicts =
        [("OpenAI", openai(schema)), ("Anthropic", anthropic(schema)), ("Gemini", gemini(&reduced))];
    verdicts.into_iter().filter_map(|(name, verdict)| Some(format!("{name}: {}", verdict?))).collect()
}

#[allow(clippy::needless_pass_by_value, reason = "cases are written as literals")]
fn check(given: Value, expected: Value, faults: &[&str]) {
    let repaired = repair(Some(&given)).unwrap_or_else(|reason| panic!("{given}: {reason}"));
    assert_eq!(
        (&repaired.schema, &repaired.faults[..]),
        (&expected, &faults.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..]),
        "{given}"
    );
    assert_eq!(refusals(&repaired.schema), [""; 0], "{given}");
}

#[allow(clippy::needless_pass_by_value, reason = "cases are written as literals")]
fn property(schema: Value) -> Value {
    json!({ "type": "object", "properties": { "a": schema } })
}

#[test]
fn right_schemas_stay_as_they_are() {
    for schema in [
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "^a", "default": "" } }, "required": ["a"], "additionalProperties": false }),
        property(
            json!({ "anyOf": [{ "type": "string" }, { "type": "null" }], "default": null, "title": "A" }),
        ),
        property(json!({ "type": ["string", "null"], "enum": ["x", null], "format": "uri" })),
        property(
            json!({ "type": "array", "items": { "type": "object", "properties": { "b": {} }, "required": ["b"] } }),
        ),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/x" } }, "$defs": { "x": { "type": "object", "properties": { "next": { "$ref": "#/$defs/x" } } } } }),
        json!({ "type": "object", "properties": { "a": { "allOf": [{ "$ref": "#/definitions/x" }] } }, "definitions": { "x": { "enum": [1, 2] } } }),
        property(
            json!({ "type": "object", "patternProperties": { "^x": { "type": "integer" } }, "x-own": { "type": 7 } }),
        ),
        property(json!({ "oneOf": [{ "required": ["x"] }, { "required": ["y"] }] })),
    ] {
        check(schema.clone(), schema, &[]);
    }
    // Says nothing about arguments.
    check(
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": {} }),
        &[],
    );
}

#[test]
fn faults_are_repaired_and_named() {
    let empty = || json!({ "type": "object", "properties": {} });
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    check(json!([]), empty(), &["its schema is a list", "is not said to be an object"]);
    check(json!({}), empty(), &["is not said to be an object"]);
    check(json!({ "type": "object" }), empty(), &[]);
    check(object(json!([])), empty(), &["has properties that are no object"]);
    check(json!({ "type": ["object", "null"], "properties": {} }), empty(), &["is not said to be an object"]);
    check(
        json!({ "type": "object", "properties": { "coin": { "type": "string" }, "required": ["coin"] } }),
        json!({ "type": "object", "properties": { "coin": { "type": "string" } }, "required": ["coin"] }),
        &["has its list of required properties among the properties"],
    );
    check(property(json!("str")), property(json!({ "type": "string" })), &["a is not a schema"]);
    check(property(json!(null)), property(json!({})), &["a is not a schema"]);
    check(property(json!(true)), property(json!({})), &[]);
    check(property(json!(false)), empty(), &["forbids a"]);
    check(property(json!({ "type": "any" })), property(json!({})), &["a has the unknown type \"any\""]);
    check(
        property(json!({ "type": "INT" })),
        property(json!({ "type": "integer" })),
        &["a has the unknown type \"INT\""],
    );
    check(
        property(json!({ "type": ["string", "file"] })),
        property(json!({})),
        &["a has an invalid list of types"],
    );
    check(
        property(json!({ "type": ["string", "string"] })),
        property(json!({ "type": ["string"] })),
        &["a has an invalid list of types"],
    );
    check(
        property(json!({ "type": "array" })),
        property(json!({ "type": "array", "items": {} })),
        &["a is an array without items"],
    );
    check(
        property(json!({ "type": "array", "items": [{ "type": "string" }] })),
        property(json!({ "type": "array", "prefixItems": [{ "type": "string" }], "items": {} })),
        &["a has a list of items, of an old draft"],
    );
    check(
        property(json!({ "$ref": "#/$defs/gone", "description": "d" })),
        property(json!({ "description": "d" })),
        &["refers to schemas that are missing"],
    );
    check(
        property(json!({ "$ref": "https://schema.example/x" })),
        property(json!({})),
        &["refers to schemas that are missing"],
    );
    check(
        property(json!({ "$ref": "#/properties" })),
        property(json!({})),
        &["refers to schemas that are missing"],
    );
    check(
        property(json!({ "type": "integer", "minimum": 1, "exclusiveMinimum": true })),
        property(json!({ "type": "integer", "minimum": 1 })),
        &["a has exclusiveMinimum of an old draft"],
    );
    check(
        property(json!({ "minLength": "3", "enum": [], "description": 7, "anyOf": [] })),
        property(json!({})),
        &[
            "a has an invalid minLength",
            "a has an invalid enum",
            "a has an invalid description",
            "a has an invalid anyOf",
        ],
    );
    check(
        property(json!({ "type": "string", "required": true })),
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] }),
        &["says in a that it is required"],
    );
    check(
        json!({ "type": "object", "properties": {}, "required": ["a", "a"] }),
        json!({ "type": "object", "properties": { "a": {} }, "required": ["a"] }),
        &["has an invalid required", "requires a, which it does not describe"],
    );
    check(
        json!({ "type": "object", "oneOf": [
            { "properties": { "a": {}, "b": {} }, "required": ["a", "b"] }, { "properties": { "c": {} }, "required": ["b"] },
        ] }),
        json!({ "type": "object", "properties": { "a": {}, "b": {}, "c": {} }, "required": ["b"] }),
        &["has oneOf at its root"],
    );
    check(
        json!({ "$ref": "#/definitions/x", "definitions": { "x": { "type": "object", "properties": { "a": {} } } } }),
        json!({ "definitions": { "x": { "type": "object", "properties": { "a": {} } } }, "type": "object", "properties": { "a": {} } }),
        &["has a reference as its root"],
    );
}

#[test]
fn schemas_that_are_too_deep_are_cut() {
    let mut deep = json!({ "type": "string" });
    for _ in 0..40 {
        deep = property(deep);
    }
    let repaired = repair(Some(&deep)).unwrap();
    assert_eq!((refusals(&repaired.schema), repaired.faults.len()), (Vec::new(), 1));
    assert!(repaired.faults[0].ends_with("is deeper than 10 levels"), "{:?}", repaired.faults);
}

#[test]
fn names_that_providers_refuse_are_replaced_at_the_top_level() {
    let given = json!({ "type": "object", "properties": { "$filter": {}, "filter": {}, "a b": {}, "日本": {} }, "required": ["$filter"] });
    let RepairedSchema { schema, renamed, faults } = repair(Some(&given)).unwrap();
    let names: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        (names, &schema["required"]),
        (vec!["filter_2", "filter", "a_b", "argument"], &json!(["filter_2"]))
    );
    let renamed: Vec<_> = renamed.iter().map(|(shown, own)| (shown.as_str(), own.as_str())).collect();
    assert_eq!(renamed, [("a_b", "a b"), ("argument", "日本"), ("filter_2", "$filter")]);
    assert_eq!((faults.len(), refusals(&schema)), (0, Vec::new()));
    let nested = |required: Value| {
        property(json!({ "type": "object", "properties": { "x y": {} }, "required": required }))
    };
    let repaired = repair(Some(&nested(json!([])))).unwrap();
    assert_eq!(repaired.schema, property(json!({ "type": "object", "properties": {} })));
    assert_eq!(repaired.faults, ["a has the property \"x y\", a name that providers refuse"]);
    let reason = repair(Some(&nested(json!(["x y"])))).unwrap_err();
    assert_eq!(reason, "it requires the argument \"x y\", a name that providers refuse");
}

#[test]
fn schemas_of_no_object_are_refused() {
    for (given, reason) in [
        (json!({ "type": "string" }), "its schema is not of type object"),
        (json!({ "type": ["string", "null"] }), "its schema is not of type object"),
        (json!("object"), "its schema is not an object"),
        (json!([{}]), "its schema is not an object"),
        (json!(false), "its schema is not an object"),
        (json!({ "$ref": "#/$defs/x" }), "its schema refers to one that is missing"),
    ] {
        assert_eq!(repair(Some(&given)).unwrap_err(), reason, "{given}");
    }
    for given in [None, Some(Value::Null), Some(Value::Bool(true))] {
        let repaired = repair(given.as_ref()).unwrap();
        assert_eq!(repaired.schema, json!({ "type": "object", "properties": {} }));
        assert!(!repaired.faults.is_empty());
    }
}

/// JSON whose keys and values are those of schemas, right or wrong.
fn anything_like_a_schema() -> impl Strategy<Value = Value> {
    let keyword = prop::sample::select(vec![
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "definitions",
        "not",
        "if",
        "then",
        "const",
        "additionalProperties",
        "patternProperties",
        "minimum",
        "exclusiveMinimum",
        "minLength",
        "maxItems",
        "multipleOf",
        "pattern",
        "format",
        "description",
        "title",
        "prefixItems",
        "default",
        "uniqueItems",
        "dependentRequired",
        "dependencies",
        "additionalItems",
        "propertyNames",
        "contains",
        "$schema",
        "$id",
        "nullable",
        "a",
        "b",
        "a b",
        "$top",
        "",
        "x/y",
        "examples",
        "dependentSchemas",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..5).prop_map(Value::from),
        Just(json!(2.5)),
        prop::sample::select(vec![
            "object",
            "array",
            "string",
            "integer",
            "any",
            "INT",
            "",
            "#",
            "#/$defs/a",
            "#/properties/a",
            "#/$defs/gone",
            "#/definitions/b/items",
            "https://schema.example/",
            "a",
            "b",
            "a b",
            "^(a",
            "uri",
            "date",
        ])
        .prop_map(Value::from),
        prop::sample::select(vec![
            json!(["a", "b"]),
            json!(["object", "null"]),
            json!(["a", "a"]),
            json!([1, true]),
            json!([])
        ]),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            4 => prop::collection::vec((keyword.clone(), inner.clone()), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

/// An object schema with a part that may be anything.
fn faulty() -> impl Strategy<Value = Value> {
    let part = anything_like_a_schema;
    prop_oneof![
        part(),
        (part(), part(), part()).prop_map(|(a, b, definition)| json!({
            "type": "object", "properties": { "a": a, "b": b }, "$defs": { "a": definition }, "required": ["a"],
        })),
        (part(), part()).prop_map(|(properties, required)| json!({
            "type": "object", "properties": properties, "required": required,
        })),
        part().prop_map(|items| property(json!({ "type": "array", "items": items }))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_provider_accepts_a_repaired_schema(given in faulty()) {
        if let Ok(repaired) = repair(Some(&given)) {
            prop_assert_eq!(refusals(&repaired.schema), Vec::<String>::new(), "{}", repaired.schema);
            // A repaired schema has nothing to repair.
            let again = repair(Some(&repaired.schema)).unwrap();
            prop_assert_eq!(&again.schema, &repaired.schema);
            prop_assert!(again.faults.is_empty(), "{:?}: {}", again.faults, repaired.schema);
        }
    }
}
