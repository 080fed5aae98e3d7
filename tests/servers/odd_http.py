# An MCP server over HTTP for proofs: writes its port to the file that is named.
import json, os, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def reply(self, body, status=200):
        body = json.dumps(body).encode() if body is not None else b""
        self.send_response(status); self.send_header("content-type", "application/json"); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self): self.reply(None, 405)
    def do_DELETE(self): self.reply(None, 200)
    def do_POST(self):
        m = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, id = m.get("method"), m.get("id")
        ok = lambda r: self.reply({"jsonrpc": "2.0", "id": id, "result": r})
        if method == "initialize": return ok({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}})
        if method == "tools/list": return ok({"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("slow", "drop", "big", "stream", "quick")]})
        if method == "tools/call":
            name = m["params"]["name"]
            open(sys.argv[1] + "." + name, "a").write("x\n")
            if name == "slow": time.sleep(60); return
            if name == "quick": return ok({"content": [{"type": "text", "text": "x"}]})
            if name == "drop":
                self.connection.shutdown(socket.SHUT_RDWR); self.close_connection = True; return
            if name == "stream":
                self.send_response(200); self.send_header("content-type", "text/event-stream"); self.send_header("connection", "close"); self.end_headers()
                end, count = time.time() + 3, 0
                event = b"".join([b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).encode() + b"\n\n"] * 100)
                while time.time() < end: self.wfile.write(event); count += 100
                open(sys.argv[1] + ".count", "w").write(str(count))
                self.wfile.write(b"data: " + json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "done"}]}}).encode() + b"\n\n"); self.close_connection = True
                return
            return ok({"content": [{"type": "text", "text": "x" * (20 << 20)}]})
        self.reply(None, 202)
s = ThreadingHTTPServer(("127.0.0.1", 0), H)
s.daemon_threads = True
open(sys.argv[1] + ".new", "w").write(str(s.server_port)); os.rename(sys.argv[1] + ".new", sys.argv[1])
s.serve_forever()
