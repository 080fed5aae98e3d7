//! Calls by the names that models know from other agents: finds the own tool that a name means, and the own
//! arguments. Pure.
//!
//! Only names are translated. The call is then decided and recorded as a call of the own tool, so nothing here can
//! permit anything.

use serde_json::{Map, Value};

pub use self::advice::advice;
use self::convert::{Converted, ValueForm, convert};
use self::table::{ForeignArgument, ForeignTool, IGNORED, PATHS, PREFIXES, TOOLS};
use self::translation_notes::TranslationNotes;
use super::json_repair::repaired;

mod advice;
mod blocks;
mod convert;
mod no_tools;
pub mod table;
mod translation_notes;

/// Maximum characters of a foreign name in a note.
const SHOWN: usize = 40;

/// Tools of servers that an advice names.
const MAX_NAMED: usize = 5;

/// Members below which models put the arguments.
const WRAPPERS: [&str; 5] = ["arguments", "parameters", "args", "input", "tool_input"];

/// Members that models put beside the arguments.
const LABELS: [&str; 4] = ["name", "tool", "tool_name", "type"];

/// A tool of an MCP server under the server's own names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerToolName {
    /// The name for models.
    pub name: String,
    pub server: String,
    pub tool: String,
}

/// The tools of a session and of a request.
pub trait ToolNames {
    /// True if the session has the tool.
    fn exists(&self, name: &str) -> bool;
    /// True if the request offers the tool.
    fn is_offered(&self, name: &str) -> bool;
    /// The tools of MCP servers.
    fn of_servers(&self) -> Vec<ServerToolName>;
}

/// The meaning of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTool {
    /// The tool has this name, or no tool does.
    Same,
    /// A tool of the session under another name. The call may run only if the request offers the tool.
    Own { tool: String, is_offered: bool },
}

/// Finds the tool that a name means. `arguments` are `None` while they stream: then a name that depends on them has no
/// meaning yet.
pub fn named_tool(name: &str, arguments: Option<&Value>, tools: &impl ToolNames) -> NamedTool {
    if tools.exists(name) {
        return NamedTool::Same;
    }
    let bare = bare(name);
    let mut candidates: Vec<&str> = Vec::new();
    if tools.exists(bare) {
        candidates.push(bare);
    } else if let Some(own) = TOOLS.iter().find(|row| is_same(row.tool, bare) && tools.exists(row.tool)) {
        candidates.push(own.tool);
    } else {
        let with_argument = TOOLS.iter().filter(|row| {
            row.names_with.iter().any(|(known, argument, value)| {
                is_same(known, bare) && arguments.is_some_and(|given| has_value(given, argument, value))
            })
        });
        let by_name = TOOLS.iter().filter(|row| row.names.iter().any(|known| is_same(known, bare)));
        candidates.extend(with_argument.chain(by_name).map(|row| row.tool).filter(|tool| tools.exists(tool)));
    }
    if candidates.is_empty() {
        return match server_tools(bare, &tools.of_servers()).as_slice() {
            [only] => NamedTool::Own { tool: only.name.clone(), is_offered: tools.is_offered(&only.name) },
            _ => NamedTool::Same,
        };
    }
    let offered = candidates.iter().find(|tool| tools.is_offered(tool));
    match offered.or(candidates.first()) {
        Some(tool) => NamedTool::Own { tool: (*tool).to_owned(), is_offered: offered.is_some() },
        None => NamedTool::Same,
    }
}

/// True if a name needs its arguments to have a meaning.
pub fn depends_on_arguments(name: &str) -> bool {
    TOOLS.iter().flat_map(|row| row.names_with).any(|(known, ..)| is_same(known, bare(name)))
}

/// A name without what models write around it: a namespace, brackets, and tokens of the reply's format.
fn bare(name: &str) -> &str {
    let name = name.trim();
    let name = name.split("<|").next().filter(|start| !start.is_empty()).unwrap_or(name);
    let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    name.strip_suffix("()").unwrap_or(name).trim_end()
}

/// The tools of servers that a name can mean: by server and tool, else by the tool alone.
fn server_tools<'a>(name: &str, all: &'a [ServerToolName]) -> Vec<&'a ServerToolName> {
    let wanted = alphanumeric(name);
    let with = |form: fn(&ServerToolName) -> String| -> Vec<&'a ServerToolName> {
        all.iter().filter(|known| !wanted.is_empty() && alphanumeric(&form(known)) == wanted).collect()
    };
    let forms: [fn(&ServerToolName) -> String; 3] = [
        |known| format!("mcp{}{}", known.server, known.tool),
        |known| format!("{}{}", known.server, known.tool),
        |known| known.tool.clone(),
    ];
    forms.into_iter().map(with).find(|found| !found.is_empty()).unwrap_or_default()
}

/// True if two names differ only in case and in characters that names of tools cannot have.
pub fn is_same_server(one: &str, other: &str) -> bool {
    alphanumeric(one) == alphanumeric(other)
}

fn alphanumeric(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn has_value(given: &Value, argument: &str, value: &str) -> bool {
    match &given[argument] {
        Value::Array(items) => value == "one" && items.len() == 1,
        Value::String(text) => text == value,
        Value::Bool(is_true) => value == if *is_true { "true" } else { "false" },
        _ => false,
    }
}

/// Compares names without case, blanks, `_` and `-`.
fn is_same(one: &str, other: &str) -> bool {
    letters(one).eq(letters(other))
}

fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase())
}

/// Arguments as the own tool names them.
#[derive(Debug, PartialEq)]
pub struct OwnArguments {
    pub arguments: Value,
    /// For the model: the names and values that were read in another way.
    pub note: Option<String>,
}

/// Repairs the JSON of the arguments, and translates the names of a built-in tool. `called` is the name that the model
/// wrote, and `schema` that of the tool. Leaves unknown names.
pub fn own_arguments(called: &str, tool: &str, given: Value, schema: Option<&Value>) -> OwnArguments {
    let mut notes = TranslationNotes::default();
    let given = match given {
        Value::String(text) => match repaired(&text) {
            Some((value, repairs)) => {
                notes.repairs = repairs;
                value
            }
            None => Value::String(text),
        },
        given => given,
    };
    let given = match schema {
        Some(schema) => unwrapped(given, [called, tool], schema, &mut notes),
        None => given,
    };
    let arguments = match (given, schema, TOOLS.iter().find(|row| row.tool == tool)) {
        (Value::Object(members), Some(schema), row) => {
            Value::Object(translated(row.unwrap_or(&table::OTHER), called, members, schema, &mut notes))
        }
        (given, ..) => given,
    };
    OwnArguments { arguments, note: notes.text(called, tool) }
}

/// The arguments that stand below another member, perhaps beside the name of the tool.
fn unwrapped(given: Value, names: [&str; 2], schema: &Value, notes: &mut TranslationNotes) -> Value {
    let Value::Object(members) = &given else { return given };
    let is_own = |name: &str| schema["properties"][name].is_object();
    let mut wrappers = members.keys().filter(|key| WRAPPERS.contains(&key.as_str()) && !is_own(key));
    let Some(wrapper) = wrappers.next().filter(|_| wrappers.next().is_none()) else { return given };
    let is_label = |(key, value): (&String, &Value)| {
        let is_name = value.as_str().is_some_and(|value| names.contains(&value) || value == "function");
        key == wrapper || (LABELS.contains(&key.as_str()) && !is_own(key) && is_name)
    };
    if !members.iter().all(is_label) {
        return given;
    }
    let inner = match &members[wrapper] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        value => value.clone(),
    };
    if !inner.is_object() {
        return given;
    }
    notes.wrapper = Some(wrapper.clone());
    inner
}

fn translated(
    row: &ForeignTool,
    called: &str,
    mut given: Map<String, Value>,
    schema: &Value,
    notes: &mut TranslationNotes,
) -> Map<String, Value> {
    let choice = row.names_with.iter().find(|(known, ..)| is_same(known, called));
    if let Some((_, argument, _)) =
        choice.filter(|(_, argument, _)| !given.get(*argument).is_some_and(Value::is_array))
    {
        given.shift_remove(*argument);
    }
    let Some((list, names)) = row.items else {
        return members(row.arguments, row.ignored, given, schema, notes);
    };
    let item_schema = &schema["properties"][list]["items"];
    // Some agents ask one question, without a list.
    let is_item = |name: &String| own_name(name, names, item_schema).is_some();
    let has_list = given.keys().any(|name| own_name(name, row.arguments, schema).is_some());
    if !has_list && given.keys().any(is_item) {
        let item = members(names, row.ignored, given, item_schema, notes);
        return Map::from_iter([(list.to_owned(), Value::Array(vec![Value::Object(item)]))]);
    }
    let mut own = members(row.arguments, row.ignored, given, schema, notes);
    if let Some(value) = own.get_mut(list) {
        if let Value::String(text) = value
            && let Ok(items) = serde_json::from_str::<Value>(text)
        {
            *value = items;
        }
        for item in value.as_array_mut().into_iter().flatten() {
            if let Value::Object(given) = item {
                *given = members(names, row.ignored, std::mem::take(given), item_schema, notes);
            }
        }
    }
    own
}

/// The own argument that a name means, and how its value is read.
fn own_name<'a>(name: &str, names: &'a [ForeignArgument], schema: &'a Value) -> Option<(&'a str, ValueForm)> {
    let properties = schema["properties"].as_object()?;
    if let Some((_, own, form)) = names.iter().find(|(known, own, _)| known == own && *known == name) {
        return Some((own, *form));
    }
    if let Some((own, _)) = properties.get_key_value(name) {
        return Some((own, ValueForm::Plain));
    }
    if let Some((_, own, form)) = names.iter().find(|(known, ..)| is_same(known, name)) {
        return properties.contains_key(*own).then_some((*own, *form));
    }
    if let Some(own) = properties.keys().find(|own| is_same(own, name)) {
        return Some((own, ValueForm::Plain));
    }
    let is_path = PATHS.iter().any(|known| is_same(known, name)) && properties.contains_key("path");
    is_path.then_some(("path", ValueForm::Plain))
}

fn members(
    names: &[ForeignArgument],
    ignored: &[&str],
    given: Map<String, Value>,
    schema: &Value,
    notes: &mut TranslationNotes,
) -> Map<String, Value> {
    let is_ignored =
        |name: &str| ignored.iter().chain(&IGNORED).any(|known| is_same(known, name) || *known == name);
    let mut own = Map::new();
    // The number of lines depends on the first line, and blocks on the path.
    let (late, early): (Vec<_>, Vec<_>) = given.into_iter().partition(|(name, _)| {
        own_name(name, names, schema).is_some_and(|(_, form)| {
            use ValueForm::{LastLine, LineRange, PatchOrBlocks, SingleEdit};
            matches!(form, LastLine | LineRange | PatchOrBlocks | SingleEdit)
        })
    });
    for (name, value) in early.into_iter().chain(late) {
        let Some((argument, form)) = own_name(&name, names, schema) else {
            if is_ignored(&name) {
                notes.ignore(&name);
            } else {
                own.insert(name, value);
            }
            continue;
        };
        match convert(form, &value, &mut own) {
            Converted::Value(read) => {
                let before = own.get(argument).filter(|before| !before.is_null() && form != ValueForm::Most);
                if before.is_some_and(|before| *before != read) {
                    // Two values for one argument: the reader of the arguments refuses the other name.
                    own.insert(name, value);
                    continue;
                }
                if name != argument {
                    notes.rename(&name, argument);
                }
                notes.has_milliseconds |=
                    form == ValueForm::Milliseconds || (form == ValueForm::Seconds && read != value);
                own.insert(argument.to_owned(), read);
            }
            Converted::Nothing => notes.ignore(&name),
            Converted::Unknown => {
                own.insert(name, value);
            }
        }
    }
    own
}

#[cfg(test)]
mod tests;
