"""The harness that verifiers starts for the model: its chat loop with MCP tools, in this process.

It does what the harness `null` of verifiers does. That one starts a script with `uv` for each segment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.types import SystemMessage, UserMessage

from rolemesh_verifiers.desk import OVER

__all__ = ["ChatLoop", "ChatLoopConfig"]


class ChatLoopConfig(HarnessConfig):
    """Settings of the chat loop."""


class ChatLoop(Harness[ChatLoopConfig]):
    """Lets the model call the tools of the task until it answers without a call. It runs nothing in the sandbox."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """See verifiers' `Harness.launch`: one segment, to a turn without calls."""
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [message_to_wire(SystemMessage(content=system))]
        given = [UserMessage(content=prompt)] if isinstance(prompt, str) else (prompt or [])
        messages += [message_to_wire(each) for each in given]
        limit = self.config.tool_timeout
        config = {"mcpServers": {name: {"url": url, "timeout": limit} for name, url in mcp_urls.items()}}
        async with AsyncExitStack() as stack:
            tools, dispatch, servers = await connect_mcp(config, stack)
            headers = {"Authorization": f"Bearer {secret}"}
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, headers=headers))
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                answer = await client.post(f"{endpoint}/chat/completions", json=body)
                if answer.status_code >= 400:
                    return ProgramResult(0 if OVER in answer.text else 1, "", answer.text)
                turn = answer.json()["choices"][0]["message"]
                messages.append(turn)
                if not turn.get("tool_calls"):
                    return ProgramResult(0, turn.get("content") or "", "")
                for call in turn["tool_calls"]:
                    denied = await _denied(client, tool_interception_url, call)
                    content = "" if denied else await _called(servers, dispatch, call)
                    own = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"]}
                    messages.append(bound_tool_message(denied or {**own, "content": content}))


async def _denied(client: httpx.AsyncClient, url: str | None, call: Mapping[str, Any]) -> dict[str, Any] | None:
    """Ask the task whether the call may run. Returns the message in its place; None: it may."""
    if url is None:
        return None
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    answer = await client.post(url, json={"tool_call_id": call["id"], "name": name, "arguments": arguments})
    answer.raise_for_status()
    decision = answer.json()
    if decision["action"] == "stop":
        raise RuntimeError(decision["reason"])
    found: dict[str, Any] | None = decision["message"] if decision["action"] == "deny" else None
    return found


async def _called(servers: Any, dispatch: Mapping[str, Any], call: Mapping[str, Any]) -> Any:
    name = call["function"]["name"]
    if name not in dispatch:
        return f"error: unknown tool {name!r}"
    return await call_mcp(servers, dispatch, name, json.loads(call["function"]["arguments"]))
