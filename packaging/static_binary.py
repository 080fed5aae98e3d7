#!/usr/bin/env python3
"""Builds the static binary of a release for Linux.

    packaging/static_binary.py TARGET OUT

TARGET is x86_64-unknown-linux-musl or aarch64-unknown-linux-musl, that of this machine. OUT gets TARGET/modegate.

The binary is linked twice. The first one runs a session under callgrind, and the second one has the functions that ran
next to each other: the kernel maps code in parts of 64 KiB around each function that runs, so a session needs a third
of the memory for code, and starts with fewer page faults. Needs musl-gcc, valgrind and strip.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A function of the profile, without the number of a recursion. Names in parentheses and addresses are not functions.
NAME = re.compile(r"c?fn=\(\d+\) (?!\(|0x)([^\s']+)")


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers the first request of a session with a call of a tool, and the others with a text."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = request["messages"][-1]
        arguments = json.dumps({"path": "a.txt"})
        call = {"index": 0, "id": "1", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        calls = last["role"] == "user" and len(request["messages"]) < 5
        delta = {"tool_calls": [call]} if calls else {"content": "The file has a line."}
        reason = "tool_calls" if calls else "stop"
        events = [{"choices": [{"index": 0, "delta": delta}]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.answer("text/event-stream", body)

    def do_GET(self):
        self.answer("application/json", json.dumps({"data": [{"id": "mock"}]}))

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class Session:
    """An editor's requests to Modegate, one by one."""

    def __init__(self, command, folder, environment):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
        self.sent = 0

    def call(self, method, **parameters):
        self.sent += 1
        request = {"jsonrpc": "2.0", "id": self.sent, "method": method, "params": parameters}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.sent and "method" not in message:
                return message["result"]
        sys.exit(f"Modegate ended before it answered {method}")

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("Modegate failed under callgrind")


def functions_of_a_session(binary):
    """The names of the functions that run from the start of a session to the end of its second turn."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "work")
        folder.mkdir()
        Path(folder, "a.txt").write_text("a line\n")
        profile = Path(home, "profile")
        command = ["valgrind", "--tool=callgrind", "--demangle=no", f"--callgrind-out-file={profile}"]
        # It warns of system calls that it does not know. They fail, as on an old kernel.
        command.append(f"--log-file={home}/valgrind")
        environment = {"HOME": home, "PATH": os.environ["PATH"], "OPENAI_API_KEY": "none"}
        environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
        session = Session([*command, binary, "--model", "openai/mock"], folder, environment)
        session.call("initialize", protocolVersion=1)
        session_id = session.call("session/new", cwd=str(folder), mcpServers=[])["sessionId"]
        session.call("session/set_mode", sessionId=session_id, modeId="plan")
        for text in ["What does a.txt say?", "Thank you."]:
            session.call("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])
        session.end()
        return sorted(set(NAME.findall(profile.read_text())))


def build(target, order):
    """Builds the binary, with its symbols, and returns its path."""
    # Only a change of a source makes Cargo link again.
    Path(ROOT, "src/main.rs").touch()
    rustc = [subprocess.check_output(["rustc", *arguments], text=True, cwd=ROOT) for arguments in (["-vV"], ["--print", "sysroot"])]
    host = re.search("host: (.*)", rustc[0])[1]
    linker = Path(rustc[1].strip(), "lib/rustlib", host, "bin/gcc-ld")
    link = ["-fuse-ld=lld", f"-B{linker}", f"-Wl,--symbol-ordering-file={order}", "-Wl,--no-warn-symbol-ordering"]
    # Packed relocations take 0.7 MB less.
    link.append("-Wl,--pack-dyn-relocs=relr")
    arguments = ["-Cstrip=none", *(f"-Clink-arg={argument}" for argument in link)]
    cargo = ["cargo", "rustc", "--locked", "--profile", "dist", "--target", target, "--bin", "modegate"]
    subprocess.run([*cargo, "--", *arguments], cwd=ROOT, check=True)
    return Path(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), target, "dist/modegate")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    target, out = sys.argv[1], Path(sys.argv[2], sys.argv[1], "modegate")
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder, "order")
        order.write_text("")
        functions = functions_of_a_session(build(target, order))
        order.write_text("".join(f"{name}\n" for name in functions))
        binary = build(target, order)
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "-o", out, binary], check=True)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {len(functions)} functions of a session are together")


if __name__ == "__main__":
    main()
