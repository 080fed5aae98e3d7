"""Performs a scenario in marimo's agent panel, and prints the panel. marimo runs in a headless Chromium and reaches
Modegate through `stdio-to-ws`."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser
from driver import (CLIENT, LAST_TEXT, PROJECT, SCENARIO, read, until_ended, until_mode, until_prompted,
                    until_started, wait)

FOLDER = Path(PROJECT).parent
NOTEBOOK = """import marimo

app = marimo.App()

if __name__ == "__main__":
    app.run()
"""
# marimo knows five agents, each with a port of its own. A scenario takes one that no other scenario uses. Its
# notebook has the next port.
AGENTS = {"Claude": 3017, "Gemini": 3019, "Codex": 3021, "OpenCode": 3023, "Cursor": 3025}
PANEL = ".mo-agent-panel"
ANSWERS = {"permission-allowed": "Allow", "permission-refused": "Reject",
           "plan-exit-accepted": "Implement in Code mode", "plan-exit-refused": "Keep planning"}


def is_free(port):
    with socket.socket() as server:
        return server.connect_ex(("127.0.0.1", port)) != 0


def take_agent():
    """Returns the name and the port of a free agent, and the lock that keeps it."""
    for name, port in AGENTS.items():
        lock = open(Path(tempfile.gettempdir(), f"modegate-clients-{port}"), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if is_free(port) and is_free(port + 1):
            return name, port, lock
    return None


def start(name, *command):
    """Starts a program that runs until the script ends the driver's process group."""
    with open(FOLDER / f"{name}.txt", "w") as log:
        subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def start_marimo(port):
    """Starts marimo with the settings of docs/guides/editors.md; returns the address of the notebook."""
    settings = Path(os.environ["HOME"], ".config/marimo/marimo.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text(Path(os.environ["CONFIG"]).read_text())
    Path(PROJECT, "notebook.py").write_text(NOTEBOOK)
    start("marimo", sys.executable, "-m", "marimo", "edit", "notebook.py", "--headless", "--no-token",
          "--skip-update-check", "--host", "127.0.0.1", "--port", str(port))
    wait("marimo", lambda: not is_free(port), (FOLDER / "marimo.txt").read_text)
    return f"http://127.0.0.1:{port}/?file=notebook.py"


def panel(browser):
    return browser.evaluate(f"document.querySelector('{PANEL}')?.innerText ?? ''")


def until_shown(browser, text):
    browser.wait(text, lambda: text in panel(browser))


def until_session(browser):
    """The list of modes is there once a session is."""
    browser.wait("a session", lambda: browser.find(f"{PANEL} [role=combobox]"))


def open_session(browser, agent):
    browser.click("[data-testid=chrome-sidebar] [id$=option-ai]")
    browser.click("[role=tab][id$=trigger-agents]")
    browser.click("button", "New session")
    browser.click("[role=menuitem]", f"New {agent} session")
    until_session(browser)


def set_plan(browser):
    browser.click(f"{PANEL} [role=combobox]")
    browser.click("[role=option]", "Plan")
    browser.wait("plan mode", lambda: browser.find(f"{PANEL} [role=combobox]", "Plan"))
    until_mode("plan")


def submit(browser, text):
    def is_typed():
        # A list that closes takes the first click.
        browser.click(f"{PANEL} .cm-content")
        browser.type(text)
        return text in browser.evaluate(f"document.querySelector('{PANEL} .cm-content').innerText")

    browser.wait(text, is_typed)
    browser.press("Enter", 13)
    until_prompted()


def answer(browser, text):
    browser.click(f"{PANEL} button", text)


def steps(browser):
    if SCENARIO == "mode-idle":
        set_plan(browser)
    if SCENARIO in ("image", "image-unsupported"):
        browser.attach(f"{PANEL} input[type=file]", Path(PROJECT, "picture.png"))
        until_shown(browser, "picture.png")
    # marimo adds the notebook and its own rules behind the first prompt.
    submit(browser, "/plan write it" if SCENARIO == "slash-behind-context" else "write it")
    if SCENARIO == "mode-mid-turn":
        until_started()
        set_plan(browser)
    elif SCENARIO == "cancel":
        until_started()
        answer(browser, "Stop")
        return until_ended()
    elif SCENARIO == "mode-under-permission":
        until_shown(browser, "Permission Request")
        set_plan(browser)
        answer(browser, "Allow")
    elif SCENARIO in ANSWERS:
        until_shown(browser, "Permission Request")
        read()
        answer(browser, ANSWERS[SCENARIO])
    # The browser numbers a list.
    until_shown(browser, LAST_TEXT.removeprefix("2. "))


def main():
    agent, port, lock = wait("a free agent of marimo", take_agent)
    start("stdio-to-ws", "stdio-to-ws", "modegate", "--port", str(port))
    address = start_marimo(port + 1)
    browser = Browser(FOLDER / "chromium")
    browser.open(address)
    try:
        open_session(browser, agent)
        steps(browser)
        print(panel(browser))
        if SCENARIO == "load":
            browser.open(address)
            until_session(browser)
            until_shown(browser, LAST_TEXT)
            print("\f", panel(browser))
    finally:
        browser.screenshot(FOLDER / "screen.png")
        browser.close()
        lock.close()


main()
