"""An ACP client that changes the mode while a turn runs, the processes of an agent, and the audit log."""

import json
import os
import subprocess
import threading
import time

TIMEOUT = 90


class Ended(Exception):
    """Modegate ended before it answered, or did not answer in time."""


class Client:
    """Starts a command. `answer` is the kind of the option that requests for permission get, `session` the session
    that was opened last."""

    def __init__(self, command, environment, cwd, log):
        self.log = open(log, "ab")
        self.process = subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log)
        self.answer, self.questions, self.texts = "allow_once", [], []
        self.requests, self.waiting, self.lock = 0, {}, threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()
        self.call("initialize", protocolVersion=1, clientCapabilities={},
                  clientInfo={"name": "tests", "version": "1"})

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                waiting = self.waiting.pop(message["id"])
                waiting["message"] = message
                waiting["event"].set()
            elif "id" in message:
                self._respond(message)
            elif message["params"].get("update", {}).get("sessionUpdate") == "agent_message_chunk":
                self.texts.append(message["params"]["update"]["content"].get("text", ""))
        for waiting in list(self.waiting.values()):
            waiting["event"].set()

    def _respond(self, message):
        if message["method"] != "session/request_permission":
            return self._send({"id": message["id"], "error": {"code": -32601, "message": "not offered"}})
        parameters = message["params"]
        option = next((option for option in parameters["options"] if option["kind"] == self.answer), None)
        self.questions.append((parameters["toolCall"].get("title"), self.answer if option else "cancelled"))
        chosen = {"outcome": "selected", "optionId": option["optionId"]} if option else {"outcome": "cancelled"}
        self._send({"id": message["id"], "result": {"outcome": chosen}})

    def _send(self, message):
        with self.lock:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
            self.process.stdin.flush()

    def begin(self, method, **parameters):
        self.requests += 1
        waiting = self.waiting[self.requests] = {"event": threading.Event()}
        self._send({"id": self.requests, "method": method, "params": parameters})
        return waiting

    def end(self, waiting, timeout=TIMEOUT):
        """Returns the result, or the error as `{"error": …}`."""
        if not waiting["event"].wait(timeout):
            raise Ended("no answer")
        if "message" not in waiting:
            raise Ended(f"Modegate ended with {self.process.wait()}")
        return waiting["message"].get("result", {"error": waiting["message"].get("error")})

    def call(self, method, **parameters):
        return self.end(self.begin(method, **parameters))

    def open(self, folder, servers=()):
        answer = self.call("session/new", cwd=str(folder), mcpServers=list(servers))
        if "sessionId" not in answer:
            raise Ended(f"no session: {answer}")
        self.session = answer["sessionId"]
        return self.session

    def set_mode(self, mode):
        """Returns the time in milliseconds."""
        start = time.monotonic()
        answer = self.call("session/set_mode", sessionId=self.session, modeId=mode)
        if "error" in answer:
            raise RuntimeError(f"mode {mode}: {answer['error']}")
        return 1000 * (time.monotonic() - start)

    def begin_turn(self, text):
        return self.begin("session/prompt", sessionId=self.session, prompt=[{"type": "text", "text": text}])

    def end_turn(self, turn, timeout=TIMEOUT):
        """Returns the stop reason, an error's message, or `"none"` for a turn that had to be cancelled."""
        if not turn["event"].wait(timeout):
            self._send({"method": "session/cancel", "params": {"sessionId": self.session}})
            self.end(turn)
            return "none"
        answer = self.end(turn)
        return answer.get("stopReason") or answer["error"]["message"]

    def turn(self, text, timeout=TIMEOUT):
        return self.end_turn(self.begin_turn(text), timeout)

    def prompt(self, session, text, timeout):
        """Returns the texts of the answer."""
        self.session = session
        self.texts.clear()
        stop = self.turn(text, timeout)
        if stop != "end_turn":
            raise Ended(f"the turn ended with {stop}")
        return list(self.texts)

    def close(self):
        """Returns true if Modegate ends within 10 seconds after its input."""
        self.process.stdin.close()
        try:
            self.process.wait(10)
            return True
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False


def descendants(pid):
    """The processes below one, as pairs of id and start time."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append((int(name), fields[19]))
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += [child for child, _ in new]
    return found


def agent_process(modegate, command):
    """The process of the agent: the topmost one below Modegate with its command line, or its end."""
    for pid, started in descendants(modegate):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                arguments = file.read().split("\0")
        except OSError:
            continue
        # An interpreter may stand before the command, and codex gets further arguments.
        if any(arguments[at:at + len(command)] == command for at in (0, 1)):
            return pid, started
    return None


def audit(binary, client, environment):
    """Returns whether the audit log of a client's session is valid, and its number of denials."""
    done = subprocess.run([binary, "audit", "--json", client.session], env=environment, capture_output=True, text=True)
    report = json.loads(done.stdout)
    return done.returncode == 0 and report["ok"], report["denials"]
