"""Random flows (uneven and missing rows, lags, `every`, streaming, partitions) end alike wherever they run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.e2e.harness import Job

ROLES = '''
import numpy as np

from rolemesh import Batch, Broadcast, Partial, Split, operator


class Stage:
    """Hashes what it gets into its state, and makes rows of a number that depends on seed, rank and step."""

    def __init__(self, ctx, most=5):
        self.ctx, self.most, self.state = ctx, most, 0.0

    def _rows(self, *salt):
        rng = self.ctx.rng(self.ctx.role, self.ctx.rank, self.ctx.step, *salt)
        return Batch({"x": rng.integers(0, 1000, int(rng.integers(0, self.most + 1))).astype(np.float64)})

    def _note(self, rows):
        x = rows["x"]
        self.state = (self.state * 31 + float((x * np.arange(1, len(x) + 1)).sum()) + len(x)) % 1e9

    @operator(returns=Split())
    def source(self):
        return self._rows()

    @operator(returns=Split())
    def chunks(self):
        for number in range(1 + self.ctx.step % 3):
            yield self._rows(number)

    @operator(rows=Split(), returns=Split())
    def part(self, rows):
        self._note(rows)
        return Batch({"x": rows["x"] + 1})

    @operator(rows=Broadcast(), returns=Partial("sum"))
    def whole(self, rows):
        self._note(rows)
        return np.float64([rows["x"].sum() + self.ctx.rank, len(rows["x"])])

    @operator(rows=Split(), returns=Split(), streaming=True)
    def stream(self, rows):
        for chunk in rows:
            self._note(chunk)
            yield Batch({"x": chunk["x"] * 2})

    @operator(rows=Split())
    def take(self, rows):
        self._note(rows)

    @operator(total=Broadcast())
    def add(self, total):
        self.state = (self.state * 17 + float(total[0]) + 7 * float(total[1])) % 1e9

    def snapshot(self):
        return {"state": self.state}

    def restore(self, state):
        self.state = state["state"]
'''


def random_flow(seed: int) -> tuple[str, dict[str, int]]:
    """A flow over three to five roles, and their world sizes. Values flow down the roles, and back with a lag."""
    rng = random.Random(seed)
    sizes = {f"r{number}": rng.randint(1, 3) for number in range(rng.randint(3, 5))}
    lines, rows = [], []
    for number, role in enumerate(sizes):
        lag = rng.choice([0, 0, 1, 2])
        every = rng.choice([1, 1, 1, 2, 3])
        if number == 0:
            lines.append(f"v0 = job.{role}.{rng.choice(['source', 'chunks'])}()")
            rows.append("v0")
            continue
        given = rng.choice(rows)
        kind = rng.choice(["part", "stream", "whole", "take"]) if number > 1 else "part"
        if kind == "whole":
            lines.append(f"t{number} = job.{role}.whole({given}, lag={lag})")
            back = rng.choice(list(sizes)[:number])
            lines.append(f"job.{back}.add(t{number}, lag={rng.choice([1, 2])})")
        elif kind == "take":
            lines.append(f"job.{role}.take({given}, lag={lag}, every={every})")
        else:
            lines.append(f"v{number} = job.{role}.{kind}({given}, lag={lag})")
            rows.append(f"v{number}")
    lines.append(f"job.r1.take({rows[-1]}, lag=1, every={rng.choice([1, 2])}, credits={rng.choice([1, 3])})")
    body = "".join(f"    {line}\n" for line in lines)
    return f"from rolemesh import flow\n\n\n@flow\ndef squares(job):\n{body}", sizes


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 12))])
def test_a_random_flow_ends_alike_in_one_process_in_many_and_on_three_nodes(
    make_job: Callable[..., Job], seed: int
) -> None:
    flow, sizes = random_flow(seed)
    job = make_job()
    (job.folder / "flow.py").write_text(flow)
    (job.folder / "roles.py").write_text(ROLES)
    lines = [
        "name: squares",
        "flow: flow.py:squares",
        "steps: 13",
        f"seed: {seed}",
        "engine: {options: {stop_grace_s: 2}}",
        "roles:",
    ]
    for role, size in sizes.items():
        use = "use: function, resources: {cpu: 0.1}, options: {target: 'roles.py:Stage'}"
        lines.append(f"  {role}: {{{use}, world_size: {size}}}")
    (job.folder / "job.yaml").write_text("\n".join(lines) + "\n")

    spread = [f"roles.{role}.resources.cpu=0.4" for role in sizes]
    ends = []
    for args in (("--engine=inline",), ("--backend", "local"), ("--backend", "local", "--nodes", "3x(cpu=2)", *spread)):
        done = job.cli("run", "job.yaml", *args)
        assert done.returncode == 0, f"{args}\n{flow}\n{done.stderr}"
        ends.append(job.result()["state_sha256"])
    assert ends[0] == ends[1] == ends[2], flow
    assert any(ends[0].values())
