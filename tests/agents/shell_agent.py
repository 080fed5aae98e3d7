"""An ACP agent without a model: it runs the text of a prompt in bash, and answers with the result as JSON."""

import json
import subprocess
import sys
import tempfile


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def run(command, folder):
    # Files and no pipes: a pipe ends only with the last process that the command left behind.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.run(
            ["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        texts = {}
        for name, file in (("output", output), ("errors", errors)):
            file.seek(0)
            texts[name] = file.read().decode(errors="replace")[-20000:]
    return {"code": process.returncode, **texts}


def main():
    folders = {}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message or method is None:
            continue
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": {"name": "shell", "version": "1"}}
        elif method == "session/new":
            session = f"session-{len(folders) + 1}"
            folders[session] = params["cwd"]
            result = {"sessionId": session}
        elif method == "session/prompt":
            session = params["sessionId"]
            text = params["prompt"][0].get("text", "")
            content = {"type": "text", "text": json.dumps(run(text, folders[session]))}
            update = {"sessionUpdate": "agent_message_chunk", "content": content}
            send({"method": "session/update", "params": {"sessionId": session, "update": update}})
            result = {"stopReason": "end_turn"}
        else:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
            continue
        send({"id": message["id"], "result": result})


main()
