"""An MCP server for tests, without the package mcp, so that it starts at once: a counter, and tools that behave badly.

It speaks the protocol of 2025-06-18 over stdin and stdout, one call at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

STATE = {"sum": 0}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NONE: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "add": (NUMBER, {}),
    "send": (TEXT, {"destructiveHint": True}),
    "task": (NONE, {}),
    "verdict": (NUMBER, {}),
}
BAD = {"die": (NONE, {}), "hang": (NONE, {}), "leave": (NONE, {})}


def called(name: str, given: dict[str, Any]) -> str:
    match name:
        case "add":
            STATE["sum"] += int(given["number"])
            return f"the sum is {STATE['sum']}"
        case "send":
            with open(os.environ["BOX"], "a") as box:
                box.write(f"{json.dumps(given['text'])}\n")
            return "sent"
        case "task":
            return os.environ.get("ROLEMESH_TASK", "none")
        case "verdict":
            return str(1.0 / (1 + abs(given["number"] - STATE["sum"])))
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "leave":
            devnull = subprocess.DEVNULL
            return str(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=devnull, stdin=devnull).pid)
    raise KeyError(name)


def answer(method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            about = {"name": "counting", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            tools = TOOLS | (BAD if "bad" in sys.argv else {})
            found = [
                {"name": name, "description": f"Does {name}.", "inputSchema": schema, "annotations": hints}
                for name, (schema, hints) in tools.items()
            ]
            return {"tools": found}
        case "tools/call":
            try:
                return {"content": [{"type": "text", "text": called(given["name"], given.get("arguments") or {})}]}
            except Exception as error:
                return {"content": [{"type": "text", "text": repr(error)[:200]}], "isError": True}
    return None


if "deaf" in sys.argv:
    time.sleep(600)
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        told = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **told}), flush=True)
