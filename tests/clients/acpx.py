"""Performs a scenario with acpx, and prints what it prints."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from driver import CLIENT, PROJECT, SCENARIO, until_started

POLICY = "--deny-all" if SCENARIO.endswith("refused") else "--approve-all"
ACPX = [CLIENT + "/node_modules/.bin/acpx", POLICY, "--ttl", "30", "--agent", os.environ["AGENT"]]


def acpx(*arguments):
    done = subprocess.run([*ACPX, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"acpx {' '.join(arguments)}: {done.stderr}{done.stdout}")
    return done.stdout


def prompt():
    text = "write it"
    if SCENARIO == "slash-behind-context":
        link = {"type": "resource_link", "name": "notes.md", "uri": f"file://{PROJECT}/notes.md"}
        text = json.dumps([link, {"type": "text", "text": "/plan write it"}])
    elif SCENARIO in ("image", "image-unsupported"):
        data = base64.b64encode(Path("picture.png").read_bytes()).decode()
        text = json.dumps([{"type": "text", "text": text}, {"type": "image", "mimeType": "image/png", "data": data}])
    Path("prompt").write_text(text)
    prompt = subprocess.Popen([*ACPX, "prompt", "--file", "prompt"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    if SCENARIO == "mode-mid-turn":
        until_started()
        acpx("set-mode", "plan")
    elif SCENARIO == "cancel":
        until_started()
        acpx("cancel")
    shown, _ = prompt.communicate()
    return shown


acpx("sessions", "new")
try:
    if SCENARIO == "mode-idle":
        acpx("set-mode", "plan")
    shown = prompt()
    if SCENARIO == "load":
        acpx("sessions", "close")
        session = acpx("sessions", "list").split()[0]
        acpx("sessions", "new", "--resume-session", session)
        shown = "\f\n" + prompt()
    print(shown)
finally:
    acpx("sessions", "close")
