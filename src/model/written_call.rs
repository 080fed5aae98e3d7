//! Calls that a model writes into its text, because its server has no parser for them. Pure.
//!
//! ```text
//! reply     = text { tagged | function | harmony }, the first at the start of a line | json | "```" LANGUAGE json "```"
//! tagged    = "<tool_call>" ( call | function ) [ "</tool_call>" ], or with "function_call"
//! function  = "<function=" NAME ">" [ object ] { "<parameter=" NAME ">" text "</parameter>" } [ "</function>" ]
//! harmony   = [ "<|start|>assistant" ] [ "<|channel|>" ] "commentary to=functions." NAME { TOKEN | "json" } object
//!             [ "<|call|>" ]
//! json      = call | "[" call { "," call } "]"
//! call      = { "name": NAME, "arguments": object }, perhaps below "function", perhaps with "id" and "type"
//! ```
//!
//! A closing tag is missing only at the end of the reply. A call counts only if nothing follows it, if it begins a line outside of code, and
//! if its words come from no tool result and no user (decision 0071). A text that only looks like a call is never
//! carried out.

use std::borrow::Cow;

use serde_json::{Deserializer, Map, Value};

use self::harmony::harmony_call;
use super::ToolOffer;
use crate::text::has_newline;

mod harmony;

/// Texts that begin a call, at the start of a line.
const MARKS: [&str; 12] = [
    "<|channel|>commentary to=",
    "<|start|>assistant<|channel|>commentary to=",
    "commentary to=functions.",
    "<tool_call>",
    "<function=",
    "<function_call>",
    "<function_calls>",
    "<invoke ",
    "<|tool_call",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "[TOOL_CALLS]",
];

/// The first of [`MARKS`] begin a call of gpt-oss in its own format.
const HARMONY_MARKS: usize = 3;

/// Lines that are indented further are code.
const MAX_INDENT: usize = 3;

/// Names of the member with the arguments of a call.
const ARGUMENTS: [&str; 4] = ["arguments", "parameters", "args", "input"];

#[derive(Debug, Clone, PartialEq)]
pub struct WrittenCall {
    pub name: String,
    pub arguments: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum WrittenCalls {
    /// The text is an answer.
    Nothing,
    Calls(Vec<WrittenCall>),
    /// The text looks like a call, but must not run. The reason is for the model.
    Unclear(Cow<'static, str>),
}

/// Holds back the end of a reply that may be a call, while the reply streams.
#[derive(Debug, Default)]
pub struct CallFilter {
    /// First characters of the line after its indentation.
    start: String,
    indent: usize,
    /// True if the line is no call, however it goes on.
    is_decided: bool,
    is_fenced: bool,
    /// True from the start of a call to the end of the text.
    is_holding: bool,
    held: String,
}

impl CallFilter {
    /// Returns the part of the text so far that belongs to the answer.
    pub fn push<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        if self.is_holding {
            self.held.push_str(text);
            return Cow::Borrowed("");
        }
        if self.is_decided && !has_newline(text) {
            return Cow::Borrowed(text);
        }
        let mut answer = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            if c == '\n' {
                answer.push_str(&self.release());
                answer.push(c);
                (self.indent, self.is_decided) = (0, false);
                self.start.clear();
                continue;
            }
            if self.is_decided {
                answer.push(c);
                continue;
            }
            if self.start.is_empty() && c.is_whitespace() {
                self.indent += 1;
                self.is_decided = self.indent > MAX_INDENT;
                answer.push(c);
                continue;
            }
            self.start.push(c);
            self.held.push(c);
            if self.is_fenced || !MARKS.iter().any(|mark| mark.starts_with(&self.start)) {
                answer.push_str(&self.release());
            } else if MARKS.contains(&self.start.as_str()) {
                self.is_holding = true;
                self.held.push_str(&text[at + c.len_utf8()..]);
                break;
            }
            let is_fence = ["```", "~~~"].contains(&self.start.as_str());
            self.is_fenced ^= is_fence;
            let may_be_fence = ["```", "~~~"].iter().any(|fence| fence.starts_with(&self.start));
            self.is_decided = self.held.is_empty() && (is_fence || !may_be_fence);
        }
        Cow::Owned(answer)
    }

    /// True if the text ends in something that may be a call.
    pub fn is_holding(&self) -> bool {
        self.is_holding
    }

    /// Returns the text that may be a call, as a part of the answer.
    pub fn release(&mut self) -> String {
        self.is_holding = false;
        std::mem::take(&mut self.held)
    }
}

/// The tools that a reply may call, and the texts that it may quote.
#[derive(Debug, Clone, Copy)]
pub struct CallScope<'a> {
    pub tools: &'a [ToolOffer],
    /// `None` if all tools are allowed.
    pub allowed: Option<&'a [String]>,
}

impl CallScope<'_> {
    fn offer(&self, name: &str) -> Option<&ToolOffer> {
        let is_allowed = self.allowed.is_none_or(|names| names.iter().any(|allowed| allowed == name));
        self.tools.iter().find(|tool| tool.name == name).filter(|_| is_allowed)
    }

    /// True if the text contains the name of a tool that may be called.
    fn names_tool(&self, text: &str) -> bool {
        self.tools.iter().any(|tool| text.contains(&tool.name) && self.offer(&tool.name).is_some())
    }
}

/// Reads the calls of a reply. `held` comes from the [`CallFilter`], and `answer` is the text before it.
pub fn read(answer: &str, held: &str, scope: CallScope<'_>) -> WrittenCalls {
    if !held.is_empty() {
        return read_marked(held, scope);
    }
    let text = answer.trim();
    let (json, is_whole) = match fenced_end(text) {
        Some((before, json)) => (json, before.trim().is_empty()),
        None => (text, true),
    };
    let calls = read_json(json, scope);
    match calls {
        Some(calls) if is_whole => WrittenCalls::Calls(calls),
        Some(_) => WrittenCalls::Unclear("it stands in a block of code, after other text".into()),
        None if ["</tool_call>", "</function>", "<|call|>"].iter().any(|end| text.ends_with(end))
            && scope.names_tool(text) =>
        {
            WrittenCalls::Unclear("it does not begin a line".into())
        }
        None if ends_with_element(text, scope) => WrittenCalls::Unclear("its form is not known".into()),
        None => WrittenCalls::Nothing,
    }
}

/// True if the text ends with an XML element that begins a line and has the name of a tool: `<read_file>…</read_file>`.
fn ends_with_element(text: &str, scope: CallScope<'_>) -> bool {
    let name = text.strip_suffix('>').and_then(|text| Some(text.rsplit_once("</")?.1));
    let Some(name) = name.filter(|name| scope.offer(name).is_some()) else { return false };
    let start =
        text.rfind(&format!("<{name}>")).filter(|start| *start == 0 || text[..*start].ends_with('\n'));
    // After an odd number of fences, it stands in a block of code.
    start.is_some_and(|start| {
        text[..start].lines().filter(|line| line.starts_with("```")).count().is_multiple_of(2)
    })
}

/// The last lines of a text, if they are a block of code: the text before, and the code.
fn fenced_end(text: &str) -> Option<(&str, &str)> {
    let body = text.strip_suffix("```")?;
    let start = body.rfind("```")?;
    let (before, code) = (&body[..start], &body[start + 3..]);
    let (language, code) = code.split_once('\n')?;
    let is_data = matches!(language.trim(), "" | "json" | "tool_call" | "tool_code" | "tool");
    (is_data && (before.is_empty() || before.ends_with('\n'))).then_some((before, code))
}

fn read_json(text: &str, scope: CallScope<'_>) -> Option<Vec<WrittenCall>> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let calls = match value {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    let calls: Option<Vec<WrittenCall>> = calls
        .into_iter()
        .map(|call| json_call(call).filter(|call| scope.offer(&call.name).is_some()))
        .collect();
    calls.filter(|calls| !calls.is_empty())
}

/// A call as JSON: its name, its arguments, and nothing else that has a meaning.
fn json_call(call: Value) -> Option<WrittenCall> {
    let Value::Object(mut members) = call else { return None };
    if let Some(function) = members.get_mut("function").filter(|function| function.is_object()) {
        let function = function.take();
        members.shift_remove("function");
        return members
            .keys()
            .all(|key| ["id", "type"].contains(&key.as_str()))
            .then(|| json_call(function))?;
    }
    let name = members.shift_remove("name")?.as_str()?.to_owned();
    let key = *ARGUMENTS.iter().find(|key| members.contains_key(**key))?;
    let arguments = match members.shift_remove(key)? {
        Value::String(text) => serde_json::from_str(&text).ok()?,
        arguments => arguments,
    };
    let is_all = members.keys().all(|key| ["id", "type"].contains(&key.as_str()));
    (is_all && arguments.is_object()).then_some(WrittenCall { name, arguments })
}

/// Reads a text that begins with one of [`MARKS`].
fn read_marked(held: &str, scope: CallScope<'_>) -> WrittenCalls {
    let mut calls = Vec::new();
    let mut rest = held.trim();
    while !rest.is_empty() {
        let Some((call, after)) = marked_call(rest, scope) else {
            // Text after a call may be an invented result, and a text about calls names no tool.
            return match scope.names_tool(held) {
                true if calls.is_empty() => WrittenCalls::Unclear("its form is not known".into()),
                true => WrittenCalls::Unclear("other text follows it".into()),
                false if calls.is_empty() => WrittenCalls::Nothing,
                false => WrittenCalls::Unclear("no tool of this name is offered".into()),
            };
        };
        calls.push(call);
        rest = after.trim_start();
    }
    if calls.iter().all(|call| scope.offer(&call.name).is_some()) {
        return WrittenCalls::Calls(calls);
    }
    WrittenCalls::Unclear("no tool of this name is offered".into())
}

/// The first call of a text, and the rest of it.
fn marked_call<'a>(text: &'a str, scope: CallScope<'_>) -> Option<(WrittenCall, &'a str)> {
    if text.starts_with("<function=") {
        return function_call(text, scope);
    }
    if MARKS[..HARMONY_MARKS].iter().any(|mark| text.starts_with(mark)) {
        return harmony_call(text);
    }
    let mark = ["<tool_call>", "<function_call>"].into_iter().find(|mark| text.starts_with(mark))?;
    let body = text[mark.len()..].trim_start();
    let (call, rest) = if body.starts_with("<function=") {
        function_call(body, scope)?
    } else {
        let mut values = Deserializer::from_str(body).into_iter::<Value>();
        let call = json_call(values.next()?.ok()?)?;
        (call, &body[values.byte_offset()..])
    };
    let rest = rest.trim_start();
    match rest.strip_prefix(&mark.replacen('<', "</", 1)) {
        Some(after) => Some((call, after)),
        // Some models stop before the closing tag.
        None => rest.is_empty().then_some((call, rest)),
    }
}

/// A call in the form `<function=NAME>…</function>`, with JSON or with parameters.
fn function_call<'a>(text: &'a str, scope: CallScope<'_>) -> Option<(WrittenCall, &'a str)> {
    let (name, body) = text.strip_prefix("<function=")?.split_once('>')?;
    let (name, mut rest) = (name.trim(), body.trim_start());
    let mut arguments = Map::new();
    if rest.starts_with('{') {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let Value::Object(members) = values.next()?.ok()? else { return None };
        arguments = members;
        rest = &rest[values.byte_offset()..];
    }
    let schema = scope.offer(name).map(|offer| offer.schema.to_value());
    while let Some(parameter) = rest.trim_start().strip_prefix("<parameter=") {
        let (key, value) = parameter.split_once('>')?;
        let (value, after) = value.split_once("</parameter>")?;
        let next = after.trim_start();
        // A value that contains the closing tag has no clear end.
        if !next.is_empty() && !["<parameter=", "</function>"].iter().any(|tag| next.starts_with(tag)) {
            return None;
        }
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let kind = schema.as_ref().map(|schema| &schema["properties"][key.trim()]);
        arguments.insert(key.trim().to_owned(), parameter_value(value, kind));
        rest = after;
    }
    let rest = rest.trim_start();
    let call = WrittenCall { name: name.to_owned(), arguments: Value::Object(arguments) };
    match rest.strip_prefix("</function>") {
        Some(after) => Some((call, after)),
        None => (rest.is_empty() || rest.starts_with("</tool_call>")).then_some((call, rest)),
    }
}

/// The value of a parameter: text where the schema permits text, else JSON.
fn parameter_value(text: &str, schema: Option<&Value>) -> Value {
    let is_text = schema.is_none_or(|schema| match &schema["type"] {
        Value::String(kind) => kind == "string",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "string"),
        _ => false,
    });
    let json = if is_text { None } else { serde_json::from_str(text.trim()).ok() };
    json.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// True if every line of a call stands in one of the texts that the model got: the call is a quotation. Blanks do
/// not count, because a quotation may be indented or numbered.
pub fn is_quoted<'a>(call: &str, mut texts: impl Iterator<Item = &'a str> + Clone) -> bool {
    let texts: Vec<String> = texts.by_ref().map(without_blanks).collect();
    let mut lines = call.lines().map(without_blanks).filter(|line| !line.is_empty() && !is_tag(line));
    let mut has_lines = false;
    let is_known = lines.all(|line| {
        has_lines = true;
        texts.iter().any(|text| text.contains(&line))
    });
    has_lines && is_known
}

fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

/// True for a line without words of its own.
fn is_tag(line: &str) -> bool {
    ["<tool_call>", "</tool_call>", "</function>", "</parameter>", "<|call|>", "```", "```json"]
        .contains(&line)
}

#[cfg(test)]
mod tests;
