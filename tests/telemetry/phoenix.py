#!/usr/bin/env python3
"""Shows a session's trace in Arize Phoenix.

    tests/telemetry/phoenix.py MODEGATE OUT.png [FOLDER]

Installs the PyPI package `arize-phoenix` in a virtual environment below FOLDER (by default a temporary folder),
starts it on 127.0.0.1, and runs two sessions with a scripted model: one with a sub-agent, calls, a check of the exit
status and a denied call; one over ACP with a permission request and a mode change. Checks the spans that Phoenix has,
and writes a screenshot of the first trace to OUT.png with headless Chromium (Debian: `chromium`).
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT = 180

PORT = 6106


def call(name, identifier="c1", **arguments):
    return {"tool_call": {"id": identifier, "name": name, "arguments": arguments}}


DONE = {"stop": "done"}

HEADLESS = [
    {"thought": "First I ask the explorer."},
    call("delegate", task="count the files", agent="explore"),
    {"usage": {"used": 1200, "size": 200000, "output": 80, "cache_read": 900}},
    DONE,
    {"text": "There is one file. I add another."},
    call("write_file", path="notes.txt", content="Requests are retried twice.\n"),
    call("shell", "c2", command="wc -l notes.txt && false"),
    {"usage": {"used": 1500, "size": 200000, "output": 120, "cache_read": 1100}},
    DONE,
    call("write_file", path="/etc/modegate-example", content="no"),
    {"delay_ms": 120},
    DONE,
    {"text": "The notes are written. One write was denied."},
    DONE,
    {"for": "count the files"},
    {"delay_ms": 80},
    call("list_directory", path="."),
    DONE,
    {"text": "One file."},
    DONE,
]

EDITOR = [
    call("write_file", path="plan.txt", content="1. Read. 2. Write.\n"),
    DONE,
    {"text": "Written after your consent."},
    DONE,
]

EXPECTED = [
    "invoke_agent general", "invoke_agent explore", "chat scripted", "execute_tool delegate",
    "execute_tool write_file", "execute_tool shell", "execute_tool list_directory", "permission write_file",
    "change_mode plan",
]


def wait_for(what, condition):
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.3)
    raise SystemExit(f"{what} did not come within {TIMEOUT} s")


def fetch(path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=5) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError):
        return None


def start_phoenix(folder):
    """Installs Phoenix unless the folder has it, and starts it with a store of its own."""
    python = folder / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "arize-phoenix"], check=True)
    if fetch("/healthz") is not None:
        raise SystemExit(f"port {PORT} is in use")
    shutil.rmtree(folder / "phoenix", ignore_errors=True)
    environment = {
        **os.environ, "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(PORT), "PHOENIX_GRPC_PORT": "6107",
        "PHOENIX_WORKING_DIR": str(folder / "phoenix"), "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with open(folder / "phoenix.log", "wb") as log:
        process = subprocess.Popen(
            [python, "-m", "phoenix.server.main", "serve"], env=environment, stdout=log, stderr=log)
    try:
        wait_for("Phoenix", lambda: fetch("/healthz") is not None or process.poll() is not None)
    except SystemExit:
        process.kill()
        raise
    if process.poll() is not None:
        raise SystemExit((folder / "phoenix.log").read_text(errors="replace"))
    return process


def environment(home):
    return {
        "HOME": str(home), "PATH": os.environ["PATH"], "MODEGATE_LOG": "warn",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{PORT}",
        # Phoenix takes traces only.
        "OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
    }


def write_script(home, name, lines):
    path = home / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def run_headless(modegate, home, work):
    model = write_script(home, "headless.jsonl", HEADLESS)
    command = [modegate, "--mode", "code", "--model", model, "-p", "Write down how often requests are retried."]
    ended = subprocess.run(command, cwd=work, env=environment(home), stdin=subprocess.DEVNULL, timeout=TIMEOUT)
    print("headless run:", ended.returncode)


class Editor:
    """A client that answers permission requests after a moment."""

    def __init__(self, modegate, home, work):
        model = write_script(home, "editor.jsonl", EDITOR)
        self.process = subprocess.Popen(
            [modegate, "--mode", "ask", "--model", model], cwd=work, env=environment(home),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.number = 0

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def call(self, method, **params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            message = self.lines.get(timeout=TIMEOUT)
            if message.get("method") == "session/request_permission":
                time.sleep(0.4)
                outcome = {"outcome": "selected", "optionId": "allow_once"}
                self.send({"id": message["id"], "result": {"outcome": outcome}})
            elif message.get("id") == self.number and "method" not in message:
                return message["result"]

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=TIMEOUT)


def run_editor(modegate, home, work):
    editor = Editor(modegate, home, work)
    editor.call("initialize", protocolVersion=1, clientCapabilities={})
    session = editor.call("session/new", cwd=str(work), mcpServers=[])["sessionId"]
    editor.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Plan the work."}])
    editor.call("session/set_mode", sessionId=session, modeId="plan")
    editor.end()


def spans():
    answer = fetch("/v1/projects/default/spans?limit=100")
    return json.loads(answer)["data"] if answer else []


def screenshot(url, out):
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--window-size=1500,900", "--virtual-time-budget=15000", f"--screenshot={out}", url,
    ]
    subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    modegate, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder = Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="modegate-phoenix-")).resolve()
    folder.mkdir(exist_ok=True)
    phoenix = start_phoenix(folder)
    try:
        home = Path(tempfile.mkdtemp(prefix="modegate-home-"))
        work = home / "work"
        work.mkdir()
        (work / "README.md").write_text("Requests are retried twice.\n")
        run_headless(modegate, home, work)
        run_editor(modegate, home, work)
        found = wait_for("all spans", lambda: (
            spans() if set(EXPECTED) <= {span["name"] for span in spans()} else None))
        for span in sorted(found, key=lambda span: span["start_time"]):
            print(span["start_time"][14:26], span["span_kind"], span["name"], span["status_code"])
        root = next(span for span in found if span["name"] == "invoke_agent explore")
        trace = root["context"]["trace_id"]
        projects = json.loads(fetch("/v1/projects"))["data"]
        screenshot(f"http://127.0.0.1:{PORT}/projects/{projects[0]['id']}/traces/{trace}", out)
        print(out)
    finally:
        phoenix.terminate()
        phoenix.wait(timeout=TIMEOUT)


if __name__ == "__main__":
    main()
