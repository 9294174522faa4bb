"""The environment `mcp`: tasks from a file, the tools of an MCP server, and a reward."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from rolemesh.errors import OptionsError
from rolemesh_agents import (
    AgentError,
    Environment,
    Episode,
    Message,
    Observation,
    Outcome,
    Reward,
    Start,
    Task,
    Tool,
    ToolCall,
)
from rolemesh_mcp.options import McpOptions
from rolemesh_mcp.server import Loop, Server, ServerClosed, as_text, described
from rolemesh_processes.judging import Failed, JudgeLimits, Judges

__all__ = ["McpEnvironment", "McpOptions"]


class McpEnvironment(Environment):
    """Gives a model the tools of an MCP server over stdio, for the tasks of a file."""

    Options = McpOptions

    def __init__(self, options: McpOptions) -> None:
        super().__init__(options)
        if options.reward is not None and options.judge is not None:
            raise OptionsError("reward and judge are given", where="judge", remedy="leave one of them out")
        answered = options.reward is None and options.judge is None
        self._tasks = {"train": _rows("tasks", options.tasks, answered)}
        self._tasks["eval"] = [] if options.held_out is None else _rows("held_out", options.held_out, answered)
        both = {*map(_key, self._tasks["train"])} & {*map(_key, self._tasks["eval"])}
        if both:
            what = f"a held-out task is among the training tasks: {min(both)[:200]}"
            raise OptionsError(what, where="held_out", remedy="remove it from one of the files")
        self.reward = options.reward.resolve() if options.reward is not None else None
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._shared: Server | None = None
        self._judges: Judges | None = None

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """See `Environment.size`: the lines of the file."""
        return len(self._tasks[split])

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> Any:
        """See `Environment.task`: a line of the file."""
        return self._tasks[split][number]

    def episode(self) -> Episode:
        """See `Environment.episode`."""
        return McpEpisode(self)

    def server(self, task: Task, seed: int) -> Server:
        """Return the server for an episode. A server of its own sees ``ROLEMESH_TASK`` (JSON) and ``ROLEMESH_SEED``."""
        if self.options.server_per == "episode":
            return self._start({"ROLEMESH_TASK": json.dumps(task.data), "ROLEMESH_SEED": str(seed)})
        with self._lock:
            shared = self._shared
        if shared is None or shared.ended:
            shared = self._start({})
            with self._lock:
                before, self._shared = self._shared, shared
            if before is not None:
                before.close()
        return shared

    def judged(self, task: Mapping[str, Any], messages: Sequence[Message], *, here: bool) -> Reward:
        """Return what the function `reward` of the options says. `here`: this process is that of the episode alone.

        Otherwise a worker calls it, in at most 60 s. Raises `AgentError` if it cannot.
        """
        if here:
            return _reward(self.reward, task, messages)
        with self._lock:
            if self._judges is None:
                self._judges = Judges(partial(_plain_reward, self.reward), JudgeLimits(60.0, 4000.0), sealed=False)
        (found,) = self._judges.judge([(task, messages)])
        if isinstance(found, Failed):
            remedy = "mend the function; a model's text may have misled it"
            raise AgentError(f"the function `reward` has failed: {found.reason}", where="reward", remedy=remedy)
        return msgspec.convert(found, Reward)

    def _start(self, own: Mapping[str, str]) -> Server:
        with self._lock:
            self._loop = self._loop or Loop()
        options = self.options
        folder = Path(options.tasks).parent
        return Server(self._loop, options.command, {**options.env, **own}, folder, options.start_s)

    def close(self) -> None:
        """See `Environment.close`: end the shared server."""
        if self._judges is not None:
            self._judges.close()
        if self._shared is not None:
            self._shared.close()
        if self._loop is not None:
            self._loop.close()


class McpEpisode(Episode):
    """An episode with a server. It is restored by repeating its actions."""

    def __init__(self, environment: McpEnvironment) -> None:
        self._environment = environment
        self.own_process = environment.options.server_per == "episode"
        self._server: Server | None = None
        self._tools: dict[str, Tool] = {}
        self._task: dict[str, Any] = {}
        self._said = ""
        self._messages: list[Message] = []

    def reset(self, task: Task, seed: int) -> Start:
        """See `Episode.reset`: start the server, or use that of the rank."""
        options, self._task = self._environment.options, task.data
        self._server = self._environment.server(task, seed)
        known = {tool.name: tool for tool in self._server.tools}
        names = [name for name in known if name != options.judge] if options.tools is None else options.tools
        judge = [] if options.judge is None else [options.judge]
        for option, asked in (("tools", names), ("once", options.once), ("judge", judge)):
            if missing := [name for name in asked if name not in known]:
                what = f"the MCP server has no tool {missing[0]!r}; it has {', '.join(known) or 'none'}"
                raise AgentError(what, where=option, remedy="correct the name")
        self._tools = {name: described(known[name], self._repeatable) for name in names}
        head = [] if options.system is None else [{"role": "system", "content": options.system}]
        own = self._task.get("messages") or [{"role": "user", "content": self._task["prompt"]}]
        self._messages = [*head, *own]
        return Start(list(self._messages), tuple(self._tools.values()))

    def _repeatable(self, tool: Any) -> bool:
        hints = tool.annotations
        declared = hints is not None and bool(hints.destructive_hint) and not hints.read_only_hint
        return tool.name not in self._environment.options.once and not declared

    def call(self, call: ToolCall) -> Observation:
        """See `Episode.call`. Raises `AgentError` if the server has ended."""
        if call.name not in self._tools:
            answer = f"there is no tool {call.name!r}; there are {', '.join(self._tools) or 'none'}"
        else:
            answer = self._called(call.name, call.arguments)
        function = {"name": call.name, "arguments": dict(call.arguments)}
        asked = {"id": call.id, "type": "function", "function": function}
        self._messages.append({"role": "assistant", "content": "", "tool_calls": [asked]})
        self._messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": answer})
        return Observation(answer)

    def _called(self, name: str, arguments: Mapping[str, Any]) -> str:
        from mcp.shared.exceptions import MCPError

        options, server = self._environment.options, self._server
        assert server is not None
        try:
            return as_text(server.call(name, arguments, options.call_s))
        except TimeoutError:
            return f"the tool {name} did not answer within {options.call_s:g} s"
        except MCPError as error:
            return f"error: {error.error.message}"
        except ServerClosed as closed:
            what = f"the MCP server {options.command[0]} has ended in an episode{server.last_words()}"
            raise AgentError(what, remedy="its messages are in the log of the rank") from closed

    def reply(self, content: str) -> Outcome:
        """See `Episode.reply`: the model's last text ends the episode."""
        self._said = content
        self._messages.append({"role": "assistant", "content": content})
        return Outcome()

    def reward(self) -> Reward:
        """See `Episode.reward`."""
        environment = self._environment
        if environment.reward is not None:
            return environment.judged(self._task, self._messages, here=self.own_process)
        if (judge := environment.options.judge) is not None:
            told = self._called(judge, self._task.get("judge", {}))
            try:
                return Reward(float(told))
            except ValueError:
                what = f"the tool {judge} has returned no number: {told[:200]}"
                raise AgentError(what, where="judge", remedy="let it return the reward as its text") from None
        said = self._said.rpartition("</think>")[2]
        answer = self._task["answer"]
        right = said.strip() == (answer if isinstance(answer, str) else json.dumps(answer)).strip()
        return Reward(float(right), success=right)

    def close(self) -> None:
        """See `Episode.close`: end a server of its own."""
        if self._server is not None and self._environment.options.server_per == "episode":
            self._server.close()
        self._server = None


def _reward(function: Any, task: Mapping[str, Any], messages: Sequence[Message]) -> Reward:
    found = function(task, messages)
    return found if isinstance(found, Reward) else Reward(float(found))


def _plain_reward(function: Any, task: Mapping[str, Any], messages: Sequence[Message]) -> Any:
    return msgspec.to_builtins(_reward(function, task, messages))


def _rows(option: str, path: str, answered: bool) -> list[dict[str, Any]]:
    """Return the tasks of a file. `answered`: nothing but their answers can judge."""
    try:
        lines = Path(path).read_bytes().splitlines()  # a text may have other ends of lines in it
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise OptionsError(f"the tasks cannot be read: {error}", where=option, remedy="write JSON lines") from error
    for number, row in enumerate(rows, 1):
        if lack := _lack(row, answered):
            what, remedy = f"task {number} of {path} {lack[0]}: {str(row)[:200]}", lack[1]
            raise OptionsError(what, where=option, remedy=remedy)
    return rows


def _lack(row: Any, answered: bool) -> tuple[str, str] | None:
    """Return what is wrong with a task, and the remedy."""
    asked = row if isinstance(row, dict) else {}
    if not (isinstance(asked.get("prompt"), str) or (asked.get("messages") and isinstance(asked["messages"], list))):
        return "has neither a prompt nor messages", "write objects with a prompt, a text"
    if answered and not isinstance(asked.get("answer"), str | int | float):
        return "has no answer, a text or a number", "write an answer, or give the option reward or judge"
    return None


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
