# An ACP agent for proofs. Its first argument says how it begins; each prompt says what it does.
import json, os, subprocess, sys, threading, time
how = sys.argv[1] if len(sys.argv) > 1 else "plain"
if sys.argv[2:] == ["log-in"]:
    # A login in a terminal.
    open(os.path.expanduser("~/.peer/logged-in"), "w").close()
    try: open("written", "w").close()
    except OSError as error: print("logged in, and", error.strerror)
    sys.exit(0)
out = sys.stdout
asked = 0
def raw(line):
    out.write(line + "\n"); out.flush()
def say(m): raw(json.dumps({"jsonrpc": "2.0", **m}))
def answer(id, result): say({"id": id, "result": result})
def fail(id, code, message, **more): say({"id": id, "error": {"code": code, "message": message, **more}})
def update(update, session="its-1"): say({"method": "session/update", "params": {"sessionId": session, "update": update}})
def chunk(text, session="its-1"): update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}, session)
def read():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
def ask(method, params, id=None):
    global asked
    asked += 1
    id = id or "q%d" % asked
    say({"id": id, "method": method, "params": {"sessionId": "its-1", **params}})
    return id
def outcome(id):
    while True:
        m = read()
        if m.get("id") == id and "method" not in m:
            return json.dumps(m.get("result", m.get("error", {}).get("code")), sort_keys=True)
permission = {"toolCall": {"toolCallId": "c1", "title": "Write"}, "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]}
rejectable = {**permission, "options": permission["options"] + [{"optionId": "no", "name": "No", "kind": "reject_once"}]}
modes = {"currentModeId": "auto", "availableModes": [{"id": "auto", "name": "Auto"}, {"id": "plan", "name": "Plan"}]}
def option(value): return [{"id": "how", "name": "How", "category": "mode", "type": "select", "currentValue": value, "options": [{"value": "auto", "name": "Auto"}, {"value": "plan", "name": "Plan"}]}]
def commands(): update({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "its-own", "description": "Its own"}]})
# Where one that keeps its mode has it.
def kept(): return os.path.expanduser("~/.peer/mode")
def modes_now():
    current = open(kept()).read() if how == "keeps" and os.path.exists(kept()) else "auto"
    return {**modes, "currentModeId": current}
def tick(file):
    while True:
        with open(file, "a") as f: f.write("x")
        time.sleep(0.01)
def read_forever(file):
    while True: open(file).close()
def until(file):
    while not os.path.exists(file): time.sleep(0.01)
def may_write():
    try: open("ticks", "a").close(); return True
    except OSError: return False
# Not held it never gets further than this, and writes all the while.
stuck = how if how.startswith("stuck") and may_write() else ""
if stuck: threading.Thread(target=tick, args=("ticks",), daemon=True).start()
def tick_while_allowed(file):
    try: tick(file)
    except OSError: pass
if how == "writes-first":
    for name in ("begun", ".env"):
        try: open(name, "w").close()
        except OSError: pass
if how == "ticks-first": threading.Thread(target=tick_while_allowed, args=("ticks",), daemon=True).start()
def prompt(id, words, more):
    what, rest = (words.split(" ", 1) + [""])[:2]
    if what == "noted": chunk("noted: " + " ".join(block["text"] for block in more))
    elif what == "told": chunk("told: " + " ".join(sys.argv[2:]))
    elif what == "say":
        for i in range(int(rest)): chunk(str(i))
    elif what == "permission": chunk(outcome(ask("session/request_permission", permission)))
    elif what == "read": chunk(outcome(ask("fs/read_text_file", {"path": "/a"})))
    elif what == "unknown": chunk(outcome(ask("_own/method", {})))
    elif what == "twice":
        ask("session/request_permission", permission, "same")
        ask("session/request_permission", permission, "same")
        chunk(outcome("same")); chunk(outcome("same"))
    elif what == "withdraw":
        q = ask("session/request_permission", permission)
        say({"method": "$/cancel_request", "params": {"requestId": q}})
        chunk(outcome(q))
    elif what == "reuses":
        ask("session/request_permission", permission, "same")
        say({"method": "$/cancel_request", "params": {"requestId": "same"}})
        outcome("same")
        ask("session/request_permission", permission, "same")
        chunk(outcome("same"))
    elif what == "garbage":
        for line in ["", "{", "[]", "not json", '{"id":1}', "[" * 1000, '{"jsonrpc":"2.0","id":9999,"result":{}}', '{"jsonrpc":"2.0","id":"0","result":{"stopReason":"refusal"}}', '{"method":"session/update","params":{}}', '{"id":null,"method":"x"}']: raw(line)
        out.flush(); os.write(1, b"\xff\xfe\n")
        update({"sessionUpdate": "from_the_future"})
        chunk("of another", "its-2")
        chunk("fine")
    elif what == "long":
        out.write("x" * (34 * 1024 * 1024) + "\n"); out.flush()
    elif what == "die":
        chunk("before")
        sys.stderr.write("bad key %s\n" % os.environ.get("KEY")); sys.stderr.flush()
        os._exit(3)
    elif what == "hang":
        chunk("begun")
        while read().get("method") != "session/cancel": pass
        chunk("last")
        return answer(id, {"stopReason": "cancelled"})
    elif what == "asks":
        q = ask("session/request_permission", permission)
        chunk(outcome(q))
        return fail(id, -32603, "aborted")
    elif what == "deaf":
        chunk("begun")
        while True: time.sleep(10)
    elif what == "tick":
        chunk("begun")
        try: tick(rest)
        except OSError as error: chunk(error.strerror)
    elif what == "pid": chunk("process %d" % os.getpid())
    elif what == "holds":
        chunk("begun")
        with open(rest, "w") as f:
            while True: f.write("x"); f.flush(); time.sleep(0.01)
    elif what in ("starts", "starts-and-reads"):
        # Only the shell has the file open.
        writes = "exec 3> '%s'; while echo x >&3; do sleep 0.01 3>&-; done" % rest
        subprocess.Popen(["sh", "-c", writes], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(rest)
        if what == "starts-and-reads":
            for i in range(8): threading.Thread(target=read_forever, args=(rest,), daemon=True).start()
        chunk("started")
    elif what == "call":
        update({"sessionUpdate": "tool_call", "toolCallId": "c9", "title": "Look", "kind": "read", "status": "completed"})
        chunk("done")
    elif what == "call-when":
        update({"sessionUpdate": "tool_call", "toolCallId": "c9", "title": "Look", "kind": "read", "status": "in_progress"})
        until(rest)
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c9", "status": "completed"})
    elif what == "asks-when":
        chunk("begun")
        update({"sessionUpdate": "tool_call", "toolCallId": "c9", "title": "Wait", "kind": "read", "status": "in_progress"})
        until(rest)
        chunk(outcome(ask("session/request_permission", permission)))
        try:
            with open(rest + ".txt", "w") as f: f.write("x")
            chunk("written")
        except OSError as error: chunk(error.strerror)
    elif what == "reopens":
        update({"sessionUpdate": "tool_call", "toolCallId": "c9", "title": "Look", "kind": "read", "status": "completed"})
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c9", "status": "in_progress"})
    elif what == "kinds":
        first, latest = rest.split()
        update({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Look", "kind": first, "status": "pending"})
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c1", "kind": latest})
        chunk(outcome(ask("session/request_permission", permission)))
    elif what == "names":
        # names KIND FILE, names execute COMMAND, or names fetch ADDRESS
        kind, value = rest.split(" ", 1)
        inputs = {"execute": "command", "fetch": "url"}
        names = {"rawInput": {inputs[kind]: value}} if kind in inputs else {"locations": [{"path": value}]}
        update({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Do it", "kind": kind, "status": "pending", **names})
        chunk(outcome(ask("session/request_permission", rejectable)))
    elif what == "locates":
        places = {"locations": [{"path": rest, "line": 2}]}
        update({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Edit", "kind": "edit", "status": "pending", **places})
        chunk(outcome(ask("session/request_permission", {**permission, "toolCall": {**permission["toolCall"], **places}})))
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed", **places})
    elif what == "shows":
        content = [{"type": "diff", "path": rest, "oldText": "old\n", "newText": "new\n"},
                   {"type": "content", "content": {"type": "text", "text": "Because."}}]
        chunk(outcome(ask("session/request_permission", {**permission, "toolCall": {**permission["toolCall"], "content": content}})))
    elif what == "dies-when": threading.Thread(target=lambda: (until(rest), os._exit(3)), daemon=True).start()
    elif what == "open":
        update({"sessionUpdate": "tool_call", "toolCallId": "c9", "title": "Look", "kind": "read", "status": "in_progress"})
        chunk("done")
    elif what == "fs-write": chunk(outcome(ask("fs/write_text_file", {"path": rest, "content": "x"})))
    elif what == "error": return fail(id, -32603, "Internal error", data={"details": "no quota for " + os.environ["KEY"]})
    elif what == "shape": return answer(id, {"stopReason": "bored"})
    elif what == "flood":
        while True: chunk("x" * 1000)
    elif what == "asks-much":
        for i in range(20000): raw('{"jsonrpc":"2.0","id":%d,"method":"_own/method"}' % i)
        time.sleep(30)
    elif what == "many":
        for i in range(300): say({"id": i, "method": "session/request_permission", "params": {"sessionId": "its-1", **permission}})
        refused = 0
        while refused < 300 - 256:
            refused += "error" in read()
        chunk("refused %d" % refused)
    elif what == "write":
        try:
            with open(rest, "w") as f: f.write("x")
            chunk("written")
        except OSError as error: chunk(error.strerror)
    elif what == "run-when":
        file, line = rest.split(" ", 1)
        chunk("begun")
        until(file)
        done = subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        chunk("exit %d %s" % (done.returncode, done.stdout))
    elif what == "asks-then-runs":
        update({"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Do it", "kind": "execute", "status": "pending", "rawInput": {"command": rest}})
        chunk(outcome(ask("session/request_permission", permission)))
        done = subprocess.run(["sh", "-c", rest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        chunk("exit %d %s" % (done.returncode, done.stdout))
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed"})
        subprocess.run(["sh", "-c", "echo after > after"])
    elif what == "run":
        done = subprocess.run(["sh", "-c", rest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        chunk("exit %d %s" % (done.returncode, done.stdout))
    elif what == "calls":
        update({"sessionUpdate": "tool_call_update", "toolCallId": "c2", "kind": "read", "status": "in_progress"})
        update({"sessionUpdate": "tool_call", "toolCallId": "c2", "title": "Read", "kind": "read", "status": "completed"})
    elif what == "moves":
        update({"sessionUpdate": "current_mode_update", "currentModeId": "plan"})
    answer(id, {"stopReason": "end_turn"})
if how == "dies":
    sys.stderr.write("no such model\n"); sys.stderr.flush(); sys.exit(4)
while True:
    m = read()
    method, id, params = m.get("method"), m.get("id"), m.get("params", {})
    if method == "initialize":
        # Not held, it never begins.
        if how == "slow":
            try: open("slow.txt", "w").close()
            except OSError: pass
            else: time.sleep(100)
        if how == "waits": until("begin")
        methods = [{"id": "own", "name": "Own login"}]
        if params["clientCapabilities"].get("auth", {}).get("terminal"):
            methods.append({"id": "terminal", "name": "In a terminal", "type": "terminal", "args": ["log-in"]})
        answer(id, {"authMethods": methods if how == "login" else [], "protocolVersion": 2 if how == "version" else 1, "agentCapabilities": {"loadSession": how != "plain"}, "seen": params})
    elif method == "authenticate":
        try:
            open(os.path.expanduser("~/.peer/logged-in"), "w").close()
            answer(id, {})
        except OSError as error: fail(id, -32603, str(error))
    elif method == "session/new":
        if stuck and stuck != "stuck-mode": continue
        if how == "auth": fail(id, -32000, "Authentication required")
        else:
            if how == "early": chunk("early"); chunk("of another", "its-2")
            answer(id, {"sessionId": "its-1", "configOptions": option("auto")} if how == "options" else {"sessionId": "its-1", "modes": modes})
            if how == "early": chunk("late")
            if how == "commands": commands()
    elif method == "session/load":
        for i in range(1000): chunk("old", params["sessionId"])
        if how == "commands": commands()
        if how == "forgets": fail(id, -32603, "no such file")
        elif params["sessionId"] == "its-1":
            answer(id, None if how == "older" else {"modes": modes_now()})
            if how == "late-history":
                update({"sessionUpdate": "tool_call", "toolCallId": "c8", "title": "Old"})
                for i in range(3): chunk("old")
                commands()
        else: fail(id, -32002, "no such session")
    elif method == "session/set_mode":
        if stuck: continue
        if how == "keeps":
            time.sleep(0.05)
            with open(kept(), "w") as f: f.write(params["modeId"])
            answer(id, {})
        elif params["modeId"] == "plan": answer(id, {})
        else: fail(id, -32602, "not now")
    elif method == "session/set_config_option": answer(id, {"configOptions": option(params["value"])})
    elif method == "session/prompt": prompt(id, params["prompt"][0]["text"], params["prompt"][1:])
