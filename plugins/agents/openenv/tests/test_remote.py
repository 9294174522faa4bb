"""The environment `openenv` at the URL of a server that runs elsewhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from tests.waiting import HANG_S
from websockets.sync.server import Server, serve

from rolemesh_agents import AgentError, Observation, Start, Task, ToolCall
from rolemesh_openenv import OpenEnvEnvironment
from rolemesh_openenv.remote import Remote, action_of
from rolemesh_testing import EnvironmentConformance

HERE = Path(__file__).parent
needs_openenv = pytest.mark.skipif(find_spec("openenv") is None, reason="needs openenv; the soak installs it apart")


def made(url: str, **options: Any) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(OpenEnvEnvironment.Options.model_validate({"url": url, "begin_s": 30, **options}))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# ------------------------------------------------------------------------- a server that misbehaves, without openenv


Answer = Callable[[dict[str, Any]], Any]


@contextmanager
def server(answer: Answer, handshake: Callable[[int], int | None] = lambda tries: None) -> Iterator[str]:
    """Answer each message with what `answer` makes of it: a JSON value, text, or None for the end of the connection.

    `handshake` returns the HTTP status of a try to connect; None: it succeeds.
    """
    tries = [0]

    def talk(connection: Any) -> None:
        for message in connection:
            found = answer(json.loads(message))
            if found is None:
                connection.socket.shutdown(socket.SHUT_RDWR)
                return
            connection.send(found if isinstance(found, str) else json.dumps(found))

    def request(connection: Any, asked: Any) -> Any:
        if asked.path == "/schema":
            schema = {"title": "Add", "type": "object", "properties": {"number": {}}, "required": ["number"]}
            return connection.respond(HTTPStatus.OK, json.dumps({"action": schema}))
        if asked.path != "/ws":
            return connection.respond(HTTPStatus.NOT_FOUND, "")
        tries[0] += 1
        status = handshake(tries[0])
        return None if status is None else connection.respond(HTTPStatus(status), "no")

    running: Server = serve(talk, "127.0.0.1", 0, process_request=request)
    Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.socket.getsockname()[1]}"
    finally:
        running.shutdown()


def seen(reward: Any = None, done: Any = False, **fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": done}}


def error(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": "so it is", "code": code, **more}}


def stepping(step: Any) -> Answer:
    """Return a server that begins episodes, and answers steps with `step`."""
    return lambda message: seen(sum=1) if message["type"] == "reset" else step


def step(url: str, **options: Any) -> Observation:
    """Begin an episode, and take one step."""
    environment = made(url, **options)
    episode = environment.episode()
    try:
        episode.reset(Task(0, {"seed": 1}), seed=0)
        return episode.call(ToolCall("step", {"number": 2}))
    finally:
        episode.close()
        environment.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "is lost during `step`: ConnectionClosedError"),
        ("no JSON", "is lost during `step`: its answer is no message of OpenEnv: 'no JSON'"),
        ({"type": "observation"}, "is no message of OpenEnv"),
        (seen(reward="much"), "is no message of OpenEnv"),
        (seen(done=None), "is no message of OpenEnv"),
        ([1], "is no message of OpenEnv"),
        (error("SESSION_ERROR"), "SESSION_ERROR: so it is"),
        (error("EXECUTION_ERROR"), "`step` of the environment has raised so it is"),
    ],
)
def test_a_server_that_dies_or_answers_wrongly_is_a_failure_and_no_reward(answer: Any, why: str) -> None:
    with server(stepping(answer)) as url, pytest.raises(AgentError, match=why) as raised:
        step(url)
    assert raised.value.remedy
    assert url in raised.value.what or "raised" in raised.value.what


def test_an_episode_that_ends_at_its_begin_is_a_failure() -> None:
    why = "`reset` of the environment has ended the episode"
    with server(lambda message: seen(done=True, sum=1)) as url, pytest.raises(AgentError, match=why) as raised:
        step(url)
    assert raised.value.remedy


def test_a_server_that_is_late_is_a_failure_within_the_limit() -> None:
    over = Event()

    def late(message: dict[str, Any]) -> Any:
        if message["type"] == "step":
            over.wait(HANG_S)
        return seen(sum=1)

    with server(late) as url:
        with pytest.raises(AgentError, match=r"no answer within 0.2 s"):
            step(url, answer_s=0.2)
        over.set()


def test_a_session_that_is_lost_stays_lost() -> None:
    steps = []

    def once(message: dict[str, Any]) -> Any:
        steps.append(message["type"])
        return seen(sum=1) if message["type"] == "reset" else None

    with server(once) as url:
        environment = made(url)
        episode = environment.episode()
        episode.reset(Task(0, {"seed": 1}), seed=0)
        for _ in range(2):
            with pytest.raises(AgentError, match="is lost"):
                episode.call(ToolCall("step", {"number": 2}))
        episode.close()
    assert steps == ["reset", "step"]


def test_a_mistake_of_the_model_is_told_to_it() -> None:
    wrong = error("VALIDATION_ERROR", errors=[{"loc": ["number"], "msg": "no number"}])
    with server(stepping(wrong)) as url:
        assert step(url) == Observation("wrong arguments for step: number: no number")
    with server(stepping(error("EXECUTION_ERROR"))) as url:
        assert step(url, step_errors="answer") == Observation("error: so it is")


@pytest.mark.parametrize("refusal", [500, 503, 429])
def test_an_episode_that_has_not_begun_connects_again(refusal: int) -> None:
    with server(stepping(seen(2, True, sum=3)), lambda tries: refusal if tries < 3 else None) as url:
        assert step(url) == Observation('{"sum": 3}', True)


def test_a_full_server_is_tried_again() -> None:
    tries = [0]

    def full(message: dict[str, Any]) -> Any:
        tries[0] += 1
        return error("CAPACITY_REACHED") if tries[0] < 3 else seen(sum=3)

    with server(full) as url:
        assert step(url) == Observation('{"sum": 3}')
    why = r"has refused for 1 s: CAPACITY_REACHED: so it is"
    with server(lambda message: error("CAPACITY_REACHED")) as url, pytest.raises(AgentError, match=why) as raised:
        Remote(url, 1.0, 1.0).call_accepted("reset", {})
    assert "max_concurrent_envs" in str(raised.value.remedy)


def test_a_server_that_is_not_there_is_a_failure() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(AgentError, match=rf"{url} has refused for 0.1 s: ConnectionRefusedError"):
        Remote(url, 0.1, 1.0).call_accepted("reset", {})
    with pytest.raises(AgentError, match=rf"{url} has refused for 0.1 s: URLError.*refused"):
        action_of(url, 0.1)


def test_a_url_without_openenv_is_refused_at_once() -> None:
    with server(stepping(seen()), lambda tries: 404) as url, pytest.raises(AgentError, match="with HTTP 404") as raised:
        step(url)
    assert "base URL" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "http://a", "environment": "a:B"}, "give `environment`"),
        ({}, "give `environment`"),
        ({"url": "http://a", "action": "a:B"}, "`url` does not use action"),
        ({"environment": "a:B", "answer_s": 3}, "`environment` does not use answer_s"),
        ({"url": "ws://a"}, "should match pattern"),
    ],
)
def test_options_of_the_other_kind_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OpenEnvEnvironment.Options.model_validate(options)


# ------------------------------------------------------------------------------------------------ OpenEnv's own server


@contextmanager
def openenv(name: str, action: str, port: int, sessions: int = 64) -> Iterator[subprocess.Popen[bytes]]:
    """Run OpenEnv's server with a class of `echoing`."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "serving.py"), name, action, str(port), str(sessions)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        action_of(f"http://127.0.0.1:{port}", 60)  # it waits until the server answers
        yield process
    finally:
        process.kill()
        process.wait()


class Served(EnvironmentConformance):
    """Conformance with a server that all tests of the class share."""

    served: tuple[str, str]

    @pytest.fixture(autouse=True, scope="class")
    def running(self, request: pytest.FixtureRequest) -> Iterator[None]:
        cls = request.cls
        with openenv(*cls.served, int(cls.options["url"].rpartition(":")[2])):
            yield


@needs_openenv
class TestRemoteSums(Served):
    plugin = "openenv"
    served = "Sums", "Add"
    options = {"url": f"http://127.0.0.1:{free_port()}", "success": 1.0}
    bad_options = ({"url": "ws://a"}, {"url": "http://a", "action": "a:B"})

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        return ToolCall("step", {"number": 1 + len(answers)}) if len(answers) < 3 else None


@needs_openenv
class TestRemoteTools(Served):
    plugin = "openenv"
    served = "Tools", "CallToolAction"
    options = {"url": f"http://127.0.0.1:{free_port()}", "eval_size": 3}
    bad_options = ({"url": "http://a", "arguments": {"b": 1}},)


@needs_openenv
def test_texts_and_listed_tasks_of_a_server() -> None:
    port = free_port()
    with openenv("Words", "Say", port):
        environment = made(f"http://127.0.0.1:{port}/", text="word", rewards="last")
        assert (environment.size("train"), environment.size("eval")) == (5, 2)
        episode = environment.episode()
        start = episode.reset(Task(1, environment.task("eval", 1, seed=0), "eval"), seed=0)
        assert start.messages == [{"role": "user", "content": "{}"}]
        assert "at most 20" in episode.reply("a word that is much too long").messages[0]["content"]
        assert episode.reply("end").done
        assert episode.reward().value == 2.0
        episode.close()
        environment.close()


@needs_openenv
def test_a_server_that_is_killed_fails_its_episodes_and_the_next_ones_find_its_successor() -> None:
    port = free_port()
    environment = made(f"http://127.0.0.1:{port}")
    with openenv("Sums", "Add", port) as process:
        episodes = [environment.episode() for _ in range(3)]
        for episode in episodes:
            episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
            assert not episode.call(ToolCall("step", {"number": 1})).done
        process.send_signal(signal.SIGKILL)
        process.wait()
        for episode in episodes:
            with pytest.raises(AgentError, match="is lost during `step`: ConnectionClosed"):
                episode.call(ToolCall("step", {"number": 1}))
            episode.close()
    with openenv("Sums", "Add", port):
        episode = environment.episode()
        episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
        assert not episode.call(ToolCall("step", {"number": 1})).done
        assert episode.reward().parts == {"steps": 1}
        episode.close()
    environment.close()


@needs_openenv
def test_a_server_with_one_session_serves_one_conversation_after_the_other() -> None:
    port = free_port()
    with openenv("Sums", "Add", port, sessions=1):
        environment = made(f"http://127.0.0.1:{port}", begin_s=1)
        first, second = environment.episode(), environment.episode()
        task = Task(0, environment.task("train", 0, seed=0))
        first.reset(task, seed=0)
        with pytest.raises(AgentError, match="CAPACITY_REACHED"):
            second.reset(task, seed=0)
        second.close()
        first.close()
        third = environment.episode()
        third.reset(task, seed=0)
        third.close()
        environment.close()
