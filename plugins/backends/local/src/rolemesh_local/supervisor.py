"""The supervisor: the parent of a job's master and agents. It survives the master.

It has the same part in the local backend as Ray's head in the other one. It forks master and agents from a warm
process, reports ended agents to the master, and starts another master when one dies or hangs. It keeps the bundle,
which contains secrets, in memory only. If the supervisor is killed, the kernel kills master and agents, and their
janitors clean up: the job is over, and can be resumed from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from rolemesh_durable.api.hosting import Restarts
from rolemesh_local import messages as m
from rolemesh_local.forking import fork, how_it_ended
from rolemesh_local.question import Answering

__all__ = ["AgentEntry", "MasterEntry", "Supervisor"]

SILENT_S = 3.0
"""Seconds without a beat after which a master counts as stopped or hung, and is killed."""
STUCK_S = 30.0
"""Seconds without a turn of its loop after which a master counts as hung, and is killed."""
COME_UP_S = 60.0
"""Maximum seconds until the first beat of a new master."""
POLL_S = 0.5
STALL_S = 1.0
"""Seconds without a turn after which the supervisor cannot judge the silence of others."""
AGAIN_S = 1.0
"""Seconds after which the supervisor tries again to fork a process for which the machine had no room."""


class MasterEntry(Protocol):
    """Function that runs in a master's process. The job is over when it returns 0."""

    def __call__(self, start: m.SupervisorStart, link: m.Link[m.ToMaster], folder: Path, attempt: int) -> int: ...


class AgentEntry(Protocol):
    """Function that runs in an agent's process."""

    def __call__(self, config: bytes, folder: Path) -> int: ...


class _Master:
    """A master's process and its state."""

    def __init__(self, pid: int, link: m.Link[m.ToSupervisor]) -> None:
        self.pid = pid
        self.link = link
        self.started = self.beaten = self.turned = time.monotonic()
        self.beats = 0
        self.turns = 0
        self.stopping = False

    def excuse(self, seconds: float) -> None:
        """Extend the deadlines, because the supervisor itself did not listen for `seconds`."""
        self.beaten += seconds
        self.turned += seconds

    def hangs(self, now: float) -> bool:
        """Return whether the master has been silent for too long."""
        if now - self.beaten > (SILENT_S if self.beats else COME_UP_S):
            return True
        return self.turns > 0 and not self.stopping and now - self.turned > STUCK_S


class Supervisor:
    """Runs the master and agents of a job until a master has ended well, or too many have failed.

    `folder` is private and the same for all masters. `log_of(name)` returns the output file of a process. The
    supervisor has a single thread, because it forks.
    """

    def __init__(
        self,
        start: m.SupervisorStart,
        folder: Path,
        log_of: Callable[[str], Path],
        master: MasterEntry,
        agent: AgentEntry,
    ) -> None:
        self._start = start
        self._folder = folder
        self._log_of = log_of
        self._master_entry = master
        self._agent_entry = agent
        self._agents: dict[str, m.AgentState] = {}
        self._waiting: dict[str, m.Spawn] = {}
        self._dying: dict[int, m.AgentState] = {}
        self._master: _Master | None = None
        self._restarts = Restarts()
        self._attempts = 0
        self._selector = selectors.DefaultSelector()
        self._due: float | None = 0.0
        self._again: float | None = None
        self._looked = time.monotonic()
        self.gave_up = ""

    def run(self) -> bool:
        """Return whether a master ended well. All processes are gone then. If not, `gave_up` says why."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ)
        answering = Answering(self._folder)
        self._selector.register(answering, selectors.EVENT_READ)
        finished: bool | None = None
        try:
            while finished is None:
                if self._master is None and self._due is not None and time.monotonic() >= self._due:
                    self._start_master()
                if self._again is not None and time.monotonic() >= self._again:
                    self._again = None
                    for agent in list(self._waiting):
                        self._fork_waiting(agent)
                for key, _ in self._selector.select(self._timeout()):
                    if key.fd == wake_read:
                        os.read(wake_read, 4096)
                    elif key.fileobj is answering:
                        answering.answer()
                    elif self._master is not None and key.fd == self._master.link.fileno():
                        self._read(self._master)
                self._check_master()
                finished = self._reap()
        finally:
            answering.close()
            self._kill_all()
            signal.set_wakeup_fd(-1)
        return finished

    def _timeout(self) -> float:
        if self._master is None and self._due is not None:
            return min(POLL_S, max(0.0, self._due - time.monotonic()))
        return POLL_S

    # ------------------------------------------------------------------------------------------------- the master

    def _start_master(self) -> None:
        attempt = self._attempts
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._start_later(error)
            return
        link: m.Link[m.ToMaster] = m.Link(theirs, m.ToMaster)

        def run() -> int:
            return self._master_entry(self._start, link, self._folder, attempt)

        try:
            pid = fork(run, self._log_of("master"), theirs.fileno())
        except OSError as error:
            ours.close()
            self._start_later(error)
            return
        finally:
            theirs.close()
        self._attempts, self._due = attempt + 1, None
        # A master that does not read must not stop its supervisor.
        ours.setblocking(False)
        self._master = _Master(pid, m.Link(ours, m.ToSupervisor))
        self._selector.register(ours, selectors.EVENT_READ)
        self._tell(m.Agents(tuple(self._agents.values())))

    def _start_later(self, error: OSError) -> None:
        self._say(f"a master cannot be started: {error}; it is tried again")
        self._due = time.monotonic() + AGAIN_S

    def _tell(self, message: m.ToMaster) -> None:
        if self._master is not None:
            with contextlib.suppress(OSError):
                self._master.link.send(message)

    def _read(self, master: _Master) -> bool:
        """Carry out the master's requests. Return whether there may be more to read."""
        try:
            messages = master.link.receive()
        except BlockingIOError:
            return False
        if messages is None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(master.link)
            return False
        for message in messages:
            match message:
                case m.Spawn():
                    self._spawn(message)
                case m.Kill(agent=agent, incarnation=incarnation):
                    self._kill(agent, incarnation)
                case m.Beat(turns=turns, stopping=stopping):
                    now = time.monotonic()
                    master.beaten, master.beats = now, master.beats + 1
                    if turns != master.turns:
                        master.turned, master.turns = now, turns
                    master.stopping = stopping
                case m.Refuse(why=why):
                    self.gave_up = why
        return True

    def _check_master(self) -> None:
        now = time.monotonic()
        stalled, self._looked = now - self._looked, now
        if self._master is not None and stalled > STALL_S:
            # This process, or the whole machine, has stood still: nobody else's silence.
            self._master.excuse(stalled)
        if self._master is not None and self._master.hangs(now):
            self._say(f"the master (pid {self._master.pid}) is silent; it is killed and started again")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._master.pid, signal.SIGKILL)

    def _master_gone(self, master: _Master, status: int) -> bool | None:
        """Return the meaning of the master's exit: True the job is over, False give up, None continue with another
        master."""
        while self._read(master):
            pass
        with contextlib.suppress(KeyError):
            self._selector.unregister(master.link)
        master.link.close()
        self._master = None
        if status == 0:
            return True
        if self.gave_up:
            return False
        how = how_it_ended(status)
        if self._attempts == 1 and not master.turns and not os.WIFSIGNALED(status):
            self.gave_up = f"the master did not come up: it {how}"
            return False
        delay = self._restarts.died(
            lived_s=time.monotonic() - master.started, in_control=master.turns > 0, by_signal=os.WIFSIGNALED(status)
        )
        if delay is None:
            self.gave_up = f"the master died {self._restarts.crashes} times in a row; the last one {how}"
            self._say(self.gave_up)
            return False
        self._say(f"the master (pid {master.pid}) {how}; it is started again")
        self._due = time.monotonic() + delay
        return None

    # ------------------------------------------------------------------------------------------------- the agents

    def _spawn(self, spawn: m.Spawn) -> None:
        known = self._agents.get(spawn.agent)
        if known is not None and known.incarnation >= spawn.incarnation:
            return
        self._agents[spawn.agent] = m.AgentState(spawn.agent, spawn.incarnation, spawn.node, 0)
        self._waiting[spawn.agent] = spawn
        if known is not None and known.status is None and known.pid:
            self._dying[known.pid] = known
            with contextlib.suppress(ProcessLookupError):
                os.kill(known.pid, signal.SIGKILL)
        self._fork_waiting(spawn.agent)

    def _fork_waiting(self, agent: str) -> None:
        if any(state.agent == agent for state in self._dying.values()):
            return
        spawn = self._waiting.pop(agent, None)
        if spawn is None:
            return

        def run() -> int:
            return self._agent_entry(spawn.config, self._folder)

        try:
            pid = fork(run, self._log_of(agent))
        except OSError as error:
            self._say(f"agent {agent} cannot be started: {error}; it is tried again")
            self._waiting[agent], self._again = spawn, time.monotonic() + AGAIN_S
            return
        self._agents[agent] = msgspec.structs.replace(self._agents[agent], pid=pid)

    def _kill(self, agent: str, incarnation: int) -> None:
        state = self._agents.get(agent)
        if state is None or state.incarnation != incarnation or state.status is not None:
            return
        if state.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGKILL)
        elif self._waiting.pop(agent, None) is not None:
            self._agent_gone(state, signal.SIGKILL)

    def _agent_gone(self, state: m.AgentState, status: int) -> None:
        gone = msgspec.structs.replace(state, status=status)
        if self._agents.get(state.agent) == state:
            self._agents[state.agent] = gone
        self._tell(m.Exited(gone))

    def _reap(self) -> bool | None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if self._master is not None and pid == self._master.pid:
                outcome = self._master_gone(self._master, status)
                if outcome is not None:
                    return outcome
            elif pid in self._dying:
                state = self._dying.pop(pid)
                self._agent_gone(state, status)
                self._fork_waiting(state.agent)
            else:
                for state in [s for s in self._agents.values() if s.pid == pid and s.status is None]:
                    self._agent_gone(state, status)

    def _kill_all(self) -> None:
        self._waiting.clear()
        left = [state.pid for state in self._agents.values() if state.pid and state.status is None]
        for pid in [*left, *self._dying, *([self._master.pid] if self._master else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError):  # its disk may be full
            print(f"supervisor: {what}", file=sys.stderr, flush=True)
