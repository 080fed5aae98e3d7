"""An MCP server without tools. It tries to write mcp-NAME.txt for each mcp-NAME.go that appears in a folder."""

import json
import sys
import threading
import time
from pathlib import Path


def write(folder):
    while True:
        for go in folder.glob("mcp-*.go"):
            try:
                go.with_suffix(".txt").write_text("x")
            except OSError:
                pass
        time.sleep(0.05)


threading.Thread(target=write, args=(Path(sys.argv[1]),), daemon=True).start()
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        info = {"name": "writer", "version": "1"}
        start = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
        result = start if request["method"] == "initialize" else {"tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
