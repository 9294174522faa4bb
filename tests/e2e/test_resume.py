"""`--resume`: what was on disk when a job ended, or was ended, is what another one goes on from; damage is noticed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import job_in
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, launched, of_kind, pids, recovered, total
from tests.waiting import until

from rolemesh_checkpoint import disk
from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_runtime.lock import lock_file

Make = Callable[..., Job]
STEPS = 60
SLOW = ("roles.work.options.kwargs.sleep=0.05",)
SLOWER = ("roles.work.options.kwargs.sleep=0.5",)
"""For jobs that a command has to stop before they are done, however long Python takes to start."""
SINK = "sink/rank-0-of-1.safetensors"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sink's sha256 after `STEPS` steps in one go."""
    job = job_in(tmp_path_factory.mktemp("undisturbed"), "squares", extra=LADDER)
    done = job.run(f"steps={STEPS}")
    assert done.returncode == 0, done.stdout + done.stderr
    return str(job.result()["state_sha256"]["sink"])


@pytest.fixture(scope="module")
def ten_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of a job of ten steps: there are snapshots of steps 4 and 9."""
    job = job_in(tmp_path_factory.mktemp("ten"), "squares", extra=LADDER)
    done = job.run("steps=10")
    assert done.returncode == 0, done.stdout + done.stderr
    return job.folder / "runs"


@pytest.fixture
def ten(make_job: Make, ten_steps: Path) -> Job:
    """A job of which ten steps have been run."""
    job = make_job(extra=LADDER)
    shutil.copytree(ten_steps, job.folder / "runs")
    return job


def newest(job: Job) -> int:
    found, damaged = disk.newest_intact(job.run_dir)
    assert found is not None
    assert damaged == []
    return found.step


def goes_on(job: Job, undisturbed: str, after: int, *args: str, reference: str = "squares") -> str:
    """Resume; the end must be that of an undisturbed run, and what was on disk must not be run again."""
    done = job.run("--resume", reference, f"steps={STEPS}", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming after step {after} from" in done.stderr
    assert [line["step"] for line in job.metrics()] == list(range(after + 1, STEPS))
    assert job.metrics()[0]["reward"] == total(after + 2)
    result = job.result()
    assert (result["status"], result["committed_steps"]) == ("done", STEPS)
    assert result["state_sha256"]["sink"] == undisturbed
    return done.stderr


# ---------------------------------------------------------------------------------------------------- where it was


@pytest.mark.parametrize(
    ("how", "status", "reference"), [((), "interrupted", "squares"), (("--drain",), "done", "auto")]
)
def test_a_job_that_was_stopped_goes_on(
    make_job: Make, undisturbed: str, how: tuple[str, ...], status: str, reference: str
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(f"steps={STEPS}", *SLOWER)
    until(lambda: of_kind(job, "persisted") if job.running() else [], "a snapshot on disk")
    assert job.cli("stop", "squares", *how).returncode == 0
    process.communicate()
    assert job.result()["status"] == status
    goes_on(job, undisturbed, newest(job), reference=reference)


def test_auto_begins_where_the_jobs_own_run_is_done_or_missing(ten: Job) -> None:
    for _ in ("done", "missing"):
        done = ten.run("--resume", "auto", "steps=2")
        assert (done.returncode, "resuming" in done.stderr) == (0, False), done.stderr
        assert [line["step"] for line in ten.metrics()] == [0, 1]
        shutil.rmtree(ten.run_dir)


@pytest.mark.more
def test_a_job_that_failed_goes_on_when_its_mistake_is_corrected(make_job: Make, undisturbed: str) -> None:
    job = make_job(extra=LADDER)
    failed = job.run(f"steps={STEPS}", *SLOW, "roles.work.options.kwargs.fail_at=23")
    assert failed.returncode == 1
    goes_on(job, undisturbed, newest(job))


def test_a_job_whose_processes_were_all_killed_goes_on(make_job: Make, undisturbed: str) -> None:
    job = make_job(extra=LADDER)
    process = job.start(f"steps={STEPS}", *SLOW)
    until(lambda: of_kind(job, "persisted") if job.running() else [], "a snapshot on disk")
    status = job.running()
    supervisor = psutil.Process(status.master_pid).ppid()
    process.kill()
    os.kill(supervisor, signal.SIGKILL)
    process.communicate()
    gone = [status.master_pid, *pids(status).values(), *(agent.pid for agent in status.agents)]
    until(lambda: not any(map(psutil.pid_exists, gone)), "every process is gone")
    assert not (job.run_dir / "result.json").exists()
    goes_on(job, undisturbed, newest(job))


@pytest.mark.soak
def test_a_resumed_job_that_was_stopped_before_its_first_snapshot_goes_on(ten: Job, undisturbed: str) -> None:
    process = ten.start("--resume", "squares", f"steps={STEPS}", *SLOWER, "engine.options.snapshots.persist_every=50")
    ten.running(11)
    assert ten.cli("stop", "squares").returncode == 0
    process.communicate()
    goes_on(ten, undisturbed, 9)


@pytest.mark.parametrize(
    "sizes",
    [
        ("roles.work.world_size=3", "roles.source.world_size=2"),
        pytest.param(("roles.work.world_size=1",), marks=pytest.mark.soak),
    ],
)
def test_roles_may_have_other_world_sizes(ten: Job, undisturbed: str, sizes: tuple[str, ...]) -> None:
    goes_on(ten, undisturbed, 9, *sizes)


@pytest.mark.parametrize(
    ("reference", "args", "after"),
    [
        pytest.param("runs/squares", (), 9, marks=pytest.mark.soak),
        pytest.param("runs/squares/snapshots/step-4", (), 4, marks=pytest.mark.soak),
        ("runs/squares/snapshots/step-9", ("--nodes", "4x(cpu=1)", "roles.sink.resources.cpu=1"), 9),
    ],
)
def test_a_path_names_a_run_or_one_of_its_snapshots(
    ten: Job, undisturbed: str, reference: str, args: tuple[str, ...], after: int
) -> None:
    goes_on(ten, undisturbed, after, *args, reference=reference)


def test_another_job_goes_on_from_the_run_of_one_that_is_left_as_it_is(ten: Job, undisturbed: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in ten.run_dir.rglob("*")}
    other = Job(ten.folder, "other", ten.backend)
    goes_on(other, undisturbed, 9, "name=other", reference="runs/squares")
    assert {path: path.stat().st_mtime_ns for path in ten.run_dir.rglob("*")} == before


@pytest.mark.soak
def test_a_rank_of_a_resumed_job_that_dies_at_once_is_brought_back(ten: Job, undisturbed: str) -> None:
    process = ten.start("--resume", "squares", f"steps={STEPS}", *SLOW)
    os.kill(pids(ten.running())["sink/0"], signal.SIGKILL)
    recovered(ten)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert ten.result()["state_sha256"]["sink"] == undisturbed
    assert [line["step"] for line in ten.metrics()] == list(range(10, STEPS))


@pytest.mark.parametrize(
    ("reference", "args", "words"),
    [
        ("cubes", (), ("cubes", "squares")),
        ("squares", ("steps=10",), ("after step 9", "raise `steps`")),
        ("runs/squares/snapshots/step-5", (), ("step-5",)),
        ("squares", ("--engine=inline",), ("No such option", "--resume")),
        ("squares", (f"steps={STEPS}", "engine.options.snapshots={enabled: false}"), ("snapshots.enabled", "resumes")),
    ],
)
def test_runs_that_cannot_be_resumed_are_refused_and_unchanged(
    ten: Job, reference: str, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = ten.result()
    if "--engine=inline" in args:
        ten.backend = ()
    refused = ten.run("--resume", reference, *args)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    for word in words:
        assert word in refused.stderr
    assert ten.result() == before


# -------------------------------------------------------------------------------------------------------------- damage


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x10
    path.write_bytes(data)


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "file", "word"),
    [
        pytest.param(torn, "manifest.json", "manifest", marks=pytest.mark.soak),
        (flipped, "source/rank-0-of-1.safetensors", "checksum"),
        # What the disk's own tests show of a checkpoint's files, once more by way of a job.
        pytest.param(torn, SINK, "bytes, not", marks=pytest.mark.soak),
        pytest.param(emptied, SINK, "0 bytes, not", marks=pytest.mark.soak),
        pytest.param(flipped, SINK, "checksum", marks=pytest.mark.soak),
        pytest.param(missing, SINK, "missing", marks=pytest.mark.soak),
    ],
)
def test_a_damaged_snapshot_causes_a_warning_and_the_previous_one_is_used(
    ten: Job, undisturbed: str, damage: Callable[[Path], None], file: str, word: str
) -> None:
    damage(disk.step_folder(ten.run_dir, 9) / file)
    verified = ten.cli("checkpoint", "verify", "squares")
    assert verified.returncode == 1
    assert word in verified.stdout
    assert "resumes from step 4" in verified.stderr
    told = goes_on(ten, undisturbed, 4)
    assert "snapshot of step 9" in told
    assert word in told


def test_nothing_starts_if_every_snapshot_is_damaged(ten: Job) -> None:
    for step in (4, 9):
        flipped(disk.step_folder(ten.run_dir, step) / SINK)
    refused = ten.run("--resume", "squares", f"steps={STEPS}")
    assert refused.returncode == 2
    assert "no intact snapshot" in refused.stderr
    assert "step 4" in refused.stderr
    assert "step 9" in refused.stderr
    assert ten.result()["committed_steps"] == 10
    verified = ten.cli("checkpoint", "verify", "squares")
    assert verified.returncode == 1
    assert "no snapshot is left" in verified.stderr
    with lock_file(ten.run_dir).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a command does that has just resumed the same run
        late = ten.run("--resume", "squares", f"steps={STEPS}")
    assert late.returncode == 2
    assert "a job runs in this folder, and has written none yet" in late.stderr


HELD = """

class Held(Work):
    # Before step N this waits while the file hold-N is in `folder`.

    def __init__(self, ctx, folder, **kwargs):
        super().__init__(ctx, **kwargs)
        self.folder = folder

    @operator(rows=Split(), returns=Split())
    def square(self, rows):
        while os.path.exists(f"{self.folder}/hold-{self.ctx.step}"):
            time.sleep(0.01)
        return super().square(rows)
"""


@pytest.mark.soak
def test_a_job_that_goes_back_to_the_disk_passes_a_damaged_snapshot_over(make_job: Make, undisturbed: str) -> None:
    job = make_job(extra=LADDER)
    with (job.folder / "roles.py").open("a") as roles:
        roles.write(HELD)
    holds = job.folder / "hold-12", job.folder / "hold-23"
    for hold in holds:
        hold.touch()
    held = (
        "edges.credits=2",
        "roles.work.options.target=roles.py:Held",
        f"roles.work.options.kwargs.folder={job.folder}",
    )
    process = job.start(f"steps={STEPS}", *held, "failover=[{use: job}]")
    source = pids(job.running())["source/0"]
    # How ever slow the disk is: of the snapshots that wait for it a rank keeps those of steps 9 and 19 (`outlasting`).
    until(lambda: 9 in steps_on_disk(job), "the snapshot of step 9 is on disk")
    holds[0].unlink()
    until(lambda: 19 in steps_on_disk(job), "the snapshot of step 19 is on disk")
    before = steps_on_disk(job)[-2]
    flipped(disk.step_folder(job.run_dir, 19) / SINK)
    os.kill(source, signal.SIGKILL)
    until(lambda: of_kind(job, "rolled_back"), "the job goes back")
    holds[1].unlink()  # until here no newer snapshot than that of step 19 could come to disk
    out, _ = process.communicate()
    assert process.returncode == 0, out
    (back,) = of_kind(job, "rolled_back")
    assert back["data"]["step"] == before
    (damaged,) = of_kind(job, "snapshot_damaged")
    assert f"step 19 is damaged: {SINK}" in damaged["data"]["message"]
    assert damaged["data"]["message"] in out
    assert job.result()["state_sha256"]["sink"] == undisturbed
    assert [line["step"] for line in job.metrics()] == list(range(STEPS))


def steps_on_disk(job: Job) -> list[int]:
    """The steps whose snapshots have come to disk, in order."""
    return [event["data"]["step"] for event in of_kind(job, "persisted")]


@pytest.mark.soak  # the simulation kills ranks there in every run
def test_a_rank_may_start_again_after_the_origin_of_its_job_is_gone(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    ladder = "failover=[{use: process, options: {max_attempts: 1}}, {use: job}]"
    process = job.start("steps=400", *SLOW, ladder)
    running = pids(job.running())
    until(lambda: of_kind(job, "persisted"), "a snapshot on disk")
    os.kill(running["work/0"], signal.SIGKILL)
    os.kill(pids(recovered(job))["work/0"], signal.SIGKILL)
    recovered(job, 2)
    (back,) = of_kind(job, "rolled_back")
    origin = disk.step_folder(job.run_dir, back["data"]["step"])
    until(lambda: not origin.exists(), "newer snapshots have taken its place")
    os.kill(pids(job.running())["sink/0"], signal.SIGKILL)
    recovered(job, 3)
    assert [event["data"]["level"] for event in of_kind(job, "recovered")] == ["process", "job", "process"]
    assert job.cli("stop", "squares").returncode == 0
    process.communicate()


# ------------------------------------------------------------------------------------------------- rolemesh checkpoint


@pytest.mark.more
def test_checkpoints_are_listed_verified_and_not_exported_where_a_role_has_no_export(ten: Job) -> None:
    listed = ten.cli("checkpoint", "list", "squares", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = json.loads(listed.stdout)
    assert [(row["step"], row["complete"]) for row in rows] == [(9, True), (4, True)]
    assert rows[0]["world_sizes"] == {"source": 1, "work": 2, "sink": 1}
    shown = ten.cli("checkpoint", "list", "runs/squares")
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [["9", "complete"], ["4", "complete"]]
    sound = ten.cli("checkpoint", "verify", "squares", "--json")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert [(row["step"], row["problems"]) for row in json.loads(sound.stdout)] == [(9, []), (4, [])]
    flipped(disk.step_folder(ten.run_dir, 9) / SINK)
    damaged = ten.cli("checkpoint", "verify", "squares", "--json")
    assert damaged.returncode == 1
    assert [[p["file"] for p in row["problems"]] for row in json.loads(damaged.stdout)] == [[SINK], []]
    refused = ten.cli("checkpoint", "export", "squares", "--out", "model")
    assert refused.returncode == 2
    assert "export" in refused.stderr
    assert not (ten.folder / "model").exists()
    unknown = ten.cli("checkpoint", "list", "cubes")
    assert unknown.returncode == 2
    assert "squares" in unknown.stderr


@pytest.mark.soak
def test_the_snapshots_of_a_job_without_a_ladder_can_be_resumed_from(make_job: Make, undisturbed: str) -> None:
    job = make_job(extra="engine: {options: {snapshots: {persist_every: 5}}}\n")
    assert job.run("steps=7").returncode == 0
    goes_on(job, undisturbed, 6)


@pytest.mark.soak
def test_a_job_that_resumes_without_a_ladder_restores_its_ranks_all_the_same(ten: Job, undisturbed: str) -> None:
    goes_on(ten, undisturbed, 9, "failover=[]")


def test_a_snapshot_of_another_flow_is_refused_and_the_difference_named(ten: Job) -> None:
    flow = ten.folder / "flow.py"
    flow.write_text(
        flow.read_text().replace("job.work.square(", "job.work.square(job.work.square(", 1).rstrip() + ")\n"
    )
    refused = ten.run("--resume", "squares", f"steps={STEPS}")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "its flow had edge 1: work.square → sink.add(" in refused.stderr
    assert "the flow has call 2: work.square#2" in refused.stderr


# ------------------------------------------------------------------------------------------------------------ full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Job], Path]]:
    """Gives a job that has just been started a file system of its own for its snapshots, full to the last byte."""
    mounted: list[Path] = []

    def mount(job: Job) -> Path:
        folder = disk.snapshots_folder(job.run_dir)
        until(job.run_dir.is_dir, "the run's folder")
        folder.mkdir(exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip(f"this user may not mount file systems: {done.stderr.decode().strip()}")
        mounted.append(folder)
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return ballast

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_does_not_stop_the_job_is_told_and_over_when_there_is_room(
    make_job: Make, undisturbed: str, small_disk: Callable[[Job], Path]
) -> None:
    job = make_job(extra=LADDER)
    # A source that is far ahead would give its last snapshot up while the disk is full, and nobody tries that again.
    process = job.start(f"steps={STEPS}", *SLOW, "engine.options.grant=8")
    ballast = small_disk(job)
    job.running()
    (trouble, *_) = until(lambda: of_kind(job, "snapshot_warning"), "a warning about the full disk")
    assert os.strerror(errno.ENOSPC) in trouble["data"]["message"]
    assert str(disk.snapshots_folder(job.run_dir)) in trouble["data"]["message"]
    at = job.running().committed
    job.running(at + 5)
    ballast.unlink()
    until(lambda: of_kind(job, "snapshot_warning_over"), "there is room")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert f"warning: {trouble['data']['message']}" in out
    assert "over on agent node0: " in out
    assert job.result()["state_sha256"]["sink"] == undisturbed
    assert newest(job) == STEPS - 1
    assert launched(job) == []


def test_a_job_whose_disk_stays_full_ends_done_without_snapshots(
    make_job: Make, undisturbed: str, small_disk: Callable[[Job], Path]
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(f"steps={STEPS}")
    small_disk(job)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert os.strerror(errno.ENOSPC) in out
    assert job.result()["state_sha256"]["sink"] == undisturbed
    verified = job.cli("checkpoint", "verify", "squares")
    assert verified.returncode == 2


@pytest.mark.soak
def test_a_file_that_cannot_be_written_costs_one_set_of_snapshots(make_job: Make, undisturbed: str) -> None:
    job = make_job(extra=LADDER)
    process = job.start(f"steps={STEPS}", "roles.work.options.kwargs.sleep=0.2")  # not over before it is injected
    job.running()
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("disk", "sink/0"))
    out, _ = process.communicate()
    assert process.returncode == 0, out
    (trouble,) = of_kind(job, "snapshot_warning")
    assert os.strerror(errno.ENOSPC) in trouble["data"]["message"]
    assert len(of_kind(job, "snapshot_warning_over")) == 1
    assert f"warning: {trouble['data']['message']}" in out
    assert job.result()["state_sha256"]["sink"] == undisturbed
    assert newest(job) == STEPS - 1
