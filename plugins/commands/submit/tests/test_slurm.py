"""A script of `rolemesh submit --to slurm` on a real Slurm: `apt-get install slurm-wlm munge`, and root."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.waiting import until

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/hello"
NODES = ("n1", "n2")
STEPS = 1500
SLOW = """
from pathlib import Path
from time import sleep

import rolemesh


def numbers(ctx: rolemesh.RankContext) -> rolemesh.Batch:
    if not Path(__file__).with_name("fast").exists():
        sleep(0.2)
    return rolemesh.Batch({"number": list(range(8 * ctx.step, 8 * ctx.step + 8))})
"""
SLOW_JOB = f"""
name: slow
flow: flow.py:hello
steps: {STEPS}
failover: [{{use: process}}, {{use: node}}, {{use: job}}]
engine: {{options: {{snapshots: {{persist_every: 5}}}}}}
roles:
  source: {{use: function, options: {{target: slow.py:numbers}}}}
  sink:   {{use: function, options: {{target: roles.py:Sum}}}}
"""
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
"""
FOREIGN = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x0000000000000F00",
    "SLURM_CPU_BIND_LIST": "0x0000000000000F00",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_MEM_PER_CPU": "100000",
    "SLURM_MEM_PER_GPU": "100000",
    "SLURM_TRES_PER_TASK": "cpu=64",
}
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"
PARTITION = "PartitionName=main Nodes={nodes} Default=YES State=UP\n"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.ray,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))),
        reason="needs root, and slurm-wlm and munge from Debian's packages",
    ),
]


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(command: list[str], pattern: str) -> str:
    """Wait until the command's output matches `pattern`; return the match."""

    def match() -> re.Match[str] | None:
        return re.search(pattern, subprocess.run(command, capture_output=True, text=True, check=False).stdout)

    return str(until(match, f"{pattern[:80]} in what {' '.join(command)} says", every_s=0.2)[0])


def log(folder: Path, task: int = 4294967294) -> str:
    """The output of the job, or of a task of its array."""
    return (folder / f"out-{task}.log").read_text()


def ended(job: str) -> str:
    """A job's state, once it has ended."""
    return wait_for(["scontrol", "show", "job", job], r"(?<=JobState=)(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)\b")


class Slurm(NamedTuple):
    """A Slurm, and the ``/tmp`` of each of its nodes."""

    tmps: list[Path]


def slurmd(folder: Path, node: str) -> list[str]:
    """The command of a node's daemon. The tests' folders are in its ``/tmp``, too."""
    tests = Path("/tmp", folder.relative_to("/tmp").parts[0])
    (own := folder / f"tmp-{node}").mkdir()
    commands = [
        f"mount -t tmpfs -o mode=1777 tmpfs {own}",
        f"mkdir {own}/{tests.name}",
        f"mount --bind {tests} {own}/{tests.name}",
        f"mount --rbind {own} /tmp",
        f"exec slurmd -D -N {node}",
    ]
    return ["unshare", "--mount", "sh", "-ec", "\n".join(commands)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes on this machine, each with a ``/tmp`` of its own."""
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    for name in ("state", "run", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    controller, *ports = free_ports(1 + len(NODES))
    nodes = (NODE.format(name=name, host=host, port=port) for name, port in zip(NODES, ports, strict=True))
    config = CONFIG.format(host=host, folder=folder, port=controller)
    (folder / "slurm.conf").write_text(config + "".join(nodes) + PARTITION.format(nodes=",".join(NODES)))
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/run/munge.sock"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"]
    environ = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
    daemons = [munge, ["slurmctld", "-D", "-c"], *(slurmd(folder, node) for node in NODES)]
    with pytest.MonkeyPatch.context() as patch, open(folder / "daemons.log", "w") as log:
        patch.setenv("SLURM_CONF", environ["SLURM_CONF"])
        running = [subprocess.Popen(command, env=environ, stdout=log, stderr=log) for command in daemons]
        try:
            wait_for(["sinfo", "--noheader", "--format=%D %t"], f"{len(NODES)} idle")
            yield Slurm([Path(f"/proc/{each.pid}/root/tmp") for each in running[-len(NODES) :]])
        finally:
            subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
            wait_for(["sh", "-c", "squeue --noheader | wc -l"], r"^0")
            for daemon in reversed(running):
                daemon.terminate()
                try:
                    daemon.wait(60)
                except subprocess.TimeoutExpired:
                    daemon.kill()


def submitted(folder: Path, *arguments: str, job: Path = EXAMPLE / "job.yaml", slurm: tuple[str, ...] = ()) -> str:
    """The id of the job that sbatch makes of the verb's script, with the options `slurm` of sbatch."""
    runtime = Path(sys.executable).parent
    command = [sys.executable, "-m", "rolemesh.cli", "submit", str(job), "--to", "slurm"]
    command += ["--setup", f"export PATH={runtime}:$PATH", "--runs-dir", f"{folder}/runs", "-o", "job.sbatch"]
    told = ""
    for each in ([*command, *arguments], ["sbatch", "--parsable", "--output=out-%a.log", *slurm, "job.sbatch"]):
        done = subprocess.run(each, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told = done.stdout.strip()
    return told


def slow_job(folder: Path) -> Path:
    """A job whose steps take 0.2 s, until its folder has a file ``fast``."""
    job = folder / "job"
    shutil.copytree(EXAMPLE, job, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    (job / "slow.py").write_text(SLOW)
    (job / "job.yaml").write_text(SLOW_JOB)
    return job / "job.yaml"


def expected(folder: Path, job: Path) -> dict[str, str]:
    """The job's state at its end, if nothing disturbs it."""
    command = [sys.executable, "-m", "rolemesh.cli", "run", str(job), "--backend", "local", "--runs-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return result(folder / "slow")["state_sha256"]


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def runs_until_step(run: Path, step: int) -> None:
    """Wait until the job has kept the state after a step."""
    snapshots = ["sh", "-c", f"ls -d {run}/snapshots/step-*/manifest.json"]
    wait_for(snapshots, rf"step-(?:{'|'.join(str(each) for each in range(step, step + 200))})/")


def requeue(job: str) -> None:
    """Let Slurm start a job again, without its usual delay of two minutes."""
    subprocess.run(["scontrol", "requeue", job], check=True)
    wait_for(["scontrol", "show", "job", job], r"JobState=PENDING(?s:.*)Restarts=1")
    subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=True)


def nothing_is_left(slurm: Slurm, job: str) -> None:
    """Wait until the job has neither a process nor a folder of Ray on any node."""
    variable = f"SLURM_JOB_ID={job}\0".encode()

    def left() -> bool:
        folders = (found for tmp in slurm.tmps for found in glob.glob(f"{tmp}/ray-{job}.*"))
        return any(folders) or any(variable in environ(pid) for pid in psutil.pids())

    until(lambda: not left(), f"an end of job {job}", every_s=0.2)


def environ(pid: int) -> bytes:
    """The variables of a process; b"" if it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("nodes", [1, 2])
def test_sbatch_runs_a_job_to_its_end_on_a_ray_of_its_own(
    slurm: Slurm, tmp_path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is submitted from inside another job, whose variables srun would take for this one's."""
    for name, value in (FOREIGN if nodes == 2 else {}).items():
        monkeypatch.setenv(name, value)
    job = submitted(tmp_path, "--nodes", str(nodes), "--cpus-per-node", "2" if nodes == 1 else "1")
    state, out = ended(job), log(tmp_path)
    assert state == "COMPLETED", out
    told = result(tmp_path / f"runs/hello-{job}")
    assert (told["status"], told["committed_steps"]) == ("done", 20)
    plan = json.loads((tmp_path / f"runs/hello-{job}/plan.json").read_text())
    assert len({slot["node"] for slot in plan["slots"]}) == nodes, plan
    nothing_is_left(slurm, job)


def test_a_job_whose_time_ends_keeps_its_state_and_a_requeue_continues_it(slurm: Slurm, tmp_path: Path) -> None:
    file = slow_job(tmp_path)
    job = submitted(tmp_path, "--nodes", "1", "--time", "2", job=file, slurm=("--signal=B:TERM@30",))
    assert ended(job) == "FAILED", log(tmp_path)
    assert f"to continue it: scontrol requeue {job}" in log(tmp_path)
    first = result(tmp_path / f"runs/slow-{job}")
    assert (first["status"], 0 < first["committed_steps"] < STEPS) == ("done", True), first
    (file.parent / "fast").touch()
    requeue(job)
    assert ended(job) == "COMPLETED", log(tmp_path)
    assert f"resuming after step {first['committed_steps'] - 1}" in log(tmp_path)
    last = result(tmp_path / f"runs/slow-{job}")
    assert (last["committed_steps"], last["state_sha256"]) == (STEPS, expected(tmp_path / "judge", file))
    nothing_is_left(slurm, job)


def test_a_job_that_slurm_requeues_while_it_runs_continues(slurm: Slurm, tmp_path: Path) -> None:
    file = slow_job(tmp_path)
    job = submitted(tmp_path, "--nodes", "1", job=file)
    runs_until_step(tmp_path / f"runs/slow-{job}", 10)
    (file.parent / "fast").touch()
    requeue(job)
    assert ended(job) == "COMPLETED", log(tmp_path)
    assert "resuming after step" in log(tmp_path)
    last = result(tmp_path / f"runs/slow-{job}")
    assert (last["committed_steps"], last["state_sha256"]) == (STEPS, expected(tmp_path / "judge", file))


def test_scancel_leaves_nothing_behind(slurm: Slurm, tmp_path: Path) -> None:
    job = submitted(tmp_path, "--nodes", "2", "--cpus-per-node", "1", job=slow_job(tmp_path))
    runs_until_step(tmp_path / f"runs/slow-{job}", 5)
    subprocess.run(["scancel", job], check=True)
    assert ended(job) == "CANCELLED"
    nothing_is_left(slurm, job)


def test_tasks_of_an_array_are_runs_of_their_own(slurm: Slurm, tmp_path: Path) -> None:
    job = submitted(tmp_path, "--nodes", "1", "--cpus-per-node", "2", slurm=("--array=3,7",))
    for task in (3, 7):
        assert ended(f"{job}_{task}") == "COMPLETED", log(tmp_path, task)
    runs = list((tmp_path / "runs").glob("hello-*"))
    assert [result(run)["committed_steps"] for run in runs] == [20, 20], runs


def test_a_job_goes_on_when_a_node_is_set_down(slurm: Slurm, tmp_path: Path) -> None:
    file = slow_job(tmp_path)
    job = submitted(tmp_path, "--nodes", "2", "--cpus-per-node", "2", job=file)
    runs_until_step(tmp_path / f"runs/slow-{job}", 5)
    try:
        subprocess.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"], check=True)
        wait_for(["scontrol", "show", "job", job], "NodeList=n1\n")
        (file.parent / "fast").touch()
        assert ended(job) == "COMPLETED", log(tmp_path)
    finally:
        # It may be back already: its daemon lives.
        subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], check=False, capture_output=True)
        wait_for(["sinfo", "--noheader", "--format=%D %t"], f"{len(NODES)} idle")
    last = result(tmp_path / f"runs/slow-{job}")
    assert (last["committed_steps"], last["state_sha256"]) == (STEPS, expected(tmp_path / "judge", file))
