"""The script of `rolemesh submit --to slurm`."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolemesh.errors import PlacementError
from rolemesh.job.prepared import prepare
from rolemesh.job_file.loading import Written
from rolemesh_submit import Allocation, Asked, Submission, groups_of, script

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/hello"
AS_NEEDED, PLAIN = Asked(), Allocation()
JOB = prepare(Written((EXAMPLE / "job.yaml").read_text(), EXAMPLE, "job.yaml"))


def made(*overrides: str, asked: Asked = AS_NEEDED, text: str = "", allocation: Allocation = PLAIN) -> str:
    prepared = prepare(Written(text or (EXAMPLE / "job.yaml").read_text(), EXAMPLE, "job.yaml"), overrides)
    told = script(
        Submission(prepared, groups_of(prepared, asked), "/shared/my job/job.yaml", "/shared/runs", {"A": "b c"}),
        allocation,
    )
    checked = subprocess.run(["bash", "-n"], input=told, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    return told


def test_an_allocation_is_what_the_job_needs() -> None:
    told = made(
        "roles.sink.resources={gpu: 1, memory_gb: 20, custom: {ssd: 1}}",
        "roles.sink.world_size={min: 2, max: 8}",
        asked=Asked(gpus=2),
        allocation=Allocation("gpu", "12:00:00", ["module load cuda"]),
    )
    lines = told.splitlines()
    for directive in (
        "nodes=1-4",
        "gpus-per-node=2",
        "cpus-per-task=3",
        "mem=80000M",
        "partition=gpu",
        "time=12:00:00",
    ):
        assert f"#SBATCH --{directive}" in lines
    assert "module load cuda" in lines
    (node,) = (line for line in lines if line.startswith("node="))
    assert "--num-cpus 3 --num-gpus 2 --memory 80000000000 --resources '{\"ssd\": 2.0}'" in node
    assert "rolemesh run '/shared/my job/job.yaml' --address \"$address\" 'roles.sink.resources={gpu" in told
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]  # sbatch would not read them


def test_a_variable_comes_from_where_sbatch_runs_and_its_value_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    told = made(
        "steps=5",
        text=(EXAMPLE / "job.yaml")
        .read_text()
        .replace("target: roles.py:Sum", "target: roles.py:Sum}, runtime_env: {env_vars: {T: '${TOKEN}'}"),
    )
    assert "hunter2" not in told
    assert "export A='b c'\n" in told
    (check,) = (line for line in told.splitlines() if line.startswith(': "${TOKEN'))
    done = subprocess.run(["bash", "-c", check], env={}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "TOKEN: the job file uses it, so export it before sbatch" in done.stderr


SETUPS = {
    "an unset variable, as activate scripts of conda have it": '[ -n "$PROJ_LIB" ] || export ACTIVE=yes',
    "a failed command": "false; export ACTIVE=yes",
    "a failed part of a pipe": "false | true || exit 9; export ACTIVE=yes",
    "options of its own": "set -eu; export ACTIVE=yes",
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_setup_runs_as_in_a_script_of_ones_own(tmp_path: Path, setup: str) -> None:
    for tool in ("ray", "rolemesh", "srun"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho "{tool}: ${{ACTIVE-no}}" >&2; exit 7\n')
        (tmp_path / tool).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1"}
    run = {"capture_output": True, "text": True, "timeout": 60, "check": False, "env": variables}

    done = subprocess.run(["bash", "-c", made(allocation=Allocation(setup=[setup]))], **run)
    assert "ray: yes" in done.stderr

    (tmp_path / "rolemesh").unlink()
    done = subprocess.run(["bash", "-c", made(allocation=Allocation(setup=[setup]))], **run)
    assert (done.returncode, "error: rolemesh is not on the path: give --setup" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("array", "own"), [({}, "4"), ({"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "1"}, "4_1")], ids=["job", "task"]
)
def test_a_task_of_an_array_names_itself_not_the_whole_array(array: dict[str, str], own: str) -> None:
    """Slurm gives the last task the number of its array (https://slurm.schedmd.com/job_array.html)."""
    lines = [line for line in made().splitlines() if line.startswith("own=")]
    shown = "\n".join(["set -euo pipefail", *lines, "echo $own"])
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, env={"SLURM_JOB_ID": "4", **array})
    assert done.stdout == f"{own}\n", done.stderr
    uses = [line for line in made().splitlines() if re.match(" *(scancel|echo .*requeue)", line)]
    assert len(uses) == 2
    assert all("$own" in line for line in uses)


TOOLS = {
    # Each writes its pid first. What ignores SIGTERM stands for what needs longer than Slurm waits.
    "ray": """trap '' TERM; echo $$ >>"$TOLD/pids"; while [ "$1" != --temp-dir ]; do shift; done
      echo here >"$2/ray_current_cluster"; while :; do read -rt 1 <>/dev/null || :; done""",
    "python3": 'exec "$PYTHON" "$@"',
    # The job ends while the notice is handled: its exit code must not be lost.
    "rolemesh": """if [ "$1" = stop ]; then
        echo "$*" >"$TOLD/stop"; mv "$TOLD/stop" "$TOLD/stopped"
        while kill -0 "$(tail -n 1 "$TOLD/pids")" 2>/dev/null; do sleep 0.05; done; exit
      fi
      trap '' TERM; echo $$ >>"$TOLD/pids"; touch "$TOLD/runs"
      until [ -e "$TOLD/stopped" ]; do sleep 0.05; done""",
}


def job_id(tmp_path: Path) -> str:
    """The number that Slurm gives the job. `/tmp` has folders with it, and other runs of these tests have their own."""
    return f"{tmp_path.name}-{os.getpid()}"


def started(tmp_path: Path, tools: Mapping[str, str], **more: Any) -> subprocess.Popen[bytes]:
    """The script with stand-ins for Ray and rolemesh, in a process group of its own."""
    for tool, body in tools.items():
        (tmp_path / tool).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / tool).chmod(0o755)
    (tmp_path / "ray.py").write_text("init = lambda *a, **k: None\nnodes = lambda: [{'Alive': True}]\n")
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(tmp_path),
        "TOLD": str(tmp_path),
        "SLURM_JOB_ID": job_id(tmp_path),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_NUM_NODES": "1",
    }
    told = made().replace("/shared/runs", str(tmp_path / "runs-dir"))
    return subprocess.Popen(["bash", "-c", told], env=environ, start_new_session=True, **more)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The script when its job runs."""
    process = started(tmp_path, TOOLS)
    while not (tmp_path / "runs").exists():
        assert process.poll() is None
        time.sleep(0.02)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for folder in glob.glob(f"/tmp/ray-{job_id(tmp_path)}.*"):
        shutil.rmtree(folder)


def test_a_signal_to_all_processes_ends_the_job_at_once_and_leaves_nothing(
    running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    os.killpg(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    assert not glob.glob(f"/tmp/ray-{job_id(tmp_path)}.*")
    assert not (tmp_path / "stopped").exists()
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_a_notice_to_the_script_alone_drains_the_job(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    run = tmp_path / f"runs-dir/hello-{job_id(tmp_path)}"
    run.mkdir(parents=True)
    (run / "result.json").write_text('{"committed_steps": 7, "steps": 20}')
    os.kill(running.pid, signal.SIGTERM)
    while not (tmp_path / "stopped").exists():
        time.sleep(0.02)
    assert (tmp_path / "stopped").read_text() == f"stop hello-{job_id(tmp_path)} --drain --no-wait\n"
    ray = int((tmp_path / "pids").read_text().split()[0])
    os.kill(ray, signal.SIGKILL)  # it would end with SIGTERM
    assert running.wait() == 130, "the job has steps left"
    assert not glob.glob(f"/tmp/ray-{job_id(tmp_path)}.*")


def test_a_ray_that_ends_before_all_nodes_have_joined_ends_the_script_with_what_it_said(tmp_path: Path) -> None:
    ends = """while [ "$1" != --temp-dir ]; do shift; done; echo here >"$2/ray_current_cluster"
      until [ -e "$TOLD/joins" ]; do sleep 0.05; done; echo no memory; exit 1"""
    joins = 'touch "$TOLD/joins"; exec sleep 600'
    script = started(tmp_path, {**TOOLS, "ray": ends, "python3": joins}, stderr=subprocess.PIPE)
    _, told = script.communicate()
    assert script.returncode == 1
    assert told.decode().splitlines() == ["error: Ray's head has ended", "no memory"]
    assert not glob.glob(f"/tmp/ray-{job_id(tmp_path)}.*")


def test_nodes_of_several_sizes_are_refused() -> None:
    with pytest.raises(PlacementError, match="nodes of one size"):
        made(asked=Asked("1x(cpu=2),1x(cpu=4)"))


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
@example("'\"$(id)`id`$HOME\\\n#SBATCH --exclusive\u2028\x07{x} ! ~ * %41")
def test_a_script_hands_on_every_text_as_it_is(text: str) -> None:
    prepared = replace(JOB, overrides=(f"name={text}", text))
    one = Submission(
        prepared, groups_of(JOB, AS_NEEDED), f"/{text}/job.yaml", f"/runs{text}", {"A": text}, text or None
    )
    lines = script(one, PLAIN)
    before, _, rest = lines.partition("set -euo pipefail\n")
    assert all(line.startswith("#") for line in before.splitlines())
    assert "#SBATCH --exclusive" not in before.splitlines()
    environment, _, rest = rest.partition("# From inside")
    command = "#" + rest.partition("\n# A run of")[2].partition(" &\njob=$!")[0]
    run = f'address=here; rolemesh() {{ printf \'%s\\0\' "$@" "$A" "$ROLEMESH_RUNS"; }}\n{environment}\n{command}'
    done = subprocess.run(["bash", "-c", run], capture_output=True, check=True, env={**os.environ, "SLURM_JOB_ID": "7"})
    resumed = ["--resume", text] if text else []
    words = ["run", f"/{text}/job.yaml", "--address", "here", f"name={text}", text, "name=hello-7", *resumed]
    words += [text, f"/runs{text}"]
    assert done.stdout.decode().split("\0")[:-1] == words
