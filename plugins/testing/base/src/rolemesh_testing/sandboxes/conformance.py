"""Conformance of a sandbox: commands within limits, cells, snapshots, hostile programs, and nothing that is left."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_agents import AgentError, Limits, Result, Sandbox
from rolemesh_testing.conformance import PluginConformance
from rolemesh_testing.sandboxes.owner import Owner, gone, seen
from rolemesh_testing.sandboxes.programs import ASK, BOMB, DEEP, FILL, HOG, ORPHAN, PRINT, SLEEP
from rolemesh_testing.sandboxes.server import PORT, Answering

__all__ = ["SandboxConformance"]

Open = Callable[..., Sandbox]
WAIT_S = 20.0
"""Seconds within which processes end after the sandbox or its owner has ended."""


class SandboxConformance(PluginConformance):
    """Subclass it with `plugin` and `options`.

    If `open` raises an `AgentError`, the machine cannot run the sandbox. The tests are then skipped with its message.

    The tests need ``sh``, ``python3`` and the usual small programs in the sandbox. Their hostile programs bound
    themselves.
    """

    kind = "sandboxes"
    limits: ClassVar[Limits] = Limits(seconds=20, memory_mb=200, processes=16, output_kb=16, disk_mb=16)
    """The limits in all tests."""
    python: ClassVar[str] = "python3"
    """The interpreter, as commands call it."""

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """The folder of `sandbox`."""
        return tmp_path / "sandbox-0"

    @pytest.fixture
    def open_sandbox(self, cls: type[Sandbox], checked_options: BaseModel, tmp_path: Path) -> Iterator[Open]:
        """``open_sandbox()`` opens one more sandbox, with a folder of its own."""
        made: list[Sandbox] = []

        def make() -> Sandbox:
            folder = tmp_path / f"sandbox-{len(made)}"
            folder.mkdir(exist_ok=True)
            made.append(cls(checked_options))
            try:
                made[-1].open(folder, self.limits)
            except AgentError as error:
                if not error.remedy:
                    pytest.fail(f"open raises an AgentError without a remedy: {error}")
                pytest.skip(f"this machine cannot run it: {error.what}")
            return made[-1]

        yield make
        for sandbox in made:
            sandbox.close()

    @pytest.fixture
    def sandbox(self, open_sandbox: Open) -> Sandbox:
        """An open sandbox."""
        return open_sandbox()

    @pytest.fixture
    def owner(self, record: PluginRecord, sandbox: Sandbox, tmp_path: Path) -> Iterator[Owner]:
        """A process that opens a sandbox. It runs only where `sandbox` could be opened."""
        sandbox.close()
        folder = tmp_path / "owned"
        folder.mkdir()
        made = Owner(record.target, self.options, folder, self.limits.model_dump())
        yield made
        made.kill()

    def run_python(self, sandbox: Sandbox, program: str, *arguments: object, **options: Any) -> Result:
        """Run a program in the sandbox."""
        return sandbox.run([self.python, "-c", program, *map(str, arguments)], **options)

    def lacks(self, sandbox: Sandbox, word: str) -> bool:
        """Whether `unenforced` has a sentence with this word."""
        return any(word in sentence.lower() for sentence in sandbox.unenforced())

    # ------------------------------------------------------------------------------------------------------ commands

    def test_a_command_returns_its_output_and_exit_status(self, sandbox: Sandbox) -> None:
        """A text is a shell's command line. Standard error is part of the output."""
        assert sandbox.run("echo out; echo err >&2; exit 3") == Result(3, "out\nerr\n")

    def test_the_arguments_of_a_program_reach_it_unchanged(self, sandbox: Sandbox) -> None:
        """A list is a program with arguments, without a shell."""
        assert sandbox.run(["echo", "$HOME; *", "ü"]) == Result(0, "$HOME; * ü\n")

    def test_a_command_reads_its_input(self, sandbox: Sandbox) -> None:
        """The input is whole, and ends."""
        assert sandbox.run("wc -c", stdin="x" * 300_000).output.strip() == "300000"
        assert sandbox.run("cat").output == ""

    def test_a_signal_is_a_negative_exit_status(self, sandbox: Sandbox) -> None:
        """The command itself died of the signal."""
        assert sandbox.run("kill -9 $$").code == -9

    def test_a_program_that_does_not_exist_is_a_result(self, sandbox: Sandbox) -> None:
        """The model made the mistake, so the sandbox raises nothing."""
        result = sandbox.run(["no-such-program-anywhere"])
        assert result.code
        assert "no-such-program-anywhere" in result.output

    def test_a_command_works_in_the_folder(self, sandbox: Sandbox, folder: Path) -> None:
        """Files pass both ways, and stay for the next command."""
        (folder / "given").write_text("given")
        assert sandbox.run("cat given; echo made > made").output == "given"
        assert (folder / "made").read_text() == "made\n"
        assert sandbox.run("cat made").output == "made\n"

    def test_an_output_that_is_no_text_is_a_result(self, sandbox: Sandbox) -> None:
        """Bytes that are no UTF-8 are replaced."""
        assert self.run_python(sandbox, "import os; os.write(1, bytes(range(256)))").code == 0

    @pytest.mark.usefixtures("sandbox")  # skipped here, not in a thread, if the machine cannot run it
    def test_every_method_may_run_in_another_thread(self, open_sandbox: Open) -> None:
        """rolemesh calls the methods in threads, which may end before the next call."""
        found: list[Any] = []
        calls = [
            lambda: found.append(open_sandbox()),
            lambda: found[0].cell("x = 1"),
            lambda: found.append(found[0].cell("x + 1").output),
            lambda: found.append(found[0].run("echo a").output),
        ]
        for call in calls:
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join()
        assert found[1:] == ["2\n", "a\n"]

    # -------------------------------------------------------------------------------------------------------- limits

    @pytest.mark.parametrize("command", ["sleep 60", "kill -STOP $$", "exec >&- 2>&-; sleep 60", "while :; do :; done"])
    def test_a_command_that_hangs_is_ended(self, sandbox: Sandbox, command: str) -> None:
        """`ended` names the limit, and the sandbox still works."""
        result = sandbox.run(command, seconds=0.5)
        assert (result.code, result.ended) == (None, "seconds")
        assert sandbox.run("echo alive").output == "alive\n"

    def test_a_long_output_is_cut_while_it_is_read(self, sandbox: Sandbox) -> None:
        """Nobody keeps the missing part in memory. `cut` counts its bytes."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = self.run_python(sandbox, PRINT, 200)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        limit = self.limits.output_kb * 1000
        assert len(result.output.encode()) <= limit
        assert 200_000_000 - limit <= result.cut <= 200_000_000
        assert grown < 100_000, f"the process grew by {grown} KiB"

    def test_a_command_cannot_take_more_memory_than_its_limit(self, sandbox: Sandbox) -> None:
        """Either `ended` says so, or the command fails by itself."""
        result = self.run_python(sandbox, HOG, min(4 * self.limits.memory_mb, 1000))
        assert "survived" not in result.output
        assert result.ended == "memory_mb" or result.code != 0
        assert sandbox.run("echo alive").output == "alive\n"

    def test_a_command_cannot_make_more_processes_than_its_limit(self, sandbox: Sandbox) -> None:
        """Either `ended` says so, or the kernel refuses further processes."""
        result = self.run_python(sandbox, BOMB, 8 * self.limits.processes)
        made = int(result.output.split()[-1]) if result.output.startswith("made") else 0
        assert result.ended == "processes" or made <= self.limits.processes, result
        assert sandbox.run("echo alive").output == "alive\n"

    def test_a_command_cannot_fill_the_disk(self, sandbox: Sandbox, folder: Path) -> None:
        """Either `ended` says so, or the command fails by itself. Files can be removed afterwards."""
        result = self.run_python(sandbox, FILL, 4 * self.limits.disk_mb)
        assert "survived" not in result.output
        assert result.ended == "disk_mb" or result.code != 0
        assert sandbox.run("rm -f full-*; ls").output == ""

    def test_an_ordinary_command_stays_within_the_limits(self, sandbox: Sandbox) -> None:
        """The limits leave room for a pipeline and a small program."""
        assert sandbox.run("seq 1000 | sort -n | tail -1") == Result(0, "1000\n")
        assert self.run_python(sandbox, HOG, self.limits.memory_mb // 4) == Result(0, "survived\n")
        assert self.run_python(sandbox, FILL, self.limits.disk_mb // 2) == Result(0, "survived\n")

    # ------------------------------------------------------------------------------------------------------ clients

    @pytest.fixture
    def client(self, sandbox: Sandbox) -> Callable[..., Result]:
        """``client(program, *arguments, **options)`` runs a client whose server says hello, or skips the test."""
        if type(sandbox).run_client is Sandbox.run_client:
            pytest.skip("it runs no clients")

        def run(program: str, *arguments: object, server: Answering | None = None, **options: Any) -> Result:
            with server or Answering() as answering:
                command = [self.python, "-c", program, *map(str, arguments)]
                about = {"port": PORT, "env": {}, **options}
                try:
                    return sandbox.run_client(command, answering.on_listen, **about)
                except AgentError as error:
                    if not error.remedy or answering.listens:
                        raise
                    pytest.skip(f"this machine cannot run clients: {error.what}")

        return run

    def test_a_client_reaches_its_server_and_nothing_else(self, client: Callable[..., Result], tmp_path: Path) -> None:
        """It has its variables, its input, and files that the caller lets it read. Its stderr is apart."""
        (tmp_path / "shown").mkdir()
        (tmp_path / "shown" / "file").write_text("content")
        given = {"env": {"GIVEN": "variable"}, "stdin": "input", "visible": [tmp_path / "shown"]}
        with socket.create_server(("127.0.0.1", 0)) as other:
            found = client(ASK, PORT, other.getsockname()[1], tmp_path / "shown" / "file", **given)
        expected = ["hello", "refused", "variable", "input", "content"]
        assert (found.code, found.output.split(), found.errors) == (0, expected, "an error\n"), found

    def test_a_client_that_forks_or_hangs_is_ended(self, client: Callable[..., Result], sandbox: Sandbox) -> None:
        """At the same limits as a command. The next client finds the port free."""
        assert client(BOMB, 8 * self.limits.processes).ended in ("processes", "")
        mark = f"mark-{secrets.token_hex(8)}"
        assert client(ORPHAN, mark).code == 0
        assert gone(mark, WAIT_S)
        assert sandbox.run("echo alive").output == "alive\n"

    def test_closing_in_another_thread_ends_a_client(
        self, client: Callable[..., Result], sandbox: Sandbox, folder: Path
    ) -> None:
        """`run_client` raises an `AgentError`, and nothing is left of the client."""
        client("")  # skipped before the thread starts, if the machine cannot run it
        mark = f"mark-{secrets.token_hex(8)}"
        server, began = Answering(), time.monotonic()

        def close() -> None:
            seen(mark, WAIT_S)
            sandbox.close()

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        try:
            with pytest.raises(AgentError):
                client(SLEEP, mark, server=server)
        finally:
            thread.join()
        assert gone(mark, WAIT_S)
        assert time.monotonic() - began < self.limits.seconds
        assert not any(folder.iterdir())

    # ------------------------------------------------------------------------------------------------------ secrecy

    def test_a_command_gets_no_environment_variable_of_the_rank(
        self, open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rank's variables may have tokens and passwords."""
        monkeypatch.setenv("ROLEMESH_TEST_TOKEN", "very-secret")
        sandbox = open_sandbox()
        assert "very-secret" not in sandbox.run("env").output
        assert "very-secret" not in sandbox.cell("import os\nprint(os.environ)").output

    def test_a_command_gets_no_file_that_the_rank_has_open(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Open sockets and files of the rank are not inherited."""
        with (tmp_path / "secret").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            assert "secret" not in sandbox.run("ls -l /proc/self/fd").output

    def test_a_command_cannot_reach_the_network(self, sandbox: Sandbox) -> None:
        """Neither the machine's own services. `unenforced` has the word network otherwise."""
        if self.lacks(sandbox, "network"):
            pytest.skip(f"it does not claim to: {sandbox.unenforced()}")
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            program = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
            assert self.run_python(sandbox, program).code != 0
            with pytest.raises(TimeoutError):
                server.accept()

    def test_a_command_cannot_write_elsewhere(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """`unenforced` has the word files otherwise."""
        if self.lacks(sandbox, "files"):
            pytest.skip(f"it does not claim to: {sandbox.unenforced()}")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o777)
        elsewhere.chmod(0o777)
        sandbox.run(f"echo x > {elsewhere}/file")
        assert list(elsewhere.iterdir()) == []

    # --------------------------------------------------------------------------------------------------------- cells

    def test_cells_share_their_variables_and_print_a_last_expression(self, sandbox: Sandbox) -> None:
        """Like cells of a notebook. Assignments and None print nothing."""
        assert sandbox.cell("x = 20\ndef twice(y):\n    return 2 * y") == Result(0, "")
        assert sandbox.cell("print('a')\ntwice(x) + 2") == Result(0, "a\n42\n")
        assert sandbox.cell("None").output == ""

    def test_an_exception_of_a_cell_is_a_result_with_its_traceback(self, sandbox: Sandbox) -> None:
        """The variables stay. A syntax error is an exception, too."""
        sandbox.cell("x = 1")
        result = sandbox.cell("1 / 0")
        assert result.code
        assert "ZeroDivisionError" in result.output
        assert "SyntaxError" in sandbox.cell("x = = 1").output
        assert sandbox.cell("x").output == "1\n"

    def test_a_process_that_a_cell_forks_ends_with_its_cell(self, sandbox: Sandbox) -> None:
        """Only the first interpreter runs later cells, and it keeps its variables."""
        sandbox.cell("import os\nx = 5\nif os.fork(): os.wait()\nelse: x = 6")
        sandbox.cell("if os.fork(): os.wait()\nelse: 1 / 0")
        assert [sandbox.cell(f"print({number}, x)").output for number in range(4)] == [
            "0 5\n",
            "1 5\n",
            "2 5\n",
            "3 5\n",
        ]

    @pytest.mark.parametrize("code", ["while True: pass", "import os; os._exit(3)", "raise SystemExit(3)"])
    def test_an_interpreter_that_hangs_or_ends_is_replaced(self, sandbox: Sandbox, code: str) -> None:
        """The next output says that the variables are gone."""
        sandbox.cell("x = 1")
        result = sandbox.cell(code, seconds=2)
        assert (result.code, result.ended) in ((None, "seconds"), (3, ""))
        again = sandbox.cell("print('x' in globals())").output
        assert again.endswith("False\n")
        assert again != "False\n", "the output does not say that the interpreter is a new one"
        assert sandbox.cell("2").output == "2\n"

    # --------------------------------------------------------------------------------------- determinism and storage

    def test_equal_commands_have_equal_results_in_every_sandbox(self, open_sandbox: Open) -> None:
        """Also the order of sets, and paths in outputs unless `unenforced` has the word path."""
        one, two = open_sandbox(), open_sandbox()
        orders = [each.run([self.python, "-c", "print({str(n) for n in range(99)})"]) for each in (one, two)]
        assert orders[0] == orders[1]
        assert one.cell("{str(n) for n in range(99)}") == two.cell("{str(n) for n in range(99)}")
        if not self.lacks(one, "path"):
            assert one.run("pwd; ls -a; env") == two.run("pwd; ls -a; env")

    def test_a_restored_sandbox_has_the_same_folder(self, open_sandbox: Open) -> None:
        """`snapshot` returns equal bytes for equal folders."""
        one, two = open_sandbox(), open_sandbox()
        one.run("mkdir -p a/b; echo x > a/b/c; printf '#!/bin/sh\\necho ran' > run; chmod 755 run; ln -s a/b link")
        state = one.snapshot()
        if state is None:
            pytest.skip("it stores no snapshots")
        assert one.snapshot() == state
        two.run("echo old > old")
        two.restore(state)
        assert two.run("find . | sort; cat link/c; ./run") == one.run("find . | sort; cat link/c; ./run")
        assert two.snapshot() == state

    def test_a_newer_file_stays_newer_in_a_restored_sandbox(self, open_sandbox: Open) -> None:
        """``make`` would otherwise not build what a command has changed before the snapshot."""
        one, two = open_sandbox(), open_sandbox()
        one.run("echo 1 > source; echo 1 > made")
        one.run("echo 2 > source")
        state = one.snapshot()
        if state is None:
            pytest.skip("it stores no snapshots")
        two.restore(state)
        newer = "[ source -nt made ] && [ ! made -nt source ]"
        assert one.run(newer).code == two.run(newer).code == 0
        for each in (one, two):
            each.run("echo 2 > made")
            assert each.run(newer).code == 1, "the source is no longer newer"
        assert one.snapshot() == two.snapshot()

    def test_a_snapshot_follows_no_link_out_of_the_folder(self, open_sandbox: Open, tmp_path: Path) -> None:
        """A hostile command could otherwise read any file of the rank's user, or let `restore` overwrite it."""
        (tmp_path / "secret").write_text("very-secret")
        one, two = open_sandbox(), open_sandbox()
        one.run(["ln", "-s", str(tmp_path), "out"])
        one.run(["ln", "-s", str(tmp_path / "secret"), "file"])
        state = one.snapshot()
        if state is None:
            pytest.skip("it stores no snapshots")
        assert b"very-secret" not in state
        two.restore(state)
        two.close()
        assert (tmp_path / "secret").read_text() == "very-secret"

    def test_variables_of_cells_are_not_lost_in_a_snapshot(self, open_sandbox: Open) -> None:
        """A snapshot without them must be None, so that rolemesh repeats the commands."""
        one, two = open_sandbox(), open_sandbox()
        one.cell("x = 1")
        if (state := one.snapshot()) is not None:
            two.restore(state)
            assert two.cell("x").output == "1\n"

    # ---------------------------------------------------------------------------------------------- independence, end

    def test_sandboxes_do_not_disturb_each_other(self, open_sandbox: Open) -> None:
        """Folders and interpreters are separate; one sandbox closes alone."""
        one, two = open_sandbox(), open_sandbox()
        two.cell("x = 2")
        one.run("echo one > file")
        one.cell("x = 1")
        assert two.run("ls").output == ""
        one.close()
        assert two.cell("x").output == "2\n"

    def test_a_process_that_a_command_leaves_behind_is_ended(self, sandbox: Sandbox) -> None:
        """Also in a session of its own."""
        mark = f"mark-{secrets.token_hex(8)}"
        assert self.run_python(sandbox, ORPHAN, mark).code == 0
        assert gone(mark, WAIT_S)

    def test_closing_leaves_nothing(self, open_sandbox: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No process, no thread, no open file, and no file outside of the folder. `close` may come twice."""
        temporary, me = tmp_path / "temporary", psutil.Process()
        temporary.mkdir(mode=0o777)
        temporary.chmod(0o777)
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        monkeypatch.setenv("TMPDIR", str(temporary))
        self._used(open_sandbox())
        before = me.num_fds(), me.num_threads(), len(me.children(recursive=True))
        for _ in range(3):
            self._used(open_sandbox())
        assert (me.num_fds(), me.num_threads(), len(me.children(recursive=True))) == before
        assert list(temporary.iterdir()) == []

    def test_the_folder_can_be_removed_whatever_commands_made_of_it(self, sandbox: Sandbox, folder: Path) -> None:
        """rolemesh removes it after `close`."""
        self.run_python(sandbox, DEEP)
        sandbox.close()
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError) as error:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
            pytest.fail(f"the folder cannot be removed: {type(error).__name__}")

    @pytest.mark.parametrize("method", ["run", "cell"])
    def test_sigkill_of_the_owner_leaves_no_process(self, owner: Owner, method: str) -> None:
        """The rank may die at any time. Its commands die with it."""
        mark = f"mark-{secrets.token_hex(8)}"
        command = [self.python, "-c", SLEEP, mark]
        cell = f"import subprocess\nsubprocess.run({command!r})"
        owner.start(method, command if method == "run" else cell)
        seen(mark, WAIT_S)
        owner.kill()
        assert gone(mark, WAIT_S)

    def test_it_says_what_it_cannot_enforce_in_sentences(self, sandbox: Sandbox) -> None:
        """rolemesh shows them when the job starts."""
        assert not isinstance(sandbox.unenforced(), str)
        assert all(sentence.rstrip().endswith(".") for sentence in sandbox.unenforced())

    def _used(self, sandbox: Sandbox) -> None:
        sandbox.run("echo x > file")
        sandbox.cell("import tempfile\nopen(tempfile.mkstemp()[1], 'w').write('z')")
        sandbox.close()
        sandbox.close()
