"""The decoders of bytes from outside: of the wire, of files that others may have damaged, and of what users write."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
from tests.configs import master_config

from rolemesh.api.batch import Batch
from rolemesh.api.observer import Event, RoleTimes, StepMetrics
from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.job_file.loading import Written, load
from rolemesh.job_file.overrides import apply_overrides, types_of_spec
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs import jsonl
from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.layout import BlockLayout, SnapshotError, flatten
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.reading import StateFile
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane import codec
from rolemesh_dataplane.payload import DATA, HEAD, INLINE
from rolemesh_dataplane.transports import TransportError
from rolemesh_delta import messages as delta
from rolemesh_delta import producing, receiving
from rolemesh_delta.changes import Broken, Difference, apply, difference
from rolemesh_delta.transport import MALFORMED
from rolemesh_durable import runs
from rolemesh_durable.control import client, history
from rolemesh_durable.extensions.calls import frames as calls
from rolemesh_durable.extensions.replicas import store as replica_store
from rolemesh_durable.extensions.replicas.replication import Replication
from rolemesh_durable.extensions.replicas.store import ReplicaStore
from rolemesh_durable.journal import line_file, paging
from rolemesh_durable.journal.event_log import EventLog, Stored
from rolemesh_durable.malformed import UNREADABLE
from rolemesh_durable.master.answers import Answers
from rolemesh_durable.master.history import History
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.delivery.first import Taken, decode_taken
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.rank.said import Said
from rolemesh_durable.stores import StateError, Store
from rolemesh_embeddings.exports import MANIFEST, Export
from rolemesh_embeddings.files import RowFile
from rolemesh_facts.run import RunFacts
from rolemesh_gateway.apis import chat, messages, responses
from rolemesh_gateway.bodies import Body
from rolemesh_gateway.requests import RefusedError
from rolemesh_lock.lock import read_lock
from rolemesh_processes.forking import Frames
from rolemesh_processes.ownership import owner_of
from rolemesh_recorder import reading
from rolemesh_recorder.usage import read_usage
from rolemesh_rewards.table import read_rows
from rolemesh_runtime.claim import is_run, speaker
from rolemesh_tracking import config, cursor

__all__ = ["TARGETS", "Target"]

PLACE = Path(tempfile.mkdtemp(prefix="rolemesh-fuzz-"))
"""Folder of the files that decoders read; removed with the process."""
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
NOTHING: tuple[type[Exception], ...] = ()


def _same(data: bytes) -> bytes:
    return data


class Target(NamedTuple):
    """A decoder.

    - `declared`: the errors that its documentation names, with which it refuses an input.
    - `seeds`: valid inputs, which are changed.
    - `form`: how the inputs are written, if they can be changed value by value.
    - `sealed`: renews the checksums of an input, so that the decoder looks behind them.
    """

    name: str
    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]
    form: str = ""
    sealed: Callable[[bytes], bytes] = _same


def _file(name: str, data: bytes, *folders: str) -> Path:
    path = PLACE.joinpath(*folders, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _json(*values: Any) -> Callable[[], Sequence[bytes]]:
    return lambda: [msgspec.json.encode(value) for value in values]


def _msgpack(*values: Any) -> Callable[[], Sequence[bytes]]:
    return lambda: [msgspec.msgpack.encode(value) for value in values]


def _all_of(union: Any) -> Callable[[], Sequence[bytes]]:
    """Return a message of each type of a union, with the simplest values."""
    return lambda: [msgspec.msgpack.encode(_simplest(each)) for each in get_args(union) or (union,)]


def _simplest(kind: Any) -> Any:
    """Return an object of a message's type: required fields have simple values."""
    fields = {each.name: each.type for each in msgspec.structs.fields(kind) if each.required}
    return kind(**{name: _value(each) for name, each in fields.items()})


SIMPLE: Sequence[Any] = (1, "x", b"x", 1.5, True, (), {}, None, ("x", 1), ("x",), ("x", 1, 2), (1, 2))


def _value(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _simplest(kind)
    for value in (*SIMPLE, *map(str, get_args(kind))):
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
    raise AssertionError(f"no simple value is a {kind}")


# ------------------------------------------------------------------------------------------------- messages and frames

WORK = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())


class _Answers(Answers):
    """The answers of a master without sockets."""

    def __init__(self) -> None:
        state = JobState.of(master_config(WORK, {"a0": (m.RankLaunch("work", 0, 1, 0, 1, 0),)}))
        self._status = lambda: SimpleNamespace(state=state)
        self._events, self._lines, self._put = list, list, lambda event: None
        self._others = {}
        self._encode = msgspec.msgpack.Encoder(enc_hook=lambda value: None).encode
        self._decode = msgspec.msgpack.Decoder(client.Request).decode
        self._drop = lambda error: None


def _frame(data: bytes) -> object:
    """Read a frame with data as an endpoint does."""
    _, _, _, _, _, _, _, _, hlen, count = HEAD.unpack_from(data)
    header, sizes, rest = codec.unflatten(data, HEAD.size, hlen, count)
    return codec.decode(header, codec.flat_buffers(data, rest, sizes))


def _frames() -> Sequence[bytes]:
    found = []
    for value in ({"a": [1, (2, "x")]}, Batch({"x": np.arange(6), "t": ["a"] * 6}), np.float32(3)):
        header, buffers = codec.encode(value)
        sizes = [len(each) for each in buffers]
        head = HEAD.pack(DATA, INLINE, 1, 0, 0, 0, 5, 0, len(header), len(sizes))
        found.append(codec.flatten(header, sizes, buffers, head))
    return found


def _call_frames() -> Sequence[bytes]:
    answer = calls.Answer(b"k" * calls.KEY_BYTES, calls.ANSWER, codec.encode({"x": 1})[0])
    return [calls.frame_of(answer, [], 0, 0, 0, 0)]


def _agents_message(data: bytes) -> None:
    """Take a message of another agent about a copy: the kind is the first word."""
    kind, _, rest = data.partition(b" ")
    body, _, answer = rest.partition(b"|||")
    end = Replication(PLACE / "replicas", "here", lambda address, kind, body: None)
    end.asked(kind, body, 0.0)
    end.fetch("there", "work", 0, 3, 0.0)
    end.answered(kind, body, answer, 0.0)


def _agents_messages() -> Sequence[bytes]:
    pack = msgspec.msgpack.encode
    image = replica_store.Image("work", 0, 3, 1, (replica_store.ImageFile("state", 4, 1),), (0, 0, 0))
    return [
        b"offer " + pack(["work", 0, 3, [0, 0, 0], [[0, -1]], "there"]),
        b"image " + pack(["work", 0, 3, None]) + b"|||" + pack(image),
        b"image " + pack(["work", 0, 3, [0, 0, 0]]),
        b"piece " + pack(["work", 0, 3, None, "state", 0, 4]) + b"|||1234",
        b"done " + pack(["work", 0, 3, [0, 0, 0]]),
        b"refused " + pack(["work", 0, 3, [0, 0, 0], "why"]),
    ]


def _deltas_to_a_consumer(data: bytes) -> None:
    """Take messages of the transport delta: each is a kind, what it says about itself, and its frames."""
    consumer = receiving.Receiving(part_bytes=64)
    for kind, about, frames in msgspec.msgpack.decode(data, type=list[tuple[str, Any, list[bytes]]]):
        told = delta.encode(about)
        if kind == "v":
            consumer.value(b"producer", delta.decode_value(told), frames[0] if frames else b"", 0.0)
        elif kind == "d":
            consumer.part(delta.decode_at(told), frames, 0.0)
        elif kind == "g":
            consumer.give(b"neighbour", delta.decode_at(told))
        elif kind == "l":
            consumer.lacks(delta.decode_at(told))
        else:
            consumer.plain(b"producer", frames)


def _deltas() -> tuple[producing.Producing, list[Any]]:
    """Return a producer that has sent two values to two consumers, and its messages to the second."""
    producer, found = producing.Producing(7, 1, part_bytes=64), []
    for peer in "ab":
        producer.opened(peer, f"tcp://127.0.0.1:{1 + ord(peer)}")
    for step, changed in enumerate((0, 1)):
        new = np.full(50, 2.0, np.float32)
        new[:changed] = 3
        item = producing.Item(step, step, [memoryview(new.tobytes())] * 2, ["float32"] * 2)
        for peer in "ab":
            head = HEAD.pack(DATA, 2, 0, 3, 0, 0, step, 0, 0, 2)
            for kind, told, frames in producer.send(peer, (3, 0), item, head):
                if peer == "a":
                    found.append([kind.decode(), msgspec.msgpack.decode(told), [bytes(each) for each in frames]])
    return producer, found


def _deltas_of_a_producer() -> Sequence[bytes]:
    _, found = _deltas()
    about = found[-1][1]
    return [msgspec.msgpack.encode([*found, ["g", about, []], ["l", about, []], ["p", None, [b"x"]]])]


def _answers_to_deltas(data: bytes) -> None:
    """Take a consumer's answers: each is a kind, and what it is about."""
    producer, _ = _deltas()
    for kind, about in msgspec.msgpack.decode(data, type=list[tuple[str, Any]]):
        list(producer.answered("a", kind.encode(errors="replace"), delta.decode_at(delta.encode(about))))


def _difference(data: bytes) -> None:
    old = [np.arange(400, dtype=np.uint8).copy() for _ in range(2)]
    for buffer, change in zip(old, msgspec.msgpack.decode(data, type=list[Difference]), strict=False):
        apply(buffer, change)


def _differences() -> Sequence[bytes]:
    found = []
    for dtype, changed in (("float32", 3), ("bfloat16", 100), ("", 400)):
        old = np.arange(400, dtype=np.uint8)
        new = old.copy()
        new[:changed] ^= 1
        found.append(delta.encode([difference(old.copy(), new, dtype, 1) for _ in range(2)]))
    return found


# ------------------------------------------------------------------------------------------------- files of the engine


class _Rows(Store):
    """A store with rows that are given."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self._rows = [row.decode(errors="replace") for row in rows]
        self.job_id = "job"

    place = "rows"

    def connect(self) -> None: ...
    def prepare(self) -> None: ...
    def close(self) -> None: ...

    def root(self) -> str | None:
        return self._rows[0] if self._rows else None

    def head(self) -> str | None:
        return self._rows[1] if len(self._rows) > 1 else None

    def records(self, first: int, last: int) -> list[tuple[int, str]]:
        rows = list(enumerate(self._rows[2:], 1))
        return [row for row in rows if first <= row[0] <= last]

    def write(self, before: Any, after: Any, **more: Any) -> bool:
        return True


EVENTS = (
    ("job_started", {"name": "job", "steps": 10, "agents": ["a0"], "ranks": 1, "clock": "boot", "at": 1.0}),
    ("job_running", {"at": 2.0}),
    ("rank_up", {"role": "work", "rank": 0, "generation": 0, "pid": 5, "node": "n0"}),
)


def _journal(data: bytes) -> object:
    return EventLog(_Rows(data.split(b"\n"))).read()


def _fresh() -> JobState:
    return JobState.of(master_config(WORK, {"a0": (m.RankLaunch("work", 0, 1, 0, 1, 0),)}))


def _journal_rows() -> Sequence[bytes]:
    def sealed(*values: Any) -> bytes:
        text = msgspec.json.encode(values)
        return f"{zlib.crc32(text):08x} ".encode() + text

    events = [sealed(number, 1, 1.0, *event) for number, event in enumerate(EVENTS, 1)]
    told = Stored(-1, 0, "", [Event(number, 1, 1.0, *event) for number, event in enumerate(EVENTS, 1)])
    head = sealed(2, History(_fresh, told).head())
    roots = sealed(1, len(events), 1, -1, 0), sealed(1, len(events), 2, -1, 2)
    return [b"\n".join([roots[0], b"", *events]), b"\n".join([roots[1], head, *events])]


def _resealed_rows(data: bytes) -> bytes:
    rows = []
    for row in data.split(b"\n"):
        text = row[9:].decode(errors="replace").encode()
        rows.append(f"{zlib.crc32(text):08x} ".encode() + text if row else row)
    return b"\n".join(rows)


def _database(data: bytes) -> None:
    path = _file("state.sqlite", data, "database")
    for beside in ("-wal", "-shm", "-journal"):
        Path(f"{path}{beside}").unlink(missing_ok=True)
    with EventLog.open("sqlite", path.parent, "job") as log:
        log.read()


@cache
def _databases() -> Sequence[bytes]:
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    with EventLog.open("sqlite", folder, "job") as log:
        epoch = log.claim()
        log.append(epoch, [(1.0, kind, data) for kind, data in EVENTS], committed=3)
    with sqlite3.connect(folder / "state.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    return [(folder / "state.sqlite").read_bytes()]


def _run_folder(name: str, look: Callable[[runs.Run], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        return look(runs.Run(_file(name, data, "run").parent))

    return read


def _numbered(data: bytes) -> None:
    path = _file("events.jsonl", data)
    for page in paging.pages(path, "seq", 1):
        for line in page:
            history._event(line)
    line_file.last_line(path)
    grown = line_file.LineFile(path, "seq", 1)
    grown.append([(1 << 40, b"{}\n")])
    grown.close()


def _lines_of_events() -> Sequence[bytes]:
    return [b"".join(msgspec.json.encode(Event(i, 1, 1.0, "x", {"a": 1})) + b"\n" for i in range(1, 4))]


def _lines_of_metrics() -> Sequence[bytes]:
    line = StepMetrics(3, 1, 0.5, {"loss": 1.0}, {"work.step": {"a": 1.0}}, {"work": RoleTimes(1.0, 0.0, 0.0)}, {}, {})
    return [jsonl.metrics_line(line)[1] * 2]


def _said_by_a_rank() -> Sequence[bytes]:
    return [msgspec.msgpack.encode([_simplest(each) for each in get_args(m.RankToAgent)])]


def _said(data: bytes) -> object:
    _file("said-work-0-0", data)
    return Said(str(PLACE), "work", 0, 0).read()


# ------------------------------------------------------------------------------------------------------- checkpoints


def _state() -> Sequence[bytes]:
    flat = flatten({"w": np.arange(4.0), "n": 2**70, "t": [1, "x"]}, 0)
    head = BlockLayout.head({"step": 3, "log": -1, "tree": flat.tree})
    layout = BlockLayout(BlockLayout.key_of(flat.blocks), flat.blocks, len(head))
    return [layout.header(head) + b"".join(np.ascontiguousarray(each.source).tobytes() for each in flat.blocks)]


def _manifest() -> disk.Manifest:
    return disk._sealed(disk.Manifest("r", "x", 3, 4, {"work": 1}, {"work/a": (1, "0" * 64)}))


def _sealed_manifest(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(disk._sealed(msgspec.json.decode(data, type=disk.Manifest)))
    except Exception:
        return data


def _checkpoint(data: bytes) -> None:
    folder = _file(disk.MANIFEST, data, "run", "snapshots", "step-3").parent
    disk.find_checkpoints(PLACE / "run")
    disk.newest_intact(PLACE / "run")
    disk.read_manifest(folder)


def _in_flight() -> Sequence[bytes]:
    head = msgspec.msgpack.encode(in_flight._Head(-1, 1, 0, False, True, (), -1, b"", (), "a/b", 1, b"body"))
    return [b"rmedges1" + in_flight._FRAME.pack(len(head), 0) + head]


@cache
def _segments() -> Sequence[bytes]:
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    log = SendLog(folder, "work", 0)
    header, buffers = codec.encode(np.arange(3))
    body = codec.flatten(header, [len(each) for each in buffers], buffers)
    log.chunk(0, 0, 0, True, 2, (0, 1), body, len(header), len(buffers))
    log.end(0, 1, 0, 2, (0,))
    log.decide("notes", 1, 0, b"x")
    log.whole(0, 1, 0, 2, b"items")
    log.line(1, b"line")
    log.close()
    (path,) = folder.glob("log-*")
    return [path.read_bytes()[:4096]]


def _send_log(data: bytes) -> None:
    for path in (PLACE / "log").glob("*"):
        path.unlink()
    _file("log-work-0-0", data, "log")
    for record in SendLog.read(PLACE / "log", "work", 0):
        if record.hlen:
            record.load(PLACE)


@cache
def _indexes() -> Sequence[bytes]:
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    memory = MemorySnapshots(folder, "work", 0)
    memory.write(1, {"x": np.arange(3)}, log=0, persist=True)
    memory.write(2, {"x": np.arange(3)}, log=1, persist=False)
    memory.close()
    _snapshots.update({path.name: path.read_bytes() for path in folder.iterdir()})
    (name,) = (name for name in _snapshots if "index" in name)
    return [_snapshots[name]]


_snapshots: dict[str, bytes] = {}


def _index(data: bytes) -> None:
    for name, content in _snapshots.items():
        _file(name, data if "index" in name else content, "memory")
    memory = MemorySnapshots(PLACE / "memory", "work", 0)
    for step in memory.steps():
        memory.intact(step)
        memory.read(step)
    memory.write(9, {"x": np.arange(3)}, log=0, persist=False)
    memory.close()


def _kept_image(data: bytes) -> None:
    _file("image", data, "kept", "copies", "work-0", "step-3")
    ReplicaStore(PLACE / "kept").held()


# ------------------------------------------------------------------------------------------------- parameter servers


def _export(data: bytes) -> None:
    export = Export.read(_file(MANIFEST, data, "export").parent)
    export.fetch({"items": np.arange(3)})


def _exports() -> Sequence[bytes]:
    from safetensors.numpy import save

    arrays = {"items/keys": np.arange(2), "items/values": np.zeros((2, 4), np.float32), "items/changed": np.arange(2)}
    content = save(arrays)
    name = f"base-000000000003-0-of-1-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    _file(name, content, "export")
    tables = {"items": {"dim": 4}}
    return [msgspec.json.encode({"step": 3, "files": [name], "updates": [3], "seed": 0, "tables": tables})]


def _row_file(data: bytes) -> None:
    """Open a file with the first page `data`, and its index behind it."""
    RowFile(_file("rows", data, "rows")).close()


def _row_files() -> Sequence[bytes]:
    head = json.dumps([{"store": "items", "bucket": -1, "gone": [4096, 0], "rows": 0, "columns": {}}]).encode()
    return [json.dumps([4096, len(head)]).encode().ljust(4096) + head]


# ------------------------------------------------------------------------------------------------- what users write

JOB = b"""name: demo
flow: flow.py:flow
steps: 3
roles:
  work: {use: function, world_size: 2, options: {path: "a.py", n: 1e-3, when: 2020-01-01}}
engine: {use: durable, options: {grant: 4}}
placement: {use: pack}
failover: [{use: process, options: {max_attempts: 3}}, {use: job}]
edges: {credits: 2}
metrics: {every: 2}
"""


LOCK = b"""rolemesh: 1.0.0
plugins:
- {kind: workloads, name: function, distribution: rolemesh-function, version: 1.0.0, sha256: ab12e3}
"""


def _job(data: bytes) -> None:
    load(Written(data.decode(errors="replace"), PLACE, "job.yaml"), environ={})


def _overrides(data: bytes) -> None:
    """Read a job file with an override for each line."""
    text = JOB.decode()
    job, places = parse_yaml(text, "job.yaml")
    apply_overrides(job, places, data.decode(errors="replace").splitlines(), types_of_spec)


# ------------------------------------------------------------------------------------------------- HTTP


def _body(data: bytes) -> object:
    encoding, _, rest = data.partition(b":")
    body = Body(encoding.decode(errors="replace"), 1 << 20)
    body.add(rest[: len(rest) // 2])
    body.add(rest[len(rest) // 2 :])
    return body.value()


def _parsed(parse: Callable[..., object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        body = Body("", 1 << 20)
        body.add(data)
        return parse(body.value())

    return read


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CHAT = {
    "model": "m", "temperature": 0.5, "stop": ["x"], "max_tokens": 5, "tools": [TOOL], "tool_choice": "auto",
    "messages": [
        {"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
}  # fmt: skip
MESSAGES = {
    "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "be"}], "stop_sequences": ["x"],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]},
    ],
}  # fmt: skip
RESPONSES = {
    "model": "m", "instructions": "be", "max_output_tokens": 5, "tool_choice": "auto",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- files of viewers


def _viewed(name: str, *folders: str) -> Callable[[bytes], None]:
    """Read a run with the file `name` as the viewer does."""

    def read(data: bytes) -> None:
        shutil.rmtree(PLACE / "viewed", ignore_errors=True)
        _file(name, data, "viewed", *folders)
        run = RunFacts(PLACE / "viewed")
        for look in (run.plan, run.job_file, run.flow, run.events, run.metrics, run.paced):
            look()
        for ref in reading.recorded_ranks(run.path):
            list(reading.read_record(run.path, *ref))
            list(reading.read_accounts(run.path, *ref))
            reading.record_ends(run.path, *ref)
            reading.latest_head(run.path, *ref)
            reading.latest_lines(run.path, *ref, 5)
        for _, path in reading.kept_files(run.path):
            list(reading.read_rows(path))
        list(read_usage(run.path, "n0"))

    return read


RECORD = (
    {
        "k": "head",
        "v": 1,
        "role": "work",
        "rank": 0,
        "generation": 0,
        "node": "n0",
        "pid": 1,
        "t": 1,
        "ops": [],
        "t0": 0,
    },
    {"k": "span", "t": 2, "d": 3, "op": 0, "step": 1, "phase": 1, "edge": -1},
    {"k": "account", "t": 5, "d": 5, "step": 1, "phases": {"1": 3}},
)


def _tracked(data: bytes) -> object:
    return config.config(_file("job.yaml", data, "tracked").parent)


def _owner() -> Sequence[bytes]:
    return [
        b'{"owner":"rolemesh","job":"a","part":"b","token":"t","pid":1,"start":2,"boot":"x","incarnation":0,"tmp":""}'
    ]


def _claimed(data: bytes) -> None:
    path = _file("run.json", data, "claimed")
    is_run(path.parent)
    _file("control.json", data, "claimed")
    speaker(path.parent)


def _child(data: bytes) -> object:
    return Frames(1 << 20).feed(data)


TARGETS: tuple[Target, ...] = (
    Target("messages of masters", m.decode_master_to_agent, UNREADABLE, _all_of(m.MasterToAgent), "msgpack"),
    Target("messages of agents", m.decode_agent_to_master, UNREADABLE, _all_of(m.AgentToMaster), "msgpack"),
    Target("messages of ranks", m.decode_rank_to_agent, UNREADABLE, _all_of(m.RankToAgent), "msgpack"),
    Target("messages to ranks", m.decode_agent_to_rank, UNREADABLE, _all_of(m.AgentToRank), "msgpack"),
    Target("questions to a master", lambda data: _Answers()._answer(data), NOTHING, _all_of(client.Request), "msgpack"),
    Target("answers of a master", lambda data: client._update(SimpleNamespace(job="job"), data), (RolemeshError,),
           _all_of(client.Update), "msgpack"),
    Target("frames with data", _frame, (TransportError, *UNREADABLE), _frames),
    Target("deltas to a consumer", _deltas_to_a_consumer, (*MALFORMED, receiving.Changed),
           _deltas_of_a_producer, "msgpack"),
    Target("answers to deltas", _answers_to_deltas, MALFORMED,
           _msgpack([["h", [7, 0, 1, True, 0]], ["w", [7, 0, 0, False, 0, True]], ["w", [7, 0, 1, True, 0]]]),
           "msgpack"),
    Target("differences", _difference, (*MALFORMED, Broken), _differences, "msgpack"),
    Target("calls", calls.read_request, UNREADABLE,
           _msgpack(calls.Request(b"k" * calls.KEY_BYTES, "do", 3, 1, b"x")), "msgpack"),
    Target("kept answers", calls.kept_answer, (TransportError, *UNREADABLE), _call_frames),
    Target("items taken first", decode_taken, UNREADABLE, _msgpack(Taken(((1, 2),), ((3, 0),), 1)), "msgpack"),
    Target("messages about copies", _agents_message, NOTHING, _agents_messages),
    Target("rows of a journal", _journal, (StateError,), _journal_rows, sealed=_resealed_rows),
    Target("a journal's database", _database, (StateError,), _databases),
    Target("numbered lines", _numbered, NOTHING, _lines_of_events, "lines"),
    Target("lines of metrics", lambda data: list(jsonl.read_metrics(_file("metrics.jsonl", data))), NOTHING,
           _lines_of_metrics, "lines"),
    Target("control.json", _run_folder("control.json", lambda run: run.control()), (RolemeshError,),
           lambda: [msgspec.json.encode(_simplest(runs.ControlFile))], "json"),
    Target("run.json", _run_folder("run.json", lambda run: run.info()), (RolemeshError,),
           lambda: [msgspec.json.encode(_simplest(runs.RunInfo))], "json"),
    Target("result.json", _run_folder("result.json", lambda run: run.result()), (RolemeshError,),
           _json({"status": "done", "job_id": "x"}), "json"),
    Target("job.yaml of a run", _run_folder("job.yaml", lambda run: run.job_value("engine", None, "name")),
           (RolemeshError,), lambda: [JOB]),
    Target("what a rank has said", _said, NOTHING, _said_by_a_rank, "msgpack"),
    Target("the state of a rank", lambda data: StateFile(bytearray(data), "x").state(), (SnapshotError,), _state),
    Target("manifests", _checkpoint, (SnapshotError,), lambda: [msgspec.json.encode(_manifest())], "json",
           _sealed_manifest),
    Target("records in flight", lambda data: in_flight.read(_file("edges", data).parent, "edges"), (SnapshotError,),
           _in_flight),
    Target("send logs", _send_log, NOTHING, _segments),
    Target("indexes of snapshots", _index, (SnapshotError,), _indexes),
    Target("kept images", _kept_image, NOTHING,
           _msgpack(replica_store.Image("work", 0, 3, 1, (replica_store.ImageFile("state", 4, 1),), (0, 0, 0))),
           "msgpack"),
    Target("exports of embeddings", _export, (OSError, ValueError), _exports, "json"),
    Target("files of rows", _row_file, (OSError, ValueError), _row_files),
    Target("job files", _job, (RolemeshError,), lambda: [JOB]),
    Target("overrides", _overrides, (RolemeshError,),
           lambda: [b"steps=5\nroles.work.options.n=[1, 2]\nengine.options.grant=~", b"roles.work.world_size=3"]),
    Target("locks", lambda data: read_lock(_file("job.lock", data)), (RolemeshError,), lambda: [LOCK]),
    Target("tables of questions", lambda data: read_rows(_file("x.jsonl", data)), (RolemeshError,),
           lambda: [b'{"question": "a", "answer": [1]}\n{"question": "b", "answer": [2]}\n'], "lines"),
    Target("bodies of requests", _body, (RefusedError,),
           lambda: [b":" + json.dumps(CHAT).encode(), b"gzip:" + _zipped(json.dumps(CHAT).encode())]),
    Target("chats", _parsed(chat.parse), (RefusedError,), _json(CHAT), "json"),
    Target("messages of Anthropic's API", _parsed(messages.parse), (RefusedError,), _json(MESSAGES), "json"),
    Target("responses", _parsed(responses.parse), (RefusedError,), _json(RESPONSES), "json"),
    Target("plan.json in the viewer", _viewed("plan.json"), NOTHING, _json({"roles": {"work": {"world_size": 2}}}),
           "json"),
    Target("events in the viewer", _viewed("events.jsonl"), NOTHING, _lines_of_events, "lines"),
    Target("metrics in the viewer", _viewed("metrics.jsonl"), NOTHING, _lines_of_metrics, "lines"),
    Target("records in the viewer", _viewed("000001.jsonl", "record", "work-0"), NOTHING,
           lambda: [b"".join(json.dumps(each).encode() + b"\n" for each in RECORD)], "lines"),
    Target("job files of trackers", _tracked, NOTHING, lambda: [JOB]),
    Target("cursors of trackers", lambda data: cursor.read_cursor(_file("cursor", data)), NOTHING,
           _json(cursor.Cursor("x", 3, 4)), "json"),
    Target("owners of folders", lambda data: owner_of(_file(".owner", data, "owned").parent), NOTHING, _owner, "json"),
    Target("claims", _claimed, NOTHING, _json({"run_dir": "x", "pid": 3}), "json"),
    Target("frames of a child", _child, (ValueError,), lambda: [b"k\x03\0\0\0abc" * 2]),
)  # fmt: skip


def _zipped(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data)
