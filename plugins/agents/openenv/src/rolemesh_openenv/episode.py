"""An episode of an OpenEnv environment: steps become answers, and their rewards that of the episode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.errors import PydanticUserError

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Episode, Observation, Outcome, Reward, Start, Task, Tool, ToolCall
from rolemesh_openenv.calling import Caller
from rolemesh_openenv.remote import Raised, Rejected, Remote

__all__ = ["OpenEnvEpisode", "reward_of"]

STEP = "step"
HIDDEN = {"done", "reward", "metadata"}


class OpenEnvEpisode(Episode):
    """One episode. It is restored by repeating its actions."""

    def __init__(self, options: Any, make: Callable[[], Caller | Remote], action: Callable[[], Any]) -> None:
        """`make` returns the environment, and `action` the class of its actions; None: it has tools of its own."""
        self._options, self._make, self._find_action = options, make, action
        self.own_process = options.url is None
        self._environment: Caller | Remote | None = None
        self._action: Any = None
        self._tools: dict[str, Tool] = {}
        self._rewards: list[float] = []

    def reset(self, task: Task, seed: int) -> Start:
        """See `Episode.reset`."""
        self._action = self._find_action()
        if self._options.text is not None:
            self._check_text(self._options.text)
        self._environment = self._make()
        self._check_reset({*task.data} - {"seed"})
        own = {"seed": seed, "episode_id": f"{task.split}-{task.number}-{seed}", **task.data, **self._options.reset}
        try:
            first = self._environment.call_accepted("reset", own)
        except AgentError:
            raise
        except Exception as error:
            what = f"`reset` of the environment has raised {_told(error)}"
            raise AgentError(
                what, remedy="look at the options `arguments` and `reset`, and at what it needs"
            ) from error
        _check_observation(first, "reset")
        if first.done:
            what = "`reset` of the environment has ended the episode, before the model's first turn"
            raise AgentError(what, remedy="leave such tasks out, or mend `reset`: its observation has `done`")
        self._tools = {tool.name: tool for tool in self._listed()}
        system = self._options.system
        head = [] if system is None else [{"role": "system", "content": system}]
        prompt = self._options.prompt.replace("{observation}", self._seen(first))
        return Start([*head, {"role": "user", "content": prompt}], tuple(self._tools.values()))

    def call(self, call: ToolCall) -> Observation:
        """See `Episode.call`."""
        if call.name not in self._tools:
            return Observation(f"there is no tool {call.name!r}; there are {', '.join(self._tools) or 'none'}")
        try:
            action = self._called(call) if self._action is None else self._action.model_validate(dict(call.arguments))
            return self._stepped(action)
        except ValidationError as error:
            return Observation(f"wrong arguments for {call.name}: {_wrong(error)}")
        except Rejected as error:
            return Observation(f"wrong arguments for {call.name}: {error}")

    def reply(self, content: str) -> Outcome:
        """See `Episode.reply`: the end, or a step with the text."""
        if self._options.text is None:
            return Outcome()
        try:
            answer = self._stepped(self._action.model_validate({self._options.text: content}))
        except ValidationError as error:
            answer = Observation(f"This cannot be taken: {_wrong(error)}")
        except Rejected as error:
            answer = Observation(f"This cannot be taken: {error}")
        return Outcome([] if answer.done else [{"role": "user", "content": answer.content}], answer.done)

    def reward(self) -> Reward:
        """See `Episode.reward`."""
        value = sum(self._rewards) if self._options.rewards == "sum" else [0.0, *self._rewards][-1]
        success = None if self._options.success is None else value >= self._options.success
        return Reward(value, {"steps": len(self._rewards)}, success=success)

    def close(self) -> None:
        """See `Episode.close`."""
        if self._environment is not None:
            self._environment.close()

    @property
    def _begun(self) -> Caller | Remote:
        if self._environment is None:
            raise AgentError("the episode has not begun", remedy="call reset first")
        return self._environment

    def _called(self, call: ToolCall) -> Any:
        """Return the action that calls a tool of the environment."""
        if isinstance(self._environment, Remote):
            return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        from openenv.core.env_server.mcp_types import CallToolAction

        return CallToolAction(tool_name=call.name, arguments=dict(call.arguments))

    def _check_text(self, field: str) -> None:
        """Raise `OptionsError` if an action cannot be made of a text in this field."""
        if self._action is None:
            what, remedy = "text needs an action, and the server's environment has tools of its own", "leave it out"
            raise OptionsError(what, where="text", remedy=remedy)
        schema = self._schema()
        fields = schema.get("properties", {})
        if field not in fields:
            remedy = f"it has {', '.join(fields)}"
            raise OptionsError(f"the action has no field {field!r}", where="text", remedy=remedy)
        if more := [name for name in schema.get("required", ()) if name != field]:
            remedy = "leave `text` out: the action then becomes the tool `step`"
            raise OptionsError(f"the action also needs {', '.join(more)}", where="text", remedy=remedy)

    def _check_reset(self, chosen: set[str]) -> None:
        """Raise `OptionsError` if `reset` does not take what chooses a task, or what the job file gives."""
        names, any_other = self._begun.accepts("reset")
        if any_other:
            return
        if unknown := sorted(self._options.reset.keys() - names):
            remedy = f"it takes {', '.join(sorted(names)) or 'nothing'}"
            raise OptionsError(f"`reset` does not take {', '.join(unknown)}", where="reset", remedy=remedy)
        if missing := sorted(chosen - names):
            remedy = "let `reset` of the class take them, as OpenEnv's task API wants it"
            what = f"`reset` does not take {', '.join(missing)}, so no task can be chosen"
            raise OptionsError(what, where="environment", remedy=remedy)

    def _listed(self) -> list[Tool]:
        """Return the tools of the environment; or a tool for its action, unless turns without a call are the steps."""
        if self._action is None:
            return self._own_tools()
        if self._options.text is not None:
            return []
        schema = self._schema()
        return [self._tool(STEP, schema.pop("description", "") or "Take a step.", schema)]

    def _schema(self) -> dict[str, Any]:
        """Return the JSON schema of the action."""
        try:
            schema: dict[str, Any] = self._action.model_json_schema()
        except PydanticUserError as error:
            what = f"{self._options.action} has fields that a model cannot write: {str(error).splitlines()[0]}"
            raise OptionsError(what, where="action", remedy="give an action of numbers and texts") from error
        fields = {name: each for name, each in schema.get("properties", {}).items() if name != "metadata"}
        return {**schema, "properties": fields}

    def _own_tools(self) -> list[Tool]:
        try:
            found = self._begun.call("step", self._listing()).tools
        except AgentError:
            raise
        except Exception as error:
            what = f"the environment has no tools of its own: {_told(error)}"
            raise OptionsError(
                what, where="action", remedy="give the class of its actions: action: module:Class"
            ) from error
        names = ("name", "description", "input_schema")
        return [self._tool(*(_field(each, name) for name in names)) for each in found]

    def _listing(self) -> Any:
        """Return the action that lists the tools of the environment."""
        if isinstance(self._environment, Remote):
            return {"type": "list_tools"}
        from openenv.core.env_server.mcp_types import ListToolsAction

        return ListToolsAction()

    def _tool(self, name: str, description: str, schema: dict[str, Any]) -> Tool:
        return Tool(name, description or name, {"type": "object", **schema}, name not in self._options.once)

    def _stepped(self, action: Any) -> Observation:
        try:
            found = self._begun.call("step", action)
        except (AgentError, Rejected):
            raise
        except Exception as error:
            told = _told(error)
            if self._options.step_errors == "answer":
                return Observation(f"error: {told}")
            remedy = "mend it, or, if the model's action is to blame, give the option `step_errors: answer`"
            raise AgentError(f"`step` of the environment has raised {told}", remedy=remedy) from error
        _check_observation(found, "step")
        self._rewards.append(reward_of(found.reward))
        return Observation(self._seen(found), bool(found.done))

    def _seen(self, observation: Any) -> str:
        """Return an observation as the model sees it."""
        name = self._options.observation
        if name is not None and hasattr(observation, name):
            return _text(getattr(observation, name))
        if hasattr(observation, "tool_name"):
            return f"error: {_field(observation.error, 'message')}" if observation.error else _text(observation.result)
        return json.dumps(observation.model_dump(mode="json", exclude=HIDDEN), ensure_ascii=False)


def _check_observation(found: Any, method: str) -> None:
    """Raise `AgentError` unless `found` has what every observation of OpenEnv has."""
    if not all(hasattr(found, name) for name in ("reward", "done", "model_dump")):
        what = f"`{method}` of the environment has returned {type(found).__name__} instead of an observation"
        raise AgentError(what, remedy="mend it: let it return an Observation of OpenEnv")


def reward_of(given: Any) -> float:
    """Return the reward of a step. None is 0: the environment has not judged this step."""
    if given is None:
        return 0.0
    try:
        value = math.nan if isinstance(given, str | bytes) else float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise AgentError(f"the environment has given the reward {given!r:.100}", remedy="mend it: rewards are numbers")
    return value


def _text(value: Any) -> str:
    """Return a value as text: text as it is, the texts of a tool's result, and JSON for anything else."""
    if isinstance(value, str):
        return value
    content = _field(value, "content")
    if isinstance(content, list) and all(_field(part, "type") for part in content):
        return "\n".join(_field(part, "text") or f"[{_field(part, 'type')}]" for part in content)
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return json.dumps(plain, ensure_ascii=False, default=str)


def _field(value: Any, name: str) -> Any:
    """Return a field of an object or of a mapping; None: there is none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _told(error: Exception) -> str:
    """Return an exception, or what a server says of its own."""
    return str(error) if isinstance(error, Raised | Rejected) else f"{type(error).__name__}: {error}"


def _wrong(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'action'}: {e['msg']}" for e in error.errors())
