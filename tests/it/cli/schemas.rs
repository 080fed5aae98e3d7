//! The schemas of `modegate schema` describe the outputs.

use serde_json::Value;

use super::sessions::CliFixture;
use crate::support::headless_output::{exact, is_line};

fn check(schema: &str, output: &str, fixture: &CliFixture) {
    let (code, text, errors) = fixture.run(&["schema", schema]);
    assert_eq!(code, 0, "{errors}");
    let schema: Value = serde_json::from_str(&text).unwrap();
    let output: Value = serde_json::from_str(output).unwrap();
    let schema = exact(schema);
    assert_eq!(schema.validate(&output), Ok(()), "{output}");
    assert!(schema.validate(&serde_json::json!({})).is_err(), "the control");
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

#[test]
fn headless_lines_match_their_schemas() {
    let fixture = CliFixture::new();
    let (_, output, errors) = fixture.prompt(&[
        "--mode",
        "ask",
        "--output",
        "stream-json",
        "-p",
        "write it",
        "--max-tokens",
        "9000",
    ]);
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in output.lines() {
        check("stream", line, &fixture);
    }
    let kinds = ["init", "update", "denied", "result"];
    for kind in kinds {
        assert!(lines.iter().any(|line| line["type"] == kind), "{kind}: {output}{errors}");
    }
    check("result", output.lines().last().unwrap(), &fixture);
    // A wrong line of each kind does not pass the check that all tests of headless runs make.
    for line in kinds.map(|kind| lines.iter().find(|line| line["type"] == kind).unwrap()) {
        assert!(is_line(line), "the control");
        let mut unknown = line.clone();
        unknown["extra"] = 1.into();
        assert!(!is_line(&unknown), "{unknown}");
        for member in line.as_object().unwrap().keys() {
            let mut incomplete = line.clone();
            incomplete.as_object_mut().unwrap().shift_remove(member);
            assert!(!is_line(&incomplete), "without {member}: {line}");
        }
    }
    let mut result = lines.last().unwrap().clone();
    result["denied"] = serde_json::json!(["Write a.txt"]);
    assert!(!is_line(&result), "{result}");
}
