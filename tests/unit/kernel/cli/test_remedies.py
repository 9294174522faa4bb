"""Remedies name options, arguments and keys that the command has in which they are printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from tests.raised import Message, messages

from rolemesh import cli
from rolemesh.cli.verbs import verbs
from rolemesh.job_file import JobSpec
from rolemesh_launch.remedies import for_launch

OF_OTHERS = {
    "--editable": "pip", "--upgrade": "pip", "--force-reinstall": "pip", "--no-deps": "pip", "--no-index": "pip",
    "--shm-size": "docker", "--detail": "ray list", "--help": "vllm serve", "--index-url": "pip",
    "--extra-index-url": "pip", "--security-opt": "docker",
}  # fmt: skip
"""Options of other programs, which remedies name."""
ONLY_RUN = {
    "--engine=inline": "launch starts processes",
    "--resume": "the journal's and the snapshots' own errors; a script goes on by itself",
    "--trust-pickles": "belongs to --resume",
    "--chaos": "a rehearsal is an option of run",
    "--chaos-compare": "a rehearsal is an option of run",
}
"""Options that `rolemesh launch` does not need in remedies, with the reason."""
FLOW = {"lag", "every", "at", "initial", "calls", "returns", "extra"}
"""Arguments of calls in Python."""
NODES = {"cpu", "gpu", "custom", "label", "memory_gb", "kills", "key", "path"}
"""Keys of `--nodes` and `--chaos`, and words that stand for a key."""
KEYS_OF_OTHERS = {"kernel": "sysctl", "seccomp": "docker --security-opt"}
"""Keys of other programs, which remedies name."""
OWNERS = {
    "plugins/checks/": "check", "plugins/testing/base/": "plugins", "rolemesh_debug/replay": "replay-op",
    "rolemesh_queries/": "sql", "rolemesh_rehearsal/": "run",
}  # fmt: skip
"""Verbs by the folder or file of their messages, where the names differ."""
OWN = re.compile(
    r"plugins/commands/base/src/rolemesh_jobs/(\w+)\.py|plugins/\w+/base/src/rolemesh_(\w+)/|plugins/commands/(\w+)/|rolemesh/cli/(\w+)\.py"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
KEY = re.compile(r"(?<![\w./-])([a-z_]+)(?:[.\[][^\s=:]*)?:?=(?!=)")


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options of a verb and of those below it; for `run` with those of both backends."""
    found = set[str]()
    for given in ([verb, "--backend", "local"], [verb, "--backend", "ray"]):
        todo: list[Any] = [typer.main.get_command(cli._app(given)).commands[verb]]  # type: ignore[attr-defined]
        while todo:
            command = todo.pop()
            todo += getattr(command, "commands", {}).values()
            found |= {option for parameter in command.params for option in parameter.opts}
    return frozenset(found)


@cache
def names_of_verbs() -> frozenset[str]:
    """Found once: a search reads the metadata of everything that is installed."""
    return frozenset(verbs())


def verbs_of(message: Message) -> tuple[str, ...]:
    """The verbs that can print the message: the file's own, else those that run jobs."""
    for folder, owner in OWNERS.items():
        if folder in message.file and owner in names_of_verbs():
            return (owner,)
    own = OWN.search(message.file)
    verb = next(filter(None, own.groups()), "") if own else ""
    return (verb,) if verb in names_of_verbs() else ("run", "launch")


def wrong(message: Message) -> Iterator[str]:
    for verb in verbs_of(message):
        remedy = for_launch(message.remedy) if verb == "launch" else message.remedy.replace("rollout=4", "ROLE=4")
        for option in OPTION.findall(remedy):
            known = options_of(verb) | OF_OTHERS.keys() | (ONLY_RUN.keys() if verb == "launch" else set())
            if option not in known:
                yield f"{message.file}: {verb} has no {option}: {remedy}"
        for found in KEY.finditer(remedy):
            if verb == "check":
                continue  # its keys are CHECK.OPTION
            overrides = verb != "launch" or remedy[: found.start()].rstrip("'\"").endswith("--set ")
            if found[1] not in FLOW | NODES | KEYS_OF_OTHERS.keys() and not (
                found[1] in JobSpec.model_fields and overrides
            ):
                yield f"{message.file}: {verb} takes no {found[0]}: {remedy}"


def test_a_remedy_names_only_existing_commands_and_options() -> None:
    assert [text for message in messages() for text in wrong(message)] == []


@pytest.mark.parametrize(
    ("remedy", "ours"),
    [
        ("choose another name (name=…), or end it", "choose another name (--name …), or end it"),
        ("write it as path.to.key=value, e.g. steps=10", "write it as path.to.key=value, e.g. --set steps=10"),
        ("give one; 'steps:=null' sets null", "give one; --set 'steps:=null' sets null"),
        ("add engine.options.hang.after_s=5 for it", "add --hang-after 5 for it"),
        ("lower roles.worker.world_size or add nodes", "lower --nproc-per-node or add nodes"),
        ("use 0 to 3; at=5 never comes", "use 0 to 3; at=5 never comes"),
    ],
)
def test_launch_names_its_own_options(remedy: str, ours: str) -> None:
    assert for_launch(remedy) == ours


def test_the_command_prints_the_remedy_that_it_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["launch", "--set", "steps", "train.py"]) == 2
    assert "e.g. --set steps=10" in capsys.readouterr().err
