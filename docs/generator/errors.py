"""The page of all errors: what the source can say, with the causes that are written in ``causes.yaml``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import get_args

import yaml
from docs.generator.raised import Message, classes, messages, short

from rolemesh import errors
from rolemesh.api.failures import Cause

__all__ = ["CAUSES", "FAILURES", "causes", "page"]

CAUSES = Path(__file__).with_name("causes.yaml")

ROOM = ("contract", "discovery", "drivers", "lock", "manager", "static")
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Job files": ("job_file/", "plugins/select.py", "api/import_ref.py"),
    "The command line": (
        "job/",
        "cli/run.py",
        "durable/driver.py",
        "durable/bundle.py",
        "rehearsal/",
        "placement/nodes.py",
    ),
    "Placement": ("placement/", "inline/", "durable/hosting/", "plugins/schedulers/"),
    "Plugins": (
        *(f"plugins/{file}.py" for file in ROOM),
        "kinds/",
        "durable/resolved.py",
        "cli/plugins.py",
        "cli/verbs.py",
        "new/command.py",
        "cookiecutter/",
        "testing/",
    ),
    "Workloads": ("api/workload.py", "api/context.py", "api/port.py", "function/", "plugins/workloads/"),
    "Flows": ("graph/", "runtime/values.py", "runtime/items.py"),
    "Ray, nodes and environments": (
        "durable/agent/",
        "processes/",
        "durable/backends.py",
        "local/",
        "ray/",
        "runtime/claim.py",
        "durable/control/claim.py",
    ),
    "Runs that are there, or were": ("cli/", "jobs/", "durable/control/", "durable/runs.py", "runs/"),
    "Snapshots and resuming": ("checkpoint/", "durable/control/resume.py", "durable/protocol/rank/origin.py"),
    "Edges": ("dataplane/", "durable/protocol/", "durable/rank/"),
    "The journal": ("durable/journal/", "durable/stores.py", "durable/master/", "sql/"),
    "Elsewhere": ("",),
}
"""Section of the page → paths. A file's messages are in the first section that has its path or the beginning of it."""

BEFORE: Mapping[str, str] = {"SnapshotError": "Snapshots and resuming", "BackendError": "Ray, nodes and environments"}
"""Classes that have a section whatever the file."""

FAILURES: Mapping[str, tuple[str, str, str]] = {
    "exception": (
        "role R, rank N (in operator O at step S): TYPE: …",
        "An operator raised. The traceback begins in the job's own code.",
        "Correct the code; `--engine inline` runs all ranks in one process, for a debugger. If the exception speaks of "
        "a connection or a collective, look for the rank that died first: it is an echo.",
    ),
    "signal": (
        "its process was killed by SIGKILL (nobody here sent it: out of memory, or somebody else)",
        "The kernel ended the process because memory ran out, or somebody did. SIGSEGV is a crash in native code, or a "
        "write by it into an array that is read-only. SIGBUS is a file of shared memory that somebody has cut.",
        "`dmesg` on the node knows of memory. Lower the batch, or give the role more room; copy arrays you change.",
    ),
    "contract": (
        "role R, rank N (in operator O at step S): it returned None, …",
        "An operator, or a plugin that it uses, broke its contract: it raised a `PluginError` of the kind `misbehaved`."
        " Another attempt would end alike, so the job ends at once.",
        "Correct what the message names.",
    ),
    "exit": (
        "its process ended with exit code N before its last step",
        "The workload, or a library, called `exit`.",
        "What it printed before is in its log, `rolemesh logs JOB ROLE/RANK`.",
    ),
    "start": (
        "it could not be started: …",
        "The process ended before its workload was set up, often while modules of `preload` were imported.",
        "`logs/zygote.log` of the job has what was printed.",
    ),
    "environment": (
        "pip ended with exit code N",
        "The packages of a role's `runtime_env` could not be installed on the node.",
        "Correct the requirement, or where pip looks (`env_vars: {PIP_INDEX_URL: …}`).",
    ),
    "check": (
        "node NODE: check NAME: …",
        "Before ranks started there a check found the node too slow, too full or broken, or could not be run.",
        "`logs/checks-AGENT.log` has what it printed; repair the node, or change the check's options.",
    ),
    "agent_lost": (
        "agent on node NODE: …",
        "The agent's process died or was silent for too long; its ranks are gone with it.",
        "On Ray, its memory monitor may have ended it: look at `ray status` and the node's memory.",
    ),
    "node_lost": (
        "agent on node NODE: … (its node is lost)",
        "The backend reports that a node is gone.",
        "With the level `node` in the ladder its ranks move elsewhere.",
    ),
    "log_lost": (
        "trainer/0 has used what was made at step 7, which is in no log any more, …",
        "What a rank of a role that is not deterministic had sent is lost with its node, and others have used it.",
        "Nothing, where the ladder has the level `job`: every rank goes back to the disk.",
    ),
    "hang": (
        "trainer/1 has been in train at step 7 for 31 s; …",
        "A rank stands still, and others wait for it; the message says who, where, and shows its stack.",
        "A dead lock, an endless loop, a remote service that does not answer. `hang.after_s` is the patience.",
    ),
    "straggler": (
        "it needs … s to compute a step, the median of the role's other … is … s",
        "One rank of a role needs much longer for the same work.",
        "Look at the node: other load, a throttled device. `stragglers: move` of the diagnoser `standard` moves it.",
    ),
}
"""Cause of a failure → its message, its explanation, and its remedy."""

HEAD = """\
# Errors

<!-- Made by `python -m docs.generator` from the source and docs/generator/causes.yaml. -->

An error says what happened, where (file and line, or role, rank, operator and step), and behind an arrow what to do:

```
error: job.yaml:6: roles.trainer.world_sze: unknown key 'world_sze'
  → did you mean 'world_size'?
```

Several errors that were found together are printed one after the other. `rolemesh validate --json` gives them as data.
This page lists every message that rolemesh and the plugins of this repository can show; `…` stands for what is filled
in. A Python traceback without such a message is a fault of rolemesh: please report it.
"""


def causes() -> dict[str, tuple[str, str]]:
    """Per message: cause, and the remedy where the message has none ("" where it has one)."""
    written = yaml.safe_load(CAUSES.read_text(encoding="utf-8"))
    return {
        text: (said, "") if isinstance(said, str) else (str(said[0]), str(said[1])) for text, said in written.items()
    }


def page() -> str:
    """The whole page, as Markdown. Raises `ValueError` where a message has no entry, or an entry no message."""
    known = causes()
    found = messages()
    check(found, known)
    sections: dict[str, list[Message]] = {title: [] for title in SECTIONS}
    for message in found:
        sections[_section(message)].append(message)
    parts = [HEAD, _codes(), _classes(), _failures()]
    for title, listed in sections.items():
        if not listed:
            continue
        rows = [_row(_quoted(m.text), known[m.text][0], known[m.text][1] or m.remedy) for m in listed]
        parts.append(f"## {title}\n\n" + _table(("message", "cause", "remedy"), rows))
    return "\n".join(parts)


def check(found: Sequence[Message], known: Mapping[str, tuple[str, str]]) -> None:
    """Raise `ValueError` unless each message has a cause and a remedy, and each entry is of a message that there is."""
    told = {message.text for message in found}
    wrong = [f"{m.file}: {m.text!r} has no entry: write its cause" for m in found if m.text not in known]
    wrong += [
        f"{m.file}: {m.text!r} has no remedy: give one in the source, or write [cause, remedy]"
        for m in found
        if m.text in known and not (m.remedy or known[m.text][1])
    ]
    wrong += [f"{text!r} is no message any more: remove its entry" for text in known if text not in told]
    if wrong:
        raise ValueError("docs/generator/causes.yaml does not fit the source:\n  " + "\n  ".join(wrong))


def _section(message: Message) -> str:
    if message.kind in BEFORE:
        return BEFORE[message.kind]
    return next(title for title, heads in SECTIONS.items() if _begins(message.file, heads))


def _begins(file: str, heads: tuple[str, ...]) -> bool:
    """Whether the path, or that within its package, begins with one of `heads`."""
    return short(file).startswith(heads) or file.startswith(heads)


def _codes() -> str:
    rows = [
        _row(f"{errors.EXIT_DONE}", "done"),
        _row(f"{errors.EXIT_FAILED}", "a job that was started has failed, or something that was there cannot be read"),
        _row(
            f"{errors.EXIT_NOT_STARTED}",
            "nothing was started: the job file, a plugin, the flow, the placement, the backend",
        ),
        _row(f"{errors.EXIT_INTERRUPTED}", "interrupted (Ctrl-C, `rolemesh stop`)"),
    ]
    return "## Exit codes\n\n" + _table(("code", ""), rows)


def _classes() -> str:
    rows = []
    for name, module in classes().items():
        if not name.startswith("_"):
            cls = getattr(import_module(module), name)
            said = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
            rows.append(_row(f"`{name}`", f"`{module}`", said, str(cls.exit_code)))
    return (
        "## Classes\n\nFor programs that call rolemesh, and for plugins that raise them (`OptionsError`, "
        "`PlacementError`).\n\n" + _table(("class", "module", "", "exit code"), rows)
    )


def _failures() -> str:
    rows = [_row(f"`{cause}`", *FAILURES[cause]) for cause in get_args(Cause)]
    return (
        "## When a job fails\n\nA `JobFailedError` (exit code 1) says which failure ended the job, with the user's "
        "traceback and the trail of the ladder if there is one. [Fault tolerance](fault-tolerance.md) says what happens"
        " before that.\n\n" + _table(("`Failure.cause`", "is told as", "what is behind it", "what to do"), rows)
    )


def _quoted(text: str) -> str:
    return f"``{text}``" if "`" in text else f"`{text}`"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _table(head: Iterable[str], rows: Iterable[str]) -> str:
    titles = list(head)
    lines = ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |", *rows]
    return "\n".join(lines) + "\n"
