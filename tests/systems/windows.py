#!/usr/bin/env python3
"""A mode change on Windows ends an external agent together with its grandchild.

    tests/systems/windows.py MODEGATE [RUNNER]

MODEGATE is modegate.exe. RUNNER is a program that runs it on another system, such as `wine`.

The agent is a batch file, found by the endings of PATHEXT. It starts a grandchild that writes to a file again and
again, and a second Modegate that answers slowly. A session in `code` delegates to it in the background. Then the
client selects `plan`, in which the agent may not run.
"""

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TIMEOUT = 60

GRANDCHILD = """@echo off
:again
echo beat>>"%~dp0beats.txt"
ping -n 1 127.0.0.1 >nul
goto again
"""

AGENT = """@echo off
start /b cmd /c "%~dp0grandchild.cmd"
"%~dp0modegate.exe" --mode code --store :memory: --model "scripted:%~dp0agent.jsonl"
"""

# Modegate reads its settings below %APPDATA%.
START = """@echo off
set "APPDATA=%~dp0appdata"
"%~dp0modegate.exe" --mode code --store :memory: --model "scripted:%~dp0session.jsonl"
"""

SESSION = [
    {"tool_call": {"id": "c1", "name": "delegate", "arguments": {
        "task": "count", "agent": "other", "background": True}}},
    {"stop": "done"},
    {"text": "started"},
    {"stop": "done"},
    {"text": "still here"},
    {"stop": "done"},
]

BUSY = [{"text": "counting"}, {"delay_ms": 600_000}, {"stop": "done"}]


class Client:
    """One connection to Modegate."""

    def __init__(self, command, cwd):
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        self.number = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def request(self, method, **params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        while True:
            answer = self.lines.get(timeout=TIMEOUT)
            if answer is None:
                raise SystemExit(f"Modegate ended during {method}")
            if answer.get("id") == self.number and "method" not in answer:
                return answer


def outcome(answer):
    return json.dumps(answer.get("result", answer.get("error")))


def size(path):
    return path.stat().st_size if path.exists() else 0


def wait_for_growth(path):
    before, deadline = size(path), time.monotonic() + TIMEOUT
    while size(path) <= before:
        if time.monotonic() > deadline:
            raise SystemExit("the grandchild writes nothing")
        time.sleep(0.05)


def main():
    binary, runner = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        shutil.copy(binary, folder / "modegate.exe")
        for name, text in {"agent": AGENT, "grandchild": GRANDCHILD, "start": START}.items():
            (folder / name).with_suffix(".cmd").write_text(text.replace("\n", "\r\n"), newline="")
        for name, lines in {"session": SESSION, "agent": BUSY}.items():
            (folder / name).with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        beats, work, settings = folder / "beats.txt", folder / "work", folder / "appdata/modegate"
        work.mkdir()
        settings.mkdir(parents=True)
        as_guest = (lambda path: "Z:" + str(path).replace("/", "\\")) if runner else str
        agent = {"id": "other", "description": "counts", "harness": {"command": as_guest(folder / "agent")}}
        # JSON is YAML.
        (settings / "modes.yaml").write_text(json.dumps({"agents": [agent]}))
        client = Client([*runner, "cmd", "/c", as_guest(folder / "start.cmd")], folder)
        client.request("initialize", protocolVersion=1, clientCapabilities={})
        session = client.request("session/new", cwd=as_guest(work), mcpServers=[])["result"]["sessionId"]
        prompt = [{"type": "text", "text": "let it count"}]
        answer = client.request("session/prompt", sessionId=session, prompt=prompt)
        print("prompt in code:", outcome(answer))
        wait_for_growth(beats)
        wait_for_growth(beats)
        print("control: the agent's grandchild runs")
        began = time.monotonic()
        answer = client.request("session/set_mode", sessionId=session, modeId="plan")
        print(f"mode plan: {outcome(answer)} after {time.monotonic() - began:.2f} s")
        effect = answer["result"]["_meta"]["modegate/effect"]
        if len(effect["ended"]) != 1 or effect["unconfirmed"]:
            raise SystemExit(f"not one call was ended and confirmed: {effect}")
        after = size(beats)
        time.sleep(2)
        if size(beats) != after:
            raise SystemExit("the grandchild still runs after the mode change")
        print("the grandchild has ended")
        answer = client.request("session/prompt", sessionId=session, prompt=prompt)
        print("prompt in plan:", outcome(answer))
        client.process.stdin.close()
        client.process.wait(timeout=TIMEOUT)
        print("ok")


if __name__ == "__main__":
    main()
