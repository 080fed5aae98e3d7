"""Performs a scenario in VS Code (code-server) with the ACP extension that is the argument, and prints its chat. The
screen is in `screen.png` beside the project."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from browser import Browser
from driver import LAST_TEXT, PROJECT, SCENARIO, read, until_started, wait

FOLDER = Path(PROJECT).parent
VSCODE = Path(os.environ["VSCODE_DIR"])
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
# As in browser.py, in all frames.
FIND = f"""((selector, text) => {{
  let place = null;
  for (const {{ content, x, y }} of {DOCUMENTS}) {{
    for (const element of content.querySelectorAll(selector)) {{
      const box = element.getBoundingClientRect();
      if (!place && box.width && (!text || element.innerText.includes(text))) {{
        place = {{ x: x + box.x + box.width / 2, y: y + box.y + box.height / 2 }};
      }}
    }}
  }}
  return place;
}})"""
TEXT = f"{DOCUMENTS}.map(({{ content }}) => content.body ? content.body.innerText : '').join('\\n')"
ROWS = "[...document.querySelectorAll('.quick-input-list .monaco-list-row')].map((row) => row.innerText)"
# The editor looks for commands on the PATH of a login shell.
AGENT = {"command": os.environ["AGENT"], "args": []}
SETTINGS = {
    "workbench.startupEditor": "none",
    "chat.disableAIFeatures": True,
    "telemetry.telemetryLevel": "off",
    "window.restoreWindows": "none",
    "acp.agents": {"Modegate": AGENT},
    "vscode-acp-chat.customAgents": [{"id": "modegate", "name": "Modegate", **AGENT}],
    "vscode-acp-chat.antigravity.enabled": False,
}


class Workbench(Browser):
    def text(self):
        return self.evaluate(TEXT)

    def find(self, selector, text=""):
        return self.evaluate(f"{FIND}({json.dumps(selector)}, {json.dumps(text)})")

    def until_shown(self, text):
        self.wait(text, lambda: text in self.text())

    def wait(self, what, is_met):
        return wait(what, is_met, self.text, seconds=90)

    def has_row(self, text):
        return any(text in row for row in self.evaluate(ROWS))

    def run_command(self, title):
        """Commands of an extension exist only once it is active. Escape would cancel a turn, too."""
        def is_found():
            self.press("F1", 112)
            time.sleep(0.5)
            self.type(title)
            time.sleep(2)
            if not self.has_row(title):
                self.press("Escape", 27)
            return self.has_row(title)

        self.wait(title, is_found)
        self.press("Enter", 13)

    def pick(self, text):
        self.wait(text, lambda: self.has_row(text))
        self.click(".quick-input-list .monaco-list-row", text)


def show_question(window):
    """Prints what a user reads before the answer."""
    read()
    window.screenshot(FOLDER / "asked.png")
    print(window.text())


class AcpClient:
    """Extension of formulahendry: questions are lists at the top."""

    options = {"allow": "Allow", "reject": "Reject", "code": "Implement in Code mode", "stay": "Keep planning"}

    def open(self, window):
        window.run_command("ACP: Connect to Agent")
        window.pick("Modegate")
        window.wait("a connection", lambda: window.find(".statusbar-item", "ACP: Modegate"))
        window.run_command("ACP: Open Chat Panel")
        window.wait("the chat", lambda: window.find("#promptInput"))

    def submit(self, window, text):
        window.click("#promptInput")
        window.type(text)
        window.press("Enter", 13)

    def set_plan(self, window):
        window.run_command("ACP: Set Agent Mode")
        window.wait("the input", lambda: window.find(".quick-input-title", "Set Agent Mode"))
        window.type("plan")
        window.press("Enter", 13)
        window.until_shown("Plan")

    def answer(self, window, option):
        window.wait("a question", lambda: window.has_row(self.options[option]))
        show_question(window)
        window.pick(self.options[option])

    def cancel(self, window):
        window.click("#sendStopBtn")

    def load(self, window):
        window.run_command("ACP: Refresh Sessions")
        window.click(".pane-body .monaco-list-row", "Modegate")
        window.press("ArrowRight", 39)
        window.click(".pane-body .monaco-list-row", "write it")


class AcpChat:
    """Extension of sonct1: questions are in the chat, those about plans as forms."""

    options = {"allow": "Allow Once: Allow", "reject": "Reject Once: Reject", "code": "Implement in Code mode",
               "stay": "Keep planning"}

    def open(self, window):
        window.run_command("ACP: Start Chat")
        window.wait("the chat", lambda: window.find("#input"))
        window.run_command("ACP: Select Agent")
        window.pick("Modegate")
        window.wait("a session", lambda: window.find("#mode-dropdown .selected-label"))

    def submit(self, window, text):
        def is_typed():
            window.click("#input")
            if not window.find("#input", text):
                window.type(text)
            return window.find("#input", text)

        window.wait(text, is_typed)
        window.press("Enter", 13)

    def set_plan(self, window):
        window.click("#mode-dropdown .dropdown-trigger")
        window.click("#mode-dropdown .dropdown-item", "Plan")

    def answer(self, window, option):
        window.until_shown(self.options[option])
        show_question(window)
        if option in ("allow", "reject"):
            return window.click("button", self.options[option])
        window.click("label", self.options[option])
        window.click("button", "Submit")

    def cancel(self, window):
        window.click("#stop")


EXTENSIONS = {"acp-client": AcpClient, "acp-chat": AcpChat}


def steps(window, extension):
    extension.open(window)
    if SCENARIO == "mode-idle":
        extension.set_plan(window)
    extension.submit(window, "write it")
    if SCENARIO == "mode-mid-turn":
        until_started()
        extension.set_plan(window)
    elif SCENARIO == "cancel":
        until_started()
        extension.cancel(window)
        return time.sleep(3)
    elif SCENARIO.startswith("permission"):
        extension.answer(window, "allow" if SCENARIO == "permission-allowed" else "reject")
    elif SCENARIO.startswith("plan-exit"):
        extension.answer(window, "stay" if SCENARIO == "plan-exit-refused" else "code")
    # The chat numbers a list.
    window.until_shown(LAST_TEXT.removeprefix("2. "))


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
            extension.open(window)
            print("\f")
            extension.load(window)
            window.until_shown(LAST_TEXT)
            print(window.text())
    finally:
        window.screenshot(FOLDER / "screen.png")
        window.close()


main()
