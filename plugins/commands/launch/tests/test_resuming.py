"""`--resume`: a script that was interrupted goes on, one that was done or changed begins from its beginning."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rolemesh_durable.control.resume import Unfinished
from rolemesh_launch.flags import Asked
from rolemesh_launch.resuming import Before, Note, decided

BIN = Path(sys.executable).parent
NOTE = Note("1234", "train.py", "path", ("--lr", "1"), "/work", (1, 1), 2)
LEFT = Unfinished(Path("/runs/train"), 9)
TRAIN = """
import time, torch
from rolemesh_launch import track
model = torch.nn.Linear(2, 2)
run = track(model=model)
print("BEGIN", run.step, flush=True)
for step in range(run.step, 20):
    time.sleep(0.1)
    run.done()
    print("STEP", run.step, flush=True)
"""


def test_a_run_of_the_same_command_that_was_not_done_is_gone_on_with() -> None:
    going_on = decided("auto", Before(LEFT, NOTE), NOTE)
    assert going_on.reference == "/runs/train"
    assert "after its step 9" in going_on.said[0]
    assert decided("auto", None, NOTE) == decided("never", Before(LEFT, NOTE), NOTE) == ("", ())
    assert decided("other", Before(LEFT, NOTE), NOTE) == ("other", ())


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"script": "5678"}, "the script"),
        ({"arguments": ("--lr", "2")}, "its arguments"),
        ({"per_node": 4}, "the number of workers"),
        ({"nodes": (1, 2)}, "the number of workers"),
        ({"folder": "/other"}, "the working directory"),
        ({"overrides": ("seed=1",)}, "--set"),
    ],
)
def test_a_command_that_changed_begins_from_its_beginning_and_says_what_changed(
    changed: dict[str, object], word: str
) -> None:
    going_on = decided("auto", Before(LEFT, NOTE), msgspec.structs.replace(NOTE, **changed))
    assert going_on.reference == ""
    assert f"but {word} changed since" in going_on.said[0]


def test_a_run_without_a_note_is_not_gone_on_with() -> None:
    assert decided("auto", Before(LEFT, None), NOTE).reference == ""


def test_a_note_knows_the_script_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1")
    one = Note.of(Asked("train.py"), tmp_path / "train.py", tmp_path, ())
    (tmp_path / "train.py").write_text("a = 2")
    assert one.differs(Note.of(Asked("train.py"), tmp_path / "train.py", tmp_path, ())) == ["the script"]


def test_an_interrupted_script_goes_on_and_what_it_keeps_in_runs_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "runs" / "train").mkdir(parents=True)
    (tmp_path / "runs" / "train" / "last.pt").write_text("5")
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    command = [
        str(BIN / "rolemesh"),
        "launch",
        "--max-restarts",
        "0",
        "--set",
        "engine.options.snapshots.persist_every=2",
        "train.py",
    ]
    first = subprocess.Popen(
        command, cwd=tmp_path, env=plain, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert first.stdout is not None
    while first.stdout.readline() != "STEP 10\n":
        assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate()

    def again() -> tuple[int, str]:
        done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (begin,) = re.findall(r"BEGIN (\d+)", done.stdout)
        return int(begin), done.stderr

    begin, said = again()
    assert begin > 0
    assert f"after its step {begin - 1} " in said
    assert f"the run before is now in {tmp_path / '.rolemesh' / '.earlier'}/train-" in said
    begin, said = again()
    assert begin == 0, "a script that was done begins from its beginning"
    assert "resum" not in said
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["train", "last.pt"]
