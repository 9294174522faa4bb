"""The zygotes of an agent and the ranks forked from them: start, watch, kill. No protocol here."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.agent import zygote
from rolemesh_durable.protocol.job import Environment
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.refusals import refused
from rolemesh_processes import parcels
from rolemesh_processes.facts import start_time
from rolemesh_processes.guard import MARKER
from rolemesh_processes.openmp import BASE_ENV

__all__ = ["Death", "ReplacedError", "ZygotePool", "death_of"]

END_S = 2.0
"""Seconds in which a zygote that has closed its end must be gone."""
LOG = logging.getLogger(__name__)
ANSWER_S = 5.0
"""Seconds in which an adopted zygote must answer. Nothing that it does takes longer."""
ALONE_S = 5.0
"""Seconds that a zygote waits for an agent after the dead agent's janitor should have ended everything."""


class Death(msgspec.Struct, frozen=True):
    """The end of a rank's process. `error` is set if it never ran, with `cause`: see `rolemesh.api.failures.Cause`."""

    who: StartRef
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    cause: Literal["start", "environment"] = "start"


class ReplacedError(Exception):
    """Another incarnation of the agent commands its zygotes."""


class _Zygote:
    def __init__(self, control: socket.socket, pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
        """`process`: the agent's child process until it is ready."""
        self.process = process
        self.pid, self.started = pid, start_time(pid)
        self.control = control
        self.ready = False
        self.making = ""
        self.broken: zygote.Broken | None = None
        self.waiting: list[zygote.Fork] = []
        self.ranks: dict[StartRef, int | None] = {}
        self.doomed: set[StartRef] = set()

    def kill(self) -> None:
        """Send SIGKILL; its ranks die with it. A process that reuses its pid is spared."""
        if start_time(self.pid) == self.started >= 0:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def gone(self, within_s: float) -> bool:
        """Return whether its process is gone, after waiting at most this long."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(within_s)
        until = time.monotonic() + within_s
        while start_time(self.pid) == self.started >= 0:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True


class ZygotePool:
    """Zygotes by their preloads, variables and environment. A zygote is started when its first rank is requested.

    All methods belong to one thread: until a zygote is ready, the kernel kills it when the thread that started it ends.
    """

    def __init__(self, logs: Path, mark: str, tmp: Path, hold_s: float = 10.0) -> None:
        """Zygotes outlive this process for a little longer than `hold_s`, unless somebody ends them."""
        self._alone_s = hold_s + ALONE_S
        self._logs = logs
        self._mark = mark
        self._tmp = tmp
        self._changed: Callable[[socket.socket], None] = lambda control: None
        self._zygotes: dict[tuple[object, ...], _Zygote] = {}
        self._decode = msgspec.msgpack.Decoder(zygote.ZygoteMessage).decode

    def watch(self, changed: Callable[[socket.socket], None]) -> None:
        """Call `changed(socket)` for each zygote, now and for later ones: poll it for reading, then call
        `read(socket)`."""
        self._changed = changed
        for home in self._zygotes.values():
            changed(home.control)

    @property
    def making(self) -> tuple[str, ...]:
        """Return the environments that are being prepared, with their progress."""
        return tuple(home.making for home in self._zygotes.values() if home.making)

    def boot(self, preload: Iterable[str], env: Mapping[str, str], environment: Environment) -> None:
        """Start a zygote now, so that it is ready when its first rank is requested. `fork` reports a failure."""
        with suppress(OSError):
            self._get(tuple(preload), dict(env), environment)

    def adopt(
        self, incarnation: int, home_of: Callable[[str], tuple[tuple[str, ...], dict[str, str], Environment]]
    ) -> list[zygote.Row]:
        """Take over the zygotes of earlier incarnations. Return the newest processes of their ranks.

        `home_of(role)` returns the arguments of `fork` for the role's ranks. A zygote that does not answer, or has had
        no rank, is killed.
        """
        found: dict[RankRef, zygote.Row] = {}
        for path in sorted(self._tmp.glob(f"{zygote.SOCKET}*")):
            pid = int(path.name.removeprefix(zygote.SOCKET))
            rows = self._adopt(path, pid, incarnation, home_of)
            for row in rows or ():
                known = found.get(row.who.ref)
                if known is None or known.who.generation < row.who.generation:
                    found[row.who.ref] = row
            if not rows:
                path.unlink(missing_ok=True)
        return list(found.values())

    def _adopt(
        self,
        path: Path,
        pid: int,
        incarnation: int,
        home_of: Callable[[str], tuple[tuple[str, ...], dict[str, str], Environment]],
    ) -> list[zygote.Row]:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control.settimeout(ANSWER_S)
            control.connect(str(path))
            parcels.send(control, f"{zygote.ADOPT}{incarnation}", b"")
            _, data = parcels.receive(control) or ("", None)
            rows = msgspec.msgpack.decode(data or b"\x90", type=list[zygote.Row])
            kind = _kind(*home_of(rows[0].who.role)) if rows else ()
        except ConnectionRefusedError:
            rows, kind, pid = [], (), 0  # it is dead
        except (OSError, KeyError, ValueError, msgspec.DecodeError) as error:
            LOG.warning("the zygote with pid %d cannot be adopted: %r", pid, error)
            rows, kind = [], ()
        if not rows or kind in self._zygotes:
            control.close()
            if pid and start_time(pid) >= 0:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return []
        control.settimeout(None)
        home = self._zygotes[kind] = _Zygote(control, pid)
        home.ready = True
        home.ranks = {row.who: row.pid for row in rows if row.status is None}
        self._changed(control)
        return rows

    def fork(
        self, preload: Iterable[str], env: Mapping[str, str], environment: Environment, request: zygote.Fork
    ) -> None:
        """Fork a rank as soon as its zygote is ready. Raises `OSError` if the system refuses a resource."""
        home = self._get(tuple(preload), dict(env), environment)
        home.ranks[request.who] = None
        home.waiting.append(request)
        if home.ready:
            self._send_waiting(home, raises=request.who)

    def turn(self) -> list[Death]:
        """Repeat requests that a zygote could not take before. Return the ranks that cannot be started at all."""
        ready = [home for home in self._zygotes.values() if home.ready and home.waiting]
        return [death for home in ready for death in self._send_waiting(home)]

    def kill(self, who: StartRef) -> bool:
        """Send SIGKILL to a rank and everything in its session. Return False if it has no process (then it gets
        none)."""
        for home in self._zygotes.values():
            if who in home.ranks:
                pid = home.ranks[who]
                if pid is not None:
                    _signal(pid, signal.SIGKILL)
                    return True
                if any(request.who == who for request in home.waiting):
                    home.waiting = [request for request in home.waiting if request.who != who]
                    del home.ranks[who]
                    return False
                home.doomed.add(who)
                return True
        return False

    def terminate(self, who: StartRef) -> None:
        """Send SIGTERM to a rank and everything in its session, if it has a process."""
        for home in self._zygotes.values():
            pid = home.ranks.get(who)
            if pid is not None:
                _signal(pid, signal.SIGTERM, both=False)

    def freeze(self, who: StartRef) -> None:
        """Send SIGSTOP to a rank, if it has a process."""
        for home in self._zygotes.values():
            pid = home.ranks.get(who)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def kill_zygote(self) -> None:
        """Rehearsal: send SIGKILL to one of the zygotes that have ranks, or to any if none has."""
        homes = [home for home in self._zygotes.values() if home.ranks] or list(self._zygotes.values())
        if homes:
            random.choice(homes).kill()

    def pids(self) -> list[int]:
        """Return the pids of the zygotes."""
        return [home.pid for home in self._zygotes.values()]

    def read(self, control: socket.socket) -> list[Death]:
        """Read the messages of a zygote. Return the ranks that have ended."""
        home = next((h for h in self._zygotes.values() if h.control is control), None)
        if home is None:
            return []
        try:
            data = control.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._zygote_gone(home)
        match self._decode(data):
            case zygote.Making(text=text):
                home.making = text
            case zygote.Ready(pid=pid):
                home.ready, home.making = True, ""
                if home.process is not None:
                    home.process.wait()
                home.process, home.pid, home.started = None, pid, start_time(pid)
                return self._send_waiting(home)
            case zygote.Forked(who=who, pid=pid):
                home.ranks[who] = pid
                if who in home.doomed:
                    home.doomed.discard(who)
                    self.kill(who)
            case zygote.Replaced():
                raise ReplacedError("another incarnation of this agent has taken its zygotes over: this one must end")
            case zygote.Broken(who=None) as broken:
                home.broken = broken
            case zygote.Broken(who=StartRef() as who, error=error):
                home.ranks.pop(who, None)
                return [Death(who, error=error)]
            case zygote.Exited(who=who, status=status):
                home.ranks.pop(who, None)
                return [death_of(who, status)]
        return []

    def close(self) -> None:
        """End all zygotes; their ranks end with them."""
        for home in self._zygotes.values():
            home.control.close()
            home.kill()
            home.gone(END_S)
        self._zygotes.clear()

    def _send_waiting(self, home: _Zygote, raises: StartRef | None = None) -> list[Death]:
        """Send the waiting requests until the zygote accepts no more. If the system refuses one, that rank has ended;
        for the rank `raises` the error is raised."""
        dead: list[Death] = []
        while home.waiting:
            request = home.waiting[0]
            try:
                parcels.send(home.control, str(request.who), msgspec.msgpack.encode(request))
            except BlockingIOError:
                break  # it does not read at the moment
            except (BrokenPipeError, ConnectionError):
                break  # it is gone, as `read` is about to see
            except OSError as error:
                home.waiting.pop(0)
                del home.ranks[request.who]
                if request.who == raises:
                    raise
                dead.append(Death(request.who, error=refused(error)))
            else:
                home.waiting.pop(0)
        return dead

    def _zygote_gone(self, home: _Zygote) -> list[Death]:
        home.kill()
        for pid in (pid for pid in home.ranks.values() if pid is not None):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        how = "has ended" if home.gone(END_S) else "does not end: it hangs in the kernel"
        if home.process is not None and home.process.returncode is not None:
            how = f"ended with exit code {home.process.returncode}"
        gone = f"its zygote (pid {home.pid}) {how}"
        broken = home.broken or zygote.Broken(None, gone)
        dead = [Death(who, error=broken.error, cause=broken.cause) for who in home.ranks]
        self._zygotes = {key: other for key, other in self._zygotes.items() if other is not home}
        home.control.close()
        return dead

    def _get(self, preload: tuple[str, ...], env: dict[str, str], environment: Environment) -> _Zygote:
        kind = _kind(preload, env, environment)
        if kind not in self._zygotes:
            self._zygotes[kind] = self._start(preload, env, environment)
            self._changed(self._zygotes[kind].control)
        return self._zygotes[kind]

    def _start(self, preload: tuple[str, ...], env: dict[str, str], environment: Environment) -> _Zygote:
        own = bool(environment.pip or environment.working_dir)
        module = "rolemesh_durable.agent.environment" if own else "rolemesh_durable.agent.zygote"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            environ = {**os.environ, **BASE_ENV, "TMPDIR": str(self._tmp), **env, MARKER: self._mark}
            with theirs, _output(self._logs / "zygote.log") as log:
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())),
                        *(str(self._tmp), str(self._alone_s), *preload),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    start_new_session=True,
                )
            if own:
                with suppress(ConnectionError):
                    parcels.send(ours, "environment", msgspec.msgpack.encode(environment))
        except BaseException:
            ours.close()
            raise
        return _Zygote(ours, process.pid, process)


def _kind(preload: tuple[str, ...], env: dict[str, str], environment: Environment) -> tuple[object, ...]:
    """Return the properties that ranks of one zygote have in common."""
    return preload, tuple(sorted(env.items())), environment.pip, environment.working_dir


def death_of(who: StartRef, status: int) -> Death:
    """Return the meaning of the status of ``waitpid`` for a rank."""
    if os.WIFSIGNALED(status):
        return Death(who, signal=os.WTERMSIG(status))
    return Death(who, exit_code=os.waitstatus_to_exitcode(status))


def _signal(pid: int, number: signal.Signals, *, both: bool = True) -> None:
    """Send a signal to a rank's session, and with `both` also to its process; without a session only to the process."""
    # Before its setsid a rank has no group of its own; reaped, it has neither.
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            send(pid, number)
            if not both:
                return


def _output(log: Path) -> IO[bytes]:
    """Return the file for output, or nowhere if the disk is full, because output is less important than a rank."""
    try:
        return log.open("ab")
    except OSError:
        return open(os.devnull, "ab")
