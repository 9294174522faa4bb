"""Environments of `load_environment()`: one of each class of verifiers 0.3, and those that rolemesh refuses."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset

__all__ = ["load_environment"]

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]


def rows(count: int = 20, first: int = 0) -> Dataset:
    return Dataset.from_list(
        [{"question": f"Say {n}.", "answer": str(n), "info": {"n": n}} for n in range(first, first + count)]
    )


def said(completion: Any) -> str:
    return str(completion[-1]["content"] or "")


async def right(completion: Any, answer: str) -> float:
    return float(answer in said(completion))


def length(completion: Any, **more: Any) -> float:
    return float(len(said(completion)))


def parsed(completion: Any, parser: Any, answer: str) -> float:
    return float(parser.parse_answer(completion) == answer)


def broken(completion: Any) -> float:
    raise ValueError("the judge is broken")


def ranks(completions: list[Any]) -> list[float]:
    return [float(len(each)) for each in completions]


class Talk(vf.MultiTurnEnv):
    """Says "wrong" until the answer is right, and counts its own answers."""

    async def setup_state(self, state: Any, **more: Any) -> Any:
        state["wrong"] = 0
        return state

    @vf.stop
    async def solved(self, state: Any) -> bool:
        return bool(state["trajectory"]) and state["answer"] in said(state["trajectory"][-1]["completion"])

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        state["wrong"] += 1
        return [{"role": "user", "content": f"{said(messages)} is wrong ({state['wrong']})."}]


async def wrong(state: Any) -> float:
    return float(state["wrong"])


def add(a: int, b: int = 1) -> str:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return str(a + b)


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


def note(text: str, pad: list) -> str:
    """Take a note on a pad."""
    pad.append(text)
    return f"{len(pad)} notes"


class Pads(vf.StatefulToolEnv):
    """Each rollout has a pad of its own, which the model does not see."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.add_tool(note, args_to_skip=["pad"])

    async def setup_state(self, state: Any, **more: Any) -> Any:
        state["pad"] = []
        return state

    def update_tool_args(self, name: str, arguments: Any, messages: Any, state: Any, **more: Any) -> Any:
        return {**arguments, "pad": state["pad"]}


async def notes(state: Any) -> float:
    return float(len(state["pad"]))


async def late(completion: Any, answer: str, info: Any) -> float:
    await asyncio.sleep(0)
    return float(info["n"] == int(answer)) + 0.125 * len(completion)


class Doors(vf.MultiTurnEnv):
    """Ends by an answer of its own, fails in the hook that `where` names, and cleans up."""

    def __init__(self, where: str = "", **more: Any) -> None:
        super().__init__(**more)
        self.where = where

    async def setup_state(self, state: Any, **more: Any) -> Any:
        state["doors"] = 0
        self._fail("setup_state")
        return state

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        self._fail("env_response")
        state["doors"] += 1
        found = [{"role": "user", "content": f"door {state['doors']}"}]
        if state["doors"] == 2:
            state["final_env_response"] = found
        return found

    @vf.stop
    async def locked(self, state: Any) -> bool:
        self._fail("stop")
        return bool(state["trajectory"]) and "no" in said(state["trajectory"][-1]["completion"])

    @vf.cleanup
    async def shut(self, state: Any) -> None:
        self._fail("cleanup")
        state["doors"] += 10

    def _fail(self, hook: str) -> None:
        if hook == self.where:
            raise ValueError(f"{hook} is broken")


async def doors(state: Any) -> float:
    return float(state["doors"])


class Ranks(vf.Rubric):
    """Scores a whole group of rollouts."""

    async def score_group(self, states: list[Any], **more: Any) -> None:
        await super().score_group(states, **more)


class Alone(vf.Rubric):
    """Scores single rollouts in a way of its own."""

    async def score_rollout(self, state: Any, **more: Any) -> None:
        await super().score_rollout(state, **more)
        state["reward"] += 10


async def asked_judge(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
    return float("yes" in await judge(prompt, completion, answer, state))


def judged(url: str) -> vf.JudgeRubric:
    from openai import AsyncOpenAI

    rubric = vf.JudgeRubric(judge_client=AsyncOpenAI(base_url=url, api_key="k", max_retries=0))
    rubric.add_reward_func(asked_judge)
    return rubric


def load_environment(kind: str, held_out: int = 0, **more: Any) -> vf.Environment:
    data = {"dataset": rows(), **({"eval_dataset": rows(held_out, 100)} if held_out else {})}
    single = vf.Rubric(funcs=[right])
    match kind:
        case "single":
            parser = vf.XMLParser(["answer"], answer_field="answer")
            rubric = vf.Rubric(funcs=[right, length, parsed], weights=[1.0, 0.01, 0.5], parser=parser)
            shot = [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "7"}]
            return vf.SingleTurnEnv(**data, system_prompt="Be short.", few_shot=shot, parser=parser, rubric=rubric)
        case "multi":
            return Talk(**data, rubric=vf.RubricGroup([single, vf.Rubric(funcs=[wrong], weights=[-0.25])]), **more)
        case "tool":
            return vf.ToolEnv(**data, tools=[add, fail], rubric=single, max_turns=4)
        case "stateful":
            return Pads(**data, tools=[], rubric=vf.Rubric(funcs=[notes]))
        case "group":
            parts = [load_environment("single"), load_environment("multi", max_turns=2)]
            return vf.EnvGroup(envs=parts, env_names=["short", "long"])
        case "think" | "maybe":
            parser = vf.ThinkParser() if kind == "think" else vf.MaybeThinkParser()
            form = parser.get_format_reward_func()
            return vf.SingleTurnEnv(**data, parser=parser, rubric=vf.Rubric(funcs=[parsed, form], parser=parser))
        case "fields":
            parser = vf.XMLParser(["think", ("answer", "code")], answer_field="answer")
            rubric = vf.Rubric(funcs=[parsed, parser.get_format_reward_func(), late], parser=parser)
            return vf.SingleTurnEnv(**data, parser=parser, rubric=rubric)
        case "doors":
            return Doors(**data, rubric=vf.RubricGroup([vf.RubricGroup([vf.Rubric(funcs=[doors])]), single]), **more)
        case "mcp":
            import mcp
            from verifiers.envs.experimental.mcp_env import MCPEnv

            path = {"PYTHONPATH": str(Path(mcp.__file__).parents[1])}
            file = str(Path(__file__).with_name("serving_tools.py"))
            server = {"name": "adding", "command": sys.executable, "args": [file], "env": path}
            return MCPEnv(mcp_servers=[server], **data, rubric=single, max_turns=6)
        case "silent":
            from verifiers.envs.experimental.mcp_env import MCPEnv

            code = f"import time; time.sleep(600)  # {more['mark']}"
            server = {"name": "mute", "command": sys.executable, "args": ["-c", code]}
            return MCPEnv(mcp_servers=[server], **data, rubric=single)
        case "judged":
            return vf.SingleTurnEnv(**data, rubric=vf.RubricGroup([judged(more["url"]), single]))
        case "nested":
            parts = [load_environment("tool"), load_environment("doors")]
            return vf.EnvGroup(envs=parts, env_names=["tool", "doors"])
        case "groups":
            parts = [load_environment("group"), load_environment("nested")]
            return vf.EnvGroup(envs=parts, env_names=["group", "nested"])
        case "empty":
            return vf.SingleTurnEnv(**data, rubric=vf.RubricGroup([vf.Rubric(), single]))
        case "alone":
            return vf.SingleTurnEnv(**data, rubric=Alone(funcs=[right]))
        case "whole":
            return vf.SingleTurnEnv(**data, rubric=vf.RubricGroup([Ranks(funcs=[length]), single]))
        case "broken":
            return vf.SingleTurnEnv(**data, rubric=vf.Rubric(funcs=[right, broken]))
        case "ranks":
            return vf.SingleTurnEnv(**data, rubric=vf.Rubric(funcs=[right, ranks]))
        case "judge":
            return vf.SingleTurnEnv(**data, rubric=vf.JudgeRubric())
        case "image":
            data = {"dataset": Dataset.from_list([{"prompt": IMAGE, "answer": "1"}] * 3)}
            return vf.SingleTurnEnv(**data, rubric=single)
        case "nothing":
            return vf.SingleTurnEnv(**data, rubric=vf.Rubric(funcs=[right], weights=[0.0]))
    raise ValueError(f"no kind {kind}")
