"""Classes and functions of ``__main__``, as a notebook's cells define them, are roles of a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rolemesh.errors import OptionsError
from rolemesh_notebook import cell

CELLS = [
    """
import dataclasses
import json
import rolemesh
from pydantic import BaseModel, Field
from rolemesh import Broadcast, Workload, operator
from rolemesh_notebook import cell

FACTOR = 3
""",
    """
def tripled(x):
    return x * FACTOR

@dataclasses.dataclass
class Made:
    number: int

class Options(BaseModel, extra="forbid"):
    scale: int = Field(default=2, ge=1)

class Base(Workload):
    def setup(self, ctx):
        self.ctx, self.made = ctx, 0
""",
    """
class Maker(Base):
    Options = Options

    def setup(self, ctx):
        super().setup(ctx)

    @operator(returns=Broadcast())
    def make(self):
        self.made += 1
        return [Made(tripled(self.made) * self.options.scale)]

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = int(state["made"])

class Judge:
    def __init__(self, ctx):
        self.ctx = ctx

    def reward(self, x):
        self.ctx.metric(reward=tripled(x[0].number))

@rolemesh.flow
def flow(job):
    job.judge.reward(job.maker.make())
""",
    """
def built(scale):
    job = rolemesh.Job("cells", steps=3).role("maker", use=cell(Maker), options={"scale": scale})
    options = {"target": cell(Judge), "inputs": {"x": "broadcast"}}
    return job.role("judge", use="function", options=options, resources={"cpu": 0.1}).flow(flow)

results = [built(5).run(engine=engine)["status"] for engine in ("inline", "durable")]
lines = [json.loads(line) for line in open("runs/cells/metrics.jsonl")]
own = Maker.make.__globals__ is globals()
try:
    built(0).validate()
except rolemesh.RolemeshError as error:
    refused = str(error)
""",
    """
FACTOR = 10

def tripled(x):
    return x + FACTOR
""",
    """
built(5).run(engine="inline")
changed = [json.loads(line)["reward"] for line in open("runs/cells/metrics.jsonl")]
open("told.json", "w").write(json.dumps([results, [line["reward"] for line in lines], refused, own, changed]))
""",
]
SHELL = """
import json
for source in json.load(open("cells.json")):
    exec(compile(source, "<cell>", "exec"), globals())
"""


def test_cells_are_roles_in_this_process_and_in_ranks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "cells.json").write_text(json.dumps(CELLS))
    command = [sys.executable, "-c", SHELL]  # as IPython runs cells: their module is __main__, and in no file
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results, rewards, refused, own, changed = json.loads((tmp_path / "told.json").read_text())
    assert results == ["done", "done"]
    assert rewards == [45.0, 90.0, 135.0]
    assert "roles.maker.options.scale" in refused
    assert own, "a job has changed the notebook's class"
    assert changed == [65.0, 70.0, 75.0]
    assert {path.suffix for path in (tmp_path / "rolemesh_cells").iterdir()} <= {".py", ""}


def test_code_of_a_module_keeps_its_import_string_and_nothing_is_written(tmp_path: Path) -> None:
    assert cell(Path.glob, tmp_path).endswith(":Path.glob")
    assert cell(json.JSONDecoder, tmp_path) == "json.decoder:JSONDecoder"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [lambda: None, 5, "text"])
def test_a_function_without_a_name_is_refused(code: object) -> None:
    with pytest.raises(OptionsError, match="is no class and no function with a name"):
        cell(code)  # type: ignore[arg-type]


def test_an_object_that_cannot_be_pickled_is_named_with_a_remedy(tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__", "file": (tmp_path / "x").open("w")}
    exec("def use():\n    return file\n", namespace)
    with pytest.raises(OptionsError, match="use uses something that cannot be pickled") as raised:
        cell(namespace["use"], tmp_path)  # type: ignore[arg-type]
    assert "setup()" in str(raised.value.remedy)
