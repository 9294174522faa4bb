"""Tests that TensorBoard can read the records: the bytes of tensorboardX, and one scalar per metric and step."""

from __future__ import annotations

import struct
from pathlib import Path

from rolemesh import RunInfo, StepMetrics
from rolemesh_testing import ObserverConformance

from rolemesh_toolbox.tensorboard import TensorBoard, event, record


class TestTensorBoard(ObserverConformance):
    plugin = "event-file"
    bad_options = ({"folder": "../tb"}, {"metrics": "loss"})
    examples = 20


def test_a_record_has_the_bytes_that_other_writers_give_it() -> None:
    """The bytes that tensorboardX 2.6.5 writes for ``add_scalar("loss", 0.5, 3, walltime=1.5)``."""
    wanted = "1a00000000000000129bd82d09000000000000f83f10032a0d0a0b0a046c6f7373150000003f80655ee3"
    assert record(event(1.5, 3, "loss", 0.5)).hex() == wanted


def test_each_finite_metric_of_a_step_is_a_scalar(tmp_path: Path) -> None:
    observer = TensorBoard(TensorBoard.Options(metrics=["loss", "reward"]))
    observer.job_started(RunInfo("job", str(tmp_path), 9, {"a": 1}, ("a.run",)))
    values = {"loss": 0.5, "reward": float("nan"), "other": 1.0}
    observer.steps_finished((StepMetrics(0, 1, 1.5, values, {}, {}), StepMetrics(1, 1, 2.5, {"loss": 0.25}, {}, {})))
    [path] = (tmp_path / "tensorboard").iterdir()
    found = records(path.read_bytes())
    assert b"brain.Event:2" in found[0]
    assert found[1:] == [event(1.5, 0, "loss", 0.5), event(2.5, 1, "loss", 0.25)]


def records(data: bytes) -> list[bytes]:
    """Return the records of an event file, without an incomplete last one."""
    found = []
    while len(data) >= 12 and len(data) >= 16 + (length := struct.unpack("<Q", data[:8])[0]):
        found.append(data[12 : 12 + length])
        assert record(found[-1]) == data[: 16 + length]
        data = data[16 + length :]
    return found
