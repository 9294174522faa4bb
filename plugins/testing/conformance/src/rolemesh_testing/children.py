"""A process that holds a plugin under test and answers requests, and can be killed at any time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self

import msgspec
import psutil
import pytest

from rolemesh_testing.hanging import Hung, Limit
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["GONE_S", "Child", "PluginDied", "PluginRaised", "stage_of"]

GONE_S = 5.0
"""Seconds in which the processes that a plugin has started must end after the plugin's process was killed."""
_STAGES = pytest.StashKey[dict[tuple[str, ...], Stage]]()
"""The processes from which others are forked, by the modules that they have imported."""


class PluginRaised(AssertionError):
    """The plugin raised unexpectedly. The message contains its traceback."""


class PluginDied(AssertionError):
    """The process of the plugin ended before it answered."""


class _Preloaded(msgspec.Struct):
    preload: Sequence[str]
    env: Mapping[str, str]


def stage_of(request: pytest.FixtureRequest, serve: str, preload: Sequence[str], timeout_s: float) -> Stage:
    """Return the process from which children are forked that call ``serve`` of the module `serve`.

    It has imported `preload`, and has the variables of the workloads. All tests of the session share it.
    """
    stages, key = request.session.stash.setdefault(_STAGES, {}), (serve, *preload)
    if key not in stages:
        # As in the workloads: some packages iterate over sets of strings.
        variables = {"PYTHONHASHSEED": "0"}
        stages[key] = Stage(_Preloaded(("psutil", *preload), variables), None, timeout_s, serve)
        request.session.addfinalizer(stages[key].close)
    return stages[key]


class Child:
    """One process that is forked from `stage`. Raises `PluginDied`, or `Hung` if an answer does not come in time."""

    def __init__(self, stage: Stage) -> None:
        self._timeout_s = stage.timeout_s
        self._connection: Connection = stage.fork()
        self._process: psutil.Process | None = None
        self._process = psutil.Process(int(self.receive("its start")))

    def send(self, data: bytes, doing: str) -> None:
        """Send a request. `doing` names it in messages."""
        try:
            self._connection.send_bytes(data)
        except OSError:
            raise PluginDied(f"the process had ended before {doing}") from None

    def receive(self, doing: str) -> bytes:
        """Return the next answer."""
        limit = Limit(self._process.pid if self._process is not None else 0, self._timeout_s)
        try:
            while (left := limit.left_s) > 0:
                if self._connection.poll(left):
                    return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise PluginDied(f"the process ended in {doing}; see its output") from None
        raise Hung(f"{doing} did not end within {self._timeout_s:g} s")

    def answered(self) -> bool:
        """True if an answer is there, or the process has ended."""
        return self._connection.poll(0)

    def kill(self) -> list[str]:
        """Send SIGKILL to the process alone, and return its former descendants that run on after `GONE_S` seconds.

        The method then kills these, too.
        """
        if self._process is None:
            return []
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = self._process.children(recursive=True)
            self._process.kill()
        with suppress(psutil.Error):
            self._process.wait(10.0)
        self._process = None
        until = time.monotonic() + GONE_S
        while (alive := [each for each in below if _runs(each)]) and time.monotonic() < until:
            time.sleep(0.02)
        names = []
        for each in alive:
            with suppress(psutil.Error):
                names.append(" ".join(each.cmdline()) or each.name())
                each.kill()
        return names

    def close(self) -> None:
        """End the process and its descendants."""
        self.kill()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
