"""Parts of one model in several roles: gradients over edges are those of one process, and a role that dies restarts
alone (examples/multimodal, examples/pipeline)."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.e2e.harness import Job, nothing_is_left
from tests.e2e.ladder import launched, of_kind, pids
from tests.waiting import until

from rolemesh.api.workload import RankContext

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = ("optimizer=sgd", "lr=1.0", "momentum=0", "warmup_steps=0", "schedule=constant", "clip_norm=null")
"""Options with which a step takes the gradient off the weights."""


class Example(Job):
    """A job of examples/, with its runs in a folder of the test's."""

    def command(self, *args: str) -> list[str]:
        if args[:2] == ("run", "job.yaml"):
            args = ("run", str(EXAMPLES / self.name / "job.yaml"), *args[2:])
        return super().command(*args)

    def weights(self, role: str) -> dict[str, Any]:
        """Those of the job's end, by the names of its module."""
        from safetensors.torch import load_file

        made = self.cli("checkpoint", "export", self.name, "--role", role, "-o", role)
        assert made.returncode == 0, made.stdout + made.stderr
        found: dict[str, Any] = load_file(self.folder / role / "model.safetensors")
        return found


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Example] = []

    def make(name: str) -> Example:
        (tmp_path / str(len(jobs))).mkdir()
        jobs.append(Example(tmp_path / str(len(jobs)), name, ("--backend", "local")))
        return jobs[-1]

    yield make
    for job in jobs:
        for process in job.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate()
        nothing_is_left(job.ids())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Example]:
    """``undisturbed(example, *args)``: the job after a run in which nothing failed; each such run is made once."""

    @functools.cache
    def run(name: str, *args: str) -> Example:
        job = Example(tmp_path_factory.mktemp(name), name, ("--backend", "local"))
        done = job.run(*args)
        assert done.returncode == 0, done.stdout + done.stderr
        return job

    return run


def module(example: str, name: str) -> ModuleType:
    """A file of an example."""
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", EXAMPLES / example / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def made(factory: Any, seed: int) -> Any:
    """The module as a stage with this `init_seed` has it at the start."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()


def killed(job: Example, victim: str, *args: str) -> list[list[str]]:
    """Run to the end, with one rank killed on the way; who was started again."""
    process = job.start(*args, "failover=[{use: process}, {use: job}]", "engine.options.snapshots.persist_every=1000")
    os.kill(pids(job.running(2))[victim], signal.SIGKILL)
    until(lambda: of_kind(job, "recovered"), "it is brought back")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert [r["level"] for r in job.result()["recoveries"]] == ["process"]
    return launched(job)


# --------------------------------------------------------------------------------------------------------- the pipeline


def losses_of_one_process(steps: int, micro_batches: int) -> list[float]:
    """Return the losses of examples/pipeline as one module in this process, which takes all rows at once."""
    import torch

    text, model = module("pipeline", "text"), module("pipeline", "model")
    ctx: RankContext = RankContext(role="text", base=EXAMPLES / "pipeline", seed=0)
    data, stages = text.Text(ctx, "../../docs"), [made(getattr(model, n), s) for n, s in STAGES.items()]
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    found = []
    for ctx.step in range(steps):
        parts = [data.next(micro)["tokens"] for micro in range(micro_batches)]
        tokens = torch.from_numpy(np.concatenate(parts))
        hidden = stages[1](stages[0](tokens)["hidden"])["hidden"]
        logits = stages[2](hidden)["logits"].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (ctx.step + 1) / 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


STAGES = {"front": 1, "middle": 2, "back": 3}
"""The stages of examples/pipeline, with their `init_seed`."""


@pytest.mark.soak
@pytest.mark.scenario("rolemesh run examples/pipeline/job.yaml")
def test_both_schedules_end_alike_though_a_stage_is_killed_and_their_loss_is_that_of_one_process(example: Any) -> None:
    gpipe, job, steps = example("pipeline"), example("pipeline"), 16
    done = gpipe.run(f"steps={steps}", "params.schedule=gpipe")
    assert done.returncode == 0, done.stdout + done.stderr
    assert killed(job, "middle/0", f"steps={steps}") == [["middle/0"]]
    assert job.result()["state_sha256"] == gpipe.result()["state_sha256"]
    lines, others = job.metrics(), gpipe.metrics()
    assert [line["loss"] for line in lines] == [line["loss"] for line in others]
    assert [line["loss"] for line in lines][:12] == pytest.approx(losses_of_one_process(12, 4), rel=1e-5)
    for stage, most in zip(STAGES, (3, 2, 1), strict=True):
        assert {line["operators"][f"{stage}.update"]["in_flight"] for line in lines} == {most}
        assert {line["operators"][f"{stage}.update"]["in_flight"] for line in others} == {4}


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["front/0", "back/0", "text/0"])
def test_whichever_role_of_the_pipeline_dies_it_alone_is_started_again(
    example: Any, undisturbed: Any, victim: str
) -> None:
    straight, job = undisturbed("pipeline", "steps=40"), example("pipeline")
    assert killed(job, victim, "steps=40") == [[victim]]
    assert job.result()["state_sha256"] == straight.result()["state_sha256"]


# ----------------------------------------------------------------------------------------------------------- two towers


def gradients_of_one_process(rows: int) -> dict[str, dict[str, Any]]:
    """Compute the first step of examples/multimodal as one graph; return the gradients by role and parameter."""
    import torch

    shapes, towers = module("multimodal", "shapes"), module("multimodal", "towers")
    data = shapes.Shapes(shapes.ShapesOptions(rows=rows))
    data.setup(RankContext(seed=0))
    image, asked = torch.from_numpy(data.images()["image"]), data.questions()
    question, answer = (torch.from_numpy(asked[name]) for name in ("question", "answer"))
    vision, text = made(towers.vision, 1), made(towers.text, 2)
    scores = text(vision(image)["features"], question)["scores"]
    torch.nn.functional.cross_entropy(scores, answer).backward()
    models = {"vision": vision, "text": text}
    return {r: {n: p.grad for n, p in m.named_parameters()} for r, m in models.items()}


@pytest.mark.soak
@pytest.mark.parametrize(("vision", "text", "micro"), [(2, 1, 2), (1, 1, 1), (1, 2, 4), (2, 3, 2)])
def test_roles_of_several_sizes_get_the_gradients_of_one_process(
    example: Any, vision: int, text: int, micro: int
) -> None:
    import torch

    job, sizes = example("multimodal"), {"vision": vision, "text": text}
    plain = [f"roles.{role}.options.{option}" for role in sizes for option in PLAIN]
    seeds = ["roles.vision.options.init_seed=1", "roles.text.options.init_seed=2"]
    worlds = [f"roles.{role}.world_size={size}" for role, size in sizes.items()]
    worlds += [f"roles.{role}.resources.cpu=0.1" for role in sizes]  # five ranks fit on two cores
    cut = [f"params.micro_batches={micro}", f"roles.data.options.micro_batches={micro}"]
    done = job.run("steps=1", "params.evaluate_every=1", *plain, *seeds, *worlds, *cut)
    assert done.returncode == 0, done.stdout + done.stderr
    towers, wanted = module("multimodal", "towers"), gradients_of_one_process(64)
    for role, seed in (("vision", 1), ("text", 2)):
        before, after = made(getattr(towers, role), seed).state_dict(), job.weights(role)
        assert after.keys() == wanted[role].keys()
        for name, gradient in wanted[role].items():
            torch.testing.assert_close(before[name] - after[name], gradient, rtol=0, atol=1e-5, msg=f"{role}.{name}")
        assert max(float(gradient.abs().max()) for gradient in wanted[role].values()) > 0.01


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "restarted"), [("vision/1", ["vision/0", "vision/1"]), ("text/0", ["text/0"]), ("data/0", ["data/0"])]
)
def test_a_killed_tower_alone_is_started_again(
    example: Any, undisturbed: Any, victim: str, restarted: list[str]
) -> None:
    straight, job = undisturbed("multimodal", "steps=60"), example("multimodal")
    assert killed(job, victim, "steps=60") == [restarted]
    assert job.result()["state_sha256"] == straight.result()["state_sha256"]
    for line, other in zip(job.metrics(), straight.metrics(), strict=True):
        assert [line.get(name) for name in ("loss", "accuracy")] == [other.get(name) for name in ("loss", "accuracy")]


@pytest.mark.scenario("rolemesh run examples/multimodal/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
def test_the_towers_learn_to_answer_questions_about_pictures_that_they_have_not_seen(example: Any) -> None:
    job = example("multimodal")
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.metrics()[-1]["accuracy"] >= 0.9


def test_the_towers_run_in_one_process(example: Any) -> None:
    job = example("multimodal")
    job.backend = ("--engine=inline",)
    done = job.run("steps=3", "params.evaluate_every=3")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = job.metrics()
    assert lines[0]["loss"] > lines[2]["loss"]
    assert 0.0 <= lines[2]["accuracy"] <= 1.0
    assert {line["operators"]["vision.update"]["in_flight"] for line in lines} == {2}
