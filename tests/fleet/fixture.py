"""Repositories, tasks and comparisons for the tests of packaging/fleet."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLEET = ROOT / "packaging/fleet"
# Members of a result that differ between two runs of the same task.
VOLATILE = ("sessionId", "durationMs")


def load_run_task():
    loader = importlib.machinery.SourceFileLoader("run_task", str(FLEET / "run_task"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_task", loader))
    sys.modules["run_task"] = module
    loader.exec_module(module)
    return module


def git(folder, *arguments):
    """Fixed names and times, so that commits have the same hashes in each run."""
    names = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER")
             for part, value in (("NAME", "a"), ("EMAIL", "a@b.c"), ("DATE", "2026-01-01T00:00:00Z"))}
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=folder, env=os.environ | names | settings, check=True,
                          capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(folder, number=0):
    """A small repository with three commits. Returns the hash of the second."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "old.txt").write_text("old\n")
    (folder / "src").mkdir()
    (folder / "src/client.rs").write_text(f"/// Repeats a request {number} times.\nfn retry_request() {{}}\n")
    commit_all(folder, "one")
    (folder / "src/cache.rs").write_text("".join(f"fn cached_{n}() {{}}\n" for n in range(50)))
    commit = commit_all(folder, "two")
    (folder / "later.txt").write_text("not in the task's commit\n")
    commit_all(folder, "three")
    return commit


def commit_all(folder, message):
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def call(name, **arguments):
    return {"tool_call": {"id": f"c-{name}", "name": name, "arguments": arguments}}


def write_script(path, *replies):
    """A scripted model: each reply is a list of lines."""
    lines = [line for reply in replies for line in [*reply, {"stop": "done"}]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def changing_script(path, name, delay_ms=0):
    """Creates a text file and a binary file, deletes a file, and answers."""
    command = "rm old.txt && mkdir -p made && printf '\\000\\001\\377' > made/bytes"
    return write_script(path, [{"text": "First."}, call("write_file", path="new.txt", content=f"by {name}\n")],
                        [{"delay_ms": delay_ms}, call("shell", command=command)],
                        [{"usage": {"used": 100, "size": 1000, "output": 7}}, {"text": f"Done: {name}."}])


def make_tasks(folder, count, repositories):
    """Tasks in turn of the offline model in plan mode and of a scripted model in code mode."""
    commits = {number: make_repository(folder / f"repositories/{number}", number) for number in range(repositories)}
    tasks = []
    for number in range(count):
        task = {"id": f"task-{number:04}", "repository": str(folder / f"repositories/{number % repositories}"),
                "commit": commits[number % repositories]}
        if (number // repositories) % 2:
            task |= {"mode": "plan", "model": "offline", "prompt": "where is the retry logic?"}
        else:
            model = changing_script(folder / f"scripts/{number}.jsonl", task["id"])
            task |= {"mode": "code", "model": model, "prompt": "make the change", "max_steps": 20}
        tasks.append(task)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return tasks


def logging_binary(path, binary, log):
    """A program that notes the task of each run, and then becomes Modegate."""
    path.write_text(f"""#!/bin/sh
case " $* " in *" --output json "*)
    if [ -z "$FLEET_TEST_PROBE" ]; then echo "$$ $PWD" >> '{log}'; fi ;;
esac
exec '{binary}' "$@"
""")
    path.chmod(0o755)
    return path


def starts(log):
    """The ids of the tasks for which Modegate was started, with repetitions, and the processes."""
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []
    return [(Path(folder).parent.parent.name, int(pid)) for pid, folder in lines]


def audit_of(folder, binary):
    """The report about the sealed file of a result, made without its store."""
    done = subprocess.run([binary, "audit", folder / "audit.json", "--json"], capture_output=True, text=True)
    return json.loads(done.stdout)


def comparable(folder, binary):
    """What has to be equal in two runs of a task."""
    result = json.loads((folder / "result.json").read_text())
    audit = audit_of(folder, binary)
    state = json.loads((folder / "state.json").read_text())
    return {
        "diff": (folder / "diff.patch").read_bytes(),
        "result": {name: value for name, value in result.items() if name not in VOLATILE},
        "exit_code": state["exit_code"], "key": state["key"], "task": state["task"], "valid": state["audit_valid"],
        "audit": {name: audit.get(name) for name in ("ok", "calls", "denials", "modeChanges", "findings")},
    }


def leftovers(out):
    """Files of attempts that a finished fleet must not leave."""
    return [str(path.relative_to(out)) for name in (".leases", ".staging", ".replaced")
            for path in (out / name).rglob("*")]


def check_equal(value, expected, details=""):
    if value != expected:
        raise AssertionError(f"{value!r} is not {expected!r} {details}".strip())
