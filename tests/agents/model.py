"""A scripted model provider with the formats of OpenAI (Chat Completions and Responses), Anthropic and Gemini.

A user message with `[[script N]]` selects script N: a list of tool calls, one for each reply, and then a text. What
asks without such a message or without tools, such as the generation of a title, gets a text.
"""

import gzip
import json
import re
import threading
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "Done."
GATE_TIMEOUT = 60


@dataclass
class Script:
    """`calls` are pairs of a tool's name and its arguments. The reply with call N waits until `gates[N]` is set;
    `asked[N]` is set when the agent has asked for it. `results` has the results that the agent has sent."""

    calls: list
    gates: dict = field(default_factory=dict)
    asked: dict = field(default_factory=dict)
    results: list = field(default_factory=list)
    seen_marks: set = field(default_factory=set)


def text_of(content):
    if isinstance(content, list):
        return "\n".join(map(text_of, content))
    if isinstance(content, dict):
        return text_of(content.get("text"))
    return content if isinstance(content, str) else ""


def chat_messages(body):
    return [(message["role"], text_of(message.get("content"))) for message in body.get("messages", [])]


def responses_messages(body):
    items = body.get("input", [])
    if isinstance(items, str):
        return [("user", items)]
    return [("tool", text_of(item.get("output"))) if item.get("type", "").endswith("_output")
            else (item.get("role", ""), text_of(item.get("content"))) for item in items]


def anthropic_messages(body):
    found = []
    for message in body.get("messages", []):
        parts = message["content"]
        for part in parts if isinstance(parts, list) else [{"type": "text", "text": parts}]:
            is_result = part["type"] == "tool_result"
            text = text_of(part.get("content" if is_result else "text"))
            found.append(("tool" if is_result else message["role"], text))
    return found


def gemini_messages(body):
    found = []
    for message in body.get("contents", []):
        for part in message.get("parts", []):
            if "functionResponse" in part:
                found.append(("tool", json.dumps(part["functionResponse"].get("response"))))
            else:
                found.append((message.get("role", "user"), part.get("text", "")))
    return found


def sse(event, kind=None):
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(event)}\n\n"


def chat_reply(call, number):
    """The events of a streamed reply, and the reply as one object."""
    message = {"role": "assistant", "content": None if call else TEXT}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
    end = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    base = {"id": f"reply_{number}", "created": 1, "model": "scripted"}
    chunk = base | {"object": "chat.completion.chunk"}
    events = [sse(chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
              sse(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": usage}),
              "data: [DONE]\n\n"]
    choice = {"index": 0, "message": message, "finish_reason": end}
    return events, base | {"object": "chat.completion", "choices": [choice], "usage": usage}


def responses_reply(call, number):
    if call:
        # Some tools of codex are in a namespace.
        namespace, _, name = call[0].rpartition(".")
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed",
                "name": name, "arguments": json.dumps(call[1])} | ({"namespace": namespace} if namespace else {})
    else:
        part = {"type": "output_text", "text": TEXT, "annotations": []}
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110} | details
    whole = {"id": f"reply_{number}", "object": "response", "created_at": 1, "status": "completed", "model": "scripted",
             "output": [item], "usage": usage}
    parts = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}},
             {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}}]
    if not call:
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        parts += [{"type": "response.output_text.delta", "delta": TEXT} | at,
                  {"type": "response.output_text.done", "text": TEXT} | at]
    parts += [{"type": "response.output_item.done", "output_index": 0, "item": item},
              {"type": "response.completed", "response": whole}]
    events = [sse(part | {"sequence_number": index}, part["type"]) for index, part in enumerate(parts)]
    return events, whole


def anthropic_reply(call, number):
    usage = {"input_tokens": 100, "output_tokens": 10}
    base = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "stop_sequence": None}
    if call:
        block, delta = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0]}, "input_json_delta"
        empty, full = block | {"input": {}}, block | {"input": call[1]}
        change = {"type": delta, "partial_json": json.dumps(call[1])}
    else:
        empty, full = {"type": "text", "text": ""}, {"type": "text", "text": TEXT}
        change = {"type": "text_delta", "text": TEXT}
    end = "tool_use" if call else "end_turn"
    parts = [{"type": "message_start", "message": base | {"content": [], "stop_reason": None, "usage": usage}},
             {"type": "content_block_start", "index": 0, "content_block": empty},
             {"type": "content_block_delta", "index": 0, "delta": change},
             {"type": "content_block_stop", "index": 0},
             {"type": "message_delta", "delta": {"stop_reason": end, "stop_sequence": None}, "usage": usage},
             {"type": "message_stop"}]
    return [sse(part, part["type"]) for part in parts], base | {"content": [full], "stop_reason": end, "usage": usage}


def gemini_reply(call, number):
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": TEXT}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted", "responseId": f"r_{number}"}
    return [sse(whole)], whole


FORMATS = {
    "/chat/completions": (chat_messages, chat_reply),
    "/responses": (responses_messages, responses_reply),
    "/messages": (anthropic_messages, anthropic_reply),
    "GenerateContent": (gemini_messages, gemini_reply),
    "generateContent": (gemini_messages, gemini_reply),
}


class Model:
    """Serves on a port of 127.0.0.1 until the process ends."""

    def __init__(self):
        self.scripts, self.replies, self.lock = {}, 0, threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                try:
                    model.answer(self)
                except ConnectionError:
                    # A cancelled turn, or an agent that has ended.
                    self.close_connection = True

            def do_GET(self):
                names = [{"id": name, "object": "model", "created": 1, "owned_by": "test"} for name in ("scripted",)]
                send(self, {"object": "list", "data": names, "models": []})

            def do_HEAD(self):
                send(self, {})

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.port = server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def script(self, calls, gates=()):
        """Returns the text that selects the script, and the script."""
        with self.lock:
            number = len(self.scripts) + 1
            script = self.scripts[number] = Script(calls)
        for index in gates:
            script.gates[index], script.asked[index] = threading.Event(), threading.Event()
        return f"[[script {number}]]", script

    def next_call(self, messages, body):
        """The tool call of the reply, or `None` for a text."""
        for index in range(len(messages) - 1, -1, -1):
            role, text = messages[index]
            marks = re.findall(r"\[\[script (\d+)\]\]", text) if role == "user" else []
            if marks:
                break
        else:
            return None
        if not body.get("tools"):
            return None
        script = self.scripts[int(marks[-1])]
        all_text = "\n".join(text for role, text in messages if role == "user")
        script.seen_marks |= set(map(int, re.findall(r"\[\[script (\d+)\]\]", all_text)))
        results = [text for role, text in messages[index + 1:] if role == "tool"]
        script.results = results
        if len(results) >= len(script.calls):
            return None
        if len(results) in script.gates:
            script.asked[len(results)].set()
            script.gates[len(results)].wait(GATE_TIMEOUT)
        return script.calls[len(results)]

    def answer(self, request):
        path = request.path.partition("?")[0]
        body = read_body(request)
        ending = next((ending for ending in FORMATS if path.endswith(ending)), None)
        if ending is None:
            # Counting tokens and telemetry.
            return send(request, {"input_tokens": 100, "totalTokens": 100})
        read_messages, write_reply = FORMATS[ending]
        with self.lock:
            self.replies += 1
            number = self.replies
        events, whole = write_reply(self.next_call(read_messages(body), body), number)
        if body.get("stream") or "stream" in path:
            send(request, "".join(events), "text/event-stream")
        else:
            send(request, whole)


def read_body(request):
    if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
        data = b""
        while size := int(request.rfile.readline().split(b";")[0], 16):
            data += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
    else:
        data = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    encoding = request.headers.get("Content-Encoding", "")
    data = gzip.decompress(data) if encoding == "gzip" else zlib.decompress(data) if encoding == "deflate" else data
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def send(request, answer, kind="application/json"):
    data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
    request.send_response(200)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)
