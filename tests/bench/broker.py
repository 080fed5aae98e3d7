#!/usr/bin/env python3
"""Measures what the broker adds to changes of files: under `modegate run --mode code`, and without Modegate.

usage: broker.py [--folder FOLDER] [--rounds N] [BINARY...]      [default: target/release/modegate]

Runs of each binary and plain runs alternate. Each case is repeated, and the table has the median and the least of one
repetition in microseconds. The working directory is made in FOLDER, by default that of temporary files.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

PROGRAM = r"""
import json, os, time

now = time.perf_counter_ns
COUNT = 5000
results = {}


def measure(name, act, count=COUNT):
    times = []
    for index in range(count):
        start = now()
        act(index)
        times.append(now() - start)
    results[name] = times


def write(index):
    os.close(os.open("a", os.O_WRONLY))


def create_and_delete(index):
    os.close(os.open("b", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    os.unlink("b")


def rename(index):
    os.rename("a", "c")
    os.rename("c", "a")


def folder(index):
    os.mkdir("d")
    os.rmdir("d")


def new_file(index):
    file = os.open(f"new/{index % 50}/{index}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(file, b"x" * 200)
    os.close(file)


open("a", "w").close()
os.mkdir("old")
os.mkdir("new")
for index in range(50):
    os.mkdir(f"new/{index}")
measure("open to read", lambda index: os.close(os.open("a", os.O_RDONLY)))
measure("open to write", write)
measure("open to rewrite", lambda index: os.close(os.open("a", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)))
measure("create and delete", create_and_delete)
measure("rename twice", rename)
measure("mkdir and rmdir", folder)
measure("chmod", lambda index: os.chmod("a", 0o600 + index % 2 * 0o44))
measure("create and write", new_file, 2000)
measure("first change", lambda index: os.close(os.open(f"was/{index}", os.O_WRONLY)), 500)
measure("first removal", lambda index: os.unlink(f"was/{index + 500}"), 500)
print(json.dumps(results))
"""


def run(command, folder):
    with tempfile.TemporaryDirectory(dir=folder) as work:
        os.mkdir(work + "/was")
        for index in range(1000):
            with open(f"{work}/was/{index}", "w") as file:
                file.write("x" * 2000)
        done = subprocess.run(command, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("binaries", nargs="*", default=["target/release/modegate"])
    parser.add_argument("--folder")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    program = [sys.executable, "-c", PROGRAM]
    kinds = {"plain": program}
    for binary in map(os.path.abspath, arguments.binaries):
        kinds[binary] = [binary, "run", "--quiet", "--mode", "code", "--", *program]
    results = {kind: {} for kind in kinds}
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        for _ in range(arguments.rounds):
            for kind, command in kinds.items():
                for case, times in run(command, arguments.folder).items():
                    results[kind].setdefault(case, []).extend(times)
    for kind, cases in results.items():
        print(kind)
        for case, times in cases.items():
            print(f"  {case:18} median {statistics.median(times) / 1000:8.1f}   least {min(times) / 1000:8.1f}")


main()
