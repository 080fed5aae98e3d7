//! Checks the JSON lines of headless runs against the schemas that `modegate schema` prints.

use std::sync::LazyLock;

use modegate::headless::{result_schema, stream_schema};
use serde_json::Value;

use super::CompiledSchema;

/// Checks each line of a headless run in the output of the binary. Lines of a conversation with a client have no
/// `type`.
pub(crate) fn check_lines(output: &str) {
    let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.filter(|line| line["type"].is_string()).collect();
    for line in &lines {
        assert!(is_line(line), "the line does not match the schema: {line}");
    }
    if lines.iter().any(|line| line["type"] == "update") {
        assert_eq!(lines[0]["type"], "init", "{output}");
    }
    let inits = lines.iter().filter(|line| line["type"] == "init").count();
    assert!(inits <= 1, "{output}");
}

pub(crate) fn is_line(line: &Value) -> bool {
    static RESULT: LazyLock<CompiledSchema> = LazyLock::new(|| exact(result_schema().into()));
    static STREAM: LazyLock<CompiledSchema> = LazyLock::new(|| exact(stream_schema().into()));
    let is_result = line["type"] != "result" || RESULT.validate(line).is_ok();
    is_result && STREAM.validate(line).is_ok()
}

pub(crate) fn exact(schema: Value) -> CompiledSchema {
    CompiledSchema::new(closed(schema))
}

/// Rejects members that the schema does not have, unless it says that there may be others.
fn closed(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        for member in members.values_mut() {
            *member = closed(member.take());
        }
        if members.contains_key("properties") {
            members.entry("additionalProperties").or_insert(false.into());
        }
    } else if let Value::Array(members) = &mut schema {
        for member in members {
            *member = closed(member.take());
        }
    }
    schema
}
