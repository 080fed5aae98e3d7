# An MCP server over HTTP with OAuth, and its authorization server, for tests: one process, two ports of 127.0.0.1.
# Arguments: a file, into which it writes "PORT OF THE SERVER\nPORT OF THE AUTHORIZATION SERVER", and behaviours.
# Every request is appended to FILE.log, without tokens. FILE.revoked, FILE.expired: the authorization server refuses
# refresh tokens, the server refuses access tokens that were given out before.
import base64, hashlib, json, os, sys, threading, urllib.parse as up
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
FILE, HOW = sys.argv[1], set(sys.argv[2:])
clients, codes, access, refresh, lock = {}, {}, {}, {}, threading.Lock()
count = 0
def number():
    global count
    with lock: count += 1
    return count
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def note(self, *words):
        with lock: open(FILE + ".log", "a").write(" ".join(map(str, words)) + "\n")
    def reply(self, body, status=200, **headers):
        body = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items(): self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json"); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def body(self): return self.rfile.read(int(self.headers.get("content-length") or 0))
class Server(H):
    def metadata(self): return f"http://127.0.0.1:{SERVER}/.well-known/oauth-protected-resource/mcp"
    def do_GET(self):
        if self.path == "/.well-known/oauth-protected-resource/mcp":
            resource = "http://127.0.0.1:1/other" if "other_resource" in HOW else f"http://127.0.0.1:{SERVER}/mcp"
            return self.reply({"resource": resource, "authorization_servers": [issuer()], "scopes_supported": ["read", "write"]})
        if self.path.startswith("/mcp"): return self.refuse() if not self.allowed() else self.reply(None, 405)
        self.reply(None, 404)
    def do_DELETE(self): self.reply(None)
    def allowed(self):
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if "open" in HOW: return True
        if token == "own-key": return True
        if token not in access: return False
        return not (os.path.exists(FILE + ".expired") and access[token] <= int(open(FILE + ".expired").read() or 0))
    def refuse(self): self.reply(None, 401, www_authenticate=f'Bearer resource_metadata="{self.metadata()}", scope="read"')
    def do_POST(self):
        m = json.loads(self.body())
        self.note("mcp", m.get("method"), "authorized" if self.headers.get("authorization") else "open")
        if not self.allowed(): return self.refuse()
        ok = lambda r: self.reply({"jsonrpc": "2.0", "id": m.get("id"), "result": r})
        if m.get("method") == "initialize": return ok({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}})
        if m.get("method") == "tools/list": return ok({"tools": [{"name": n, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}} for n in ("look", "big", "more")]})
        if m.get("method") == "tools/call":
            name = m["params"]["name"]
            if name == "big": return ok({"content": [{"type": "text", "text": "x" * (20 << 20)}]})
            if name == "more": return self.reply(None, 403, www_authenticate=f'Bearer error="insufficient_scope", scope="admin", resource_metadata="{self.metadata()}"')
            return ok({"content": [{"type": "text", "text": "seen"}]})
        self.reply(None, 202)
class Authorization(H):
    def do_GET(self):
        url = up.urlsplit(self.path); q = dict(up.parse_qsl(url.query))
        if url.path == "/.well-known/oauth-authorization-server":
            meta = {"issuer": "http://127.0.0.1:1" if "other_issuer" in HOW else issuer(), "authorization_endpoint": issuer() + "/authorize", "token_endpoint": issuer() + "/token", "response_types_supported": ["code"], "authorization_response_iss_parameter_supported": True}
            if "no_pkce" not in HOW: meta["code_challenge_methods_supported"] = ["S256"]
            if "no_registration" not in HOW: meta["registration_endpoint"] = issuer() + "/register"
            if "documents" in HOW: meta["client_id_metadata_document_supported"] = True
            if "foreign_token" in HOW: meta["token_endpoint"] = "http://token.example/token"
            return self.reply(meta)
        if url.path == "/authorize":
            # Stands for the user, who agrees at once.
            self.note("authorize", q.get("client_id"), q.get("resource"), q.get("scope"), q.get("code_challenge_method"))
            code = f"code-{number()}"; codes[code] = q
            answer = {"code": code, "state": q["state"], "iss": issuer()}
            if "wrong_iss" in HOW: answer["iss"] = "http://127.0.0.1:1"
            if "denied" in HOW: answer = {"error": "access_denied", "error_description": "the user said no", "state": q["state"], "iss": issuer()}
            return self.reply(None, 302, location=q["redirect_uri"] + "?" + up.urlencode(answer))
        self.reply(None, 404)
    def do_POST(self):
        if self.path == "/register":
            m = json.loads(self.body()); id = f"client-{number()}"
            self.note("register", m["client_name"], m["application_type"], " ".join(m["redirect_uris"]).rsplit(":", 1)[0])
            answer = {"client_id": id, "redirect_uris": m["redirect_uris"]}
            if "secret" in HOW: answer["client_secret"] = "the-client-secret"
            clients[id] = answer
            return self.reply(answer, 201)
        q = dict(up.parse_qsl(self.body().decode()))
        secret = self.headers.get("authorization", "")
        fail = lambda error: self.reply({"error": error}, 400)
        self.note("token", q["grant_type"], q.get("resource"), "with-secret" if "the-client-secret" in base64.b64decode(secret.removeprefix("Basic ") or "").decode() else "public")
        if "secret" in HOW and not secret: return fail("invalid_client")
        if q["grant_type"] == "authorization_code":
            asked = codes.pop(q["code"], None)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(q["code_verifier"].encode()).digest()).decode().rstrip("=")
            if not asked or challenge != asked["code_challenge"] or q["redirect_uri"] != asked["redirect_uri"]: return fail("invalid_grant")
        elif os.path.exists(FILE + ".revoked") or refresh.pop(q["refresh_token"], None) is None: return fail("invalid_grant")
        n = number(); a, r = f"secret-access-{n}", f"secret-refresh-{n}"; access[a] = n; refresh[r] = n
        self.reply({"access_token": a, "token_type": "Bearer", "expires_in": 10 if "short" in HOW else 3600, "refresh_token": r, "scope": "read"})
def issuer(): return f"http://127.0.0.1:{AUTHORIZATION}"
s, a = (ThreadingHTTPServer(("127.0.0.1", 0), h) for h in (Server, Authorization))
s.daemon_threads = a.daemon_threads = True
SERVER, AUTHORIZATION = s.server_port, a.server_port
threading.Thread(target=a.serve_forever, daemon=True).start()
open(FILE + ".new", "w").write(f"{SERVER}\n{AUTHORIZATION}"); os.rename(FILE + ".new", FILE)
s.serve_forever()
