"""The file that shows that a job waits for room, while its driver lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolemesh.errors import NameInUseError
from rolemesh_runtime.waiting import WaitingJob, waiting_jobs

DRIVER = """
import sys, time
from pathlib import Path
from rolemesh_runtime.waiting import WaitingJob

with WaitingJob(Path(sys.argv[1]), lambda why: None) as job:
    job.say("job first has cpu 2")
    print(flush=True)
    time.sleep(600)
"""

FULL_DISK = """
import resource, sys
from pathlib import Path
from rolemesh_runtime.waiting import WaitingJob, waiting_jobs

_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
path = Path(sys.argv[1])
with WaitingJob(path, print) as job:
    for size, why in ((0, "first"), (most, "second")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
        job.say(why)
        print([each.why for each in waiting_jobs(path.parent)])
"""


def test_a_job_that_waits_is_listed_with_its_latest_reason_until_it_starts(tmp_path: Path) -> None:
    said = list[str]()
    with WaitingJob(tmp_path / "runs/job", said.append) as job:
        assert list(waiting_jobs(tmp_path / "runs")) == []
        job.say("a long reason, for which the file needs many characters")
        job.say("short")
        (found,) = waiting_jobs(tmp_path / "runs")
        assert (found.job, found.why, found.pid) == ("job", "short", os.getpid())
        with (
            WaitingJob(tmp_path / "runs/job", said.append) as second,
            pytest.raises(NameInUseError, match="waits for room"),
        ):
            second.say("short")
        assert len(list(waiting_jobs(tmp_path / "runs"))) == 1
    assert list((tmp_path / "runs").iterdir()) == []
    assert said[1] == "waiting for room: short"


def test_a_killed_driver_waits_no_longer_and_its_file_stops_nobody(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, tmp_path / "job"], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        assert [each.why for each in waiting_jobs(tmp_path)] == ["job first has cpu 2"]
        driver.send_signal(signal.SIGKILL)
    assert list(waiting_jobs(tmp_path)) == []
    with WaitingJob(tmp_path / "job", lambda why: None) as job:
        job.say("again")
        assert [each.why for each in waiting_jobs(tmp_path)] == ["again"]


def test_a_job_waits_although_its_reason_cannot_be_written(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's: the system refuses to write."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path / "job"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["waiting for room: first", "[]", "waiting for room: second", "['second']"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_such_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".other.waiting").write_text("no JSON")
    with WaitingJob(tmp_path / "job", lambda why: None) as job:
        job.say("why")
        assert [each.job for each in waiting_jobs(tmp_path)] == ["job"]
