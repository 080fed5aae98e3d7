//! Additions of a project's file to the user's layers, once the user trusts it. Pure.
//!
//! Rules that deny and ask are left out, because they count without trust.

use super::{Diagnostic, LayerOwner, Layers};
use crate::agents::{AgentOrigin, AgentSpec};
use crate::mode::Mode;
use crate::permission::compare;
use crate::server::ServerDefinition;
use crate::text::visible_line;

/// Returns one line for each allow rule, server, check, mode, agent and default mode.
pub fn additions(own: &Layers, name: &str, text: &str) -> Result<Vec<String>, Diagnostic> {
    let mut added =
        Layers { modes: own.modes.clone(), default_mode: own.default_mode.clone(), ..Layers::default() };
    added.add(name, text, LayerOwner::User)?;
    let rules = added.rules.iter().filter(|(kind, _)| *kind == "allow");
    let mut lines: Vec<String> = rules.map(|(kind, rule)| format!("{kind} {rule}")).collect();
    lines.extend(added.servers.iter().map(|(name, server)| describe_server(name, server)));
    lines.extend(added.checks.iter().map(|check| format!("check {}: runs `{}`", check.id, check.command)));
    lines.extend(
        added
            .modes
            .iter()
            .filter_map(|mode| describe_mode(mode, own.modes.iter().find(|known| known.id == mode.id))),
    );
    let agents = added.agents.iter().filter(|agent| agent.origin == AgentOrigin::User);
    lines.extend(agents.map(|agent| describe_agent(agent)));
    lines.extend(
        added
            .default_mode
            .filter(|mode| Some(mode) != own.default_mode.as_ref())
            .map(|mode| format!("default mode {mode}")),
    );
    Ok(lines.iter().map(|line| visible_line(line)).collect())
}

fn command_line(command: &str, arguments: &[String]) -> String {
    let words: Vec<&str> = std::iter::once(command).chain(arguments.iter().map(String::as_str)).collect();
    format!("`{}`", words.join(" "))
}

fn describe_server(name: &str, server: &ServerDefinition) -> String {
    match (&server.command, &server.url) {
        (Some(command), _) => {
            let names: Vec<&str> = server.env.keys().map(String::as_str).collect();
            let variables =
                if names.is_empty() { String::new() } else { format!(", with {}", names.join(", ")) };
            format!("server {name}: runs {}{variables}", command_line(command, &server.args))
        }
        (None, Some(url)) => format!("server {name}: connects to {url}"),
        (None, None) => format!("server {name}: settings for your client's server"),
    }
}

/// Returns `None` for a mode that the user has already. The description is computed, because a file may lie.
fn describe_mode(mode: &Mode, known: Option<&Mode>) -> Option<String> {
    let effects = compare::describe_effects(&[mode]);
    let model = mode.model.as_ref().map_or_else(String::new, |model| format!(", with the model {model}"));
    let id = &mode.id;
    match known {
        None => Some(format!("mode {id}, new: {effects}{model}")),
        Some(known) if known.to_yaml() == mode.to_yaml() => None,
        Some(known) => {
            let before = compare::describe_effects(&[known]);
            let kind = if compare::allows_more(&[mode], &[known]) { "wider" } else { "changed" };
            Some(format!("mode {id}, {kind}: {effects}{model}; yours: {before}"))
        }
    }
}

fn describe_agent(agent: &AgentSpec) -> String {
    let id = &agent.id;
    match (&agent.external_agent, &agent.model) {
        (Some(program), _) => format!("agent {id}: runs {}", command_line(&program.command, &program.args)),
        (None, Some(model)) => format!("agent {id}: instructions, with the model {model}"),
        (None, None) => format!("agent {id}: instructions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_addition_has_a_line() {
        for (text, expected) in [
            ("permissions: {allow: [shell], deny: [read_file], ask: [write_file]}", vec!["allow shell"]),
            ("servers: {evil: {command: npx, args: [-y, evil]}}", vec!["server evil: runs `npx -y evil`"]),
            (
                "servers: {evil: {command: sh, args: [-c, x], env: {LD_PRELOAD: /a}}}",
                vec!["server evil: runs `sh -c x`, with LD_PRELOAD"],
            ),
            ("servers: {far: {url: 'https://a.b/c'}}", vec!["server far: connects to https://a.b/c"]),
            ("checks: [{id: lint, command: make lint}]", vec!["check lint: runs `make lint`"]),
            (
                "modes: [{id: wide, extends: code, description: Reads}]",
                vec!["mode wide, new: changes files and runs commands without asking"],
            ),
            (
                "modes: [{id: plan, extends: code}]",
                vec![
                    "mode plan, wider: changes files and runs commands without asking; yours: changes nothing",
                ],
            ),
            ("agents: [{id: a, harness: {command: gem, args: [--acp]}}]", vec!["agent a: runs `gem --acp`"]),
            ("agents: [{id: a, model: x/y}]", vec!["agent a: instructions, with the model x/y"]),
            ("default_mode: code", vec!["default mode code"]),
            ("permissions: {allow: [\"shell(a\\e*)\"]}", vec!["allow shell(a\\u{1b}*)"]),
            ("permissions: {deny: [shell]}", vec![]),
            (
                "modes: [{id: plan, extends: plan, network: deny}]",
                vec!["mode plan, changed: changes nothing; yours: changes nothing"],
            ),
        ] {
            assert_eq!(additions(&Layers::default(), "modes.yaml", text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_the_user_has_already_is_no_addition() {
        let mut own = Layers::default();
        let text = "modes: [{id: wide, extends: code}]\ndefault_mode: wide";
        own.add("modes.yaml", text, LayerOwner::User).unwrap();
        assert_eq!(additions(&own, "modes.yaml", "default_mode: wide").unwrap(), Vec::<String>::new());
        assert_eq!(additions(&own, "modes.yaml", "default_mode: plan").unwrap(), ["default mode plan"]);
    }
}
