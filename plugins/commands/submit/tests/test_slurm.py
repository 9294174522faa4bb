"""A script of `rolemesh submit --to slurm` on a real Slurm: `apt-get install slurm-wlm munge`, and root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/hello"
NODES = ("n1", "n2")
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


def wait_for(command: list[str], pattern: str, seconds: float = 180.0) -> str:
    """Wait until the command's output matches `pattern`; return the match."""
    end = time.monotonic() + seconds
    while True:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if match := re.search(pattern, told):
            return match[0]
        assert time.monotonic() < end, told
        time.sleep(0.2)


def ended(job: str) -> str:
    """A job's state, once it has ended."""
    return wait_for(["scontrol", "show", "job", job], r"(?<=JobState=)(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)\b")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Slurm of two nodes on this machine."""
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
    daemons = [munge, ["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    with pytest.MonkeyPatch.context() as patch, open(folder / "daemons.log", "w") as log:
        patch.setenv("SLURM_CONF", environ["SLURM_CONF"])
        running = [subprocess.Popen(command, env=environ, stdout=log, stderr=log) for command in daemons]
        try:
            wait_for(["sinfo", "--noheader", "--format=%D %t"], f"{len(NODES)} idle")
            yield folder
        finally:
            subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
            wait_for(["sh", "-c", "squeue --noheader | wc -l"], r"^0")
            for daemon in reversed(running):
                daemon.terminate()
                try:
                    daemon.wait(60)
                except subprocess.TimeoutExpired:
                    daemon.kill()


def submitted(folder: Path, *arguments: str) -> str:
    """The id of the job that sbatch makes of the verb's script."""
    runtime = Path(sys.executable).parent
    command = [sys.executable, "-m", "rolemesh.cli", "submit", f"{EXAMPLE}/job.yaml", "--to", "slurm"]
    command += ["--setup", f"export PATH={runtime}:$PATH", "--runs-dir", f"{folder}/runs", "-o", "job.sbatch"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        ["sbatch", "--parsable", "--output=out.log", "job.sbatch"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


@pytest.mark.parametrize("nodes", [1, 2])
def test_sbatch_runs_a_job_to_its_end_on_a_ray_of_its_own(slurm: Path, tmp_path: Path, nodes: int) -> None:
    job = submitted(tmp_path, "--nodes", str(nodes), "--cpus-per-node", "2" if nodes == 1 else "1")
    state, out = ended(job), (tmp_path / "out.log").read_text()
    assert state == "COMPLETED", out
    result = json.loads((tmp_path / "runs/hello/result.json").read_text())
    assert (result["status"], result["committed_steps"]) == ("done", 20)
    plan = json.loads((tmp_path / "runs/hello/plan.json").read_text())
    assert len({slot["node"] for slot in plan["slots"]}) == nodes, plan
    assert not list(Path("/tmp").glob(f"ray-{job}.*"))
