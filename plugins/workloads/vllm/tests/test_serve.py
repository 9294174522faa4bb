"""examples/serve with a tiny model: an OpenAI client cannot tell it from one vLLM server, also when a server dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e.harness import Job, leftovers
from tests.waiting import HANG_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[4] / "examples" / "serve" / "job.yaml"
NAME = "SmolLM2-135M-Instruct"


class Endpoint(NamedTuple):
    """A running example: its job, and an OpenAI client of it."""

    job: Job
    client: Any


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Endpoint]:
    import openai

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    args = ["--max-model-len=256", "--kv-cache-memory-bytes=16777216"]
    given = json.dumps([*example_args(), *args])
    overrides = [f"roles.router.options.kwargs.port={port}"]
    for half in ("prefill", "decode"):
        overrides += [f"roles.{half}.options.kwargs.model={tiny_model}", f"roles.{half}.options.kwargs.args={given}"]
    job = Serve(tmp_path_factory.mktemp("serve"), "serve", ("--backend", "local"))
    process = job.start(*overrides)
    try:
        job.running(1)
        yield Endpoint(job, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0))
    finally:
        stopped = job.cli("stop", "serve")
        if stopped.returncode != 0:
            process.kill()
        process.wait()
    assert stopped.returncode == 0, stopped.stderr
    assert job.result()["status"] == "interrupted"
    until(lambda: not leftovers(job.ids()), "nothing is left of the example")


class Serve(Job):
    """The example, with its runs in a folder of the test's."""

    def command(self, *args: str) -> list[str]:
        return super().command(*(str(EXAMPLE) if arg == "job.yaml" else arg for arg in args))


def example_args() -> list[str]:
    import yaml

    args: list[str] = yaml.safe_load(EXAMPLE.read_text())["roles"]["decode"]["options"]["kwargs"]["args"]
    return args


def prompt(seed: int) -> str:
    return " ".join(f"w{(seed * 31 + i * 7) % 120}" for i in range(50))


def ask(endpoint: Endpoint, seed: int, **more: Any) -> Any:
    asked = {"messages": [{"role": "user", "content": prompt(seed)}], "max_tokens": 16, "temperature": 0}
    return endpoint.client.chat.completions.create(model=NAME, **(asked | more))


def server(endpoint: Endpoint, half: str) -> int:
    """The pid of the pool's API server: the rank's child."""
    (rank,) = [rank for rank in endpoint.job.running().ranks if rank.role == half]
    tasks = Path(f"/proc/{rank.pid}/task").iterdir()
    (child,) = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return child


def fetched(endpoint: Endpoint) -> float:
    """The decode server's own count of prompt tokens that it did not compute."""
    return sum(metrics(endpoint, "vllm:external_prefix_cache_hits_total"))


def metrics(endpoint: Endpoint, name: str) -> list[float]:
    url = str(endpoint.client.base_url).removesuffix("v1/") + "metrics"
    with urllib.request.urlopen(url) as reply:
        lines = reply.read().decode().splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(name)]


@pytest.mark.scenario("rolemesh run examples/serve/job.yaml")
def test_an_answer_a_stream_and_their_usage_are_the_same_and_no_prompt_is_computed_twice(endpoint: Endpoint) -> None:
    before = fetched(endpoint)
    whole = ask(endpoint, 1)
    until(lambda: fetched(endpoint) - before == whole.usage.prompt_tokens, "all tokens of the prompt were fetched")
    events = list(ask(endpoint, 1, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert events[-1].usage == whole.usage
    assert len(events) > 3


def test_several_answers_and_several_prompts_are_answered_too(endpoint: Endpoint) -> None:
    done = endpoint.client.completions.create(model=NAME, prompt=[prompt(2), prompt(3)], n=2, max_tokens=4)
    assert len(done.choices) == 4
    assert len(ask(endpoint, 2, n=3, temperature=1).choices) == 3


def test_errors_are_vllms(endpoint: Endpoint) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="does not exist"):
        endpoint.client.completions.create(model="other", prompt="w1")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        endpoint.client.completions.create(model=NAME, prompt="w1", temperature=-1)


def test_a_pools_server_answers_for_its_address_only(endpoint: Endpoint) -> None:
    """A web site may let its own name lead to this machine."""
    with socket.create_connection(("127.0.0.1", port_of(server(endpoint, "decode")))) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: elsewhere.example.org\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.soak  # `test_pd_jobs.py` kills a decode engine in every test run
@pytest.mark.parametrize("half", ["decode", "prefill"])
def test_a_request_that_a_killed_server_had_is_answered_by_its_successor(endpoint: Endpoint, half: str) -> None:
    expected = ask(endpoint, 5).choices[0].message.content
    victim = server(endpoint, half)
    os.kill(victim, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, endpoint, 5)
        until(lambda: connected(victim), f"the {half} server has the request")
        os.kill(victim, signal.SIGKILL)
        assert answer.result(HANG_S).choices[0].message.content == expected
    assert server(endpoint, half) != victim


def connected(pid: int) -> bool:
    """Whether bytes or connections that the server has not taken yet wait for it (columns of ``/proc/net/tcp``)."""
    port = port_of(pid)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[4].split(":")[1], 16) for row in rows if int(row[1].split(":")[1], 16) == port)


def port_of(pid: int) -> int:
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return int(command[command.index("--port") + 1])
