//! Writes an agent as YAML, without the values of an external agent's environment. Pure.

use std::fmt::Write;
use std::path::PathBuf;

use super::AgentSpec;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::mode::yaml::{list, prompt, quoted, tool_lists};

impl AgentSpec {
    /// Writes every key that has a value. The output is deterministic.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        let mut write_line =
            |line: String| writeln!(text, "{line}").expect("writing to a string cannot fail");
        write_line(format!("id: {}", quoted(&self.id)));
        write_line(format!("name: {}", quoted(&self.name)));
        write_line(format!("description: {}", quoted(&self.description)));
        if self.is_read_only {
            write_line("readonly: true".into());
        }
        for tools in self.limits.iter().map(|limit| &limit.tools) {
            if let Some(tools) = tool_lists(tools) {
                write_line(format!("tools: {tools}"));
            }
        }
        if let Some(model) = &self.model {
            write_line(format!("model: {}", quoted(model)));
        }
        if let Some(thinking) = self.thinking {
            write_line(format!("thinking: {}", thinking.as_str()));
        }
        if let Some(definition) = &self.external_agent {
            write_line(format!("harness:\n{}", external_agent_yaml(definition)));
        }
        text.push_str(&prompt(&self.prompt));
        text
    }
}

fn external_agent_yaml(definition: &ExternalAgentDefinition) -> String {
    let ExternalAgentDefinition {
        command,
        args,
        env,
        sandbox,
        modes,
        missing: _,
        inherits: _,
        terminal_program: _,
        hides_sandbox: _,
        profile: _,
        requires_broker: _,
        host_limit: _,
    } = definition;
    let mut lines = vec![format!("  command: {}", quoted(command))];
    if !args.is_empty() {
        lines.push(format!("  args: {}", list(args)));
    }
    if !env.is_empty() {
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        lines.push(format!("  # env: {} (values are not shown)", names.join(", ")));
    }
    if let Some(sandbox) = sandbox {
        let texts = |folders: &[PathBuf]| -> Vec<String> {
            folders.iter().map(|path| path.to_string_lossy().into_owned()).collect()
        };
        let (state_dirs, write_dirs) = (texts(&sandbox.state_dirs), texts(&sandbox.write_dirs));
        let args =
            if sandbox.args.is_empty() { String::new() } else { format!(", args: {}", list(&sandbox.args)) };
        let broker = sandbox.broker.map(|broker| format!(", broker: {broker}")).unwrap_or_default();
        let lists = [("write_dirs", &write_dirs), ("hosts", &sandbox.hosts), ("sockets", &sandbox.sockets)];
        let lists = lists.into_iter().filter(|(_, texts)| !texts.is_empty());
        let lists: String = lists.map(|(key, texts)| format!(", {key}: {}", list(texts))).collect();
        lines.push(format!("  sandbox: {{state_dirs: {}{args}{broker}{lists}}}", list(&state_dirs)));
    }
    let modes = [("read_only", &modes.read_only), ("full", &modes.full)];
    let modes: Vec<String> =
        modes.iter().filter_map(|(key, id)| id.as_ref().map(|id| format!("{key}: {}", quoted(id)))).collect();
    if !modes.is_empty() {
        lines.push(format!("  modes: {{{}}}", modes.join(", ")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use crate::agents::{AgentDefinition, AgentOrigin, AgentRegistry};

    #[test]
    fn printed_agents_parse_back_and_omit_env_values() {
        let text = r##"[
            {id: 'on', name: "a: b", description: "# d", readonly: true, model: x/y, thinking: high,
             tools: {allow: ["read_*", "[a]"], deny: [fetch]}, prompt: "Read.\n\n  Then: answer.\n"},
            {id: other, harness: {command: a b, args: ["--x", "y: z"], env: {KEY: secret-value},
             sandbox: {state_dirs: ["~/.a"], write_dirs: [/b], args: ["-c", 'd="e"'], broker: true, hosts: ['*.a.b'], sockets: [gpg]}, modes: {full: yolo}}}]"##;
        let mut agents = AgentRegistry::default();
        agents.add(&serde_saphyr::from_str::<Vec<_>>(text).unwrap(), AgentOrigin::User).unwrap();
        for id in ["general", "explore", "on", "other"] {
            let yaml = agents.resolve(id).unwrap().to_yaml();
            assert!(!yaml.contains("secret-value"), "{yaml}");
            let mut again = AgentRegistry::default();
            let read: AgentDefinition = serde_saphyr::from_str(&yaml).unwrap();
            again.add(&[read], AgentOrigin::User).unwrap();
            assert_eq!(
                again.resolve(id).unwrap().to_yaml().replace("  # env: KEY (values are not shown)\n", ""),
                yaml.replace("  # env: KEY (values are not shown)\n", "")
            );
        }
        let yaml = agents.resolve("other").unwrap().to_yaml();
        assert!(
            yaml.contains(", broker: true, write_dirs: [\"/b\"], hosts: [\"*.a.b\"], sockets: [\"gpg\"]}\n"),
            "{yaml}"
        );
        assert!(yaml.contains("  # env: KEY (values are not shown)\n"), "{yaml}");
    }
}
