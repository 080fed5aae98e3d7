"""Performs a scenario in VS Code (code-server) with the ACP extension that is the argument, and prints its chat.
Beside the project, `asked.png` is the screen before an answer, and `screen.png` that at the end."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from browser import Browser
from driver import (LAST_TEXT, PROJECT, SCENARIO, conversation, read, until_ended, until_mode, until_prompted,
                    until_started, wait)
from scenarios import DONE

FOLDER = Path(PROJECT).parent
ANSWERS = {"permission-allowed": "allow", "permission-refused": "reject", "plan-exit-accepted": "code",
           "plan-exit-refused": "stay"}
VSCODE = Path(os.environ["VSCODE"])
EXTENSION = sys.argv[1]
# Views of extensions are frames within frames, of the same origin.
DOCUMENTS = """(() => {
  const all = [];
  const add = (content, x, y) => {
    all.push({ content, x, y });
    for (const frame of content.querySelectorAll("iframe")) {
      const box = frame.getBoundingClientRect();
      if (frame.contentDocument) add(frame.contentDocument, x + box.x, y + box.y);
    }
  };
  add(document, 0, 0);
  return all;
})()"""
# As in browser.py, in all frames. The text of an input is its value.
FIND = f"""((selector, text, scrolls) => {{
  const isMatch = (element) =>
    element.getClientRects().length && (element.value || element.innerText).includes(text);
  for (const {{ content, x, y }} of {DOCUMENTS}) {{
    const element = [...content.querySelectorAll(selector)].find(isMatch);
    if (element) {{
      if (scrolls) element.scrollIntoView({{ block: "nearest" }});
      const box = element.getBoundingClientRect();
      return {{ x: x + box.x + box.width / 2, y: y + box.y + box.height / 2 }};
    }}
  }}
  return null;
}})"""
TEXT = f"{DOCUMENTS}.map(({{ content }}) => content.body ? content.body.innerText : '').join('\\n')"
PALETTE = ".quick-input-widget .quick-input-filter input"
ROWS = "[...document.querySelectorAll('.quick-input-list .monaco-list-row')].map((row) => row.innerText)"
# The editor looks for commands on the PATH of a login shell.
AGENT = {"command": os.environ["AGENT"], "args": []}
# ACP Chat starts the first agent that it can, and believes that it has those of npm.
UNAVAILABLE = [{"id": agent, "name": agent, "command": "no-such-program", "args": []}
               for agent in ("claude-code", "codex")]
SETTINGS = {
    "workbench.startupEditor": "none",
    "chat.disableAIFeatures": True,
    "telemetry.telemetryLevel": "off",
    "window.restoreWindows": "none",
    "acp.agents": {"Modegate": AGENT},
    "vscode-acp-chat.customAgents": [{"id": "modegate", "name": "Modegate", **AGENT}, *UNAVAILABLE],
    "vscode-acp-chat.antigravity.enabled": False,
}


class Workbench(Browser):
    def text(self):
        return self.evaluate(TEXT)

    def find(self, selector, text="", scrolls=False):
        return self.evaluate(f"{FIND}({json.dumps(selector)}, {json.dumps(text)}, {json.dumps(scrolls)})")

    def click(self, selector, text=""):
        self.wait(f"{selector} {text}", lambda: self.find(selector, text, scrolls=True))
        super().click(selector, text)

    def until_shown(self, text):
        self.wait(text, lambda: text in self.text())

    def wait(self, what, is_met):
        return wait(what, is_met, self.text, seconds=90)

    def has_row(self, text):
        return any(text in row for row in self.evaluate(ROWS))

    def run_command(self, title):
        """Commands of an extension exist only once VS Code has read it."""
        def is_found():
            self.press("F1", 112)
            self.wait("the palette", lambda: self.find(PALETTE))
            self.type(title)
            self.wait(title, lambda: any(map(self.has_row, (title, "similar commands", "No matching commands"))))
            if not self.has_row(title):
                # In the chat, Escape would cancel the turn.
                self.press("Escape", 27)
            return self.has_row(title)

        self.wait("the workbench", lambda: self.find(".statusbar-item"))
        self.wait(title, is_found)
        self.pick(title)

    def fill(self, selector, text):
        """Types into an input."""
        self.click(selector)
        self.type(text)
        self.wait(text, lambda: self.find(selector, text))

    def pick(self, text):
        self.wait(text, lambda: self.has_row(text))
        self.click(".quick-input-list .monaco-list-row", text)


def show_question(window, extension, option):
    """Prints what a user reads before the answer."""
    window.wait("a question", lambda: extension.is_asked(window, option))
    read()
    window.screenshot(FOLDER / "asked.png")
    print(window.text())


class AcpClient:
    """Extension of formulahendry: questions are lists at the top."""

    answers, last_texts = ANSWERS, {}
    options = {"allow": "Allow", "reject": "Reject", "code": "Implement in Code mode", "stay": "Keep planning"}

    def open(self, window):
        window.run_command("ACP: Connect to Agent")
        window.pick("Modegate")
        window.wait("a connection", lambda: window.find(".statusbar-item", "ACP: Modegate"))
        window.run_command("ACP: Open Chat Panel")
        window.wait("the chat", lambda: window.find("#inputArea:not(.disabled) #promptInput:enabled"))

    def submit(self, window, text):
        window.fill("#promptInput", text)
        window.press("Enter", 13)

    def set_plan(self, window):
        window.click("#configOptionsContainer .picker-btn")
        window.click(".picker-dropdown.open .picker-dropdown-item", "Plan")

    def is_asked(self, window, option):
        return window.has_row(self.options[option])

    def choose(self, window, option):
        window.pick(self.options[option])

    def cancel(self, window):
        window.click("#sendStopBtn.stop")

    def load(self, window):
        self.open(window)
        window.run_command("ACP: Refresh Sessions")
        window.click(".pane-body .monaco-list-row", "Modegate")
        window.press("ArrowRight", 39)
        window.click(".pane-body .monaco-list-row", "write it")


class AcpChat:
    """Extension of sonct1: questions are in the chat, those about plans and of the model as forms."""

    answers, last_texts = ANSWERS | {"question": "german"}, {"question": DONE}
    options = {"allow": "Allow Once: Allow", "reject": "Reject Once: Reject", "code": "Implement in Code mode",
               "stay": "Keep planning", "german": "German"}

    def open(self, window):
        # A notification would cover the list of modes.
        window.run_command("Notifications: Toggle Do Not Disturb Mode")
        window.run_command("ACP: Start Chat")
        window.wait("the chat", lambda: window.find("#input"))
        # Otherwise the first prompt begins the session.
        window.run_command("ACP: Select Agent")
        window.pick("Modegate")
        window.wait("a session", lambda: window.find("#mode-dropdown .selected-label"))

    def submit(self, window, text):
        window.fill("#input", text)
        window.press("Enter", 13)

    def set_plan(self, window):
        window.click("#mode-dropdown .dropdown-trigger")
        window.click("#mode-dropdown .dropdown-item", "Plan")

    def is_asked(self, window, option):
        return window.find("button, label", self.options[option])

    def choose(self, window, option):
        window.click("button, label", self.options[option])
        if option not in ("allow", "reject"):
            window.click("button", "Submit")

    def cancel(self, window):
        window.click("#stop")

    def load(self, window):
        """VS Code opens its view again, and the view its session."""
        window.wait("a session", lambda: window.find("#mode-dropdown .selected-label"))


class VsCodeAcp:
    """Extension of omercnet: starts only agents that it knows, and accepts every question."""

    answers, last_texts = {}, {"plan-exit-accepted": "Plan mode stays."}

    def open(self, window):
        window.run_command("ACP: Start Chat")
        window.wait("a connection", lambda: window.find("#status-text", "Connected"))

    def submit(self, window, text):
        window.fill("#input", text)
        window.press("Enter", 13)


EXTENSIONS = {"acp-client": AcpClient, "acp-chat": AcpChat, "vscode-acp": VsCodeAcp}


def set_plan(window, extension):
    extension.set_plan(window)
    until_mode("plan")


def steps(window, extension):
    extension.open(window)
    if SCENARIO == "mode-idle":
        set_plan(window, extension)
    extension.submit(window, "write it")
    until_prompted()
    if SCENARIO == "mode-mid-turn":
        until_started()
        set_plan(window, extension)
    elif SCENARIO == "mode-under-permission":
        show_question(window, extension, "allow")
        set_plan(window, extension)
        # The question may stay, although it is withdrawn.
        if extension.is_asked(window, "allow"):
            extension.choose(window, "allow")
    elif SCENARIO == "cancel":
        until_started()
        extension.cancel(window)
        return until_ended()
    elif SCENARIO in extension.answers:
        show_question(window, extension, extension.answers[SCENARIO])
        extension.choose(window, extension.answers[SCENARIO])
    # The chat numbers a list.
    window.until_shown(extension.last_texts.get(SCENARIO, LAST_TEXT.removeprefix("2. ")))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_server(port):
    user = FOLDER / "user"
    (user / "User").mkdir(parents=True)
    (user / "User/settings.json").write_text(json.dumps(SETTINGS))
    command = [VSCODE / "code-server", "--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--user-data-dir", user,
               "--extensions-dir", VSCODE / "extensions" / EXTENSION, "--disable-telemetry", "--disable-update-check",
               "--disable-workspace-trust", PROJECT]
    if EXTENSION == "vscode-acp":
        # An agent that it knows, and looks for on the PATH of a login shell.
        agent = Path(FOLDER, "bin/opencode")
        agent.write_text(f"#!/bin/sh\nexec '{AGENT['command']}'\n")
        agent.chmod(0o755)
        Path(os.environ["HOME"], ".profile").write_text(f"PATH={FOLDER}/bin:$PATH\n")
    log = open(FOLDER / "code-server.txt", "w")
    subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"

    def answers():
        try:
            return urllib.request.urlopen(f"{address}/healthz").status == 200
        except OSError:
            return False

    wait("code-server", answers, seconds=90)
    return f"{address}/?folder={PROJECT}"


def main():
    address = start_server(free_port())
    window, extension = Workbench(FOLDER / "chromium"), EXTENSIONS[EXTENSION]()
    window.open(address)
    try:
        steps(window, extension)
        print(window.text())
        if SCENARIO == "load":
            window.open(address)
            extension.load(window)
            wait("the loading", lambda: conversation().opened[-1] != "session/new", window.text)
            window.until_shown(LAST_TEXT)
            print("\f")
            print(window.text())
    finally:
        window.screenshot(FOLDER / "screen.png")
        window.close()


main()
