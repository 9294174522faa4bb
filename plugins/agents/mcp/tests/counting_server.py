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
POINT = {
    "type": "object",
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/Point"}}}},
    "properties": {"at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "n": {"type": ["integer", "null"]}},
}
MANY = {f"tool-{number:03}": (POINT, {}) for number in range(130)}
PAGE = 50
PARTS: dict[str, dict[str, Any]] = {
    "structured": {"content": [], "structuredContent": {"sum": 3}},
    "resource": {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "of a file"}}]},
    "link": {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]},
    "nothing": {"content": []},
}


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
            tools = TOOLS | (BAD if "bad" in sys.argv else {}) | (MANY if "many" in sys.argv else {})
            tools |= {name: (NONE, {}) for name in PARTS} if "parts" in sys.argv else {}
            found = [
                {"name": name, "description": f"Does {name}.", "inputSchema": schema, "annotations": hints}
                for name, (schema, hints) in tools.items()
            ]
            first = int(given.get("cursor") or 0)
            following = {"nextCursor": str(first + PAGE)} if first + PAGE < len(found) else {}
            if not following and (last := {"empty", "again"}.intersection(sys.argv)):
                following = {"nextCursor": "" if "empty" in last else "0"}
            return {"tools": found[first : first + PAGE], **following}
        case "tools/call" if given["name"] in PARTS:
            return PARTS[given["name"]]
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
    if "noisy" in sys.argv:
        print("listening on stdin", '{"not": "a message"}', "[1, 2]", "null", "\x00\x1b[31m", sep="\n", flush=True)
        os.write(1, b"\xff\xfe no UTF-8\n")
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": 99, "result": {}}), flush=True)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        told = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **told}), flush=True)
