"""Lines of metrics that cover several steps: every reader has the figures that the ranks wrote down themselves."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from statistics import fmean

import pytest

from rolemesh.api.observer import RunInfo
from rolemesh.cli import main
from rolemesh.runs.jsonl import read_metrics
from rolemesh.runs.run import METRICS_FILE
from rolemesh_console.statistics import Statistics
from rolemesh_facts import RunFacts
from rolemesh_plot import PlotObserver, PlotOptions
from rolemesh_queries.database import answer, opened
from rolemesh_queries.tables import named
from rolemesh_tracking.lines import flat

ROLES = """
from pathlib import Path
from rolemesh import Batch, Split, Workload, operator

class Maker(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def make(self):
        return Batch({"number": list(range(3 + self.ctx.step % 5))})

class Trainer(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(batch=Split())
    def train(self, batch):
        loss = 1.0 / (1 + self.ctx.step)
        self.ctx.metric(loss=loss)
        self.ctx.count(trained_tokens=batch.rows)
        with (Path(self.ctx.base) / "noted").open("a") as file:
            print(self.ctx.step, batch.rows, loss, file=file)
"""
FLOW = "from rolemesh import flow\n\n@flow\ndef f(job):\n    job.trainer.train(job.maker.make())\n"
JOB = """
name: long
flow: flow.py:f
steps: 45
metrics: {every: 10}
roles:
  maker: {use: "roles.py:Maker", world_size: 2}
  trainer: {use: "roles.py:Trainer", world_size: 2}
"""
TENTH = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split("```sql\n")[10].split("```")[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (folder / name).write_text(text)
    with chdir(folder):
        assert main(["run", "job.yaml", "--engine", "inline", "--no-report"]) == 0
    return folder / "runs" / "long"


@pytest.fixture(scope="module")
def noted(run: Path) -> list[tuple[float, float]]:
    """Return what the ranks noted: for each step the number of rows of both, and their loss."""
    rows, losses = [0.0] * 45, [0.0] * 45
    for line in (run.parent.parent / "noted").read_text().splitlines():
        step, count, loss = line.split()
        rows[int(step)] += int(count)
        losses[int(step)] = float(loss)
    return list(zip(rows, losses, strict=True))


def means(values: list[float]) -> list[float]:
    """Return the means of the steps of each line: four of ten steps, and one of five."""
    return [fmean(values[at : at + 10]) for at in range(0, 45, 10)]


def test_every_reader_has_sums_and_means_per_step(run: Path, noted: list[tuple[float, float]]) -> None:
    rows, losses = (list(each) for each in zip(*noted, strict=True))
    lines = list(read_metrics(run / METRICS_FILE))
    assert [line.steps for line in lines] == [10, 10, 10, 10, 5]
    observer, statistics, facts = PlotObserver(PlotOptions(metrics=["trained_tokens"])), Statistics(), RunFacts(run)
    observer.job_started(RunInfo("long", str(run), 45, {}, ()))
    statistics.steps(lines)
    facts.metrics()
    for name, values in (("trained_tokens", rows), ("loss", losses)):
        wanted = pytest.approx(means(values))
        assert [line.values[name] for line in lines] == wanted
        assert [line.operators["trainer.train"][name] for line in lines] == wanted
        assert facts.points(name)[1] == wanted
        assert [flat(line, ["*"]).values[name] for line in lines] == wanted
        assert statistics.series[name].points(5)[0] == wanted.expected[0]
    assert [value for value, _ in observer.series["trained_tokens"].values()] == pytest.approx(means(rows))
    assert statistics.amounts == {"trained_tokens": pytest.approx(sum(rows))}
    times = [flat(line, ["time/*"]).values["time/trainer/computing_s"] for line in lines]
    assert times == pytest.approx([line.roles["trainer"].computing_s / line.steps for line in lines])


def test_the_tenth_query_weighs_lines_by_their_steps(run: Path, noted: list[tuple[float, float]]) -> None:
    rows, losses = (list(each) for each in zip(*noted, strict=True))
    with opened(run, named(TENTH)) as database:
        found = {name: figures for name, *figures in answer(database, TENTH)[1]}
        total = list(
            answer(
                database, "select sum(value * steps) from metrics where name = 'trained_tokens' and operator is null"
            )[1]
        )
    for name, values in (("trained_tokens", rows), ("loss", losses)):
        assert found[name] == [45, pytest.approx(fmean(values[:10])), pytest.approx(fmean(values[40:]))]
    assert total == [(pytest.approx(sum(rows)),)]
