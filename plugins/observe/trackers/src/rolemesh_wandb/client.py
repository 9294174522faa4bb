"""A run of Weights & Biases. Importing this module imports the client, without its reports of errors and usage."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from rolemesh_tracking import Line, Note, distinct

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb
from wandb.sdk import wandb_setup

if TYPE_CHECKING:
    from rolemesh_wandb.observer import WandbOptions

__all__ = ["Session"]

SETTINGS = {
    "init_timeout": 30.0,
    "silent": True,
    "symlink": False,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
}
"""Settings that hold unless a variable or a file of the client says otherwise."""
_EXIT_CODES = {"done": 0, "interrupted": 130}
_lock = Lock()
_open: set[str] = set()
"""The runs of this process. They share a process of the client, which ends with the last one."""


class Session:
    """A run. Raises `wandb.Error` if the service does not answer in time.

    `known` is the run to continue, "" for a new one, which has `counts` of events by kind. `identity` is the run's.
    `newest` is the newest step that the service has: -1 for a new run, and offline, where nobody knows.
    """

    def __init__(
        self,
        options: WandbOptions,
        folder: str,
        known: str,
        job: str,
        config: Mapping[str, object],
        counts: Mapping[str, int],
    ) -> None:
        with _lock:
            told = wandb_setup.singleton().settings
            chosen = set(told.model_fields_set) | ({"disable_code"} if told.save_code is not None else set())
            ours = {name: value for name, value in SETTINGS.items() if name not in chosen}
            if options.timeout_s is not None:
                ours["init_timeout"] = options.timeout_s
            if options.api_key:
                ours["api_key"] = options.api_key.get_secret_value()
            self.identity = identity = known or told.run_id or secrets.token_hex(4)
            _open.add(identity)
            try:
                self._run = wandb.init(
                    project=options.project or told.project or "rolemesh",
                    entity=options.entity or None,
                    group=options.group or None,
                    tags=options.tags or None,
                    mode=options.mode,
                    name=options.run or told.run_name or job,
                    dir=None if "root_dir" in chosen else folder,
                    id=identity,
                    resume="allow" if known else told.resume or "allow",
                    reinit="create_new",
                    config=dict(config),
                    settings=wandb.Settings(**ours),
                )
            except BaseException:
                _ended(identity)
                raise
        self._counts = {f"events/{kind}": count for kind, count in counts.items()}
        self._metrics: set[str] = set()
        """The names of metrics so far."""
        self.newest = self._run.step - 1

    def log(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Log each line at its step. Notes are counted in ``events/KIND``, and their texts are in the summary."""
        for note in notes:
            name = f"events/{note.kind}"
            self._counts[name] = self._counts.get(name, 0) + 1
            self._run.summary[f"{name}/last"] = f"after step {note.step}: {note.text}"
        for line in lines:
            values = {_accepted(name): value for name, value in line.values.items()}
            self._metrics |= values.keys()
            self._run.log({**self._counts, **values}, step=line.step, commit=True)

    def finish(self, status: str) -> None:
        """Send what waits, and end the run."""
        if "status" not in self._metrics:
            self._run.summary["status"] = status
        with _lock:
            try:
                self._run.finish(exit_code=_EXIT_CODES.get(status, 1))
            finally:
                _ended(self.identity)


def _accepted(name: str) -> str:
    """Return the name of a metric; names that begin with ``_`` are the client's own, such as ``_step``."""
    return distinct(name, f"metric{name}" if name.startswith("_") else name)


def _ended(identity: str) -> None:
    _open.discard(identity)
    if not _open:
        wandb.teardown()
