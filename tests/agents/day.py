#!/usr/bin/env python3
"""A day's work, three ways: in a plain shell, by an agent under `modegate wrap`, and under `modegate run`.

    tests/agents/day.py target/debug/modegate               # all cases of day.txt, then the questions of `ask`
    tests/agents/day.py target/debug/modegate git npm-big   # cases whose name begins so
    tests/agents/day.py --times 10 target/debug/modegate npm-big

A case has to give the same exit code and output each way, in `code`. Each way has a home of its own, empty but
for settings of registries, so the first case of each tool also makes its caches. The exit code is 1 if a case
differs. No part of `cargo test`: many cases need a registry and programs that a machine may lack.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from acp_client import Client, Ended

HERE = Path(__file__).resolve().parent
# Files of the real home that say where registries are.
SETTINGS = (".npmrc", ".cargo/config.toml", ".config/pip/pip.conf", ".pip/pip.conf", ".config/go/env", ".m2/settings.xml")
WAYS = ("plain", "wrap", "run")
# What a user has before the day begins, in the folder of a way.
SETUP = """
git config --global user.name Day
git config --global user.email day@example.com
git config --global init.defaultBranch main
mkdir work other
git init -q repository
cd repository
mkdir -p packages/app
echo 1 > packages/app/a
git add .
git commit -qm first
git worktree add -q ../worktree
git init -q --bare ../remote.git
if command -v gpg; then
    mkdir -m 700 ~/.gnupg
    gpg --batch --quiet --passphrase '' --quick-gen-key 'Day <day@example.com>' default default never
    gpg --batch --check-trustdb
    echo lock-never > ~/.gnupg/gpg.conf
fi
if command -v ssh-agent; then
    eval $(ssh-agent -a $SSH_AUTH_SOCK)
    echo $SSH_AGENT_PID > ../agent.pid
    ssh-keygen -q -t ed25519 -N '' -f ../key
    ssh-add -q ../key
fi
"""
# Ends what SETUP has started.
LEAVE = "gpgconf --kill all; kill $(cat agent.pid)"


class Case:
    """A case of day.txt: `= name | key: value | …`, and lines of bash below it."""

    def __init__(self, head, lines):
        self.name, *fields = [part.strip() for part in head.split("|")]
        fields = dict(field.split(":", 1) for field in fields)
        self.script = "\n".join(lines)
        self.needs = fields.pop("needs", "").split()
        # A folder beside the session's, in which the case runs.
        self.folder = fields.pop("in", "work").strip()
        self.options = fields.pop("options", "").split()
        # Why the sandbox makes the case fail, where it does by design.
        self.refused = fields.pop("refused", "").strip()
        # A case that root cannot run.
        self.needs_user = fields.pop("user", "").strip() == "ordinary"
        self.limit = float(fields.pop("limit", "120"))
        # The most questions in `ask`; a case with it runs in no other mode.
        self.questions = int(fields.pop("questions", "-1"))
        assert not fields, f"{self.name}: {fields}"


def cases(path):
    heads = re.split(r"^= ", path.read_text(), flags=re.M)[1:]
    for text in heads:
        head, *lines = text.splitlines()
        yield Case(head, [line for line in lines if line and not line.startswith("#")])


class Result:
    def __init__(self, code, output, errors, seconds):
        self.code, self.output, self.errors, self.seconds = code, output, errors, seconds


class Way:
    """One of the three ways, with its home and its folders."""

    def __init__(self, name, modegate, base):
        self.name, self.modegate, self.base = name, modegate, base / name
        self.clients = {}
        self.home = self.base / "home"
        self.home.mkdir(parents=True)
        real = Path.home()
        for file in SETTINGS:
            if (real / file).is_file():
                (self.home / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(real / file, self.home / file)
        tools = {"RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(real / ".rustup"))}
        self.environment = {**os.environ, **tools, "HOME": str(self.home), "BASE": str(self.base), "SHELL": "/bin/bash"}
        self.environment["SSH_AUTH_SOCK"] = str(self.base / "agent.sock")
        for variable in ("TMUX", "GNUPGHOME", "CARGO_HOME", "CARGO_TARGET_DIR"):
            self.environment.pop(variable, None)
        subprocess.run(["bash", "-ec", SETUP], env=self.environment, cwd=self.base, check=True, capture_output=True)

    def run(self, case, mode="code"):
        start = time.monotonic()
        script = f"export PORT={free_port()}\n{case.script}"
        if self.name == "wrap":
            code, output, errors = self.by_agent(case, script, mode)
        else:
            command = ["bash", "-c", script]
            if self.name == "run":
                command = [self.modegate, "--mode", mode, "run", *self.options(case), "--", *command]
            code, output, errors = self.by_command(case, command)
        seconds = time.monotonic() - start
        return Result(code, output.replace(str(self.base), "$BASE"), errors, seconds)

    def options(self, case):
        return [option.replace("$BASE", str(self.base)) for option in case.options]

    def by_command(self, case, command):
        with tempfile.TemporaryFile("w+", newline="") as output, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, cwd=self.base / case.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            )
            try:
                code = process.wait(case.limit)
            except subprocess.TimeoutExpired:
                code = "timeout"
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
            output.seek(0), errors.seek(0)
            return code, output.read(), errors.read()

    def client(self, case, mode):
        """The client of the case's options and mode, and its session in the case's folder."""
        key = (mode, *self.options(case))
        client, sessions = self.clients.get(key, (None, {}))
        if client is None:
            agent = [sys.executable, str(HERE / "shell_agent.py")]
            command = [self.modegate, "--mode", mode, "wrap", *self.options(case), "--", *agent]
            client = Client(command, self.environment, self.base, self.base / "errors.log")
            self.clients[key] = (client, sessions)
        if case.folder not in sessions:
            sessions[case.folder] = client.open(str(self.base / case.folder))
            client.prompt(sessions[case.folder], "true", 60)
        return client, sessions[case.folder]

    def by_agent(self, case, script, mode):
        texts = []
        try:
            client, session = self.client(case, mode)
            texts = client.prompt(session, "true\n" + script, case.limit)
            results = [text for text in texts if text.startswith('{"code"')]
            result = json.loads(results[0])
            notices = "".join(text for text in texts if text not in results)
            return result["code"], result["output"], result["errors"] + notices
        except (Ended, IndexError) as error:
            self.close()
            return "no answer", "", f"{error}{''.join(texts)}"

    def close(self):
        for client, _ in self.clients.values():
            client.close()
        self.clients.clear()

    def leave(self):
        self.close()
        subprocess.run(["bash", "-c", LEAVE], env=self.environment, cwd=self.base, capture_output=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def last_lines(text, number=4):
    return "".join(f"\n      {line[:200]}" for line in text.strip().splitlines()[-number:])


def judge(case, plain, held):
    """Returns what is wrong with a result, or an empty text."""
    if case.refused:
        return "" if held.code not in (0, plain.code) else "expected to be refused"
    if held.code != plain.code:
        return f"exit code {held.code}, plain {plain.code}{last_lines(held.output)}{last_lines(held.errors)}"
    if held.output != plain.output:
        return f"other output:{last_lines(held.output)}\n    plain:{last_lines(plain.output)}"
    return ""


def best(results):
    """The first result that differs from the others, or else the fastest."""
    codes = {result.code for result in results}
    if len(codes) > 1:
        return next(result for result in results if result.code != 0)
    return min(results, key=lambda result: result.seconds)


def compare(case, ways, times):
    """Runs a case each way, and prints a row. Returns whether nothing is wrong."""
    results = {way.name: best([way.run(case) for _ in range(times)]) for way in ways}
    plain = results["plain"]
    faults = []
    if plain.code != 0 and case.refused:
        print(f"| {case.name} | skipped: fails here | | |", flush=True)
        return True
    if plain.code != 0:
        faults.append(f"plain: exit code {plain.code}{last_lines(plain.output)}{last_lines(plain.errors)}")
    cells = [f"{plain.seconds:.2f}"]
    for name in WAYS[1:]:
        fault = judge(case, plain, results[name])
        if fault:
            faults.append(f"{name}: {fault}")
        ratio = results[name].seconds / max(plain.seconds, 0.001)
        words = "DIFFERS" if fault else "refused" if case.refused else f"{results[name].seconds:.2f} ({ratio:.1f})"
        cells.append(words)
    print(f"| {case.name} | {' | '.join(cells)} |", *faults, sep="\n    ", flush=True)
    return not faults


def count_questions(case, way):
    """Runs a case in `ask`, where each question is answered with yes. Returns whether it asks few enough."""
    client, _ = way.client(case, "ask")
    client.questions.clear()
    result = way.run(case, "ask")
    fits = result.code == 0 and len(client.questions) <= case.questions
    print(f"| {case.name}, in `ask` | {len(client.questions)} of {case.questions} questions | {result.seconds:.2f} |")
    if not fits:
        print(f"    exit code {result.code} {client.questions}{last_lines(result.output + result.errors)}", flush=True)
    return fits


def main():
    parser = argparse.ArgumentParser(description="A day's work, in a plain shell and under Modegate.")
    parser.add_argument("modegate")
    parser.add_argument("names", nargs="*", help="the first letters of names of cases")
    parser.add_argument("--times", type=int, default=1, help="repetitions of each case; the fastest counts")
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="day-", dir=Path.home()))
    ways = [Way(name, os.path.abspath(options.modegate), base) for name in WAYS]
    print("| case | plain, s | wrap | run |\n| --- | --- | --- | --- |", flush=True)
    wrong = 0
    for case in cases(HERE / "day.txt"):
        if options.names and not case.name.startswith(tuple(options.names)):
            continue
        missing = [program for program in case.needs if shutil.which(program) is None]
        if case.needs_user and os.getuid() == 0:
            missing = ["user other than root"]
        if missing:
            print(f"| {case.name} | skipped: no {', '.join(missing)} | | |", flush=True)
        elif case.questions >= 0:
            wrong += not count_questions(case, ways[1])
        else:
            wrong += not compare(case, ways, options.times)
    for way in ways:
        way.leave()
    if options.keep:
        print(base)
    else:
        subprocess.run(["chmod", "-R", "u+w", base], check=True)
        shutil.rmtree(base)
    print(f"{wrong} cases differ" if wrong else "no case differs")
    sys.exit(1 if wrong else 0)


main()
