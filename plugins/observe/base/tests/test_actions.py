"""Actions on a rank of a living job: they do what they say, and the events name who asked."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.waiting import HANG_S

from rolemesh_view import application
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs

TOKEN = "a-token"
ROLES = """
import time
import torch
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        time.sleep(0.02)
        return Batch({"x": torch.ones(4, 2).numpy()})

class Sink(Workload):
    @operator(batch=Split())
    def take(self, batch):
        torch.ones(4, 4).matmul(torch.ones(4, 4))

class Busy(Workload):
    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.02 * batch.rows)
"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: acted
flow: flow.py:numbers
steps: 100000
roles:
  source: {use: "roles:Source"}
  sink: {use: "roles:Sink"}
plugins: {extensions: [{use: recorder}, {use: debug}]}
"""


FULL = """
name: acted
flow: flow.py:numbers
steps: 100000
roles:
  source: {use: "roles:Source", resources: {cpu: 0.8}}
  sink: {use: "roles:Busy", resources: {cpu: 0.8}, world_size: {min: 1, max: 3}}
failover: [{use: process}]
plugins: {extensions: [{use: recorder}]}
"""
"""A job whose sink would make steps shorter with another rank, for which a node with two CPUs has no room."""


@pytest.fixture(params=[JOB])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return the folder of a job that makes steps."""
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", request.param)):
        (tmp_path / name).write_text(text)
    rolemesh = Path(sys.executable).with_name("rolemesh")
    folder, log = tmp_path / "runs" / "acted", tmp_path / "out.txt"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [rolemesh, "run", "job.yaml", "--backend", "local", "--nodes", "1x(cpu=2)"],
            cwd=tmp_path,
            stdout=out,
            stderr=out,
        ) as process,
    ):
        try:
            until = time.monotonic() + HANG_S
            while not (folder / "metrics.jsonl").exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            yield folder
        finally:
            subprocess.run([rolemesh, "stop", "acted"], cwd=tmp_path, check=False, capture_output=True)
            process.terminate()


def event(folder: Path, kind: str) -> dict[str, object]:
    """Return the data of the first event of this kind, once there is one."""
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        for line in (folder / "events.jsonl").read_text().splitlines():
            if f'"{kind}"' in line and (found := json.loads(line))["kind"] == kind:
                data: dict[str, object] = found["data"]
                return data
        time.sleep(0.1)
    raise AssertionError(f"no {kind}: " + (folder / "events.jsonl").read_text())


@pytest.mark.more
def test_a_profile_and_the_stacks_of_a_rank_come_with_an_event_that_says_who_asked(run: Path) -> None:
    client = TestClient(
        application(Runs(run.parent, run), Access(TOKEN)),
        "http://127.0.0.1",
        headers={"authorization": f"Bearer {TOKEN}"},
    )

    def act(**given: str) -> str:
        form = {"sure": "yes", "token": TOKEN, "role": "sink", "rank": "0", **given}
        return client.post("/run/acted/act", data=form).text

    assert "profile has 1 to 100 steps, not 0" in act(do="profile")
    assert "acted has no rank &#39;sink/9&#39;" in act(do="profile", rank="9", steps="3")
    assert "sink/0 profiles its next 3 steps" in act(do="profile", steps="3")
    who = f"rolemesh view: profile, by {getpass.getuser()} (pid "
    assert str(event(run, "profile_asked")["reason"]).startswith(who)
    written = event(run, "profile_written")
    assert (written["failed"], written["steps"], str(written["reason"])[: len(who)]) == ("", 3, who)
    assert written["file"] == f"profiles/sink-0-step-{written['first']}.json"
    trace = json.loads((run / str(written["file"])).read_text())
    assert len([each for each in trace["traceEvents"] if each.get("name") == "aten::matmul"]) == 3
    assert "profiles its next 2 steps" in act(do="profile", steps="2"), "the rank takes the next order"
    assert "sink/0, step" in act(do="stacks")
    assert str(event(run, "stacks_asked")["reason"]).startswith("rolemesh view: stacks, by ")


@pytest.mark.more
@pytest.mark.parametrize("run", [FULL], indirect=True)
def test_no_button_leads_to_a_resize_that_is_refused_and_a_refusal_is_the_answer_to_the_form(run: Path) -> None:
    """The judge is the answer that `rolemesh scale` gets."""
    rolemesh = Path(sys.executable).with_name("rolemesh")
    scale = [rolemesh, "scale", "acted", "sink=2", "--runs-dir", run.parent]
    why = "there is no room: "
    client = TestClient(
        application(Runs(run.parent, run), Access(TOKEN)),
        "http://127.0.0.1",
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    until, page = time.monotonic() + HANG_S, ""
    while "sink 1 → 2 ranks: steps" not in page:
        assert time.monotonic() < until, page
        time.sleep(0.5)
        page = client.get("/run/acted/flow").text
    assert f"no button: {why}" in page
    assert "do=scale&amp;role=sink&amp;ranks=2" not in page
    kinds = [json.loads(line)["kind"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert not [kind for kind in kinds if kind.startswith("resize")], "nothing is asked for"
    form = {"sure": "yes", "token": TOKEN, "do": "scale", "role": "sink", "ranks": "2"}
    assert f"sink → 2 ranks: refused: {why}" in client.post("/run/acted/act", data=form).text
    told = subprocess.run(scale, check=False, capture_output=True, text=True)
    assert (told.returncode, why in told.stderr) == (2, True), told.stderr
    until = time.monotonic() + HANG_S
    while "sink 1 → 2 ranks, asked at" not in page:
        assert time.monotonic() < until, page
        time.sleep(0.5)
        page = client.get("/run/acted/flow").text
    assert f"refused: {why}" in page
