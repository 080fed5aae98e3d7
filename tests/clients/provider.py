"""A model provider with OpenAI's Chat Completions format, for what the scripted model cannot do: it says which images
a request has. It replays a script; `{images}` in a text stands for the images of the request."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def images(request):
    """The type and the size of each image, in words."""
    parts = [part for message in request["messages"] if isinstance(message.get("content"), list)
             for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    headed = [url.removeprefix("data:").split(";base64,") for url in urls]
    return ", ".join(f"{kind} of {len(base64.b64decode(data))} bytes" for kind, data in headed) or "none"


def replies(script):
    """Splits the lines of a script at each stop."""
    found = [[]]
    for line in script:
        if "stop" in line:
            found.append([])
        else:
            found[-1].append(line)
    return found[:-1]


def chunks(reply, request):
    for line in reply:
        if "text" in line:
            yield {"delta": {"content": line["text"].replace("{images}", images(request))}}
        else:
            call = line["tool_call"]
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            yield {"delta": {"tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": function}]}}
    has_calls = any("tool_call" in line for line in reply)
    yield {"delta": {}, "finish_reason": "tool_calls" if has_calls else "stop"}


@contextmanager
def serve(script):
    """Serves the script's replies in order, one for each request; yields the address."""
    left = replies(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            events = [json.dumps({"choices": [{"index": 0} | chunk]}) for chunk in chunks(left.pop(0), request)]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write("".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
