"""A process that holds a plugin under test and answers requests, and can be killed at any time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import msgspec
import psutil
import pytest

from rolemesh_testing.hanging import Hung, Limit
from rolemesh_testing.leftovers import killed
from rolemesh_testing.raising import Raised
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["Child", "PluginDied", "PluginRaised", "stage_of"]

R = TypeVar("R", bound=msgspec.Struct)
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
    """One process that is forked from `stage`, and a folder for its files.

    Raises `PluginRaised`, `PluginDied`, or `Hung` if an answer does not come in time.
    """

    replies: ClassVar[Any]
    """All types of answers: a union of structs, with `Raised`."""

    def __init__(self, stage: Stage) -> None:
        self._timeout_s = stage.timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="rolemesh-conformance-"))
        self._process: psutil.Process | None = None
        self._connection: Connection = stage.fork()
        try:
            self._process = psutil.Process(int(self._receive("its start")))
        except BaseException:
            self.close()
            raise

    def begin(self, request: msgspec.Struct, kind: type[R], doing: str) -> R:
        """As `ask`, for the first request: an error ends the process."""
        try:
            return self.ask(request, kind, doing)
        except BaseException:
            self.close()
            raise

    def ask(self, request: msgspec.Struct, kind: type[R], doing: str) -> R:
        """Send a request and return its answer, which is of this kind. `doing` names the request in messages."""
        self.send(request, doing)
        reply = msgspec.msgpack.decode(self._receive(doing), type=self.replies)
        if isinstance(reply, Raised):
            raise PluginRaised(f"{doing} raised {reply.error}\n{reply.trace}")
        assert isinstance(reply, kind), f"the process answered {reply} to {request}"
        return reply

    def send(self, request: msgspec.Struct, doing: str) -> None:
        """Send a request, and do not wait for its answer."""
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(request))
        except OSError:
            raise PluginDied(f"the process had ended before {doing}") from None

    def _receive(self, doing: str) -> bytes:
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
        process, self._process = self._process, None
        return [] if process is None else killed([process])

    def close(self) -> None:
        """End the process and its descendants, and remove its files."""
        self.kill()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
