"""The ranks of one role in processes of their own, without a job: start, call, kill and restart them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import msgspec
import psutil

from rolemesh.api.workload import Workload
from rolemesh_processes.openmp import BASE_ENV
from rolemesh_testing.hanging import Hung, Limit, spent_s
from rolemesh_testing.leftovers import killed
from rolemesh_testing.raising import Raised
from rolemesh_testing.workloads.listed import Listed
from rolemesh_testing.workloads.stage import Started
from rolemesh_testing.workloads.wire import (
    Answer,
    Ask,
    Asked,
    Call,
    Done,
    Offload,
    Onload,
    Reply,
    Request,
    Restore,
    Returned,
    SetUp,
    Shared,
    Snapshot,
    Taken,
    TearDown,
    TornDown,
    packed,
    unpacked,
)

__all__ = ["Preloaded", "RankDied", "RankRaised", "Ranks", "Stage", "Stages", "Subject"]

R = TypeVar("R", bound=Reply)
Answers: TypeAlias = Callable[..., Any]
"""Answers of other roles: ``answers(role, method, *arguments, session=...)``."""


class RankRaised(AssertionError):
    """The workload raised unexpectedly. The message contains its traceback."""


class RankDied(AssertionError):
    """A rank's process ended before it answered."""


class Subject(msgspec.Struct, frozen=True):
    """The workload under test: the class, its module, its options as in a job file, and the job's folder."""

    cls: type[Workload]
    target: str
    options: dict[str, Any]
    base: Path
    plugins: tuple[Listed, ...] = ()


class Preloaded(Protocol):
    """The part of a workload that a stage needs: modules to import, and variables to set before that."""

    preload: Sequence[str]
    env: Mapping[str, str]


class Stage:
    """The process from which ranks are forked. All runs of a test share it, like the zygote of a node."""

    def __init__(
        self,
        cls: Preloaded,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
        serve: str = "rolemesh_testing.workloads.rank",
    ) -> None:
        """`env` overrides the workload's own; `serve` is the module whose function ``serve`` forked processes call.

        Raises `RankDied` if a preload cannot be imported, `Hung` if it hangs.
        """
        self.timeout_s = timeout_s
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([*filter(None, sys.path), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "rolemesh_testing.workloads.stage", str(there.fileno()), str(os.getpid())]
        command.append(serve)
        environ = {**os.environ, **BASE_ENV, **cls.env, **(env or {}), "PYTHONPATH": path}
        self._process = subprocess.Popen([*command, *cls.preload], env=environ, pass_fds=[there.fileno()])
        self._control = here
        there.close()
        limit = Limit(self._process.pid, timeout_s)
        while not wait([here], left := limit.left_s):
            if left == 0:
                self._process.kill()
                self.close()
                raise Hung(f"the imports of preload = {tuple(cls.preload)} have not ended within {timeout_s:g} s")
        data = here.recv(1 << 12)
        if not data:
            code = self._process.wait()
            raise RankDied(f"a process that imports preload = {tuple(cls.preload)} ended with {code}")
        self.started = msgspec.msgpack.decode(data, type=Started)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def fork(self, meeting: socket.socket | None = None) -> Connection:
        """Start a new rank's process. `meeting` is the socket on which its group meets."""
        here, there = socket.socketpair()
        fds = [there.fileno(), *([meeting.fileno()] if meeting is not None else [])]
        socket.send_fds(self._control, [b"fork"], fds)
        there.close()
        return Connection(here.detach())

    def close(self) -> None:
        """End the process and its children."""
        self._control.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stages:
    """The stages of a test session, one for each class. The first use starts them."""

    def __init__(self) -> None:
        self._stages: dict[tuple[type[Workload], str], Stage] = {}
        self.journeys: dict[tuple[Any, ...], Any] = {}
        """Undisturbed journeys, by their inputs. Several tests use the same one."""

    def get(self, cls: type[Workload], hash_seed: str = "") -> Stage:
        """Return the stage for a class, whose processes have the hash seed `hash_seed`; "" is any."""
        if (cls, hash_seed) not in self._stages:
            self._stages[cls, hash_seed] = Stage(cls, {"PYTHONHASHSEED": hash_seed} if hash_seed else None)
        return self._stages[cls, hash_seed]

    def close(self) -> None:
        """End all stages."""
        for stage in self._stages.values():
            stage.close()


class _Process:
    """One rank's process: its requests, answers and end."""

    def __init__(self, connection: Connection, name: str, timeout_s: float, answers: Answers) -> None:
        self._connection, self._name, self._timeout_s, self._answers = connection, name, timeout_s, answers
        self._asked: Request | None = None
        self._process: psutil.Process | None = None
        self._process = psutil.Process(int(self._received()))
        self.pid = self._process.pid

    def ask(self, request: Request) -> None:
        """Send a request; `answer` returns its result."""
        self._asked = request
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(request))
        except OSError:
            raise RankDied(f"{self._name} had ended before {_doing(request)}") from None

    def answer(self, kind: type[R]) -> R:
        """Return the answer to the last request. Raises `RankRaised`, `RankDied`, or `Hung` if none comes in time."""
        while isinstance(reply := msgspec.msgpack.decode(self._received(), type=Reply), Asked):
            found = self._answers(reply.role, reply.method, *unpacked(reply.arguments), session=reply.session)
            self._connection.send_bytes(msgspec.msgpack.encode(Answer(packed(found))))
        if isinstance(reply, Raised):
            raise RankRaised(f"{self._name} raised in {_doing(self._asked)}: {reply.error}\n{reply.trace}")
        assert isinstance(reply, kind), f"{self._name} answered {reply} to {self._asked}"
        return reply

    def _received(self) -> bytes:
        limit = Limit(self._process.pid if self._process is not None else 0, self._timeout_s)
        try:
            while (left := limit.left_s) > 0:
                if self._connection.poll(left):
                    return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise RankDied(f"the process of {self._name} ended in {_doing(self._asked)}; see its output") from None
        self.kill()
        raise Hung(f"{self._name} did not come back from {_doing(self._asked)} within {self._timeout_s:g} s")

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants."""
        _killed([self], 0.0)

    @property
    def processes(self) -> list[psutil.Process]:
        """The process, unless it has not begun."""
        return [] if self._process is None else [self._process]

    def close(self) -> None:
        """Close the connection. A process that lives sees this, and ends in good order."""
        self._connection.close()


def _killed(ranks: Sequence[_Process], patience_s: float | None = None) -> list[str]:
    """Do as `killed` does for the processes of ranks, and close their connections afterwards."""
    found = killed([process for each in ranks for process in each.processes], patience_s)
    for each in ranks:
        each.close()
    return found


def _doing(request: Request | None) -> str:
    match request:
        case None:
            return "its start"
        case Call():
            return f"{request.operator}() at step {request.step}"
        case Ask():
            return f"its service {request.service}() at step {request.step}"
        case SetUp() | TearDown():
            return "setup()" if isinstance(request, SetUp) else "teardown()"
        case _:
            return f"{type(request).__name__.lower()}()"


def _nobody(role: str, method: str, *arguments: Any, session: str) -> Any:
    raise AssertionError(f"it calls {role}.{method}; give the test class answer(role, method, *arguments, session)")


class Ranks:
    """All ranks of the subject, set up. The kit sends a request to all ranks of a collective group at once."""

    def __init__(
        self,
        stage: Stage,
        subject: Subject,
        world_size: int,
        *,
        seed: int = 0,
        steps: int = 3,
        generation: int = 0,
        turns: bool = False,
        answers: Answers | None = None,
    ) -> None:
        self._answers = answers or _nobody
        self._stage, self._subject, self.world_size = stage, subject, world_size
        self._seed, self._steps, self._turns = seed, steps, turns
        self.generations = [generation] * world_size
        self.left: list[str] = []
        """Processes that ran on after the kill of the rank that had started them."""
        self.tmp_dir = Path(tempfile.mkdtemp(prefix="rolemesh-conformance-"))
        self._queued_s = 0.0
        self._meeting: socket.socket | None = None
        self._processes: dict[int, _Process] = {}
        try:
            self.start(range(world_size))
        except BaseException:
            self.close()
            raise

    @property
    def collective(self) -> bool:
        """True if the ranks are a group, which starts and ends together."""
        return self._subject.cls.group == "collective" and self.world_size > 1

    def start(self, ranks: Sequence[int]) -> None:
        """Start processes for `ranks`, and set up the workload in them."""
        if self.collective:
            if self._meeting is not None:
                self._meeting.close()
            self._meeting = socket.create_server(("127.0.0.1", 0))
        for rank in ranks:
            connection = self._stage.fork(self._meeting if rank == 0 else None)
            self._processes[rank] = _Process(
                connection, f"rank {rank} of {self.world_size}", self._stage.timeout_s, self._answers
            )
        self.set_up(ranks)

    def set_up(self, ranks: Sequence[int]) -> None:
        """Make the workload in running processes, and set it up."""
        subject = self._subject
        meeting = self._meeting.getsockname() if self._meeting is not None else None
        orders = {
            rank: SetUp(
                subject.target,
                subject.options,
                rank,
                self.world_size,
                self._seed,
                self._steps,
                str(subject.base),
                str(self.tmp_dir),
                self.generations[rank],
                self._turns,
                meeting,
                subject.plugins,
            )
            for rank in ranks
        }
        self._ask(orders, Done)

    def queued_s(self) -> float:
        """Return the seconds for which this process and those of the ranks have waited for a processor."""
        pids = [os.getpid(), self._stage.pid, *(process.pid for process in self._processes.values())]
        return self._queued_s + sum(spent_s(pid)[1] for pid in pids)

    def call(
        self,
        step: int,
        operator: str,
        arguments: Mapping[int, Mapping[str, bytes]],
        streamed: tuple[str, ...] = (),
        shared: Shared | None = None,
    ) -> dict[int, Returned]:
        """Call an operator on the ranks in `arguments`, at the same time."""
        calls = {rank: Call(step, operator, dict(given), streamed, shared) for rank, given in arguments.items()}
        return self._ask(calls, Returned)

    def ask(self, step: int, service: str, arguments: Mapping[int, bytes], session: str = "") -> dict[int, Returned]:
        """Call a service of the ranks in `arguments`."""
        return self._ask({rank: Ask(step, service, given, session) for rank, given in arguments.items()}, Returned)

    def snapshot(self) -> dict[int, Taken]:
        """Return every rank's state."""
        return self._ask(dict.fromkeys(self._processes, Snapshot()), Taken)

    def restore(self, states: Mapping[int, bytes]) -> None:
        """Give states to ranks that are set up."""
        self._ask({rank: Restore(state) for rank, state in states.items()}, Done)

    def offload(self) -> None:
        """Let every rank release device memory."""
        self._ask(dict.fromkeys(self._processes, Offload()), Done)

    def onload(self) -> None:
        """Let every rank take it again."""
        self._ask(dict.fromkeys(self._processes, Onload()), Done)

    def tear_down(self) -> dict[int, TornDown]:
        """Tear the workload down in all ranks. The processes stay."""
        return self._ask(dict.fromkeys(self._processes, TearDown()), TornDown)

    def kill(self, rank: int) -> tuple[int, ...]:
        """Kill a rank, and the others of a collective group. Return the restarted ranks, which are set up."""
        victims = tuple(range(self.world_size)) if self.collective else (rank,)
        self._queued_s += sum(spent_s(self._processes[victim].pid)[1] for victim in victims)
        self.left += _killed([self._processes.pop(victim) for victim in victims])
        for victim in victims:
            self.generations[victim] += 1
        self.start(victims)
        return victims

    def close(self) -> None:
        """End all processes, and remove their files in the folder."""
        _killed(list(self._processes.values()), 0.0)
        self._processes.clear()
        if self._meeting is not None:
            self._meeting.close()
        shutil.rmtree(self.tmp_dir, ignore_errors=True)

    def _ask(self, requests: Mapping[int, Request], kind: type[R]) -> dict[int, R]:
        for rank, request in requests.items():
            self._processes[rank].ask(request)
        return {rank: self._processes[rank].answer(kind) for rank in requests}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
