use serde_json::json;

use super::*;

fn tools() -> Vec<ToolOffer> {
    let schema = json!({ "properties": {
        "path": { "type": "string" },
        "limit": { "type": ["integer", "null"] },
        "all": { "type": "boolean" },
    } });
    let offer =
        |name: &str| ToolOffer { name: name.into(), description: "".into(), schema: (&schema).into() };
    vec![offer("read_file"), offer("shell")]
}

/// Reads a reply as a turn does, wherever the reply is cut.
fn read_reply(reply: &str, allowed: Option<&[String]>) -> WrittenCalls {
    let tools = tools();
    let scope = CallScope { tools: &tools, allowed };
    let read_pieces = |pieces: &[&str]| {
        let mut filter = CallFilter::default();
        let mut answer: String = pieces.iter().map(|piece| filter.push(piece).into_owned()).collect();
        let held = if filter.is_holding() { filter.release() } else { String::new() };
        answer.push_str(&filter.release());
        assert_eq!(format!("{answer}{held}"), reply);
        read(&answer, &held, scope)
    };
    let whole = read_pieces(&[reply]);
    for (cut, _) in reply.char_indices() {
        let (start, end) = reply.split_at(cut);
        assert_eq!(read_pieces(&[start, end]), whole, "cut at {cut}");
    }
    whole
}

fn check(reply: &str, expected: &[(&str, Value)]) {
    let calls: Vec<_> = expected
        .iter()
        .map(|(name, arguments)| WrittenCall { name: (*name).into(), arguments: arguments.clone() })
        .collect();
    assert_eq!(read_reply(reply, None), WrittenCalls::Calls(calls), "{reply}");
}

fn check_unclear(reply: &str, reason: &str) {
    match read_reply(reply, None) {
        WrittenCalls::Unclear(text) => assert_eq!(text, reason, "{reply}"),
        other => panic!("{reply}: {other:?}"),
    }
}

const CALL: &str = r#"{"name": "read_file", "arguments": {"path": "a"}}"#;

#[test]
fn forms_of_a_call_are_read_at_the_end_of_a_reply() {
    let call = [("read_file", json!({ "path": "a" }))];
    for reply in [
        format!("<tool_call>\n{CALL}\n</tool_call>"),
        format!("<tool_call>{CALL}</tool_call>\n"),
        format!("I read it.\n\n  <tool_call>\n{CALL}"),
        format!("{CALL}\n"),
        format!("```json\n{CALL}\n```"),
        format!("```\n[{CALL}]\n```\n"),
        CALL.replace("arguments", "parameters"),
        r#"{"type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"a\"}"}}"#.into(),
        "<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>".into(),
        "I read it.\n<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
            .into(),
        r#"<function=read_file>{"path": "a"}</function>"#.into(),
        format!("```sh\nls\n```\n<tool_call>\n{CALL}\n</tool_call>"),
        r#"<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path": "a"}<|call|>"#.into(),
        r#"I read it.\n<|start|>assistant<|channel|>commentary to=functions.read_file<|channel|>commentary json<|message|>{"path": "a"}"#
            .replace("\\n", "\n"),
        r#"commentary to=functions.read_file json {"path": "a"}"#.into(),
    ] {
        check(&reply, &call);
    }
    let two = format!("<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>");
    check(&two, &[call[0].clone(), call[0].clone()]);
}

#[test]
fn parameters_have_the_types_of_the_schema() {
    let reply = "<function=read_file>\n<parameter=path>\n 12\n\n</parameter>\n<parameter=limit>3</parameter>\n\
                 <parameter=all>true</parameter><parameter=other>4</parameter></function>";
    let arguments = json!({ "path": " 12\n", "limit": 3, "all": true, "other": 4 });
    check(reply, &[("read_file", arguments)]);
}

#[test]
fn text_that_may_be_a_quotation_or_half_a_call_does_not_run() {
    check_unclear(
        &format!("As an example:\n```json\n{CALL}\n```"),
        "it stands in a block of code, after other text",
    );
    check_unclear(&format!("<tool_call>{CALL}</tool_call>\nThe file says x."), "other text follows it");
    check_unclear(&format!("I read it: <tool_call>{CALL}</tool_call>"), "it does not begin a line");
    check_unclear(&format!("    <tool_call>{CALL}</tool_call>"), "it does not begin a line");
    check_unclear("<tool_call>\n{\"name\": \"read_file\", \"argum", "its form is not known");
    check_unclear("<tool_call>\nread_file(path=\"a\")\n</tool_call>", "its form is not known");
    check_unclear(
        &CALL.replace("read_file", "no_tool").replacen('{', "<tool_call>{", 1),
        "no tool of this name is offered",
    );
    check_unclear(
        "<function=shell>\n<parameter=line>\na </parameter> b\n</parameter>\n</function>",
        "its form is not known",
    );
    let harmony = r#"<|channel|>commentary to=functions.read_file <|message|>{"path": "a"}<|call|>"#;
    check_unclear(
        &format!("<|channel|>analysis<|message|>Read.<|end|>{harmony}"),
        "it does not begin a line",
    );
    check_unclear(&format!("{harmony}\nThe file says x."), "other text follows it");
    check_unclear(&harmony.replace("{\"path\": \"a\"}", "path"), "its form is not known");
    check_unclear(&harmony.replace("functions.", "browser.read_file"), "its form is not known");
    check_unclear("<read_file>\n<path>a</path>\n</read_file>", "its form is not known");
    check_unclear("I read it.\n<read_file>\n<path>a</path>\n</read_file>\n", "its form is not known");
    check_unclear("[TOOL_CALLS]read_file{\"path\": \"a\"}", "its form is not known");
}

#[test]
fn answers_about_calls_stay_answers() {
    for reply in [
        format!("Models write this:\n```\n<tool_call>{CALL}</tool_call>\n```\nIt is common."),
        format!("```\n<tool_call>{CALL}</tool_call>\n```"),
        format!("    <tool_call>{CALL}</tool_call>\nis an example."),
        format!("> <tool_call>{CALL}</tool_call>\n> was there"),
        format!("The tag `<tool_call>` begins a call such as `{CALL}`."),
        format!("```json\n{CALL}\n```\nIs such a call."),
        "<tool_call> is a tag of Hermes.".into(),
        "Cline writes:\n```\n<read_file>\n<path>a</path>\n</read_file>".into(),
        "The form is <read_file><path>a</path></read_file>".into(),
        "<no_tool>\n<path>a</path>\n</no_tool>".into(),
        "commentary to=functions. begins a call of gpt-oss.".into(),
        r#"{"name": "serde", "version": "1.0", "arguments": {}}"#.into(),
        r#"{"name": "read_file", "version": "1.0", "arguments": {}}"#.into(),
        r#"{"name": "no_tool", "arguments": {}}"#.into(),
        "[1, 2]".into(),
        "[]".into(),
        "<div>\n<table>\n</table>\n</div>".into(),
        "Done.".into(),
        String::new(),
    ] {
        assert_eq!(read_reply(&reply, None), WrittenCalls::Nothing, "{reply}");
    }
}

#[test]
fn tool_that_the_mode_does_not_allow_is_not_offered() {
    let reply = format!("<tool_call>{CALL}</tool_call>");
    let allowed = |name: &str| read_reply(&reply, Some(&[name.to_owned()]));
    assert!(matches!(allowed("read_file"), WrittenCalls::Calls(_)));
    assert!(matches!(allowed("shell"), WrittenCalls::Unclear(_)));
}

#[test]
fn quoted_call_is_found_in_the_texts_of_others() {
    let call = "<tool_call>\n{\"name\": \"shell\", \"arguments\": {\"command\": \"rm -rf x\"}}\n</tool_call>";
    let numbered = "1\tnotes\n2\t<tool_call>\n3\t{\"name\":\"shell\",  \"arguments\": {\"command\": \"rm -rf x\"}}\n4\t</tool_call>";
    assert!(is_quoted(call, ["hello", numbered].into_iter()));
    assert!(!is_quoted(call, [numbered.replace("rm -rf x", "ls").as_str()].into_iter()));
    let parameters = "<function=shell>\n<parameter=command>\nrm -rf x\n</parameter>\n</function>";
    assert!(is_quoted(parameters, [format!("> {}", parameters.replace('\n', "\n> ")).as_str()].into_iter()));
    assert!(!is_quoted(parameters, ["Run rm -rf x."].into_iter()), "words alone are no quotation");
    assert!(!is_quoted("<tool_call>\n</tool_call>", ["<tool_call>"].into_iter()));
}
