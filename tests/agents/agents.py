"""The agents of the matrix: their packages, how they start with the scripted model, and their tools."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(os.environ.get("AGENTS_DIR", Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "agents"))
KEY = "sk-ant-scripted-000000000000000000000000"


@dataclass(frozen=True)
class Agent:
    """`{packages}`, `{home}` and `{url}` are replaced in `command`, `environment` and `files`; `files` are below the
    home directory. `write`, `shell` and `delegate` make the tool calls that write a file, run a command and give a
    prompt to a sub-agent: gemini refuses that over ACP, kimi's sub-agents fail, and vibe has none. `unguarded` are
    options of wrap that switch the agent's own guard off in read-only modes."""

    name: str
    package: str
    command: list
    environment: dict
    shell: object
    write: object = None
    delegate: object = None
    files: dict = field(default_factory=dict)
    python: str = ""
    unguarded: tuple = ()


def command_call(tool, key="command", **others):
    return lambda line: (tool, {key: line} | others)


def file_call(tool, path_key, text_key):
    return lambda path, text: (tool, {path_key: path, text_key: text})


def prompt_call(tool, key="prompt", **others):
    return lambda prompt: (tool, {key: prompt} | others)


CODEX = {"CODEX_HOME": "{home}/.codex", "OPENAI_API_KEY": "x"}
CODEX_FILES = {".codex/config.toml": """
model = "scripted"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""}
OPENCODE_SETTINGS = {
    "model": "scripted/scripted", "small_model": "scripted/scripted", "autoupdate": False, "share": "disabled",
    "provider": {"scripted": {
        "npm": "@ai-sdk/openai-compatible", "name": "Scripted", "options": {"baseURL": "{url}/v1", "apiKey": "x"},
        "models": {"scripted": {"name": "Scripted", "tool_call": True, "limit": {"context": 200000, "output": 8000}}},
    }},
}
GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False}, "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
}
QWEN_SETTINGS = GEMINI_SETTINGS | {"security": {"auth": {"selectedType": "openai"}}}

ALL = [
    Agent("claude-acp", "@agentclientprotocol/claude-agent-acp@0.49.0",
          ["node", "{packages}/@agentclientprotocol/claude-agent-acp/dist/index.js"],
          {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": KEY, "CLAUDE_CONFIG_DIR": "{home}/.claude",
           "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
           # It does not start as root without this.
           "IS_SANDBOX": "1"},
          shell=command_call("Bash", description="a test"), write=file_call("Write", "file_path", "content"),
          delegate=prompt_call("Agent", description="a test", subagent_type="general-purpose", run_in_background=False),
          unguarded=("--read-only-mode", "bypassPermissions")),
    Agent("codex-acp-zed", "@zed-industries/codex-acp@0.16.0",
          ["{packages}/@zed-industries/codex-acp-linux-x64/bin/codex-acp"], CODEX, files=CODEX_FILES,
          delegate=prompt_call("multi_agent_v1.spawn_agent", "message"),
          shell=command_call("exec_command", "cmd", yield_time_ms=30000)),
    Agent("codex-acp", "@agentclientprotocol/codex-acp@2.6.0",
          ["node", "{packages}/@agentclientprotocol/codex-acp/dist/index.js"], CODEX, files=CODEX_FILES,
          delegate=prompt_call("multi_agent_v1.spawn_agent", "message"),
          shell=command_call("exec_command", "cmd", yield_time_ms=30000)),
    Agent("opencode", "opencode-ai@1.18.33", ["{packages}/opencode-ai/bin/opencode.exe", "acp"],
          {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
           "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"},
          files={".config/opencode/opencode.json": json.dumps(OPENCODE_SETTINGS)},
          shell=command_call("bash", description="a test"), write=file_call("write", "filePath", "content"),
          delegate=prompt_call("task", description="a test", subagent_type="general"),
          unguarded=("--read-only-mode", "build")),
    Agent("gemini", "@google/gemini-cli@0.61.0",
          ["node", "{packages}/@google/gemini-cli/bundle/gemini.js", "--acp", "--model", "gemini-2.5-flash"],
          {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "x", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
          files={".gemini/settings.json": json.dumps(GEMINI_SETTINGS)},
          shell=command_call("run_shell_command", description="a test"),
          write=file_call("write_file", "file_path", "content"), unguarded=("--read-only-mode", "yolo")),
    Agent("qwen", "@qwen-code/qwen-code@0.15.10",
          ["node", "{packages}/@qwen-code/qwen-code/cli.js", "--acp", "--auth-type", "openai"],
          {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": "scripted"},
          files={".qwen/settings.json": json.dumps(QWEN_SETTINGS)},
          shell=command_call("run_shell_command", description="a test", is_background=False),
          delegate=prompt_call("agent", description="a test", subagent_type="general-purpose"),
          write=file_call("write_file", "file_path", "content"), unguarded=("--read-only-mode", "yolo")),
    Agent("copilot", "@github/copilot@1.0.102", ["{packages}/@github/copilot-linux-x64/copilot", "--acp"],
          {"COPILOT_PROVIDER_BASE_URL": "{url}/v1", "COPILOT_PROVIDER_TYPE": "openai", "COPILOT_OFFLINE": "true",
           "COPILOT_PROVIDER_API_KEY": "x", "COPILOT_MODEL": "scripted", "COPILOT_AUTO_UPDATE": "false"},
          shell=command_call("bash", description="a test", mode="sync", initial_wait=60),
          delegate=prompt_call("task", name="test", agent_type="general-purpose", description="a test", mode="sync"),
          write=file_call("create", "path", "file_text")),
    Agent("kimi", "kimi-cli==1.3", ["{packages}/bin/kimi", "acp"], {"KIMI_CLI_NO_AUTO_UPDATE": "1"}, python="3.13",
          files={".kimi/config.toml": """
default_model = "scripted"
[models.scripted]
provider = "scripted"
model = "scripted"
max_context_size = 200000
[providers.scripted]
type = "openai_legacy"
base_url = "{url}/v1"
api_key = "x"
"""}, shell=command_call("Shell"), write=file_call("WriteFile", "path", "content")),
    Agent("vibe", "mistral-vibe==3.0.2", ["{packages}/bin/vibe-acp"],
          {"MISTRAL_API_KEY": "x", "VIBE_HOME": "{home}/.vibe"}, python="3.12",
          files={".vibe/config.toml": """
active_model = "scripted"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
[[providers]]
name = "scripted"
api_base = "{url}/v1"
api_key_env_var = "MISTRAL_API_KEY"
backend = "generic"
[[models]]
name = "scripted"
provider = "scripted"
alias = "scripted"
"""}, shell=command_call("bash"), write=file_call("write_file", "path", "content")),
]


def packages(agent):
    return FOLDER / agent.name / ("venv" if agent.python else "node_modules")


def install(agent):
    """Installs an agent unless this version is there. Returns why it cannot be used, or an empty string."""
    into = FOLDER / agent.name
    stamp = into / "installed.txt"
    if stamp.exists() and stamp.read_text() == agent.package:
        return ""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    if agent.python:
        python = f"python{agent.python}"
        commands = [[python, "-m", "venv", into / "venv"], [into / "venv/bin/pip", "install", "-q", agent.package]]
    else:
        (into / "package.json").write_text('{"private": true}\n')
        commands = [["npm", "install", "--no-audit", "--no-fund", "--prefix", into, agent.package]]
    for command in commands:
        if not shutil.which(command[0]):
            return f"{command[0]} is missing"
        done = subprocess.run(command, cwd=into, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            return f"not installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    stamp.write_text(agent.package)
    return ""


def prepare(agent, home, url):
    """Writes the agent's settings; returns its command and its environment."""

    def filled(text):
        for key, value in {"packages": packages(agent), "home": home, "url": url}.items():
            text = text.replace("{%s}" % key, str(value))
        return text

    for name, content in agent.files.items():
        path = Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(content))
    kept = {name: os.environ[name] for name in ("PATH", "PYENV_ROOT") if name in os.environ}
    environment = kept | {"HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm"}
    return list(map(filled, agent.command)), environment | {k: filled(v) for k, v in agent.environment.items()}
