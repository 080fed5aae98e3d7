//! The schemas of `modegate schema` describe the outputs.

use serde_json::Value;

use super::sessions::CliFixture;

fn check(schema: &str, output: &str, fixture: &CliFixture) {
    let (code, text, errors) = fixture.run(&["schema", schema]);
    assert_eq!(code, 0, "{errors}");
    let schema: Value = serde_json::from_str(&text).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("schema.json", closed(schema)).unwrap();
    let index = compiler.compile("schema.json", &mut schemas).unwrap();
    let output: Value = serde_json::from_str(output).unwrap();
    assert!(schemas.validate(&output, index).is_ok(), "{output}");
    assert!(schemas.validate(&serde_json::json!({}), index).is_err(), "the control");
}

/// Rejects members that the schema does not have.
fn closed(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        for member in members.values_mut() {
            *member = closed(member.take());
        }
        if members.contains_key("properties") {
            members.insert("additionalProperties".into(), false.into());
        }
    }
    schema
}

#[test]
fn outputs_match_their_schemas() {
    let (fixture, id, _) = CliFixture::with_session();
    for (schema, command) in [
        ("sessions", &["sessions", "list", "--json"][..]),
        ("session", &["sessions", "show", &id, "--json"]),
        ("audit", &["audit", &id, "--json"]),
    ] {
        let (code, output, errors) = fixture.run(command);
        assert_eq!(code, 0, "{errors}");
        check(schema, &output, &fixture);
    }
}

#[test]
fn unknown_schema_is_an_error_that_lists_the_others() {
    let fixture = CliFixture::new();
    let (code, _, errors) = fixture.run(&["schema", "nope"]);
    assert!(code == 2 && errors.contains("the schemas are audit, config"), "{errors}");
    let (code, names, _) = fixture.run(&["schema"]);
    assert!(code == 0 && names.contains("modes.yaml"), "{names}");
}
