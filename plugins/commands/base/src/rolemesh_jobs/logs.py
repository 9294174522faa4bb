"""`rolemesh logs`: show the output of ranks."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import typer

from rolemesh.api.rank_ref import RankRef
from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.errors import EXIT_NOT_STARTED, RolemeshError, nearest
from rolemesh.runs.run import LOGS_DIR
from rolemesh_durable.api.jobs import LivingRun
from rolemesh_jobs.interleaving import Interleaving, Piece
from rolemesh_jobs.runs import find
from rolemesh_processes.output import ERRORS
from rolemesh_runtime.run_files import names_in, open_in
from rolemesh_runtime.unreadable import unreadable

__all__ = ["Tail", "command", "log_files"]

POLL_S = 0.1
BLOCK = 1 << 16
LONGEST = 1 << 20
ALIVE_EVERY_S = 1.0
MARK = 64
"""Number of bytes that a file which has only grown still has."""
PATIENCE_S = 0.2
"""Seconds to wait for the end of a line before its beginning is shown."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")


def command(
    job: JobName,
    who: Annotated[
        str | None, typer.Argument(metavar="[ROLE[/RANK]]", help="Only this role or rank.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, help="Only the last N lines of each rank.", metavar="N")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Show the output of a job's ranks, rank by rank. With -f also show new output.

    If several ranks are shown, each line begins with its rank. The files are runs/JOB/logs/ROLE-RANK.log. Scripts
    of rolemesh launch have their stderr in ROLE-RANK.err.log.

    Exit code: 0, or 2 if there is no such job, role or rank, or if a log cannot be read.

    Examples:

      rolemesh logs grpo

      rolemesh logs grpo trainer/1 -n 50

      rolemesh logs grpo rollout -f
    """
    run = find(job, runs_dir)
    printer = _Printer(run, who, lines)
    if follow:
        printer.expect()
    asked = -ALIVE_EVERY_S
    over = not follow
    while not over:
        over = run.result() is not None
        if not over and time.monotonic() >= asked + ALIVE_EVERY_S:
            over = not run.alive()
            asked = time.monotonic()
        if not over:
            printer.show(rest=False)
            time.sleep(POLL_S)
    printer.check()
    printer.show()


def log_files(run: LivingRun, who: str | None, suffix: str = ".log") -> dict[str, Path]:
    """Return the log files by ``role/rank``, in order. `who` is a role, a ``role/rank``, or None for all.

    Ranks that keep their streams apart have a second file for stderr: `suffix` is `ERRORS`.
    """
    found: dict[RankRef, Path] = {}
    names: list[str] = []
    try:
        names = names_in(run.path, LOGS_DIR)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(run.path / LOGS_DIR, error) from error
    for path in (run.path / LOGS_DIR / name for name in names if name.endswith(suffix)):
        role, _, rank = path.name.removesuffix(suffix).rpartition("-")
        if rank.isdecimal() and who in (None, role, str(ref := RankRef(role, int(rank)))):
            found[ref] = path
    return {str(ref): found[ref] for ref in sorted(found)}


class Tail:
    """Reads the lines that were added to a file since the last call. As ``tail -F`` it begins again after a truncation
    (logrotate's ``copytruncate``), and goes on in a new file of the name once it has read the old one."""

    def __init__(
        self, path: Path, last: int | None = None, *, run_dir: Path | None = None, exact: bool = False
    ) -> None:
        """`run_dir`: the run's folder, below which the file is; None if the file is directly in it. `exact`: the text
        keeps each byte, decoded with "surrogateescape", and no newline is added to a last line without one."""
        self._exact = exact
        self._path = path
        self._within = run_dir or path.parent
        self._file = self._open()
        self._at = 0
        self._seen = b""
        """The last bytes before `_at`. After a truncation the file has others there."""
        self._rest = b""
        self._since = 0.0
        """Time at which `_rest` was read."""
        if last is not None:
            self._skip(last)

    def lines(self, *, rest: bool = False) -> Iterator[str]:
        """Yield the new complete lines; with `rest` also the text after the last newline.

        At most a block is held in memory, so a line longer than several blocks comes in pieces.
        """
        while data := self._read():
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from map(self._text, whole)
            if len(self._rest) > LONGEST:
                yield self._text(self._rest)
                self._rest = b""
        if rest and self._rest:
            yield self._text(self._rest)
            self._rest = b""

    def pieces(self, *, rest: bool = False) -> Iterator[Piece]:
        """Yield the new text: complete lines, and after `PATIENCE_S` the beginning of an incomplete line, as it grows.

        With `rest` the text after the last newline counts as a line.
        """
        now = time.monotonic()
        while data := self._read():
            *whole, left = (self._rest + data).split(b"\n")
            for line in whole:
                yield Piece(self._text(line), True)
            self._since = self._since if self._rest and not whole else now
            self._rest = left
            if len(left) > LONGEST:
                yield Piece(self._partial(), False)
        if self._rest and rest:
            yield Piece(self._text(self._rest), not self._exact)
            self._rest = b""
        elif self._rest and now >= self._since + PATIENCE_S and (text := self._partial()):
            yield Piece(text, False)

    def _open(self) -> BufferedReader:
        return open_in(self._within, *self._path.relative_to(self._within).parts)

    def _read(self) -> bytes:
        """Return the next bytes, at most a block. A file that begins again also begins a line."""
        again = self._bytes(self._at - len(self._seen), len(self._seen)) != self._seen
        data = b"" if again else self._bytes(self._at, BLOCK)
        if not again and not data and self._is_replaced():
            with suppress(OSError):
                file = self._open()
                self._file.close()
                self._file, again = file, True
        if again:
            ended = not self._seen or self._seen.endswith(b"\n")
            self._at, self._seen = 0, b""
            return self._read() if ended else b"\n"
        self._at += len(data)
        self._seen = (self._seen + data)[-MARK:]
        return data

    def _bytes(self, at: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, at)

    def _is_replaced(self) -> bool:
        """Return whether another file has the name now, and content."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        return now.st_size > 0 and not os.path.samestat(now, os.fstat(self._file.fileno()))

    def _partial(self) -> str:
        """Take the incomplete line as far as it is valid, without an incomplete character at its end."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape" if self._exact else "replace")
        text = decoder.decode(self._rest)
        self._rest = decoder.getstate()[0]
        return text

    def _text(self, line: bytes) -> str:
        return line.decode(errors="surrogateescape") if self._exact else line.decode(errors="replace").rstrip("\r")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _skip(self, last: int) -> None:
        """Begin at the start of the last `last` lines, without reading the file from its beginning."""
        position, data = os.fstat(self._file.fileno()).st_size, b""
        while position and data.count(b"\n") <= last:
            size = min(BLOCK, position)
            position -= size
            data = self._bytes(position, size) + data
        at = len(data) - data.endswith(b"\n")
        for _ in range(last):
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                break
        begin = at + 1 if last else len(data)
        self._at, self._seen = position + begin, data[max(0, begin - MARK) : begin]


class _Printer:
    """Prints the lines of some ranks. Their files may appear later."""

    def __init__(self, run: LivingRun, who: str | None, last: int | None) -> None:
        from rolemesh_console.terminal import Terminal, coloured

        self._run = run
        self._who = who
        self._last = last
        self._tails: dict[Path, tuple[str, Tail]] = {}
        self._console = Terminal(highlight=False)
        # A file gets the bytes as they are.
        self._clean = coloured if self._console.is_terminal else str
        self._shown = Interleaving()

    def expect(self) -> None:
        """Raise `RolemeshError` if the job has no such role or rank whose log could still appear."""
        info = self._run.info()
        if info is not None and self._who is not None:
            ranks = [str(RankRef(role, rank)) for role, size in info.roles.items() for rank in range(size)]
            if self._who not in (*ranks, *info.roles):
                raise self._unknown(f"the job has no role or rank {self._who!r}", [*info.roles, *ranks])

    def check(self) -> None:
        """Raise `RolemeshError` if there is nothing to show."""
        if log_files(self._run, self._who):
            return
        known = list(log_files(self._run, None))
        if known:
            roles = dict.fromkeys(name.partition("/")[0] for name in known)
            raise self._unknown(f"there is no log of {self._who!r}", [*roles, *known])
        remedy = "its ranks have not been started, or their node's disk is not this one"
        raise _NoLogError("no rank of this job has a log here", where=str(self._run.path), remedy=remedy)

    def _unknown(self, what: str, known: list[str]) -> RolemeshError:
        return _NoLogError(what, where=str(self._run.path), remedy=nearest(str(self._who), known))

    def _opened(self, name: str, path: Path) -> Tail:
        try:
            return Tail(path, self._last, run_dir=self._run.path)
        except OSError as error:
            what = f"this log cannot be read: {error.strerror}"
            remedy = f"make it readable or remove it, or name another rank than {name}"
            raise _NoLogError(what, where=str(path), remedy=remedy) from error

    def show(self, *, rest: bool = True) -> None:
        """Print the new output; with `rest` also last lines without a newline."""
        from rich.text import Text

        for suffix in (".log", ERRORS):
            for name, path in log_files(self._run, self._who, suffix).items():
                if path not in self._tails:
                    self._tails[path] = name, self._opened(name, path)
        names = list(dict.fromkeys(name for name, _ in self._tails.values()))
        width = max(map(len, names), default=0)
        for name, tail in self._tails.values():
            with self._console.capture() as prefix:
                if len(names) > 1:
                    colour = COLOURS[names.index(name) % len(COLOURS)]
                    self._console.print(Text(f"{name:<{width}} │ ", style=colour), end="")
            for piece in tail.pieces(rest=rest):
                self._console.file.write(self._clean(self._shown.add(name, prefix.get(), piece)))
        if rest:
            self._console.file.write(self._shown.close())
        self._console.file.flush()


class _NoLogError(RolemeshError):
    exit_code = EXIT_NOT_STARTED
