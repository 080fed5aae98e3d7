#!/usr/bin/env python3
"""Measures what one task of a fleet costs: processor time of its parts, and bytes of its result.

usage: fleet.py [BINARY]      [default: target/release/modegate]

A small task has three model requests, one written file and one command. A larger one has 50 requests, which read 40
times 10 kB, edit 8 times and run two commands. The scripted model takes no time. Processor times are medians, in
milliseconds, and hardly depend on other work on the machine.
"""
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/fleet"))

import fixture
from fixture import call

ROUNDS = 15


def measure(command, before=lambda: None, **options):
    """Returns the medians of processor time and of time, in milliseconds."""
    processor, wall = [], []
    for _ in range(ROUNDS):
        before()
        used, started = children(), time.monotonic()
        subprocess.run([str(part) for part in command], check=True, capture_output=True, **options)
        wall.append(1000 * (time.monotonic() - started))
        processor.append(1000 * (children() - used))
    return round(statistics.median(processor)), round(statistics.median(wall))


def children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def larger_script(path):
    """Reads 40 times, edits 8 times and runs two commands, in 50 requests."""
    replies = []
    for number in range(40):
        replies.append([call("read_file", path=f"large/{number}.txt")])
    for number in range(8):
        replies.append([call("edit_file", path=f"large/{number}.txt",
                             edits=[{"old_text": f"line 7 of {number}\n", "new_text": "changed\n"}])])
    replies.append([call("shell", command="ls -l large | head; rm old.txt"), ])
    replies.append([{"text": "Done."}])
    return fixture.write_script(path, *replies)


def make_repository(folder):
    fixture.make_repository(folder)
    (folder / "large").mkdir()
    # Real text, because the store is compressed.
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").glob("*.rs")))
    for number in range(40):
        part = sources[number * 10_000:(number + 1) * 10_000]
        (folder / f"large/{number}.txt").write_text(f"line 7 of {number}\n{part}")
    return fixture.commit_all(folder, "large")


def sizes(folder):
    """Bytes of a result."""
    compressed = folder / "store.db.gz"
    parts = {"store": len(gzip.decompress(compressed.read_bytes())), "store.db.gz": compressed.stat().st_size}
    parts["audit.json"] = (folder / "audit.json").stat().st_size
    return parts | {"whole folder": sum(path.stat().st_size for path in folder.iterdir())}


def measure_task(name, model, places):
    """Prints the figures of one task."""
    folder, binary, commit = places
    task = {"id": name, "repository": str(folder / "repository"), "commit": commit, "mode": "code", "prompt": "go",
            "model": model}
    (folder / f"{name}.jsonl").write_text(json.dumps(task) + "\n")
    out, checkout = folder / "out", folder / "checkout"
    run_task = [sys.executable, fixture.FLEET / "run_task", "--out", out, "--work", folder / "work", "--binary", binary,
                folder / f"{name}.jsonl"]
    figures = {"run_task": measure(run_task, lambda: shutil.rmtree(out, ignore_errors=True)),
               "run_task, ended before": measure(run_task)}
    state = json.loads((out / name / "state.json").read_text())
    changed = json.loads((out / name / "result.json").read_text())["changedFiles"]
    if state["exit_code"] or len(changed) != {"small": 3, "larger": 9}[name]:
        sys.exit(f"{name} ended with {state['exit_code']} and changed {changed}")
    store = folder / "published.db"
    store.write_bytes(gzip.decompress((out / name / "store.db.gz").read_bytes()))

    def clean():
        shutil.rmtree(checkout, ignore_errors=True)
        fixture.git(folder, "clone", "-q", "repository", "checkout")
        for path in folder.glob("bench.db*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)

    modegate = [binary, "--cwd", checkout, "--mode", "code", "--model", model, "--output", "json", "-p", "go", "--store"]
    quiet = {"stdin": subprocess.DEVNULL}
    figures["modegate, store in memory"] = measure([*modegate, "memory"], clean, **quiet)
    figures["modegate, store in a file"] = measure([*modegate, folder / "bench.db"], clean, **quiet)
    audit = [binary, "audit", state["session"], "--store", store, "--export", folder / "audit.json"]
    figures["modegate audit --export"] = measure(audit, lambda: (folder / "audit.json").unlink(missing_ok=True))
    for part, (processor, wall) in figures.items():
        print(f"{name:8}{part:28}{processor:6} ms processor {wall:6} ms")
    for part, size in sizes(out / name).items():
        print(f"{name:8}{part:28}{size:9} bytes")


def main():
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/modegate").resolve()
    base = Path(os.environ.get("FLEET_DIR") or ROOT / "target/fleet").resolve()
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    os.environ["HOME"] = str(folder / "home")
    try:
        places = (folder, binary, make_repository(folder / "repository"))
        measure_task("small", fixture.changing_script(folder / "small-script.jsonl", "small"), places)
        measure_task("larger", larger_script(folder / "larger-script.jsonl"), places)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
