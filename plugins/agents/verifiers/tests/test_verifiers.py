"""The environment `verifiers`. Most tests need the package, which must not be in the common environment."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random, random
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Start, Task, ToolCall
from rolemesh_testing import EnvironmentConformance
from rolemesh_verifiers import VerifiersEnvironment
from rolemesh_verifiers.classic import FAILED, _member, _noting
from rolemesh_verifiers.judging import judged, judged_state
from rolemesh_verifiers.loading import within
from rolemesh_verifiers.messages import added, asked, completion, spoken

HERE = Path(__file__).parent
VERSIONS = {"0.4.0": "taskset", "0.3.1": "environment", "0.1.14": "environment"}
"""Versions of verifiers that the soak installs, and the kind of their environments."""
HAS = find_spec("verifiers") and VERSIONS.get(version("verifiers"))
needs_verifiers = pytest.mark.skipif(HAS != "taskset", reason="needs verifiers 0.4; the soak installs it apart")
needs_classic = pytest.mark.skipif(HAS != "environment", reason="needs verifiers 0.3; the soak installs it apart")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def made(taskset: str, **options: Any) -> VerifiersEnvironment:
    return VerifiersEnvironment(VerifiersEnvironment.Options.model_validate({"taskset": taskset, **options}))


@pytest.fixture
def play() -> Iterator[Callable[..., Any]]:
    """``play(environment, number, talk)`` runs ``talk(episode, start)`` with an episode of this training task."""
    used = []

    def run(
        environment: VerifiersEnvironment, number: int, talk: Callable[[Any, Start], Coroutine[Any, Any, Any]]
    ) -> Any:
        used.append(environment)

        async def whole() -> Any:
            episode = environment.episode()
            try:
                task = Task(number, environment.task("train", number, seed=0))
                return await talk(episode, await episode.reset(task, seed=0))  # type: ignore[misc]
            finally:
                await asyncio.to_thread(episode.close)

        return asyncio.run(whole())

    yield run
    for environment in dict.fromkeys(used):
        environment.close()


# ------------------------------------------------------------------------------------------- without the package


def test_a_request_that_continues_the_conversation_adds_its_new_messages() -> None:
    head = [{"role": "user", "content": [{"type": "text", "text": "Add."}]}]
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    first = asked({"messages": head, "tools": tools}, once=["add"])
    assert (first.tools[0].description, first.tools[0].repeatable) == ("add", False)
    turn = spoken("so", [ToolCall("add", {"a": 1}, "other")], number=4)
    told = completion(turn)["choices"][0]["message"]
    answer = {"role": "tool", "tool_call_id": "call-4-0", "name": "add", "content": None}
    now = asked({"messages": [*head, {**told, "reasoning": None}, answer], "tools": tools}, once=["add"])
    assert added(first, turn, now) == [{"role": "tool", "content": "", "tool_call_id": "call-4-0"}]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (["user other", "assistant yes"], "changed earlier messages"),
        (["user hello", "assistant no"], "changed earlier messages"),
        (["user hello"], "changed earlier messages"),
    ],
)
def test_a_request_that_changes_the_conversation_is_refused(messages: list[str], why: str) -> None:
    parsed = [dict(zip(("role", "content"), each.split(), strict=True)) for each in messages]
    first = asked({"messages": [{"role": "user", "content": "hello"}]}, once=[])
    with pytest.raises(AgentError, match=why) as raised:
        added(first, spoken("yes", [], 0), asked({"messages": parsed}, once=[]))
    assert "`program`" in str(raised.value.remedy)


def test_images_are_refused() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(AgentError, match="image_url, and rolemesh knows text only"):
        asked({"messages": [{"role": "user", "content": content}]}, once=[])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": ["hello"]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"content": "hello"}]},
        {"messages": [], "tools": [{"name": "add"}]},
    ],
    ids=str,
)
def test_a_request_in_another_form_is_a_failure_that_says_so(body: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match=r"in another form than Chat Completions: .*Error: "):
        asked(body, once=[])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x00\xff\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 404),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nX-Session-ID: t\r\nContent-Length: 2\r\n\r\n{x", 400),
        (b'POST %s HTTP/1.1\r\nHost: a\r\nX-Session-ID: t\r\nContent-Length: 4\r\n\r\n"\xff\xff"', 400),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nX-Session-ID: t\r\nContent-Length: 2\r\n\r\n[]", 400),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nX-Session-ID: t\r\nContent-Length: 2\r\n\r\n{}", 400),
    ],
)
def test_a_malformed_request_gets_one_line_in_the_log_or_none(
    request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("aiohttp")
    from rolemesh_verifiers.desk import Desk

    async def over(body: Any) -> None:
        assert body == {}

    async def main() -> bytes:
        desk = Desk()
        await desk.start()
        desk.open("t", over)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(desk.url).port)
            writer.write(request_.replace(b"%s", b"/v1/chat/completions"))
            line = await reader.readline()
            writer.close()
            return line
        finally:
            await desk.stop()

    assert f" {status} ".encode() in asyncio.run(main())
    lines = caplog.text.splitlines()
    assert all("refused a request that is no HTTP" in line for line in lines)
    assert len(lines) <= 1


def trace(**about: Any) -> Any:
    reward = SimpleNamespace(value=0.0)
    return SimpleNamespace(
        **{"errors": [], "is_timeout": False, "rewards": {"r": reward}, "metrics": {}, "reward": 0.0, **about}
    )


@pytest.mark.parametrize(
    ("episode", "own", "why"),
    [
        ({"ok": False, "errors": [SimpleNamespace(type="EnvError", message="broken")]}, {}, "EnvError: broken"),
        ({"ok": False}, {"errors": [SimpleNamespace(type="TaskError", message="bad")]}, "TaskError: bad"),
        ({}, {"is_timeout": True, "stop_condition": "scoring_timeout"}, "scoring_timeout"),
        ({}, {"rewards": {"r": None}}, "has not computed the reward r"),
        ({}, {"rewards": {}}, "has no reward"),
    ],
)
def test_a_failure_is_an_error_and_no_reward(episode: dict[str, Any], own: dict[str, Any], why: str) -> None:
    found = trace(**own)
    with pytest.raises(AgentError, match=why):
        judged(SimpleNamespace(**{"ok": True, "errors": [], "traces": [found], **episode}), found, None)


@pytest.mark.parametrize(
    ("state", "failed", "why"),
    [
        ({"error": ConnectionError("gone")}, [], "ConnectionError: gone"),
        ({"stop_condition": "timeout_reached", "reward": 1.0}, [], "own time limit"),
        ({"reward": 0.0}, [AgentError("the server has ended")], "the server has ended"),
        ({"reward": None}, [], "has not computed a reward"),
    ],
)
def test_a_failed_rollout_is_an_error_and_no_reward(state: dict[str, Any], failed: list[Any], why: str) -> None:
    with pytest.raises(AgentError, match=why):
        judged_state(state, failed, None)


class Group:
    """An `EnvGroup` of verifiers: a row names a member of each group on the way to its environment."""

    def __init__(self, **members: Any) -> None:
        self.get_env_for_name = members.__getitem__

    def _route_child_input(self, row: list[str]) -> tuple[str, list[str], list[str]]:
        return row[0], row[1:], row


def test_a_group_in_a_group_plays_the_member_that_the_row_names() -> None:
    inner = Group(short="short", long="long")
    assert _member(Group(inner=inner, other="other"), ["inner", "long"]) == ("long", [])


@pytest.mark.parametrize("found", [None, {"a": 1.0}, "much"])
def test_a_reward_that_is_no_number_is_a_failure_and_a_metric_is_not(found: Any) -> None:
    def judge() -> Any:
        return found

    async def run(weight: float) -> list[AgentError]:
        FAILED.set(failed := [])
        with suppress(TypeError, ValueError):
            assert await _noting(judge, weight)() is found
        return failed

    assert asyncio.run(run(0.0)) == []
    assert "the reward function judge has failed" in asyncio.run(run(1.0))[0].what


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "give `taskset`"),
        ({"taskset": "a", "environment": "b"}, "give `taskset`"),
        ({"taskset": "a", "failed_rewards": "zero"}, "`taskset` does not use failed_rewards"),
        ({"environment": "a", "config": {"c": 1}, "agent": "b"}, "`environment` does not use config, agent"),
    ],
)
def test_options_of_the_other_kind_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        VerifiersEnvironment.Options.model_validate(given)


def test_loading_without_end_is_a_failure_that_says_where_it_stands() -> None:
    over = threading.Event()

    def load() -> None:
        over.wait()

    with pytest.raises(
        OptionsError, match=r"slow has not been loaded within 0.1 s: .*load \(.*test_verifiers.py:"
    ) as raised:
        asyncio.run(within(0.1, load, "slow", "environment"))
    over.set()
    assert (raised.value.where, "`load_s`" in str(raised.value.remedy)) == ("environment", True)


def test_an_environment_that_makes_its_tasks_at_random_makes_the_same_ones_again() -> None:
    def load() -> tuple[float, float]:
        return random(), float(np.random.random())

    assert asyncio.run(within(5, load, "random", "environment")) == asyncio.run(
        within(5, load, "random", "environment")
    )


def test_an_exit_while_loading_is_a_failure() -> None:
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        asyncio.run(within(5, lambda: sys.exit(3), "exits", "environment"))


def test_without_the_package_the_error_names_the_roles_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    environment = made("gsm8k")
    with pytest.raises(OptionsError, match="verifiers cannot be imported") as raised:
        environment.size("train")
    environment.close()
    assert "runtime_env" in str(raised.value.remedy)


# ---------------------------------------------------------------------------------------------- with the package


@needs_verifiers
class TestTalks(EnvironmentConformance):
    plugin = "verifiers"
    options = {"taskset": "trying_talks", "success": 1.0, "most": 200}
    bad_options = ({"taskset": ""}, {"taskset": "trying_talks", "most": 0}, {"taskset": "t", "unknown": 1})
    preload = ("verifiers.v1",)


@needs_verifiers
class TestTools(EnvironmentConformance):
    plugin = "verifiers"
    options = {"taskset": "trying_tools", "eval_size": 2}
    preload = ("verifiers.v1",)

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        return (
            ToolCall("counter_add", {"number": 1 + len(answers)})
            if len(answers) < 2
            else "done"
            if len(answers) < 3
            else None
        )


@needs_verifiers
def test_a_turn_with_text_and_two_calls_reaches_the_environment_whole(play: Callable[..., Any]) -> None:
    calls = [ToolCall("counter_add", {"number": 3}, "a"), ToolCall("counter_add", {"number": 8}, "b")]

    async def talk(episode: Any, start: Start) -> Any:
        assert [tool.name for tool in start.tools] == ["counter_add", "counter_fail"]
        episode.hear("I think so", calls)
        answers = [(await episode.call(call)).content for call in calls]
        wrong = [
            ToolCall("counter_add", {"number": "x"}),
            ToolCall("nothing", {}),
            ToolCall("counter_fail", {"text": "oh"}),
        ]
        answers += [(await episode.call(call)).content for call in wrong]
        assert (await episode.reply("2")).done
        return answers, await episode.reward()

    answers, reward = play(made("trying_tools", eval_size=2), 0, talk)
    assert answers[:2] == ["5", "hidden"]  # the task's interceptor has replaced 13
    assert [text in answer for text, answer in zip(("number", "unknown tool", "oh"), answers[2:], strict=True)] == [
        True
    ] * 3
    assert (reward.value, reward.parts) == (1.5, {"sum": 11.0, "right": 1.0, "thoughts": 0.5})


@needs_verifiers
def test_a_stop_of_the_task_ends_the_conversation(play: Callable[..., Any]) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        return await episode.call(ToolCall("counter_add", {"number": 100})), await episode.reward()

    found, reward = play(made("trying_tools", eval_size=2), 0, talk)
    assert found.done
    assert reward.parts["sum"] == 100


@needs_verifiers
def test_a_server_of_tools_whose_import_fails_is_a_failure_at_once(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(episode: Any, start: Start) -> None:
        raise AssertionError("the episode has begun")

    environment = made("trying_tools", eval_size=2)
    environment.size("train")
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(AgentError, match="No module named trying_tools"):
        play(environment, 0, talk)


@needs_verifiers
def test_a_user_of_the_environment_speaks_until_it_is_content(play: Callable[..., Any]) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        assert [message["content"] for message in start.messages] == ["Be short.", "Say 65."]
        again = await episode.reply("7")
        assert again.messages == [{"role": "user", "content": "7 is wrong."}]
        assert (await episode.reply("65")).done
        return await episode.reward()

    reward = play(made("trying_talks"), 1, talk)
    assert (reward.value, reward.parts["turns"]) == (1.0, 2.0)


@needs_verifiers
def test_held_out_tasks_may_have_settings_of_their_own() -> None:
    environment = made("trying_talks", held_out={"split": "test"}, eval_size=3, most=50)
    assert (environment.size("train"), environment.size("eval")) == (50, 3)
    assert environment.task("train", 0, 0)["hash"] != environment.task("eval", 0, 0)["hash"]
    environment.close()


@needs_verifiers
@pytest.mark.parametrize(
    ("config", "number", "reply", "why"),
    [({}, 0, "raise", "the judge is broken"), ({"runs": 2}, 0, "no", "begins another one")],
)
def test_an_episode_without_a_judgement_fails(
    play: Callable[..., Any], config: dict[str, Any], number: int, reply: str, why: str
) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        await episode.reply(reply)
        return await episode.reward()

    with pytest.raises(AgentError, match=why):
        play(made("trying_talks", config=config), number, talk)


@needs_verifiers
def test_another_task_than_the_one_that_was_dealt_out_is_refused() -> None:
    environment = made("trying_talks")
    with pytest.raises(AgentError, match="differs from the one"):
        asyncio.run(environment.episode().reset(Task(0, {"index": 0, "hash": "other"}), 0))  # type: ignore[arg-type]
    environment.close()


# --------------------------------------------------------------------------- with a package before 0.4


def classic(kind: str, eval_size: int = 0, **options: Any) -> VerifiersEnvironment:
    arguments = {"kind": kind, **options.pop("arguments", {})}
    given = {"environment": "trying_classics", "arguments": arguments, "eval_size": eval_size, **options}
    return VerifiersEnvironment(VerifiersEnvironment.Options.model_validate(given))


def answered(tools: Sequence[str], turn: int) -> tuple[str, list[ToolCall]]:
    """Return turn `turn` of a model: it calls each tool once, one or two in a turn, and then says numbers."""
    calls = {
        "add": ToolCall("add", {"a": 2, "b": 3}, f"x{turn}"),
        "fail": ToolCall("fail", {"text": "oh"}, f"y{turn}"),
        "note": ToolCall("note", {"text": "so"}, f"z{turn}"),
    }
    if tools and turn < 2:
        return "I call", [calls[name] for name in tools if name in calls]
    return ["7", "<answer>3</answer>", "no", "4"][turn % 4], []


async def talk_through(episode: Any, start: Start) -> Any:
    """Answer as the model of `answered` until the end, and return the reward."""
    for turn in range(20):
        content, calls = answered([tool.name for tool in start.tools], turn)
        if calls:
            episode.hear(content, calls)
            done = [(await episode.call(call)).done for call in calls][-1]
        else:
            done = (await episode.reply(content)).done
        if done:
            return await episode.reward()
    raise AssertionError("the environment has not ended")


@pytest.fixture
def judge() -> Iterator[str]:
    """The URL of a model that judges: it says yes if the response is the ground truth answer."""

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = body["messages"][-1]["content"].split("```")
            said = completion(spoken("yes" if texts[3].strip() in texts[5] else "no", [], 0))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


async def verifiers_own(kind: str, index: int, **arguments: Any) -> Any:
    """Return what verifiers itself makes of the same turns, by a server that speaks the API of OpenAI."""
    import verifiers as vf
    from aiohttp import web
    from openai import AsyncOpenAI
    from verifiers.clients import OpenAIChatCompletionsClient

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"][heads:])
        content, calls = answered([tool["function"]["name"] for tool in body.get("tools", ())], turn)
        return web.json_response(completion(spoken(content, calls, turn)))

    environment = vf.load_environment("trying_classics", kind=kind, **arguments)
    row = dict(environment.get_dataset()[index])
    heads = len(row["prompt"])
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", api_key="k")
    found = await environment.generate([row], OpenAIChatCompletionsClient(client), "m")
    await client.close()
    await runner.cleanup()
    return found["outputs"][0]


@needs_classic
class TestClassic(EnvironmentConformance):
    plugin = "verifiers"
    options = {
        "environment": "trying_classics",
        "arguments": {"kind": "multi", "held_out": 5, "max_turns": 3},
        "success": 1.0,
    }
    bad_options = (
        {"environment": "trying_classics", "taskset": "gsm8k"},
        {"environment": "trying_classics", "config": {"a": 1}},
        {"taskset": "gsm8k", "arguments": {"a": 1}},
    )
    preload = ("verifiers", "datasets")


@needs_classic
@pytest.mark.parametrize(
    ("kind", "index"),
    [
        *[("single", 3), ("multi", 4), ("tool", 4), ("stateful", 4), ("group", 3), ("group", 24), ("nested", 4)],
        *[("groups", 3), ("groups", 24), ("groups", 64), ("empty", 7)],
        *[("think", 7), ("maybe", 7), ("fields", 7), ("doors", 7), ("nested", 24), ("mcp", 7), ("judged", 7)],
    ],
)
def test_each_class_of_environment_gets_the_reward_that_verifiers_gives(
    play: Callable[..., Any], kind: str, index: int, judge: str
) -> None:
    arguments = {"url": judge} if kind == "judged" else {}
    own = asyncio.run(verifiers_own(kind, index, **arguments))
    reward = play(classic(kind, arguments=arguments), index, talk_through)
    assert reward.value == pytest.approx(own["reward"])
    assert dict(reward.parts) == pytest.approx(own["metrics"])


@needs_classic
def test_a_class_that_scores_single_rollouts_itself_gives_the_reward(play: Callable[..., Any]) -> None:
    assert play(classic("alone"), 7, talk_through).value == 11.0


@needs_classic
@pytest.mark.parametrize("hook", ["setup_state", "env_response", "stop", "cleanup"])
def test_a_hook_that_raises_is_a_failure(play: Callable[..., Any], hook: str) -> None:
    function = {"stop": "locked", "cleanup": "shut"}.get(hook, hook)
    with pytest.raises(AgentError, match=f"Doors.{function} has raised ValueError: {hook} is broken") as raised:
        play(classic("doors", arguments={"where": hook}), 3, talk_through)
    assert raised.value.where == "trying_classics, row 3 (task 3 of the split train)"
    assert "trying_classics.py:" in raised.value.what
    assert "mend it" in str(raised.value.remedy)


@needs_classic
def test_an_mcp_server_that_never_answers_is_named_and_ended(tmp_path: Path) -> None:
    import_module("verifiers.envs.experimental.mcp_env")
    import_module("trying_classics")
    environment = classic("silent", arguments={"mark": str(tmp_path)}, load_s=2)
    with pytest.raises(
        OptionsError, match=r"within 2 s: the MCP server mute \(.*python.* -c .*does not answer"
    ) as raised:
        environment.size("train")
    environment.close()
    assert "`load_s`" in str(raised.value.remedy)
    commands = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline") if each.exists()]
    assert not any(f"# {tmp_path}".encode() in command for command in commands)


@needs_classic
def test_a_judge_that_does_not_answer_is_a_failure(play: Callable[..., Any]) -> None:
    with pytest.raises(AgentError, match="asked_judge has failed: RuntimeError: Judge model"):
        play(classic("judged", arguments={"url": "http://127.0.0.1:9/v1"}), 3, talk_through)


@needs_classic
def test_the_end_of_an_mcp_server_is_a_failure_and_the_next_episode_has_another_one(play: Callable[..., Any]) -> None:
    async def end(episode: Any, start: Start) -> Any:
        assert "Error" in (await episode.call(ToolCall("end", {}))).content
        await episode.reply("3")
        return await episode.reward()

    async def add(episode: Any, start: Start) -> Any:
        return await episode.call(ToolCall("add", {"a": 2}))

    environment = classic("mcp")
    with pytest.raises(AgentError, match="the MCP server adding has ended: McpError: Connection closed"):
        play(environment, 3, end)
    assert play(environment, 3, add).content == "3"


@needs_classic
def test_an_empty_answer_is_the_models_own(play: Callable[..., Any]) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        assert "is wrong (1)" in (await episode.reply("")).messages[0]["content"]
        assert (await episode.reply("3")).done
        return await episode.reward()

    assert play(classic("multi"), 3, talk).value == 0.75


@needs_classic
def test_a_set_for_evaluation_holds_the_held_out_tasks() -> None:
    environment = classic("multi", eval_size=3, arguments={"held_out": 5})
    assert (environment.size("train"), environment.size("eval")) == (20, 3)
    assert environment.task("train", 0, 0)["index"] == 0
    environment.close()


@needs_classic
@pytest.mark.parametrize(
    ("kind", "why", "remedy"),
    [
        ("ranks", "ranks score a group", "single rollouts"),
        ("whole", "Ranks.score_group score a group", "single rollouts"),
        ("judge", "api_key", "OPENAI_API_KEY"),
        ("nothing", "none of its reward functions has a weight", "arguments"),
        ("image", "task 0: the environment shows the model image_url", "without images"),
        ("other", "no kind other", "arguments"),
    ],
)
def test_an_unsuitable_environment_is_refused_when_tasks_are_dealt_out(
    kind: str, why: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    environment = classic(kind)
    with pytest.raises(OptionsError, match=why) as raised:
        environment.task("train", 0, 0)
    environment.close()
    assert remedy in str(raised.value.remedy)


@needs_classic
@pytest.mark.parametrize("failed", ["error", "zero"])
def test_a_reward_function_that_raises_is_a_failure_unless_the_job_says_zero(
    play: Callable[..., Any], failed: str
) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        await episode.reply("3")
        return await episode.reward()

    if failed == "zero":
        assert play(classic("broken", failed_rewards="zero"), 3, talk).value == 1.0
        return
    with pytest.raises(AgentError, match="reward function broken has failed: ValueError: the judge is broken"):
        play(classic("broken"), 3, talk)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", VERSIONS)
def test_these_tests_pass_where_verifiers_is_installed(tmp_path: Path, number: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "own"), f"verifiers=={number}"]
    pip += [] if VERSIONS[number] == "taskset" else ["datasets<5", "mcp<2"]
    subprocess.run(pip, check=True)
    path = os.pathsep.join([str(tmp_path / "own"), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", __file__]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    needs = {"taskset": "needs verifiers 0.4", "environment": "needs verifiers 0.3"}[VERSIONS[number]]
    assert needs not in done.stdout, done.stdout[-3000:]
