"""A master that another user may have written cannot fill the memory of a verb that asks it."""

import json
import threading
from pathlib import Path

import pytest
import zmq

from rolemesh_durable.control import client
from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_processes.boot import boot_id


def test_an_answer_that_is_too_large_is_not_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES", 1000)
    told = {"job": "j", "job_id": "i", "backend": "local", "endpoint": f"ipc://{tmp_path}/s", "pid": 1, "started": 0.0}
    (tmp_path / "control.json").write_text(json.dumps(told | {"boot": boot_id()}))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as master:
        master.linger = 0
        master.bind(told["endpoint"])

        def answer() -> None:
            identity, number, _ = master.recv_multipart()
            master.send_multipart([identity, number, bytes(2000)])

        thread = threading.Thread(target=answer)
        thread.start()
        with ControlClient(tmp_path, 1.0) as asking, pytest.raises(MasterGoneError, match="does not answer"):
            asking.status()
        thread.join()
