"""The environment `coding`: a repository in a sandbox, commands of the model, and tests that judge the end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh.errors import OptionsError
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_agents.environment import Environment, Reward, Start, Task
from rolemesh_agents.errors import AgentError
from rolemesh_agents.sandbox import Sandbox
from rolemesh_agents.tools import ToolEpisode, tool

__all__ = ["CodingEnvironment", "CodingEpisode", "CodingOptions", "CodingTask"]

SYSTEM = (
    "You solve a task in a folder with a repository. Look at it and change it with the tools. "
    "When you are done, answer without calling a tool; tests then judge the files."
)
_CLEAR = (
    'chmod u+rwx .; p={0}; while p=$(dirname -- "$p"); [ "$p" != . ] && [ "$p" != / ]; do '
    '[ -d "$p" ] && chmod u+rwx -- "$p" || rm -f -- "$p"; done; chmod -R u+rwx -- {0} 2> /dev/null; rm -rf -- {0}'
)
"""Removes what is in the place of a file, and lets its owner write in the folders above it."""
_PROGRAM = re.compile(r"\s*((?:\w+=[\w./:$-]*\s+)*)([\w.+-]+)(?=\s|$)")
"""The variables before the first word of a command line, and the word, if it is neither a path nor quoted."""


class CodingTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file of tasks.

    - `prompt`: the request to the model.
    - `test`: the shell's command line that judges the files: with exit status 0 the task is solved. A process that
      imports code of the model may end with status 0 before it has tested anything (`os._exit(0)`). So let a hidden
      file run that code in a process of its own, with ``python3 -I``, and compare what it prints.
    - `files`: the repository, or what is added to that of the image: texts by path.
    - `hidden`: files that only `test` needs, such as tests. They are written, over files of the model, when it is done.
    - `image`: the container image of the task's sandbox; "": that of the sandbox's options.
    """

    prompt: str
    test: str
    files: Mapping[str, str] = {}
    hidden: Mapping[str, str] = {}
    image: str = ""


class CodingOptions(BaseModel, extra="forbid"):
    """Options of the environment `coding`."""

    tasks: str | None = Field(
        None,
        description="a file of JSON lines with the training tasks, relative to the job file; each has `prompt` and "
        "`test`, and may have `files`, `hidden` and `image`; null: three small tasks",
    )
    held_out: str | None = Field(None, description="such a file with the held-out tasks; by default there are none")

    @field_validator("tasks", "held_out")
    @classmethod
    def _in_the_jobs_folder(cls, path: str | None, info: ValidationInfo) -> str | None:
        return path if path is None else str(Path((info.context or {}).get("base", "."), path).absolute())


class CodingEnvironment(Environment):
    """Tasks in repositories. The role `environment` needs the option `sandbox`."""

    Options = CodingOptions
    options: CodingOptions

    def __init__(self, options: CodingOptions) -> None:
        super().__init__(options)
        self._tasks = {"train": read("tasks", options.tasks or str(Path(__file__).with_name("coding_tasks.jsonl")))}
        self._tasks["eval"] = read("held_out", options.held_out) if options.held_out else []

    def size(self, split: Literal["train", "eval"]) -> int:
        """See `Environment`."""
        return len(self._tasks[split])

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> dict[str, Any]:
        """See `Environment`."""
        return dict(msgspec.to_builtins(self._tasks[split][number]))

    def episode(self) -> CodingEpisode:
        """See `Environment`."""
        return CodingEpisode()


class CodingEpisode(ToolEpisode):
    """One attempt at a task."""

    _task: CodingTask

    def image(self, task: Task) -> str:
        """See `Episode`."""
        return msgspec.convert(task.data, CodingTask).image

    def reset(self, task: Task, seed: int) -> Start:
        """Write the task's files. Raises `AgentError` if the sandbox has no program for the test: no model can pass."""
        self._task = msgspec.convert(task.data, CodingTask)
        self._write(self._task.files)
        found = _PROGRAM.match(self._task.test)
        if found and not any(Path(path).name == found[2] for path in self._task.hidden):
            self._need(*found.groups())
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self._task.prompt}]
        return Start(prompt, self.tools())

    @tool
    def run(self, command: str) -> str:
        """Run a command line of the shell in the repository's folder. Returns its output and exit status."""
        found = self._box.run(command)
        end = f"ended by the limit of {found.ended}" if found.ended else f"exit status {found.code}"
        return f"{found.output}\n[{end}]"

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file of the repository."""
        found = self._put(path, text)
        return found or f"{path} has {len(text.splitlines())} lines now"

    def reward(self) -> Reward:
        """Write the hidden files and run the test. 1 if its exit status is 0.

        What the model has put in the place of a hidden file is removed. If the file still cannot be written, as on a
        folder that the model has filled, the task is not solved. The metric `test_over_limit` is the share of tests
        that a limit of the sandbox has ended.
        """
        solved, ended = False, ""
        if not any(self._put(path, text, clear=True) for path, text in self._task.hidden.items()):
            found = self._box.run(self._task.test)
            solved, ended = found.code == 0, found.ended
        return Reward(float(solved), {"test_over_limit": float(ended != "")}, success=solved)

    def snapshot(self) -> bytes:
        """See `Episode`. rolemesh stores the sandbox's folder."""
        return msgspec.json.encode(self._task)

    def restore(self, state: bytes) -> None:
        """See `Episode`."""
        self._task = msgspec.json.decode(state, type=CodingTask)

    @property
    def _box(self) -> Sandbox:
        if self.sandbox is None:
            what = "the environment coding runs commands of a model, and the role has no sandbox"
            raise AgentError(
                what, remedy="write sandbox: guarded (or container) in the options of the role environment"
            )
        return self.sandbox

    def _need(self, variables: str, program: str) -> None:
        if self._box.run(f"{variables}command -v {program}").code:
            image = self._task.image
            remedy = f"install it in the image {image}" if image else "install it where the sandbox's commands find it"
            what = f"the sandbox has no program {program!r}, with which the task's test begins"
            raise AgentError(what, where=self._task.test, remedy=remedy)

    def _write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            if why := self._put(path, text):
                raise AgentError(f"a file of the task cannot be written: {why}", where=path)

    def _put(self, path: str, text: str, *, clear: bool = False) -> str:
        """Write a file; with `clear` also where the model forbids it, or has something else. Return why it cannot be
        written, or "".
        """
        place = shlex.quote(path)
        command = f'mkdir -p -- "$(dirname -- {place})" && cat > {place}'
        found = self._box.run(f"{_CLEAR.format(place)}; {command}" if clear else command, stdin=text)
        return "" if found.code == 0 else found.output.strip() or f"ended by the limit of {found.ended}"


def read(option: str, path: str) -> list[CodingTask]:
    """Return the tasks of a file. Raises `OptionsError`, which names `option`."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        what, remedy = f"the tasks cannot be read: {error}", "give the path of a file of JSON lines"
        raise OptionsError(what, where=option, remedy=remedy) from error
    return [_task(line, f"{path}:{number}", option) for number, line in enumerate(lines, 1) if line.strip()]


def _task(line: bytes, place: str, option: str) -> CodingTask:
    try:
        return msgspec.json.decode(line, type=CodingTask)
    except UNDECODABLE as error:
        what, remedy = f"{place} is no task: {error}", f"a task has {', '.join(CodingTask.__struct_fields__)}"
        raise OptionsError(what, where=option, remedy=remedy) from error
