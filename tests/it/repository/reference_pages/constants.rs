//! Reads numeric constants from the source, most of which are private.

use std::time::Duration;

use super::source;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Constant {
    Number(u64),
    Time(Duration),
}

/// Returns the value of `const NAME` in a file below `src`.
pub(super) fn read(file: &str, name: &str) -> Constant {
    let text = source(file);
    let start = format!("const {name}: ");
    let at = text.find(&start).unwrap_or_else(|| panic!("src/{file} has no constant {name}"));
    let definition = text[at..].split(';').next().unwrap();
    let expression = definition.split_once(" = ").unwrap().1;
    parse(expression).unwrap_or_else(|| panic!("src/{file}: {name} = {expression} cannot be read"))
}

pub(super) fn number(file: &str, name: &str) -> u64 {
    match read(file, name) {
        Constant::Number(number) => number,
        Constant::Time(_) => panic!("src/{file}: {name} is a time"),
    }
}

fn parse(expression: &str) -> Option<Constant> {
    if let Some((unit, argument)) =
        expression.strip_prefix("Duration::from_").and_then(|call| call.split_once('('))
    {
        let number = product(argument.strip_suffix(')')?)?;
        let time = match unit {
            "millis" => Duration::from_millis(number),
            "secs" => Duration::from_secs(number),
            "mins" => Duration::from_mins(number),
            "hours" => Duration::from_hours(number),
            _ => return None,
        };
        return Some(Constant::Time(time));
    }
    product(expression).map(Constant::Number)
}

fn product(expression: &str) -> Option<u64> {
    expression.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>().ok()).product()
}

#[test]
fn constants_are_parsed_like_rust() {
    for (expression, expected) in [
        ("64 * 1024", Some(Constant::Number(65_536))),
        ("65_536", Some(Constant::Number(65_536))),
        ("Duration::from_secs(60 * 60)", Some(Constant::Time(Duration::from_hours(1)))),
        ("Duration::from_millis(500)", Some(Constant::Time(Duration::from_millis(500)))),
        ("Duration::from_secs(OTHER)", None),
    ] {
        assert_eq!(parse(expression), expected, "{expression}");
    }
}
