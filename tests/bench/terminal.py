#!/usr/bin/env python3
"""Measures what `modegate run` adds in a terminal: the echo of keys, and a flood of output.

usage: terminal.py [BINARY]      [default: target/release/modegate]

Plain runs and runs under Modegate alternate. The program echoes each key, and then writes 50 MB.
"""
import os
import pty
import select
import statistics
import sys
import tempfile
import time
import tty

KEYS = 1000
FLOOD = 50_000_000
PROGRAM = f"""
import os, tty
tty.setraw(0)
os.write(1, b"ready\\n")
for _ in range({KEYS}):
    os.write(1, os.read(0, 1))
os.read(0, 1)
part = (b"x" * 79 + b"\\n") * 800
left = {FLOOD}
while left > 0:
    os.write(1, part)
    left -= len(part)
os.write(1, b"END")
os.read(0, 1)
"""


def read(terminal):
    if not select.select([terminal], [], [], 60)[0]:
        sys.exit("the program hangs")
    return os.read(terminal, 65536)


def measure(command):
    """Seconds for each key, and for the flood."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    tty.setraw(terminal)
    seen = b""
    while b"ready" not in seen:
        seen += read(terminal)
    time.sleep(0.2)
    keys = []
    for _ in range(KEYS):
        start = time.perf_counter()
        os.write(terminal, b"k")
        read(terminal)
        keys.append(time.perf_counter() - start)
    start = time.perf_counter()
    os.write(terminal, b"f")
    end = b""
    while not end.endswith(b"END"):
        end = (end + read(terminal))[-3:]
    flood = time.perf_counter() - start
    os.write(terminal, b"q")
    os.close(terminal)
    os.waitpid(child, 0)
    return keys, flood


def main():
    binary = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/release/modegate")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        os.makedirs(home + "/work")
        os.chdir(home + "/work")
        program = [sys.executable, "-c", PROGRAM]
        kinds = {"plain": program, "modegate": [binary, "run", "--quiet", "--mode", "code", "--", *program]}
        results = {kind: ([], []) for kind in kinds}
        for _ in range(5):
            for kind, command in kinds.items():
                keys, flood = measure(command)
                results[kind][0].extend(keys)
                results[kind][1].append(flood)
    for kind, (keys, floods) in results.items():
        keys.sort()
        median, p99 = statistics.median(keys), keys[len(keys) * 99 // 100]
        print(f"{kind:9} key: median {median * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us; 50 MB: {min(floods):.2f} s")


main()
