#!/usr/bin/env python3
"""Drives real agents through `modegate wrap`, without further options, and prints a table.

    tests/agents/matrix.py [--only AGENT,…] [--json FILE] [BINARY]
    tests/agents/matrix.py --install

BINARY is target/debug/modegate by default. Agents are installed from npm and PyPI into $AGENTS_DIR (default:
target/agents) and reused while their versions match; kimi and vibe need python3.13 and python3.12. Afterwards nothing
needs the network: a scripted model answers on 127.0.0.1. Each agent has a home directory and a project of its own.

Exits with 1 if a cell is not as it has to be; those cells begin with `!`.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True

import agents
from acp_client import Client, agent_process, audit, descendants
from model import Model

COLUMNS = ["agent", "plan", "ask, allow", "ask, reject", "git in ask", "code", "MCP server", "switch in a turn",
           "started in code, then plan", "by a sub-agent", "undo", "audit", "processes", "denied path in code"]
FILES = {"keep.txt": "old\n", "gone.txt": "delete me\n", "dir/in.txt": "x\n", "moved.txt": "m\n",
         "denied/old.txt": "old\n"}
RULE = "write_file(denied/**)"
CHANGES = ("echo new > new.txt; echo more >> keep.txt; rm gone.txt; mkdir -p a/b; echo y > a/b/c; mv moved.txt to.txt; "
           "chmod 755 dir/in.txt; ln -s keep.txt link; echo z > dir/in.txt")
REPOSITORY = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm start"
# What a tool's result has in it if Modegate's refusal was its error.
KERNEL_ERRORS = ("ermission denied", "EACCES", "PermissionDenied", "ermission Denied", "Errno 13")


class Listener:
    """Counts connections to a port that is not the model's."""

    def __init__(self):
        self.count, self.socket = 0, socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.socket.accept()
            self.count += 1
            connection.close()


def wait(is_met, timeout=30):
    end = time.monotonic() + timeout
    while not is_met() and time.monotonic() < end:
        time.sleep(0.02)
    return is_met()


def snapshot(folder):
    """Each path of the project with its permissions and content; the git folder is not part of it."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] not in (".git", ".opencode"):
            content = (os.readlink(path) if path.is_symlink() else
                       hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder")
            found[str(name)] = (oct(path.lstat().st_mode), content)
    return found


class Trial:
    """One agent, in one session."""

    def __init__(self, agent, binary, folder):
        self.agent, self.binary, self.folder = agent, binary, folder
        self.project, home = folder / "project", folder / "home"
        home.mkdir(parents=True)
        for name, text in FILES.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)
        subprocess.run(REPOSITORY, shell=True, cwd=self.project, check=True)
        self.model, self.number, self.denials = Model(), 0, 0
        self.command, self.environment = agents.prepare(agent, home, self.model.url)
        self.client, self.notes = self.connect(), {}

    def connect(self):
        """Starts Modegate and opens a session."""
        server = {"name": "writer", "command": sys.executable, "env": [],
                  "args": [str(Path(__file__).parent / "mcp_writer.py"), str(self.project)]}
        command = [self.binary, "--mode", "code", "wrap", "--", *self.command]
        client = Client(command, self.environment, self.project, self.folder / "stderr.txt")
        client.open(self.project, [server])
        return client

    def process(self):
        return agent_process(self.client.process.pid, self.command)

    def tools(self):
        """The agent's tools that write a file: its name and a function that makes the call."""
        if self.agent.write:
            yield "tool", self.agent.write
        yield "command", lambda path, text: self.agent.shell(f"printf '{text}' > {path}")

    def audit(self):
        """Returns whether the audit log is valid, and the number of denials since the last call."""
        is_valid, denials = audit(self.binary, self.client, self.environment)
        new, self.denials = denials - self.denials, denials
        return is_valid, new

    def new_path(self, kind):
        self.number += 1
        return self.project / f"{kind}{self.number}.txt"

    def write_once(self, mode, answer, kind, call):
        """One turn that writes a file with one tool."""
        self.client.set_mode(mode)
        self.client.answer = answer
        self.audit()
        path, questions, texts = self.new_path(kind), len(self.client.questions), len(self.client.texts)
        text, script = self.model.script([call(str(path), "hi")])
        stop = self.client.turn(f"Do it. {text}")
        told = script.results[-1] if script.results else ""
        row = {"written": path.exists(), "questions": self.client.questions[questions:], "denials": self.audit()[1],
               "told": told[-300:], "stop": stop, "notices": "".join(self.client.texts[texts:])[-400:]}
        self.notes.setdefault(f"{mode} {answer}", {})[kind] = row
        return row

    def plan(self):
        cells = []
        for kind, call in self.tools():
            row = self.write_once("plan", "allow_once", kind, call)
            by = "Modegate" if row["denials"] or any(error in row["told"] for error in KERNEL_ERRORS) else "itself"
            cells.append(f"! {kind} written" if row["written"] else f"{kind}: {by}")
        return cells

    def ask(self, answer):
        cells = []
        for kind, call in self.tools():
            row = self.write_once("ask", answer, kind, call)
            asked = len(row["questions"])
            fits = asked and row["written"] == (answer == "allow_once")
            did = "written" if row["written"] else "not written"
            counted = "" if answer == "allow_once" else f", {row['denials']} denied"
            cells.append(f"{'' if fits else '! '}{kind}: {asked} asked, {did}{counted}")
        return cells

    def git(self):
        """`git add` and `git commit` cost at most two questions."""
        self.client.set_mode("ask")
        self.client.answer, questions = "allow_once", len(self.client.questions)
        name = "git -c user.name=a -c user.email=a@b"
        text, script = self.model.script([self.agent.shell(f"git add . && {name} commit -qm second")])
        stop = self.client.turn(f"Do it. {text}")
        count = ["git", "rev-list", "--count", "HEAD"]
        commits = subprocess.run(count, cwd=self.project, capture_output=True, text=True).stdout.strip()
        asked = len(self.client.questions) - questions
        self.notes["git"] = {"questions": self.client.questions[questions:], "commits": commits, "stop": stop,
                             "told": (script.results or [""])[-1][-300:]}
        fits = commits == "2" and 1 <= asked <= 2
        return [f"{'' if fits else '! '}{asked} asked, {'committed' if commits == '2' else 'not committed'}"]

    def code(self):
        cells = []
        for kind, call in self.tools():
            row = self.write_once("code", "allow_once", kind, call)
            fits = row["written"] and not row["questions"]
            cells.append(f"{kind} written" if fits else f"! {kind}: {len(row['questions'])} asked, {row['stop']}")
        return cells

    def rule(self):
        """In a new session, a rule by path holds in code, for the agent's own tool and for its commands."""
        deny = [self.binary, "permissions", "deny", RULE]
        subprocess.run(deny, env=self.environment, check=True, capture_output=True)
        self.client, self.denials, cells = self.connect(), 0, []
        for kind, call in self.tools():
            denied = self.write_once("code", "allow_once", f"denied/{kind}", call)
            other = self.write_once("code", "allow_once", kind, call)
            fits = not denied["written"] and other["written"] and not other["questions"]
            did = "written" if denied["written"] else f"refused, {denied['denials']} denied"
            cells.append(f"{'' if fits else '! '}{kind}: {did}{'' if other['written'] else ', others too'}")
        self.client.close()
        return cells

    def mcp(self):
        """An MCP server of the client, which the agent starts, writes in code and not in plan."""
        written = {}
        for mode in ("code", "plan"):
            self.client.set_mode(mode)
            (self.project / f"mcp-{mode}.go").write_text("")
            written[mode] = wait((self.project / f"mcp-{mode}.txt").exists, 5 if mode == "code" else 1)
            (self.project / f"mcp-{mode}.go").unlink()
        if not written["code"]:
            return ["not started"]
        return ["! written in plan" if written["plan"] else "written only in code"]

    def switch(self):
        """Four writes in one turn: in code, plan, ask and code."""
        cells = []
        for kind, call in self.tools():
            self.client.set_mode("code")
            self.client.answer = "allow_once"
            before, questions = self.process(), len(self.client.questions)
            paths = [self.new_path(f"switch-{kind}") for _ in range(4)]
            text, script = self.model.script([call(str(path), "hi") for path in paths], gates=(1, 2, 3))
            turn, times, left = self.client.begin_turn(f"Do it. {text}"), [], ""
            for gate, mode in ((1, "plan"), (2, "ask"), (3, "code")):
                if not wait(lambda: script.asked[gate].is_set() or turn["event"].is_set(), 60):
                    left = "no request"
                    break
                if turn["event"].is_set():
                    left = "its turn ended"
                    break
                times.append(self.client.set_mode(mode))
                script.gates[gate].set()
            for gate in script.gates.values():
                gate.set()
            stop = self.client.end_turn(turn)
            written = "".join("w" if path.exists() else "-" for path in paths)
            same = before == self.process()
            expected = written in ("w-ww",) or (left == "its turn ended" and written == "w---" and stop == "end_turn")
            self.notes.setdefault("switch", {})[kind] = {
                "written": written, "ms": times, "questions": self.client.questions[questions:], "stop": stop,
                "same process": same, "left": left, "told": [result[-200:] for result in script.results]}
            fits = expected and same and stop == "end_turn"
            cells.append(f"{'' if fits else '! '}{kind}: {written}{', ' + left if left else ''}"
                         f", {max(times, default=0):.0f} ms{'' if same else ', another process'}"
                         f"{'' if stop == 'end_turn' else ', ' + stop}")
        return cells

    def running(self, is_delegated=False):
        """A command that was started in code, by the agent or its sub-agent, continues in plan: it neither writes nor
        connects. So the agent's own plan mode has no part in it."""
        self.client.set_mode("code")
        listener, before = Listener(), self.process()
        go, late, ready = (self.project / name for name in ("go", "late.txt", "ready"))
        connect = f"(exec 3<>/dev/tcp/127.0.0.1/{listener.port}) 2>&1"
        line = (f"{connect}; : > {ready}; until [ -e {go} ]; do sleep 0.05; done; {connect}; echo x > {late}; "
                f"{connect}; echo end of it")
        text, script = self.model.script([self.agent.shell(f"bash -c '{line}'")])
        if is_delegated:
            text, _ = self.model.script([self.agent.delegate(f"Do it. {text}")])
        turn = self.client.begin_turn(f"Do it. {text}")
        wait(ready.exists)
        # Loopback accepts at once, but the thread may lag.
        wait(lambda: listener.count == 1, 2)
        in_code = listener.count
        elapsed = self.client.set_mode("plan")
        go.write_text("")
        wait(lambda: script.results, 20)
        stop = self.client.end_turn(turn, 40)
        told = "".join(script.results)
        self.notes[f"running{' delegated' if is_delegated else ''}"] = {
            "in code": in_code, "in plan": listener.count - in_code, "late": late.exists(), "told": told[-300:],
            "stop": stop, "ms": elapsed}
        if not ready.exists() or in_code != 1:
            return [f"! the control failed: {in_code} connections in code"]
        for path in (go, ready):
            path.unlink()
        ran_on = "" if "end of it" in told else ", command ended"
        other = "" if before == self.process() else ", another process"
        fits = listener.count == in_code and not late.exists() and not other
        return [f"{'' if fits else '! '}{listener.count - in_code} connections, "
                f"{'written' if late.exists() else 'not written'}{ran_on}{other}"]

    def sub_agent(self):
        return self.running(is_delegated=True) if self.agent.delegate else ["not tried"]

    def open_file(self):
        """A command that has a file open for writing when the mode becomes plan."""
        self.client.set_mode("code")
        before, path = self.process(), self.project / "open.log"
        line = f"exec 5>{path}; yes | head -600 | while read word; do echo $word >&5; sleep 0.02; done"
        text, script = self.model.script([self.agent.shell(f"bash -c '{line}'")])
        turn = self.client.begin_turn(f"Do it. {text}")
        if not wait(lambda: path.exists() and path.stat().st_size > 20):
            return ["! the control failed: nothing was written in code"]
        texts = len(self.client.texts)
        elapsed = self.client.set_mode("plan")
        size = path.stat().st_size
        stop = self.client.end_turn(turn, 25)
        grew, same = path.stat().st_size - size, before == self.process()
        self.notes["open file"] = {"ms": elapsed, "grew": grew, "stop": stop, "same process": same,
                                   "told": (script.results or [""])[-1][-200:]}
        # opencode's turn does not end after its command was killed, also without Modegate.
        is_told = "cancel the turn" in "".join(self.client.texts[texts:])
        fits = grew == 0 and same and (stop == "end_turn" or stop == "none" and is_told)
        hung = ", turn cancelled" if stop == "none" else "" if stop == "end_turn" else f", {stop}"
        return [f"{'' if fits else '! '}open file: {elapsed:.0f} ms"
                f"{'' if grew == 0 else f', {grew} bytes after'}{'' if same else ', another process'}{hung}"]

    def undo(self):
        self.client.set_mode("code")
        before = snapshot(self.project)
        text, _ = self.model.script([self.agent.shell(f"cd {self.project}; {CHANGES}")])
        self.client.turn(f"Do it. {text}")
        changed = snapshot(self.project)
        self.client.turn("/undo")
        after = snapshot(self.project)
        paths = {path for path in before.keys() | changed.keys() if before.get(path) != changed.get(path)}
        left = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        self.notes["undo"] = {"changed": sorted(paths), "left": left}
        is_exact = len(paths) == 10 and not left
        return [f"exact, {len(paths)} paths" if is_exact else f"! {len(paths)} changed, left {left}"]

    def end(self, first):
        """The conversation and the processes at the end, and the whole audit log."""
        text, script = self.model.script([])
        self.client.turn(f"The last one. {text}")
        keeps, same = 1 in script.seen_marks, first == self.process()
        processes = descendants(self.client.process.pid)
        valid, _ = self.audit()
        ended = self.client.close()
        wait(lambda: not alive(processes), 2)
        left = alive(processes)
        refused = sum(row["denials"] for name in self.notes if name.startswith(("plan", "ask reject"))
                      for row in self.notes[name].values())
        has_broker = "without the broker" not in (self.folder / "stderr.txt").read_text()
        self.notes["end"] = {"denials": self.denials, "valid": valid, "keeps": keeps, "left": len(left)}
        audit = f"{'valid' if valid else '! not valid'}, {self.denials} denials ({refused} of these tests)"
        fits = keeps and same and ended and not left and has_broker
        return [audit], [f"{'' if fits else '! '}{'one' if same else 'another'}"
                         f"{'' if keeps else ', conversation lost'}{'' if ended else ', killed'}"
                         f"{f', {len(left)} left' if left else ''}{'' if has_broker else ', without the broker'}"]

    def run(self):
        start = time.monotonic()
        text, _ = self.model.script([])
        stop = self.client.turn(f"Hello. {text}")
        first = self.process()
        if stop != "end_turn" or first is None:
            raise RuntimeError(f"the first turn: {stop}, process {first}")
        self.notes["start"] = {"seconds": round(time.monotonic() - start, 1), "text": "".join(self.client.texts)[-600:]}
        cells = [self.plan(), self.ask("allow_once"), self.ask("reject_once"), self.git(), self.code(), self.mcp(),
                 self.switch(), self.running() + self.open_file(), self.sub_agent(), self.undo()]
        return [*cells, *self.end(first), self.rule()]


def alive(processes):
    """Processes of the list that have not ended; a number can be used again."""
    found = []
    for pid, started in processes:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == started and fields[0] != "Z":
            found.append(pid)
    return found


def row_of(agent, binary, folder):
    """The cells of an agent, and its notes."""
    why_not = agents.install(agent)
    if why_not:
        return [agent.name, f"! {why_not}"], {}
    trial = None
    try:
        trial = Trial(agent, binary, folder)
        cells = trial.run()
    except Exception as error:  # A row for each agent, whatever happens to one.
        if trial:
            trial.client.process.kill()
        return [agent.name, f"! {type(error).__name__}: {error}"], trial.notes if trial else {}
    return [agent.name, *("<br>".join(parts) for parts in cells)], trial.notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="AGENT,…")
    parser.add_argument("--install", action="store_true", help="only install the agents")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("binary", nargs="?", type=Path, default=agents.ROOT / "target/debug/modegate")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [agent.name for agent in agents.ALL]
    chosen = [agent for agent in agents.ALL if agent.name in wanted]
    if len(chosen) != len(wanted):
        parser.error(f"{options.only} names no agent")
    if options.install:
        failed = {agent.name: why_not for agent in chosen if (why_not := agents.install(agent))}
        sys.exit("\n".join(f"{name}: {why_not}" for name, why_not in failed.items()) or 0)
    binary = options.binary.resolve()
    if not os.access(binary, os.X_OK):
        sys.exit(f"{binary} is no program; run cargo build first")
    agents.FOLDER.mkdir(parents=True, exist_ok=True)
    work, notes, is_fine = Path(tempfile.mkdtemp(prefix="matrix-", dir=agents.FOLDER)), {}, True
    print("|", " | ".join(COLUMNS), "|")
    print("|", " | ".join("---" for _ in COLUMNS), "|", flush=True)
    for agent in chosen:
        cells, notes[agent.name] = row_of(agent, str(binary), work / agent.name)
        is_fine &= not any("! " in cell for cell in cells)
        print("|", " | ".join(cells), "|", flush=True)
        if options.json:
            options.json.write_text(json.dumps(notes, indent=1))
    if is_fine:
        shutil.rmtree(work)
    else:
        print(f"the folders are in {work}", file=sys.stderr)
    sys.exit(not is_fine)


if __name__ == "__main__":
    main()
