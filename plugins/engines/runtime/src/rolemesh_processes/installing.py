"""Run pip in an environment that is being made, whatever the user's own settings of pip and Python say."""

from __future__ import annotations

import os
import re
import subprocess
import time
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh_processes.beginning import die_with_parent

__all__ = ["install"]

LAST_LINES = 12
PROGRESS_S = 5.0
OTHERS = {
    "PIP_CONFIG_FILE", "PIP_DRY_RUN", "PIP_PREFIX", "PIP_PYTHON", "PIP_ROOT", "PIP_TARGET", "PIP_USER",
    "PYTHONHOME", "PYTHONINSPECT", "PYTHONWARNINGS",
}  # fmt: skip
"""Variables with which pip would install elsewhere or nothing, or hide that it fails."""


def install(python: str, requirements: Sequence[str], constraints: Path, lock: int, say: Callable[[str], None]) -> None:
    """Let pip install the requirements into the environment of the interpreter `python`. `say` receives the progress.

    pip holds the descriptor `lock` until it ends. Raises `BackendError` with pip's last lines if it fails.
    """
    say("pip installs what its role needs")
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--constraint", str(constraints)]
    # Requirements may hold credentials, which neither a command line nor a file would keep. Should this process be
    # killed, so is pip, which holds the lock: the agent's next incarnation begins from scratch.
    this = os.getpid()
    pip = subprocess.Popen(
        [python, "-P", "-m", "pip", "install", *options, "-r", "/dev/stdin"],
        env=_settings(python),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[lock],
        preexec_fn=lambda: die_with_parent(this),
        text=True,
        errors="surrogateescape",
    )
    assert pip.stdin is not None
    assert pip.stdout is not None
    pip.stdin.write("\n".join(requirements) + "\n")
    pip.stdin.close()
    last: deque[str] = deque(maxlen=LAST_LINES)
    said = time.monotonic()
    for line in pip.stdout:
        print(line, end="", flush=True)
        if line.strip():
            last.append(line.rstrip())
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            say(f"pip: {line.strip()}")
    if (code := pip.wait()) != 0:
        raise BackendError(
            "\n".join([f"pip ended with exit code {code}", *(f"| {line}" for line in last)]),
            remedy="correct the requirement, or where pip looks (env_vars: {PIP_INDEX_URL: …}); all that pip printed "
            "is in the job's logs/zygote.log",
        )


def _settings(python: str) -> dict[str, str]:
    """Return the environment for pip. Its settings in files become variables, so that none redirects the installation:
    the index, proxies and certificates of the machine hold, a target or a user's folder does not."""
    environ = {name: value for name, value in os.environ.items() if name not in OTHERS - {"PIP_CONFIG_FILE"}}
    listed = subprocess.run(
        [python, "-P", "-m", "pip", "config", "list"],
        env=environ,
        stdout=subprocess.PIPE,
        errors="replace",
        check=False,
    )
    if listed.returncode:  # pip itself will say what is wrong with its files
        return environ
    told = re.findall(r"^(?:global|install)\.([\w-]+)=(.*)$", listed.stdout, re.MULTILINE)
    files = {f"PIP_{name.upper().replace('-', '_')}": str(literal_eval(text)) for name, text in told}
    kept = {name: value for name, value in {**files, **environ}.items() if name not in OTHERS}
    return kept | {"PIP_CONFIG_FILE": os.devnull}
