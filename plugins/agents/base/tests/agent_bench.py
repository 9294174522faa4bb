"""Parts for tests of agents: a chat template of bytes, a model that follows rules, and an environment of sums.

The model is no neural network: it answers what its rules say, with a choice that depends on the seed. Its tokens are
the bytes of its text, so a test can read a row.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import time
import zlib
from pathlib import Path

import msgspec
import numpy as np
from pydantic import BaseModel

from rolemesh import service
from rolemesh_agents import Environment, Episode, Observation, Outcome, Reward, Start, ToolCall, ToolEpisode, tool
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.conversations.tool_loop import ToolLoop
from rolemesh_processes.facts import children

END = 256
"""The token that ends a turn."""


class ByteTemplate:
    """Each message is ``<role>text`` and the token `END`; a turn of the model follows ``<assistant>``."""

    stop_token_ids = (END,)

    def opening(self, messages, tools):
        head = f"<tools>{' '.join(tool.name for tool in tools)}"
        return [*head.encode(), END, *self._written(messages), *b"<assistant>"]

    def increment(self, turn, messages, tools):
        closing = [] if len(turn) and turn[-1] == END else [END]
        return [*closing, *self._written(messages), *b"<assistant>"]

    def parse(self, turn, tools):
        text = bytes(token for token in turn if token < END).decode("utf-8", "replace")
        calls, unparsed = [], []
        for found in re.findall(r"\{.*?\}\}", text) or re.findall(r"\{.*", text):
            try:
                call = json.loads(found)
                calls.append(ToolCall(call["name"], call["arguments"]))
            except (ValueError, KeyError):
                unparsed.append(found)
        return ParsedTurn(text.partition("{")[0], calls, unparsed)

    def message(self, turn):
        return {"role": "assistant", "content": turn.content, "calls": len(turn.calls)}

    def _written(self, messages):
        return [token for each in messages for token in (*f"<{each['role']}>{each['content']}".encode(), END)]


def load_template(folder):
    return ByteTemplate()


class Model:
    """A rollout: asks `add` for the sum, and answers with what it got. With another seed it answers something else.

    With `wait_for` it answers only once this file is there.
    """

    def __init__(self, ctx, rule="add", sleep=0.0, count="", wait_for=""):
        self.ctx, self.rule, self.sleep, self.version = ctx, rule, sleep, 0
        self.wait_for = Path(wait_for) if wait_for else None
        self.count = Path(count, f"model-{ctx.rank}-{ctx.generation}-{os.getpid()}") if count else None

    @service(concurrency=256, recorded=True)
    async def sample(self, prompt_ids, params):
        text = bytes(token for token in np.asarray(prompt_ids).tolist() if token < END).decode("utf-8", "replace")
        if self.count:
            with self.count.open("a") as file:
                print(params["seed"], zlib.crc32(text.encode()), file=file)
        await asyncio.sleep(self.sleep)
        while self.wait_for is not None and not self.wait_for.exists():
            await asyncio.sleep(0.01)
        rule = text.rpartition("rule: ")[2].partition(".")[0] if self.rule == "told" else self.rule
        turn = RULES[rule](text, params)
        ids = [*turn.encode(), END]
        finish = "stop"
        if len(ids) > params["max_tokens"]:
            ids, finish = ids[: params["max_tokens"]], "length"
        if turn == "nothing":
            ids = []
        logprobs = np.full(len(ids), -0.5, np.float32)
        return {
            "ids": np.array(ids, np.int32),
            "logprobs": logprobs,
            "versions": np.full(len(ids), self.version, np.int64),
            "finish": finish,
        }


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def add(text, params):
    """Call `add` as often as there is something to add, and answer then."""
    numbers = [int(each) for each in re.findall(r"\d+", text.partition("<user>")[2].partition("<")[0])]
    sums = re.findall(r"<tool>(-?\d+)", text)
    total = int(sums[-1]) if sums else numbers[0]
    if len(sums) + 1 < len(numbers):
        return "I add. " + call("add", a=total, b=numbers[len(sums) + 1])
    return call("answer", value=total + (params["seed"] % 3 == 0))


def documented(text, params):
    """Solve the task of the page "Agents" with its tools."""
    numbers = [int(each) for each in re.findall(r"\d+", text.partition("[")[2].partition("]")[0])]
    sums = [int(each) for each in re.findall(r"<tool>(\d+)", text)]
    if len(sums) == 2:
        return call("answer", value=sums[-1])
    return call("add", a=sums[-1] if sums else numbers[0], b=numbers[len(sums) + 1])


def sums(text, params):
    """Solve `echoing:Sums` of the tests of openenv in four steps."""
    found = [int(each) for each in re.findall(r'"sum": (-?\d+)', text)]
    return "I go on. " + call("step", number=50 - found[-1] if len(found) >= 4 else 1 + params["seed"] % 3)


def counting(text, params):
    """Solve a task of `trying_tools` of the tests of verifiers with four calls."""
    if text.count("<tool>") < 4:
        return "I think. " + call("counter_add", number=1 + params["seed"] % 3)
    return re.search(r"Count to (\d+)", text)[1]


RULES = {
    "documented": documented,
    "sums": sums,
    "counting": counting,
    "add": add,
    "forever": lambda text, params: call("add", a=1, b=2),
    "empty": lambda text, params: "",
    "nothing": lambda text, params: "nothing",
    "long": lambda text, params: "x" * 10_000,
    "garbage": lambda text, params: '{"name": "add", "arguments": {"a": 1' if "<tool>" not in text else "done",
    "unknown": lambda text, params: call("fly", to="moon") if "<tool>" not in text else "done",
    "wrong": lambda text, params: call("add", a="many", c=2) if "<tool>" not in text else "done",
    "slow": lambda text, params: call("hang", seconds=0.8) if "<tool>" not in text else "done",
    "hang": lambda text, params: call("hang", seconds=30) if "<tool>" not in text else "done",
    "nap": lambda text, params: call("nap", seconds=30) if "<tool>" not in text else "done",
    "flood": lambda text, params: call("flood", megabytes=50) if "<tool>" not in text else "done",
    "fork": lambda text, params: call("fork", now=True) if "<tool>" not in text else "done",
    "die": lambda text, params: call("die", how=9) if "<tool>" not in text else "done",
    "bug": lambda text, params: call("bug", deep=1) if "<tool>" not in text else "done",
    "exit": lambda text, params: call("leave", code=3) if "<tool>" not in text else "done",
    "pay": lambda text, params: call("pay", cents=5) if "<tool>" not in text else "done",
}


class SumEpisode(ToolEpisode):
    """Numbers to add, with tools that work and tools that do not."""

    writes = True

    def __init__(self, options):
        self.options = options

    def reset(self, task, seed):
        self.numbers, self.given, self.steps = task.data, None, 0
        self.note("reset", task.number, seed)
        if self.options.broken == "short" and self.first():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.options.broken == "reset" and task.number % 2:
            raise RuntimeError("no room for another episode")
        rules = self.options.rules
        text = f"Add {self.numbers}" + (f" rule: {rules[task.number % len(rules)]}." if rules else "")
        return Start([{"role": "user", "content": text}], self.tools())

    def note(self, *words):
        if self.options.count:
            with open(Path(self.options.count, f"environment-{os.getpid()}"), "a") as file:
                print(*words, file=file)

    def first(self):
        """Return whether nothing has been broken so far."""
        marker = Path(self.options.count, "killed")
        broken = marker.exists()
        marker.touch()
        return not broken

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.steps += 1
        self.note("add", *self.numbers, a, b)
        if self.options.broken == "add" and self.steps == 2 and self.first():
            os.kill(os.getppid(), signal.SIGKILL)  # the rank
        time.sleep(self.options.sleep)
        if self.sandbox is not None:
            if self.options.broken == "sandbox" and self.steps == 2 and self.first():
                for guard in children(os.getpid()):
                    os.kill(guard, signal.SIGKILL)
            return self.sandbox.run(f"echo {a} >> said; echo $(({a} + {b}))").output.strip()
        return str(a + b)

    @tool
    async def answer(self, value: int) -> Observation:
        """Give the answer."""
        self.given = value
        return Observation("thank you", done=True)

    @tool(repeatable=False)
    def pay(self, cents: int) -> str:
        """Pay money."""
        self.note("pay", *self.numbers, cents)
        if self.options.broken == "pay":
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid"

    @tool
    def hang(self, seconds: float) -> str:
        """Hang."""
        time.sleep(seconds)
        return "awake"

    @tool
    async def nap(self, seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "awake"

    @tool
    def flood(self, megabytes: int) -> str:
        """Say a lot."""
        return "é" * (megabytes * 500_000)

    @tool
    def fork(self, now: bool) -> str:
        """Fork."""
        child = os.fork()
        self.note("forked", child) if child else None
        return "forked"

    @tool
    def die(self, how: int) -> str:
        """End the process."""
        self.note("dies")
        os.kill(os.getpid(), how)
        return "alive"

    @tool
    def bug(self, deep: int) -> str:
        """Fail."""
        raise KeyError("no such thing")

    @tool
    def leave(self, code: int) -> str:
        """Leave the interpreter."""
        raise SystemExit(code)

    def reply(self, content):
        return Outcome(done=True)

    def reward(self):
        if self.options.broken == "reward":
            return Reward(float("nan"))
        solved = self.given == sum(self.numbers)
        whole = self.steps == len(self.numbers) - 1  # an episode that has forgotten actions gets another reward
        return Reward(float(solved) if whole else solved / 2, {"steps": self.steps}, success=solved)

    def snapshot(self):
        if not self.options.states:
            return None
        return json.dumps([self.numbers, self.given, self.steps]).encode()

    def restore(self, state):
        self.note("restore", len(state))
        self.numbers, self.given, self.steps = json.loads(state)


class KillerOptions(BaseModel, extra="forbid"):
    at: int = -1
    """The number of the turn, over all conversations of the rank, after which the rank ends in its first life."""


class Killer(ToolLoop):
    """The plain loop, in a rank that ends after a certain turn."""

    Options = KillerOptions

    async def setup(self, ctx):
        self.ctx, self.turns = ctx, 0

    async def run(self, talk):
        sample = talk.sample

        async def counted(params=None):
            turn = await sample(params)
            self.turns += 1
            if self.turns == self.options.at and self.ctx.generation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return turn

        talk.sample = counted
        await super().run(talk)


class SumOptions(BaseModel, extra="forbid"):
    numbers: int = 3
    tasks: int = 64
    states: bool = False
    sleep: float = 0.0
    count: str = ""
    broken: str = ""
    rules: list[str] = []


class Sums(Environment):
    """Asks for the sum of some numbers."""

    Options = SumOptions

    def size(self, split):
        return self.options.tasks if split == "train" else 8

    def task(self, split, number, seed):
        rng = np.random.default_rng([seed, number, split == "eval"])
        return [int(each) for each in rng.integers(1, 100, self.options.numbers)]

    def episode(self) -> Episode:
        return SumEpisode(self.options)


class Learner:
    """A trainer that only remembers: its state is a hash of all rows that it got.

    It makes the file `mark` in step `mark_at`.
    """

    def __init__(self, ctx, out="", mark="", mark_at=0):
        self.ctx, self.seen, self.rows, self.out = ctx, 0, 0, out
        self.mark, self.mark_at = mark, mark_at

    def train(self, rows):
        if self.mark and self.ctx.step == self.mark_at:
            Path(self.mark).touch()
        for at in range(rows.rows):
            told = [rows[name][at] for name in ("prompt_ids", "completion_ids", "completion_mask", "logprobs")]
            data = b"".join(np.ascontiguousarray(each).tobytes() for each in told)
            data += repr((float(rows["reward"][at]), float(rows["advantage"][at]), int(rows["group"][at]))).encode()
            data += json.dumps(rows["messages"][at], sort_keys=True).encode()
            self.seen = zlib.crc32(data, self.seen)
            if self.out:
                row = {
                    name: rows[name][at]
                    for name in ("turns", "ended", "reward", "advantage", "index", "group", "messages")
                }
                told = {"mask": "".join(map(str, rows["completion_mask"][at].tolist()))}
                told |= {
                    "text": bytes(t for t in rows["completion_ids"][at].tolist() if t < END).decode("utf-8", "replace")
                }
                with open(self.out, "a") as file:
                    file.write(json.dumps({**row, **told}, default=lambda value: value.item()) + "\n")
        self.rows += rows.rows

    def snapshot(self):
        return {"seen": self.seen, "rows": self.rows}

    def restore(self, state):
        self.seen, self.rows = state["seen"], state["rows"]


FORKS = """
import os, time
made = 0
for _ in range(20):
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        made += 1
    except OSError:
        break
time.sleep(0.5)
print("made", made)
"""
"""Makes 20 processes, if it can. They end after 2 seconds."""
PRINTS = "head -c 3000000 /dev/zero | tr '\\0' y"
WORK = {
    "cells": [("cell", "x = 6"), ("cell", "x * 7")],
    "command": [("run", "echo hello > file; cat file")],
    "forks": [("cell", FORKS)],
    "prints": [("run", PRINTS)],
}
"""The actions of a model with a sandbox, by rule."""


def told(result):
    return f"code {result['code']}, ended {result['ended']!r}, cut {result['cut']}: {result['output'][-40:]}"


class ShellEpisode(ToolEpisode):
    """A sandbox, as a tool for commands and one for cells."""

    def reset(self, task, seed):
        return Start([{"role": "user", "content": f"Work. rule: {list(WORK)[task.number]}."}], self.tools())

    @tool
    def run(self, text: str) -> str:
        """Run a command."""
        return told(msgspec.to_builtins(self.sandbox.run(text)))

    @tool
    def cell(self, text: str) -> str:
        """Run a cell."""
        return told(msgspec.to_builtins(self.sandbox.cell(text)))

    def reward(self):
        return Reward(1.0)


class Shells(Environment):
    """Asks for something that runs in a sandbox."""

    def size(self, split):
        return len(WORK)

    def task(self, split, number, seed):
        return split

    def episode(self) -> Episode:
        return ShellEpisode()


def working(rule):
    turns = [*(call(method, text=text) for method, text in WORK[rule]), "done"]
    return lambda text, params: turns[text.count("<tool>")]


RULES |= {rule: working(rule) for rule in WORK}


class SandboxUser:
    """An operator that does the same in a sandbox of the role `sandbox`, and writes down the answers."""

    def __init__(self, ctx, out):
        self.ctx, self.out = ctx, Path(out)

    def work(self, tasks):
        found = {}
        for rule, actions in WORK.items():
            session = self.ctx.session("sandbox")
            answers = [self.ctx.call_and_wait("sandbox", name, text, session=session) for name, text in actions]
            self.ctx.call_and_wait("sandbox", "close", session=session)
            found[rule] = told(answers[-1])
        self.out.write_text(json.dumps(found))
