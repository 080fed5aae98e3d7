"""Performs a scenario with Toad in a terminal (tmux), and prints the last screen."""

import subprocess
import time
from pathlib import Path

import driver
from driver import CLIENT, LAST_TEXT, PROJECT, SCENARIO, read, until_started

# A server of its own: the driver's environment becomes that of Toad.
TMUX = ["tmux", "-S", str(Path(PROJECT).parent / "tmux"), "-f", "/dev/null"]
ANSWERS = {"permission-allowed": "a", "permission-refused": "r", "plan-exit-accepted": "A", "plan-exit-refused": "r"}


def tmux(*arguments):
    return subprocess.run([*TMUX, *arguments], check=True, capture_output=True, text=True).stdout


def screen():
    return tmux("capture-pane", "-p")


def wait(what, is_met):
    """Returns the screen."""
    driver.wait(what, is_met, screen)
    return screen()


def wait_for(text):
    return wait(text, lambda: text in screen())


def press(*keys):
    tmux("send-keys", *keys)


def submit(text):
    tmux("send-keys", "-l", text)
    wait_for(text)
    press("Enter")


def pick_file():
    """Mentions the only file of the project."""
    press("@")
    wait_for("fuzzy search")
    tmux("send-keys", "-l", "notes")
    wait("the file", lambda: screen().count("notes.md") > 1)
    press("Enter")
    wait_for("@notes.md")


def set_plan():
    """Opens the list of modes (Ask, Code, Plan), in which the current one is selected, and chooses the last one."""
    press("C-o")
    wait_for("Reads, researches and writes a plan")
    press(*["Down"] * (2 if SCENARIO == "mode-under-permission" else 1))
    press("Enter")
    wait_for("Mode changed to Plan")


def steps():
    wait_for("connected")
    wait_for("How can I help")
    if SCENARIO == "mode-idle":
        set_plan()
    if SCENARIO == "slash-behind-context":
        pick_file()
        submit(" /plan write it")
    else:
        submit("write it")
    if SCENARIO == "mode-mid-turn":
        until_started()
        set_plan()
    elif SCENARIO == "cancel":
        until_started()
        press("Escape")
        time.sleep(0.5)
        press("Escape")
        time.sleep(2)
        return screen()
    elif SCENARIO == "mode-under-permission":
        wait_for("Always reject")
        set_plan()
        press("a")
    elif SCENARIO in ANSWERS:
        wait_for("Always reject" if "permission" in SCENARIO else "Keep planning")
        read()
        press(ANSWERS[SCENARIO])
    return wait_for(LAST_TEXT)


tmux("new-session", "-d", "-x", "120", "-y", "50", f"python3.14 {CLIENT}/bin/toad acp modegate '{PROJECT}'")
try:
    print(steps())
finally:
    tmux("kill-server")
