//! Finds the first difference between two conversations: the message and its member. Pure.

use std::fmt;

use serde_json::Value;

use super::normalise::NormalisedMessage;

use crate::text::start;

const SHOWN: usize = 300;

#[derive(Debug, PartialEq)]
pub(super) enum TranscriptComparison {
    Same,
    /// Same messages, in the same order in each lane. The number is that of the first message that moved.
    Reordered(usize),
    Different(TranscriptDifference),
}

#[derive(Debug, PartialEq)]
pub(super) struct TranscriptDifference {
    /// Number of the expected message, or of the actual one if none was expected; from 1.
    number: usize,
    path: String,
    expected: Option<Value>,
    actual: Option<Value>,
}

impl fmt::Display for TranscriptDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, path, expected, actual } = self;
        writeln!(f, "first difference at line {number}, {path}")?;
        writeln!(f, "  expected  {}", shown(expected.as_ref()))?;
        write!(f, "  actual    {}", shown(actual.as_ref()))
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".into() };
    let text = value.to_string();
    let start = start(&text, SHOWN);
    if start.len() == text.len() { text } else { format!("{start}… ({} bytes)", text.len()) }
}

/// Compares lines byte by byte. Returns `None` if they are the same.
pub(super) fn lines(expected: &str, actual: &str) -> Option<TranscriptDifference> {
    let (mut left, mut right) = (expected.lines(), actual.lines());
    let mut number = 0;
    loop {
        number += 1;
        let (expected, actual) = match (left.next(), right.next()) {
            (None, None) => return None,
            (Some(expected), Some(actual)) if expected == actual => continue,
            both => both,
        };
        let (expected_value, actual_value) = (parsed_line(expected), parsed_line(actual));
        let value_difference = difference(number, expected_value.as_ref(), actual_value.as_ref());
        return Some(value_difference.unwrap_or_else(|| TranscriptDifference {
            number,
            path: "$: the same JSON in other bytes".into(),
            expected: expected.map(Value::from),
            actual: actual.map(Value::from),
        }));
    }
}

fn parsed_line(line: Option<&str>) -> Option<Value> {
    line.map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line)))
}

/// Ignores updates of no turn after the last expected message: the recorded client may have ended before them.
pub(super) fn conversations(
    expected: &[NormalisedMessage],
    actual: &[NormalisedMessage],
) -> TranscriptComparison {
    if let Some((same, rest @ [_, ..])) = actual.split_at_checked(expected.len())
        && rest.iter().all(|message| belongs_to_no_turn(&message.value))
        && let compared @ (TranscriptComparison::Same | TranscriptComparison::Reordered(_)) =
            conversations(expected, same)
    {
        return compared;
    }
    let values =
        |messages: &[NormalisedMessage], at: usize| messages.get(at).map(|message| message.value.clone());
    let Some(first) =
        (0..expected.len().max(actual.len())).find(|at| values(expected, *at) != values(actual, *at))
    else {
        return TranscriptComparison::Same;
    };
    let mut lanes: Vec<&str> = Vec::new();
    for NormalisedMessage { lane, .. } in expected.iter().chain(actual) {
        if !lanes.contains(&lane.as_str()) {
            lanes.push(lane);
        }
    }
    let mut first_difference: Option<TranscriptDifference> = None;
    for lane in lanes {
        let [left, right] = [expected, actual].map(|messages| {
            let lane_messages = messages.iter().filter(|message| message.lane == lane);
            lane_messages.map(|message| (message.number, &message.value)).collect::<Vec<_>>()
        });
        for at in 0..left.len().max(right.len()) {
            let (left, right) = (left.get(at), right.get(at));
            let number = left.or(right).map_or(0, |(number, _)| *number);
            let difference =
                difference(number, left.map(|(_, value)| *value), right.map(|(_, value)| *value));
            if let Some(difference) = difference {
                if first_difference.as_ref().is_none_or(|found| difference.number < found.number) {
                    first_difference = Some(difference);
                }
                break;
            }
        }
    }
    match first_difference {
        Some(difference) => TranscriptComparison::Different(difference),
        None => {
            TranscriptComparison::Reordered(expected.get(first).map_or(first + 1, |message| message.number))
        }
    }
}

fn belongs_to_no_turn(message: &Value) -> bool {
    let update = message.pointer("/params/update/sessionUpdate").and_then(Value::as_str);
    matches!(update, Some("available_commands_update" | "session_info_update"))
}

fn difference(
    number: usize,
    expected: Option<&Value>,
    actual: Option<&Value>,
) -> Option<TranscriptDifference> {
    let (path, expected, actual) = match (expected, actual) {
        (Some(expected), Some(actual)) => member("$".into(), expected, actual)?,
        (None, None) => return None,
        one_side => ("$".into(), one_side.0, one_side.1),
    };
    Some(TranscriptDifference { number, path, expected: expected.cloned(), actual: actual.cloned() })
}

fn member<'a>(
    path: String,
    expected: &'a Value,
    actual: &'a Value,
) -> Option<(String, Option<&'a Value>, Option<&'a Value>)> {
    match (expected, actual) {
        _ if expected == actual => None,
        (Value::Object(left), Value::Object(right)) => {
            let mut keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.find_map(|key| {
                let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                let path = if is_plain { format!("{path}.{key}") } else { format!("{path}[{key:?}]") };
                below(path, left.get(key), right.get(key))
            })
        }
        (Value::Array(left), Value::Array(right)) => (0..left.len().max(right.len()))
            .find_map(|at| below(format!("{path}[{at}]"), left.get(at), right.get(at))),
        _ => Some((path, Some(expected), Some(actual))),
    }
}

fn below<'a>(
    path: String,
    expected: Option<&'a Value>,
    actual: Option<&'a Value>,
) -> Option<(String, Option<&'a Value>, Option<&'a Value>)> {
    match (expected, actual) {
        (Some(expected), Some(actual)) => member(path, expected, actual),
        _ => Some((path, expected, actual)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_names_the_json_path() {
        let whole = json!({ "id": 1, "a": { "b": [1, { "c/d": "x" }] }, "e": null });
        for (path, value) in [
            ("$.id", json!({ "id": 2, "a": { "b": [1, { "c/d": "x" }] }, "e": null })),
            ("$.a.b[1][\"c/d\"]", json!({ "id": 1, "a": { "b": [1, { "c/d": "y" }] }, "e": null })),
            ("$.a.b[1]", json!({ "id": 1, "a": { "b": [1] }, "e": null })),
            ("$.a.b[2]", json!({ "id": 1, "a": { "b": [1, { "c/d": "x" }, 3] }, "e": null })),
            ("$.e", json!({ "id": 1, "a": { "b": [1, { "c/d": "x" }] } })),
            ("$.f", json!({ "id": 1, "a": { "b": [1, { "c/d": "x" }] }, "e": null, "f": 1 })),
            ("$", json!([])),
        ] {
            let found = lines(&whole.to_string(), &value.to_string()).unwrap();
            assert_eq!((found.number, found.path.as_str()), (1, path), "{value}");
        }
        assert_eq!(lines(&whole.to_string(), &whole.to_string()), None);
        assert!(lines("{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}").unwrap().path.contains("other bytes"));
        assert_eq!(lines("1\n2", "1").unwrap().actual, None);
    }

    #[test]
    fn only_concurrent_lanes_may_be_reordered() {
        let text = |order: &[(&str, i64)]| -> Vec<NormalisedMessage> {
            let message = |(at, (lane, value)): (usize, &(&str, i64))| NormalisedMessage {
                number: at + 1,
                lane: (*lane).to_owned(),
                value: json!([lane, value]),
            };
            order.iter().enumerate().map(message).collect()
        };
        let expected = text(&[("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
        let compared = |order: &[(&str, i64)]| conversations(&expected, &text(order));
        assert_eq!(compared(&[("a", 1), ("b", 1), ("a", 2), ("b", 2)]), TranscriptComparison::Same);
        assert_eq!(compared(&[("a", 1), ("a", 2), ("b", 1), ("b", 2)]), TranscriptComparison::Reordered(2));
        for (other, number) in [
            (&[("a", 2), ("b", 1), ("a", 1), ("b", 2)][..], 1),
            (&[("a", 1), ("b", 1), ("a", 2)], 4),
            (&[("a", 1), ("b", 1), ("a", 2), ("b", 3)], 4),
            (&[("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 1)], 5),
        ] {
            let TranscriptComparison::Different(difference) = compared(other) else { panic!("{other:?}") };
            assert_eq!(difference.number, number, "{other:?}");
        }
    }

    #[test]
    fn updates_of_no_turn_after_the_recorded_end_are_ignored() {
        let messages = |values: &[Value]| -> Vec<NormalisedMessage> {
            let message = |(at, value): (usize, &Value)| NormalisedMessage {
                number: at + 1,
                lane: value["lane"].to_string(),
                value: value.clone(),
            };
            values.iter().enumerate().map(message).collect()
        };
        let answer = |id: i64| json!({ "lane": id, "id": id, "result": {} });
        let of_kind = |kind: &str| json!({ "lane": "updates", "method": "session/update", "params": { "update": { "sessionUpdate": kind } } });
        let update = of_kind("available_commands_update");
        let request = json!({ "lane": "request", "method": "session/request_permission", "id": 0 });
        let expected = messages(&[answer(0), answer(1)]);
        for (more, is_same) in [
            (vec![], true),
            (vec![update.clone(), update.clone()], true),
            (vec![answer(2)], false),
            (vec![of_kind("agent_message_chunk")], false),
            (vec![request], false),
        ] {
            let actual = messages(&[vec![answer(0), answer(1)], more].concat());
            assert_eq!(
                conversations(&expected, &actual) == TranscriptComparison::Same,
                is_same,
                "{actual:?}"
            );
        }
        let earlier = messages(&[answer(0), update.clone(), answer(1)]);
        assert!(matches!(conversations(&expected, &earlier), TranscriptComparison::Different(_)));
        let fewer = messages(&[answer(0), update]);
        assert!(matches!(conversations(&expected, &fewer), TranscriptComparison::Different(_)));
    }
}
