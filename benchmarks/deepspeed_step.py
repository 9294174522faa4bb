"""A training step of the workload `deepspeed` beside the same step of a script under DeepSpeed's own launcher.

And SIGKILL of a worker of a DeepSpeed script → every worker's next step, under `rolemesh launch` and torchrun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from benchmarks.launch import COMMANDS, WORKERS, Script
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, ROOT, BenchmarkError, run_job

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
STAGES = (1, 2, 3)
WARM_UP = 3
LIMIT = 1.05


def measure(quick: bool) -> Report:
    """At most 1.05 times the step of DeepSpeed's launcher, at each stage of ZeRO; 3 million parameters, two ranks."""
    report = Report("deepspeed_step", "a step of DeepSpeed: the workload, and a script under its own launcher", quick)
    rounds, steps, kills = (1, 6, 1) if quick else (3, 40, 1)
    ours: dict[int, list[float]] = {stage: [] for stage in STAGES}
    theirs: dict[int, list[float]] = {stage: [] for stage in STAGES}
    again: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for number in range(rounds):
            for stage in STAGES:
                for way in (job, launched) if number % 2 else (launched, job):
                    (ours if way is job else theirs)[stage].append(way(folder, stage, steps))
            for name in sorted(COMMANDS, reverse=bool(number % 2)):
                with Script(COMMANDS[name], kills, JOBS / "launched_deepspeed.py") as script:
                    again[name] += [script.kill(life, victim=life % WORKERS) for life in range(kills)]
    for stage in STAGES:
        report.row(f"ZeRO {stage}: deepspeed's launcher", "ms", theirs[stage])
        report.row(f"ZeRO {stage}: the workload", "ms", ours[stage])
    for name in COMMANDS:
        report.row(
            f"a script with ZeRO 2, {name}: SIGKILL of a worker → every worker has done a step", "s", again[name]
        )
    for stage in STAGES:
        report.claim(f"ZeRO {stage}: the workload / the launcher", ratios(ours[stage], theirs[stage]), at_most=LIMIT)
    report.claim(
        "SIGKILL → the next step: rolemesh launch / torchrun",
        ratios(again["rolemesh launch"], again["torchrun"]),
        at_most=0.5,
    )
    report.settings = {
        "rounds": rounds,
        "steps": steps,
        "left out": WARM_UP,
        "ranks": WORKERS,
        "kills in a round": kills,
        "model": MODEL,
    }
    report.notes.append("deepspeed 0.19.8 has no elastic agent of its own any more: its users are left with torchrun's")
    return report


def job(folder: str, stage: int, steps: int) -> float:
    """Milliseconds of a step, on average: when each line has come to the master says little of a single one."""
    options = [
        f"roles.trainer.options.model={folder}",
        f"roles.trainer.options.config={{zero_optimization: {{stage: {stage}}}}}",
        f"steps={steps}",
    ]
    with run_job(JOBS / "deepspeed.yaml", *options) as run_dir:
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in lines[WARM_UP:]]
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def launched(folder: str, stage: int, steps: int) -> float:
    """Milliseconds of a step, on average."""
    out = Path(folder, "seconds.json")
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_addr", "127.0.0.1"]
    command += [str(JOBS / "deepspeed_script.py"), folder, str(stage), str(steps), str(out)]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LOCAL_SIZE": "2",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode or not out.exists():
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    seconds: list[float] = json.loads(out.read_text())
    out.unlink()
    return 1e3 * mean(seconds[WARM_UP:])
