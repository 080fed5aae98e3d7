//! The JSON Schema of a tool's arguments, without what a model does not need: every request contains it. Pure.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::schema::written;

pub(super) fn schema_of<Arguments: JsonSchema>() -> Box<RawValue> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<Arguments>().to_value();
    schema.as_object_mut().map(|root| root.shift_remove("title"));
    make_lean(&mut schema);
    written(&schema)
}

/// Removes defaults, which the descriptions state, formats, and null: an optional argument may be left out. The error
/// for an unknown argument names the right one.
fn make_lean(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    for noise in ["default", "format", "additionalProperties"] {
        members.shift_remove(noise);
    }
    if members.get("minimum").is_some_and(|minimum| *minimum == 0) {
        members.shift_remove("minimum");
    }
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            members.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(values)) = members.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    for (_, property) in members.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        make_lean(property);
    }
    members.get_mut("items").map(make_lean);
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Speed {
        Slow,
        Fast,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Arguments {
        /// Who.
        name: String,
        /// How often.
        #[serde(default)]
        count: Option<u64>,
        /// How fast.
        #[serde(default)]
        speeds: Vec<Option<Speed>>,
    }

    #[test]
    fn schemas_contain_only_what_a_model_needs() {
        let schema = schema_of::<Arguments>();
        assert_eq!(
            schema.get(),
            concat!(
                r#"{"type":"object","properties":{"#,
                r#""name":{"type":"string","description":"Who."},"#,
                r#""count":{"type":"integer","description":"How often."},"#,
                r#""speeds":{"type":"array","items":{"type":"string","enum":["slow","fast"]},"#,
                r#""description":"How fast."}},"required":["name"]}"#
            )
        );
    }
}
