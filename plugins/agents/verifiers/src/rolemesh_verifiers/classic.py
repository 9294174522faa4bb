"""Environments with `load_environment()`, which verifiers has before version 0.4: their tasks and their episodes."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Literal
from uuid import uuid4

import msgspec

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Message, Reward
from rolemesh_verifiers.apart import apart
from rolemesh_verifiers.desk import SESSION, Desk
from rolemesh_verifiers.judging import culprit, hook_failed, judged_state, told
from rolemesh_verifiers.loading import within
from rolemesh_verifiers.messages import asked
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.play import Play

__all__ = ["Classic"]

PACKAGE = "give the roles `tasks` and `environment` the packages: runtime_env: {pip: [verifiers==0.3.1, …]}"
FAILED: ContextVar[list[AgentError]] = ContextVar("FAILED")
"""Failures in the episode of this context that verifiers takes for a reward of 0, or for an answer to the model."""
CLOSED = (-32000, "ClosedResourceError", "BrokenResourceError", "AssertionError")
"""Exceptions of a call whose MCP server has ended: the code of mcp's error, or the exception's name."""


class Classic:
    """An environment of `load_environment()`, with its sets for training and for evaluation."""

    def __init__(self, options: VerifiersOptions, split: Literal["train", "eval"]) -> None:
        """Raises `OptionsError` if the environment cannot be loaded, and if it needs what rolemesh has not."""
        self._options, self._split = options, split
        self._lock = asyncio.Lock()
        self._environment = self._made()
        self._eval = _has(self._environment, "eval_dataset")
        self._train = _has(self._environment, "dataset")
        self._set(split)  # builds it: some load their data here

    @property
    def apart(self) -> bool:
        """Whether the environment has a set for training and one for evaluation."""
        return self._train and self._eval

    def count(self, split: Literal["train", "eval"]) -> int:
        """Return the number of tasks of the set."""
        return len(self._set(split))

    def task(self, split: Literal["train", "eval"], index: int) -> tuple[Any, str]:
        """Return a row of the set, and a hash of its content. Raises `OptionsError` for a prompt that is not text."""
        row = dict(self._set(split)[index])
        try:
            asked({"messages": _chat(row.get("prompt"))}, ())
        except AgentError as error:
            what = f"task {index}: {error.what}"
            raise OptionsError(what, where="environment", remedy="choose tasks without images") from error
        content = json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__)
        return row, hashlib.sha256(content.encode()).hexdigest()

    async def play(self, desk: Desk, once: Sequence[str]) -> Play:
        """Return a new episode, which has not started. An environment whose MCP server has ended is loaded again."""
        async with self._lock:
            if self._ended:
                old, options = self._environment, self._options
                self._environment = await within(options.load_s, self._made, options.name, "environment")
                with suppress(Exception):
                    await old._teardown()
        return ClassicPlay(self._environment, desk, once)

    async def close(self) -> None:
        """End what the environment holds for all episodes."""
        await self._environment._teardown()

    def _made(self) -> Any:
        options = self._options
        own = options.held_out if self._split == "eval" and options.held_out is not None else {}
        environment = _loaded(options.name, {**options.arguments, **own})
        rubrics = list(_rubrics(environment.rubric))
        _check(environment, rubrics)
        if options.failed_rewards == "error":
            for rubric in rubrics:
                rubric.funcs[:] = map(_noting, rubric.funcs, rubric.weights)
        self._ended = list[str]()
        """MCP servers of the environment that have ended."""
        for name, connection in _connections(environment):
            connection.call_tool = _watching(name, connection.call_tool, self._ended)
        return environment

    def _set(self, split: Literal["train", "eval"]) -> Any:
        evaluation = self._eval if split == "eval" else not self._train
        return self._environment.get_eval_dataset() if evaluation else self._environment.get_dataset()


class ClassicPlay(Play):
    """An episode of an environment of `load_environment()`."""

    def __init__(self, environment: Any, desk: Desk, once: Sequence[str]) -> None:
        super().__init__(desk, once)
        self._environment = environment
        self._asked = 0

    async def _run(self, task: Any) -> Any:
        from openai import AsyncOpenAI

        name, failed, environment = uuid4().hex, list[AgentError](), self._environment
        FAILED.set(failed)
        self._opened(name)
        headers = {SESSION: name}
        client = AsyncOpenAI(
            base_url=self._desk.url, api_key="rolemesh", default_headers=headers, timeout=None, max_retries=0
        )
        sampling = copy.deepcopy(environment.sampling_args)
        environment, row = _member(environment, copy.deepcopy(task))
        async with client:
            state = await environment.rollout(row, _wrapped(client), "policy", sampling)
            self._ended()
            found = await apart(partial(_judgement, environment.rubric, state, failed))
            if hasattr(environment.rubric, "cleanup"):
                await environment.rubric.cleanup(state)
        return found

    async def ask(self, body: Any) -> Message | None:
        """See `Play.ask`. verifiers takes an empty answer for a broken server, so the model says a space."""
        self._asked += 1
        turn = await super().ask(body)
        if turn is None or turn["content"] or "tool_calls" in turn:
            return turn
        return {**turn, "content": " "}

    def _cut(self) -> Message | None:
        """See `Play._cut`. Reward functions look at the last answer, so there is at least one, which is a space."""
        return {"role": "assistant", "content": " "} if self._asked == 1 else None

    def _judged(self, result: Any, success: float | None) -> Reward:
        reward = msgspec.convert(result, Reward)
        solved = None if success is None else reward.value >= success
        return msgspec.structs.replace(reward, success=solved)


async def _judgement(rubric: Any, state: Any, failed: Sequence[AgentError]) -> Any:
    """Return the reward of a rollout as a plain value. Raises `AgentError` if the rollout or a function has failed."""
    try:
        await _score(rubric, state)
    except AgentError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise hook_failed(error) from error
    return msgspec.to_builtins(judged_state(state, failed, None))


def _loaded(name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        import verifiers
        from verifiers.envs import environment as module
    except ImportError as error:
        what = f"verifiers has no load_environment(): {error}"
        raise OptionsError(what, where="environment", remedy=f"0.4 has tasksets only; {PACKAGE}") from error
    # verifiers would end the process itself at SIGTERM and at its exit. The rank ends the environment.
    signals = {key: getattr(module.signal, key) for key in ("SIGINT", "SIGTERM", "default_int_handler")}
    module.signal = SimpleNamespace(signal=lambda *_: None, **signals)
    module.atexit = SimpleNamespace(register=lambda function: function)
    try:
        return verifiers.load_environment(name, **arguments)
    except Exception as error:
        remedy = "install its package in the roles `tasks` and `environment`, and look at its `arguments`"
        if "API_KEY" in (why := told(error)).upper():
            remedy = "give its judge a key: runtime_env: {env_vars: {OPENAI_API_KEY: …}} of both roles, or an argument"
        raise OptionsError(f"verifiers cannot load {name!r}: {why}", where="environment", remedy=remedy) from error


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Return a rubric and all rubrics that it consists of."""
    yield rubric
    for each in getattr(rubric, "rubrics", ()):
        yield from _rubrics(each)
    for environment in getattr(rubric, "env_map", {}).values():
        yield from _rubrics(environment.rubric)


def _member(environment: Any, row: Any) -> tuple[Any, Any]:
    """Return the environment that plays a row, and the row as it gets it, as verifiers' own evaluation does.

    The rubric of an `EnvGroup` in another one does not find its environment, and gives 0.
    """
    while hasattr(environment, "_route_child_input"):
        name, row, _ = environment._route_child_input(row)
        environment = environment.get_env_for_name(name)
    return environment, row


async def _score(rubric: Any, state: Any) -> None:
    """Score a rollout as a group of one, as verifiers' own evaluation does, or by a class's own `score_rollout`."""
    alone = any(_written(each, "score_rollout") for each in _rubrics(rubric))
    score = rubric.score_rollout if alone else rubric.score_group
    # 0.1.9 wants a semaphore for its scoring.
    more = [nullcontext()] if "score_sem" in inspect.signature(score).parameters else []
    await score(state if alone else [state], *more)


def _written(rubric: Any, method: str) -> bool:
    """Return whether a rubric has a method that is not verifiers' own."""
    return not getattr(type(rubric), method).__module__.startswith("verifiers.")


def _check(environment: Any, rubrics: Sequence[Any]) -> None:
    """Raise `OptionsError` if rolemesh cannot run an environment."""
    where = "environment"
    if getattr(environment, "message_type", "chat") == "completion":
        raise OptionsError("it continues plain text, and rolemesh holds chats", where=where, remedy="choose chats")
    group = [each.__name__ for rubric in rubrics for each in rubric.funcs if rubric._is_group_func(each)]
    own = [rubric for rubric in rubrics if _written(rubric, "score_rollout")]
    whole = [each for each in rubrics if _written(each, "score_group") and each not in own]
    group += [f"{type(each).__name__}.score_group" for each in whole]
    if group:
        remedy = "choose rewards of single rollouts; the agent of rolemesh compares the conversations of a group"
        raise OptionsError(f"{', '.join(group)} score a group of rollouts together", where=where, remedy=remedy)
    if getattr(environment, "provides_advantages", False):
        remedy = "choose rewards without advantages; the agent of rolemesh computes them"
        raise OptionsError("it computes advantages of its own", where=where, remedy=remedy)
    weights = own or any(weight for rubric in rubrics for weight in rubric.weights)
    if not weights or not getattr(environment, "score_rollouts", True):
        remedy = "choose rewards in `arguments`: verifiers would give 0 to each rollout"
        raise OptionsError("none of its reward functions has a weight", where=where, remedy=remedy)


def _noting(function: Callable[..., Any], weight: float) -> Callable[..., Any]:
    """Return a reward function that also notes its exception: verifiers takes one for the reward 0.

    It takes a result that is no number for 0, too, which changes nothing if the function has no `weight`.
    """

    @wraps(function)
    async def noting(*arguments: Any, **named: Any) -> Any:
        try:
            found = function(*arguments, **named)
            found = await found if inspect.isawaitable(found) else found
            return float(found) if weight else found
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            remedy = "mend its cause, or give the option `failed_rewards: zero`, as verifiers counts it"
            what = f"the reward function {function.__name__} has failed: {told(error)}{culprit(error)[1]}"
            FAILED.get().append(AgentError(what, remedy=remedy))
            if isinstance(error, Exception):
                raise
            raise RuntimeError(f"it raised {error!r}") from error

    return noting


def _connections(environment: Any) -> Iterator[tuple[str, Any]]:
    """Return the MCP servers that an environment keeps for all episodes, with their names."""
    yield from getattr(environment, "server_connections", {}).items()
    for each in getattr(environment, "env_map", {}).values():
        yield from _connections(each)


def _watching(name: str, call: Callable[..., Any], ended: list[str]) -> Callable[..., Any]:
    """Return the calls of an MCP server that also note its end: verifiers tells it the model, and counts the reward."""

    async def watching(*arguments: Any, **named: Any) -> Any:
        try:
            return await call(*arguments, **named)
        except Exception as error:
            # An error that the server itself returns is an answer to the model.
            if getattr(getattr(error, "error", None), "code", type(error).__name__) in CLOSED:
                ended.append(name)
                remedy = "run its command in a shell; its messages are in the log of the rank"
                FAILED.get().append(AgentError(f"the MCP server {name} has ended: {told(error)}", remedy=remedy))
            raise

    return watching


def _has(environment: Any, name: str) -> bool:
    """Return whether the environment has this set, which it may not have built yet."""
    return getattr(environment, name, None) is not None or getattr(environment, f"{name}_source", None) is not None


def _chat(prompt: Any) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])


def _wrapped(client: Any) -> Any:
    """Return a client as the version of verifiers takes it."""
    try:
        from verifiers.clients import OpenAIChatCompletionsClient
    except ImportError:
        return client
    return OpenAIChatCompletionsClient(client)
