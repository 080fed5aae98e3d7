#!/usr/bin/env python3
"""What telemetry costs: turns with a dead collector, and starts without one.

    tests/bench/telemetry.py MODEGATE [EARLIER]

Runs Modegate without telemetry, with a collector that refuses, one that never answers and one that takes everything,
at the same time and in turns of one prompt each, and prints the medians. A turn has two model requests and a call
that changes a file. With EARLIER, the binary of an earlier version, prints the medians of starts of both without an
endpoint: from the process to the answer to `session/new`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TURNS = int(os.environ.get("TURNS", "300"))
STARTS = int(os.environ.get("STARTS", "60"))

SCRIPT = [
    {"tool_call": {"id": "c", "name": "write_file", "arguments": {"path": "a.txt", "content": "x\n"}}},
    {"usage": {"used": 100, "size": 1000, "output": 10}},
    {"stop": "done"},
    {"text": "done"},
    {"stop": "done"},
    {"loop": True},
]


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Agent:
    def __init__(self, binary, endpoint):
        self.home = Path(tempfile.mkdtemp(prefix="modegate-bench-"))
        (self.home / "work").mkdir()
        script = self.home / "script.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "MODEGATE_LOG": "off"}
        if endpoint:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        self.number = 0
        self.process = subprocess.Popen(
            [binary, "--mode", "code", "--model", f"scripted:{script}"], cwd=self.home / "work", env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.call("initialize", protocolVersion=1, clientCapabilities={})
        self.session = self.call("session/new", cwd=str(self.home / "work"), mcpServers=[])["sessionId"]

    def call(self, method, **params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get("id") == self.number and "method" not in answer:
                return answer["result"]

    def turn(self):
        started = time.perf_counter()
        self.call("session/prompt", sessionId=self.session, prompt=[{"type": "text", "text": "go"}])
        return time.perf_counter() - started

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def median(times):
    return statistics.median(times) * 1000


def measure_turns(binary):
    listener = socket.create_server(("127.0.0.1", 0))
    silent = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoints = {
        "off": None, "refuses": "http://127.0.0.1:9", "never answers": silent,
        "takes all": f"http://127.0.0.1:{server.server_port}",
    }
    agents = {name: Agent(binary, endpoint) for name, endpoint in endpoints.items()}
    times = {name: [] for name in agents}
    names = list(agents)
    for number in range(TURNS + 10):
        # Another one begins each round, so that none always follows the same.
        for name in names[number % 4:] + names[:number % 4]:
            took = agents[name].turn()
            if number >= 10:
                times[name].append(took)
    for name, values in times.items():
        # Within a round, so that other load on the machine counts for all alike.
        difference = median([value - off for value, off in zip(values, times["off"])])
        print(f"turn, collector {name}: median {median(values):.2f} ms, in its round {difference:+.2f} ms")
    for agent in agents.values():
        agent.process.kill()


def measure_starts(binaries):
    times = {binary: [] for binary in binaries}
    for number in range(STARTS):
        for binary in binaries if number % 2 else binaries[::-1]:
            started = time.perf_counter()
            agent = Agent(binary, None)
            times[binary].append(time.perf_counter() - started)
            agent.end()
    for binary, values in times.items():
        print(f"start of {binary}: median {median(values):.2f} ms")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    measure_turns(sys.argv[1])
    if len(sys.argv) > 2:
        measure_starts(sys.argv[1:3])
