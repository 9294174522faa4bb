"""Sandboxes with namespaces: a command has names and terminals of a machine of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_bubblewrap import BubblewrapSandbox
from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox

KINDS: dict[str, Callable[[], Any]] = {
    "guarded": lambda: ProcessSandbox(ProcessOptions(isolation="namespaces")),
    "bubblewrap": lambda: BubblewrapSandbox(BubblewrapSandbox.Options()),
}
NAMES = """
import socket, threading
print(socket.gethostname(), socket.gethostbyname("localhost"), socket.gethostbyname(socket.gethostname()))
with socket.create_server(("localhost", 0)) as server:
    threading.Thread(target=lambda: server.accept()[0].sendall(b"reached")).start()
    print(socket.create_connection(("localhost", server.getsockname()[1])).recv(9).decode())
"""
TERMINAL = "import pty, sys; sys.exit(pty.spawn(['/bin/sh', '-c', 'test -t 0 && echo typed > /dev/tty']))"


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_has_names_and_terminals_of_its_own(kind: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    sandbox = KINDS[kind]()
    try:
        sandbox.open(tmp_path / "folder", Limits())
    except AgentError as error:
        pytest.skip(str(error))
    try:
        assert sandbox.run([sys.executable, "-c", NAMES]).output == "sandbox 127.0.0.1 127.0.0.1\nreached\n"
        assert sandbox.run([sys.executable, "-c", TERMINAL]).output == "typed\r\n"
    finally:
        sandbox.close()
