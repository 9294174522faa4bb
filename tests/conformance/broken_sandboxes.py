"""Sandboxes that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import Any, ClassVar

import msgspec

from rolemesh_agents import AgentError, Limits, Result
from rolemesh_sandbox_process import ProcessSandbox

__all__ = ["BROKEN", "Sound"]


class Sound(ProcessSandbox):
    """Does nothing wrong."""


class Quiet(ProcessSandbox):
    """Loses the output."""

    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        found = super().run(command, stdin=stdin, seconds=seconds)
        return Result(found.code, "", found.ended, found.cut)


class Proud(ProcessSandbox):
    """Raises the model's mistakes, and the bytes that are no text."""

    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        found = super().run(command, stdin=stdin, seconds=seconds)
        if found.code == 127 or "???" in found.output:
            raise ValueError(found.output)
        return found


class Unsigned(ProcessSandbox):
    """Returns the exit status of a shell for signals, and forgets the limit."""

    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        found = super().run(command, stdin=stdin, seconds=seconds)
        return Result(128 - (found.code or 0) if (found.code or 0) < 0 else found.code or 0, found.output)


class Elsewhere(ProcessSandbox):
    """Works in a folder of its own choice."""

    def open(self, folder: Path, limits: Limits) -> None:
        (folder / "work").mkdir()
        super().open(folder / "work", limits)


class Bound(ProcessSandbox):
    """Works in one thread only."""

    def open(self, folder: Path, limits: Limits) -> None:
        self.thread = threading.get_ident(), threading.current_thread()
        super().open(folder, limits)

    def cell(self, code: str, *, seconds: float | None = None) -> Result:
        assert self.thread == (threading.get_ident(), threading.current_thread())
        return super().cell(code, seconds=seconds)


class Limitless(ProcessSandbox):
    """Has other limits than it should."""

    changes: ClassVar[Mapping[str, float]] = {
        "memory_mb": 2000,
        "processes": 2000,
        "output_kb": 2000,
        "disk_mb": 2000,
        "network": True,
    }

    def open(self, folder: Path, limits: Limits) -> None:
        super().open(folder, limits.model_copy(update=dict(self.changes)))


class Narrow(Limitless):
    """Has limits that ordinary programs exceed."""

    changes: ClassVar[Mapping[str, float]] = {"memory_mb": 20}


class Bare(ProcessSandbox):
    """Starts a command like any other program."""

    def open(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        super().open(folder, limits)

    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=self.folder,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            close_fds=False,
            check=False,
        )
        return Result(done.returncode, done.stdout)


class Forgetful(ProcessSandbox):
    """Has a new interpreter for each cell."""

    def cell(self, code: str, *, seconds: float | None = None) -> Result:
        return self.run(["python", "-c", code], seconds=seconds)


class Discreet(ProcessSandbox):
    """Does not say that an interpreter is a new one."""

    def cell(self, code: str, *, seconds: float | None = None) -> Result:
        found = super().cell(code, seconds=seconds)
        first, _, rest = found.output.partition("\n")
        return Result(found.code, rest if first.startswith("[") else found.output, found.ended, found.cut)


class Shuffled(ProcessSandbox):
    """Has another order of hashes each time."""

    def environment(self, home: str, temporary: str) -> Mapping[str, str]:
        return {**super().environment(home, temporary), "PYTHONHASHSEED": "random"}


class Dated(ProcessSandbox):
    """Stores times of files, and what links lead to."""

    def open(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        super().open(folder, limits)

    def snapshot(self) -> bytes:
        found = io.BytesIO()
        with tarfile.open(fileobj=found, mode="w", dereference=True) as tar:
            for path in self.folder.iterdir():
                tar.add(path, path.name, recursive=path.name != "out")
            tar.addfile(tarfile.TarInfo(f"time-{time.monotonic_ns()}"))
        return found.getvalue()


class Shared(ProcessSandbox):
    """Has one folder for all sandboxes of the process."""

    folder: ClassVar[str] = ""

    def open(self, folder: Path, limits: Limits) -> None:
        if not os.path.isdir(Shared.folder):
            Shared.folder = str(folder)
        super().open(Path(Shared.folder), limits)


class Piling(ProcessSandbox):
    """Leaves a file behind."""

    def open(self, folder: Path, limits: Limits) -> None:
        os.close(tempfile.mkstemp()[0])
        super().open(folder, limits)


class Wordless(ProcessSandbox):
    """Says in one word what it cannot enforce."""

    def unenforced(self) -> Sequence[str]:
        return ("memory",)


class Mixing(ProcessSandbox):
    """Loses what a client writes to stderr."""

    def run_client(self, command: Sequence[str], on_listen: Callable[[socket], None], **options: Any) -> Result:
        return msgspec.structs.replace(super().run_client(command, on_listen, **options), errors="")


class Mistaken(ProcessSandbox):
    """Names another limit than the one that ended a client."""

    def run_client(self, command: Sequence[str], on_listen: Callable[[socket], None], **options: Any) -> Result:
        return msgspec.structs.replace(super().run_client(command, on_listen, **options), ended="memory_mb")


class Silent(ProcessSandbox):
    """Returns from a client that was ended by `close` as if it had ended itself."""

    def run_client(self, command: Sequence[str], on_listen: Callable[[socket], None], **options: Any) -> Result:
        try:
            return super().run_client(command, on_listen, **options)
        except AgentError:
            return Result(0, "")


BROKEN: dict[type[ProcessSandbox], set[str]] = {
    Quiet: {
        "test_a_command_returns_its_output_and_exit_status",
        "test_the_arguments_of_a_program_reach_it_unchanged",
        "test_a_command_reads_its_input",
    },
    Proud: {"test_a_program_that_does_not_exist_is_a_result", "test_an_output_that_is_no_text_is_a_result"},
    Unsigned: {"test_a_signal_is_a_negative_exit_status", "test_a_command_that_hangs_is_ended"},
    Elsewhere: {"test_a_command_works_in_the_folder"},
    Bound: {"test_every_method_may_run_in_another_thread"},
    Limitless: {
        "test_a_long_output_is_cut_while_it_is_read",
        "test_a_command_cannot_take_more_memory_than_its_limit",
        "test_a_command_cannot_make_more_processes_than_its_limit",
        "test_a_command_cannot_fill_the_disk",
        "test_a_command_cannot_reach_the_network",
    },
    Narrow: {"test_an_ordinary_command_stays_within_the_limits"},
    Bare: {
        "test_a_command_gets_no_environment_variable_of_the_rank",
        "test_a_command_gets_no_file_that_the_rank_has_open",
        "test_a_command_cannot_write_elsewhere",
        "test_a_process_that_a_command_leaves_behind_is_ended",
        "test_sigkill_of_the_owner_leaves_no_process",
    },
    Forgetful: {
        "test_a_process_that_a_cell_forks_ends_with_its_cell",
        "test_cells_share_their_variables_and_print_a_last_expression",
        "test_an_exception_of_a_cell_is_a_result_with_its_traceback",
    },
    Discreet: {"test_an_interpreter_that_hangs_or_ends_is_replaced"},
    Shuffled: {"test_equal_commands_have_equal_results_in_every_sandbox"},
    Dated: {
        "test_a_newer_file_stays_newer_in_a_restored_sandbox",
        "test_a_restored_sandbox_has_the_same_folder",
        "test_a_snapshot_follows_no_link_out_of_the_folder",
        "test_variables_of_cells_are_not_lost_in_a_snapshot",
    },
    Shared: {"test_sandboxes_do_not_disturb_each_other"},
    Piling: {"test_closing_leaves_nothing"},
    Mixing: {"test_a_client_reaches_its_server_and_nothing_else"},
    Mistaken: {"test_a_client_that_forks_or_hangs_is_ended"},
    Silent: {"test_closing_in_another_thread_ends_a_client"},
    Wordless: {"test_it_says_what_it_cannot_enforce_in_sentences"},
}
