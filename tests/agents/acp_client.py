"""A small ACP client for `modegate wrap`. It answers each question with yes, and counts the questions."""

import json
import queue
import subprocess
import threading


class Ended(Exception):
    """The agent ended, or did not answer in time."""


class Client:
    def __init__(self, command, environment, folder, errors):
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        self.answers, self.next_id, self.texts, self.questions = queue.Queue(), 0, [], []
        threading.Thread(target=self.read, daemon=True).start()
        self.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("method") == "session/request_permission":
                self.questions.append(message["params"]["toolCall"].get("title"))
                yes = next(o for o in message["params"]["options"] if o["kind"] == "allow_once")
                outcome = {"outcome": "selected", "optionId": yes["optionId"]}
                self.send({"id": message["id"], "result": {"outcome": outcome}})
            elif message.get("method") == "session/update":
                update = message["params"]["update"]
                if update["sessionUpdate"] == "agent_message_chunk":
                    self.texts.append(update["content"].get("text", ""))
            elif "method" not in message:
                self.answers.put(message)
        self.answers.put(None)

    def call(self, method, params, limit=60):
        self.next_id += 1
        try:
            self.send({"id": self.next_id, "method": method, "params": params})
            answer = self.answers.get(timeout=limit)
        except (queue.Empty, OSError) as error:
            raise Ended(f"{method}: no answer ({type(error).__name__})") from error
        if answer is None or "result" not in answer:
            raise Ended(f"{method}: {answer}")
        return answer["result"]

    def open(self, folder):
        return self.call("session/new", {"cwd": folder, "mcpServers": []})["sessionId"]

    def prompt(self, session, text, limit):
        """Returns the texts of the answer."""
        self.texts.clear()
        self.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}, limit)
        return list(self.texts)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
