"""The examples of the README, for real: FSDP2 on gloo, vLLM, SmolLM2; the GRPO job at a small size."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Job, leftovers
from tests.e2e.ladder import launched, of_kind, pids
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SMALL_GRPO = (
    "steps=3",
    "roles.data.options.prompts_per_step=3",
    "roles.data.options.held_out=2",
    "roles.rollout.options.samples=4",
    "roles.trainer.options.warmup_steps=1",
)


class Example(Job):
    """A job of examples/, with its runs in a folder of the test's."""

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.cli("run", str(ROOT / "examples" / self.name / "job.yaml"), *args, *self.backend)

    def command(self, *args: str) -> list[str]:
        if args[:2] == ("run", "job.yaml"):
            args = ("run", str(ROOT / "examples" / self.name / "job.yaml"), *args[2:])
        return super().command(*args)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    jobs: list[Example] = []

    def make(name: str, backend: tuple[str, ...] = ("--backend", "local")) -> Example:
        jobs.append(Example(tmp_path, name, backend))
        return jobs[-1]

    yield make
    for job in jobs:
        for process in job.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        ids = job.ids()
        until(lambda ids=ids: not leftovers(ids), "nothing is left of the example")  # type: ignore[misc]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The converted model, made once and cached."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "grpo" / "prepare.py")], capture_output=True, text=True, check=True
    )
    return Path(made.stdout.strip().splitlines()[-1])


@pytest.mark.scenario("rolemesh run examples/hello/job.yaml")
def test_hello_is_done_in_seconds_without_torch(example: Any) -> None:
    job = example("hello")
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["status"] == "done"


@pytest.mark.more
@pytest.mark.scenario("rolemesh run examples/sft/job.yaml")
def test_sft_learns_and_two_runs_end_with_the_same_weights(example: Any) -> None:
    job = example("sft")
    done = job.run("steps=20")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [line["loss"] for line in job.metrics()]
    assert losses[-1] < losses[0] * 0.8
    weights = job.result()["state_sha256"]["trainer"]
    assert job.run("steps=20").returncode == 0
    assert job.result()["state_sha256"]["trainer"] == weights


@pytest.mark.slow
@pytest.mark.soak
def test_another_seed_ends_with_other_weights(example: Any) -> None:
    job = example("sft")
    weights = []
    for seed in (0, 1):
        assert job.run("steps=20", f"seed={seed}").returncode == 0
        weights.append(job.result()["state_sha256"]["trainer"])
    assert weights[0] != weights[1]


@pytest.mark.soak
def test_a_killed_rank_of_the_fsdp_group_is_named_not_its_surviving_peer(example: Any) -> None:
    job = example("sft")
    process = job.start("steps=100000")
    status = job.running(2)
    victim = next(rank for rank in status.ranks if rank.ref == ("trainer", 1))
    os.kill(victim.pid, signal.SIGKILL)
    assert process.wait() == 1
    failure = job.result()["failure"]
    assert (failure["cause"], failure["role"], failure["rank"]) == ("signal", "trainer", 1)


def test_sft_runs_inline_with_one_rank(example: Any) -> None:
    job = example("sft", ("--engine=inline",))
    done = job.run("steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "role trainer runs as one rank" in done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.scenario("rolemesh run examples/pretrain/job.yaml")
def test_pretraining_learns_and_judges_text_that_it_has_not_seen(example: Any) -> None:
    job = example("pretrain")
    done = job.run("steps=10", "params.evaluate_every=5")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = job.metrics()
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    assert lines[9]["eval_loss"] < lines[4]["eval_loss"]


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, 3])
def test_pretraining_that_is_resumed_at_another_world_size_is_as_if_it_had_not_been(example: Any, size: int) -> None:
    whole, parts = example("pretrain"), example("pretrain")
    assert whole.run("steps=12").returncode == 0
    losses = [line["loss"] for line in whole.metrics()]
    assert parts.run("steps=6", "name=parts").returncode == 0
    other = (f"roles.trainer.world_size={size}", "roles.trainer.resources.cpu=0")  # also where there are two cores
    done = parts.run("steps=12", "name=parts", *other, "--resume", "parts")
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = [json.loads(line) for line in (parts.folder / "runs/parts/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in resumed][-6:] == list(range(6, 12))
    assert [line["loss"] for line in resumed][-6:] == pytest.approx(losses[6:], abs=1e-5)


@pytest.fixture(scope="module")
def grpo(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """The GRPO job after a run in which nothing failed."""
    assert (smollm2 / "config.json").exists()
    job = Example(tmp_path_factory.mktemp("grpo"), "grpo", ("--backend", "local"))
    done = job.run(*SMALL_GRPO)
    assert done.returncode == 0, done.stdout + done.stderr
    return job


@pytest.mark.scenario("rolemesh run examples/grpo/job.yaml")
@pytest.mark.slow
def test_grpo_on_the_real_model_is_on_policy(grpo: Example) -> None:
    job = grpo
    metrics = job.metrics()
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert all(0.0 <= line["reward"] <= 1.0 for line in metrics)
    assert all(line["logprob_diff"] < 1e-4 for line in metrics), [line["logprob_diff"] for line in metrics]
    assert [line["operators"]["trainer.train"]["staleness"] for line in metrics] == [0.0, 0.0, 0.0]
    assert "eval_reward_correct" in metrics[0]
    assert "eval_reward_correct" in metrics[-1]
    assert metrics[0]["records"]["eval_answers"]
    assert (job.run_dir / "reward.png").stat().st_size > 1000
    assert not leftovers(job.ids())


@pytest.mark.slow
def test_the_command_that_status_names_exports_a_model_that_transformers_loads(grpo: Example) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    told = grpo.cli("status", "grpo").stdout.splitlines()
    (command,) = [line.strip().removeprefix("to export it") for line in told if "to export it" in line]
    exported = grpo.cli(*shlex.split(command)[1:])
    assert exported.returncode == 0, exported.stderr
    folder = grpo.folder / "grpo-step-2"
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    rows = AutoTokenizer.from_pretrained(folder)("Hello", return_tensors="pt")
    with torch.no_grad():
        assert torch.isfinite(model(**rows).logits).all()


@pytest.mark.soak
@pytest.mark.scenario("rolemesh run examples/async-grpo/job.yaml")
def test_asynchronous_grpo_trains_rows_that_are_at_most_two_updates_old(example: Any, smollm2: Path) -> None:
    assert (smollm2 / "config.json").exists()
    job = example("async-grpo")
    done = job.run("steps=7", "roles.data.options.prompts_per_step=3", *FEW_QUESTIONS, *SMALL_GRPO[3:])
    assert done.returncode == 0, done.stdout + done.stderr
    trained = [line["operators"]["trainer.train"] for line in job.metrics()]
    assert max(line["staleness"] for line in trained) <= 2
    assert all(line["stale_rows"] == 0 for line in trained)
    on_policy = [line["logprob_diff"] for line in trained if line.get("lag_0") == 1]
    assert on_policy
    assert max(on_policy) < 1e-4
    assert [line["step"] for line in job.metrics() if "eval_accuracy" in line] == [0, 3, 6]


@pytest.mark.scenario("rolemesh run examples/agent/job.yaml")
@pytest.mark.slow
def test_the_agent_trains_what_was_sampled_in_every_turn(example: Any, smollm2: Path) -> None:
    assert (smollm2 / "config.json").exists()
    job = example("agent")
    few = ("roles.tasks.options.groups=1", "roles.agent.options.samples=4")
    done = job.run("steps=2", "roles.tasks.options.held_out=2", *few, "roles.trainer.options.if_nothing_learned=done")
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = job.metrics()
    assert [line["step"] for line in metrics] == [0, 1]
    assert all(line["logprob_diff"] < 1e-4 for line in metrics), [line["logprob_diff"] for line in metrics]
    assert all(line["conversations"] == 4 and line["turns"] > 1 for line in metrics)
    assert all("eval_success" in line for line in metrics)
    assert not any(line.get("conversations_failed") for line in metrics)
    assert not leftovers(job.ids())


@pytest.mark.soak
@pytest.mark.scenario("rolemesh run examples/harness/job.yaml")
@pytest.mark.slow
def test_a_program_with_the_client_of_openai_is_trained_with_what_was_sampled(example: Any, smollm2: Path) -> None:
    assert (smollm2 / "config.json").exists()
    job = example("harness")
    few = ("roles.tasks.options.groups=2", "roles.agent.options.samples=2")
    done = job.run("steps=1", "roles.tasks.options.held_out=2", *few, "roles.trainer.options.if_nothing_learned=done")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = job.metrics()
    assert line["logprob_diff"] < 1e-4
    held = line["operators"]["agent.converse"]
    assert held["gateway_turns"] > held["gateway_samples"] == held["conversations"] == 4
    assert "eval_success" in line
    assert not line.get("conversations_failed")
    assert not leftovers(job.ids())


FEW_QUESTIONS = ("roles.data.options.eval_size=4",)
LEAVES_A_MODEL = {
    "sft": ("steps=2",),
    "pretrain": ("steps=2", "params.evaluate_every=1"),
    "distill": ("steps=2",),
    "dpo": ("steps=2",),
    "dapo": ("steps=2", "roles.pool.options.groups=3", *FEW_QUESTIONS),
    "ppo": ("steps=2", "roles.data.options.prompts_per_step=3", "roles.rollout.options.samples=4", *FEW_QUESTIONS),
}


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.more if name == "sft" else pytest.mark.soak) for name in LEAVES_A_MODEL],
)
def test_transformers_loads_the_examples_trained_models(example: Any, name: str) -> None:
    import torch
    import transformers

    if name == "distill":
        subprocess.run([sys.executable, str(ROOT / "examples/distill/prepare.py")], check=True, capture_output=True)
    job = example(name)
    done = job.run(*LEAVES_A_MODEL[name])
    assert done.returncode == 0, done.stdout + done.stderr
    told = job.cli("status", name).stdout.splitlines()
    (command,) = [line.strip().removeprefix("to export it") for line in told if "to export it" in line]
    exported = job.cli(*shlex.split(command)[1:])
    assert exported.returncode == 0, exported.stderr
    folders = [path.parent for path in job.folder.glob(f"{name}-step-1*/**/config.json")]
    assert len(folders) == len(job.result()["kept"]["exports"]) > 0
    for folder in folders:
        (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
        kind = getattr(transformers, architecture)
        model, loading = kind.from_pretrained(folder, output_loading_info=True)
        assert not any(loading.values()), loading
        with torch.no_grad():
            assert torch.isfinite(model(torch.arange(5)[None]).logits).all()
        if name not in ("sft", "pretrain"):  # their text is numbers
            assert transformers.AutoTokenizer.from_pretrained(folder)("Hello")["input_ids"]


@pytest.mark.slow
@pytest.mark.soak
def test_grpo_ends_with_the_same_weights_though_the_engine_and_then_a_trainer_are_killed(
    example: Any, grpo: Example
) -> None:
    job = example("grpo")
    process = job.start(
        *SMALL_GRPO, "failover=[{use: process}, {use: job}]", "engine.options.snapshots.persist_every=100"
    )
    for victim, times in (("rollout/0", 1), ("trainer/1", 2)):
        status = job.running(0)
        os.kill(pids(status)[victim], signal.SIGKILL)
        until(lambda times=times: len(of_kind(job, "recovered")) >= times, "it is brought back")  # type: ignore[misc]
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(job) == [["rollout/0"], ["trainer/0", "trainer/1"]]
    assert [r["level"] for r in job.result()["recoveries"]] == ["process", "process"]
    assert job.result()["state_sha256"] == grpo.result()["state_sha256"]
    for line, other in zip(job.metrics(), grpo.metrics(), strict=True):
        for name in ("reward", "logprob_diff", "eval_reward_correct", "completion_length"):
            assert line.get(name) == other.get(name), (line["step"], name)


@pytest.mark.slow
@pytest.mark.soak
def test_grpo_with_adapters_is_on_policy_and_ends_with_the_same_ones_though_a_trainer_is_killed(
    example: Any, smollm2: Path
) -> None:
    adapters = (*SMALL_GRPO, "roles.trainer.options.lora={}", "engine.options.snapshots.persist_every=100")
    job = example("grpo")
    assert job.run(*adapters).returncode == 0
    assert all(line["logprob_diff"] < 1e-4 for line in job.metrics())
    undisturbed = job.result()["state_sha256"]
    process = job.start(*adapters, "failover=[{use: process}, {use: job}]")
    os.kill(pids(job.running(1))["trainer/1"], signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(job) == [["trainer/0", "trainer/1"]]
    assert job.result()["state_sha256"] == undisturbed


@pytest.mark.scenario("rolemesh run examples/dapo/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
def test_dapo_fills_its_batch_and_ends_with_the_same_weights_though_the_pool_is_killed(
    example: Any, smollm2: Path
) -> None:
    small = (
        "steps=3",
        "roles.data.options.eval_size=4",
        "roles.pool.options.groups=3",
        "engine.options.snapshots.persist_every=100",
    )
    job = example("dapo")
    assert job.run(*small).returncode == 0
    undisturbed = job.result()["state_sha256"]
    assert any(line["asked"] > 3 for line in job.metrics())
    process = job.start(*small, "failover=[{use: process}, {use: job}]")
    os.kill(pids(job.running(1))["pool/0"], signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(job) == [["pool/0"]]
    assert job.result()["state_sha256"] == undisturbed


@pytest.mark.scenario("rolemesh run examples/grpo/job.yaml roles.trainer.use=deepspeed")
@pytest.mark.slow
@pytest.mark.soak
def test_grpo_with_deepspeed_does_what_it_does_with_fsdp(example: Any, grpo: Example) -> None:
    job = example("grpo")
    done = job.run(*SMALL_GRPO, "roles.trainer.use=deepspeed")
    assert done.returncode == 0, done.stdout + done.stderr
    for line, other in zip(job.metrics(), grpo.metrics(), strict=True):
        assert line["logprob_diff"] < 1e-4
        for name in ("loss", "grad_norm", "reward"):
            assert line[name] == pytest.approx(other[name], rel=0.02, abs=1e-3), (line["step"], name)


@pytest.mark.scenario("rolemesh run examples/ppo/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("smollm2")
def test_ppo_on_the_real_model_begins_with_the_references_policy(example: Any) -> None:
    job = example("ppo")
    small = ("steps=2", "roles.data.options.prompts_per_step=3", "roles.data.options.eval_size=4")
    done = job.run(*small, "roles.rollout.options.samples=4")
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = job.metrics()
    assert abs(first["kl"]) < 1e-4
    assert abs(last["kl"]) > abs(first["kl"])
    assert "eval_accuracy" in first
    assert "eval_accuracy" in last


@pytest.mark.scenario("rolemesh run examples/dpo/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("smollm2")
def test_dpo_on_the_real_model_comes_to_prefer_the_answers_that_were_chosen(example: Any) -> None:
    job = example("dpo")
    done = job.run("steps=6")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = job.metrics()
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)  # the policy is the reference yet: log 2
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["margin"] > 0


@pytest.mark.scenario("rolemesh run examples/pd-rollout/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("smollm2")
def test_pd_rollouts_on_the_real_model_are_on_policy_and_fetch_the_cache(example: Any) -> None:
    job = example("pd-rollout")
    done = job.run("steps=2", "roles.data.options.eval_size=4")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in job.metrics():
        assert line["logprob_diff"] < 1e-3
        assert line["kv_fetched_tokens"] > 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.ray
def test_grpo_runs_on_ray_with_the_rollout_one_step_ahead(example: Any, smollm2: Path, ray_address: str) -> None:
    job = example("grpo", ("--address", ray_address))
    done = job.run(*SMALL_GRPO, "params.lag=1", "roles.trainer.world_size=1")
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = job.metrics()
    assert [line["operators"]["trainer.train"]["staleness"] for line in metrics] == [0.0, 1.0, 1.0]
    assert metrics[-1]["staleness"]["trainer.weights → rollout.load_weights"] == 1.0
    events = [json.loads(line)["kind"] for line in (job.run_dir / "events.jsonl").read_text().splitlines()]
    assert events[-1] == "job_ended"


CODING = (
    "plugins.environments=[{use: coding, options: {tasks: tasks.jsonl}}]",
    "plugins.sandboxes=[{use: guarded}]",
    "roles.environment.options.sandbox=guarded",
    "roles.tasks.options.groups=2",
    "roles.agent.options.samples=2",
    "roles.rollout.resources.cpu=1",
    "roles.trainer.resources.cpu=1",
    "roles.trainer.options.if_nothing_learned=done",
    "steps=2",
)
TASKS = (
    {"prompt": "Write hello into hello.txt.", "test": "grep -q hello hello.txt"},
    {"prompt": "Leave ok.txt as it is.", "test": "grep -q fine ok.txt", "files": {"ok.txt": "fine"}},
)


@pytest.mark.soak
def test_a_job_with_coding_tasks_has_the_rewards_of_their_tests(tmp_path: Path, smollm2: Path) -> None:
    """The model is too small to call a tool, so that the second task is solved and the first one is not."""
    job = Job(tmp_path, "coding", ("--backend", "local"))
    assert job.cli("new", "agent", "coding", "--model", str(smollm2)).returncode == 0
    (tmp_path / "coding/tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in TASKS))
    done = job.cli("run", "coding/job.yaml", *CODING, *job.backend)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(line["reward"], line["success"]) for line in job.metrics()] == [(0.5, 0.5)] * 2
    rows = [json.loads(line) for file in job.run_dir.glob("record/rows/*/*.jsonl") for line in file.open()]
    assert sorted(row["columns"]["reward"] for row in rows) == [0.0] * 4 + [1.0] * 4
    until(lambda: not leftovers(job.ids()), "nothing is left of the job and its sandboxes")
