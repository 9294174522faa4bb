"""One run of a job: its engine, the engine's options, and its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rolemesh.api.command import RunOption
from rolemesh.errors import JobFileError
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.prepared import Prepared
from rolemesh.plugins.defaults import default_engine
from rolemesh.plugins.discovery import OFFERED, discover, find
from rolemesh.plugins.drivers import load


def engine_named(name: str | None) -> type[Engine]:
    """Return the class of an engine; for None that of the default engine. Raises `PluginError`."""
    records = discover(("engines",))
    if name is None:
        name = default_engine(records)
    found: type[Engine] = load(find("engines", name, records, "--engine"), "--engine")
    return found


def options_for(
    engine: type[Engine], given: Mapping[str, Any], where: str, remedy: str = ""
) -> BaseModel:
    """Return the engine's options for a run. Raises `JobFileError` for an unknown option or one of
    the wrong type."""
    model = engine.options_for({name: str(value) for name, value in given.items()})
    return _checked(model, given, where, remedy)  # type: ignore[no-any-return]


def _checked(model: type[BaseModel], given: Mapping[str, Any], where: str, remedy: str) -> Any:
    try:
        return model(**given)
    except ValidationError as error:
        said = {"extra_forbidden": "there is no such option"}
        told = [
            f"{'.'.join(map(str, each['loc']))}: {said.get(each['type'], each['msg'])}"
            for each in error.errors()
        ]
        remedy = remedy or f"the options are {', '.join(model.model_fields) or 'none'}"
        what = f"the options of the run: {'; '.join(told)}"
        raise JobFileError(what, where=where, remedy=remedy) from None


def options_of(verb: str) -> list[type[Any]]:
    """Return the command classes that add options to ``rolemesh run`` or ``rolemesh plan``."""
    records = [each for each in discover(("commands",)) if each.name.startswith(f"{verb}.")]
    names = sorted({each.name for each in records if each.status in OFFERED})
    return [load(find("commands", name, records)) for name in names]


def watchers(given: dict[str, Any], where: str) -> list[RunOption]:
    """Take the options of those commands from `given` that look at a run when it has ended, and
    return the commands."""
    found = []
    for cls in options_of("run"):
        if cls.ended is not RunOption.ended:
            own = {name: given.pop(name) for name in cls.Options.model_fields if name in given}
            found.append(cls(_checked(cls.Options, own, where, "")))
    return found


@dataclass(frozen=True)
class JobRun:
    """A requested run: the job, the engine with its options, and the runs folder."""

    job: Prepared
    engine: type[Engine]
    options: BaseModel
    runs: Path
    say: Say
    detached: bool = False
    finish: Callable[[JobRun, RunHandle], int] = lambda run, handle: 0
    """Function that waits for the end of the job, prints the outcome, and returns the exit code."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return (self.runs / self.job.job.spec.name).resolve()

    def start(self) -> RunHandle:
        """Start the job."""
        return self.engine(self.options).start(
            self.job, self.run_dir, detached=self.detached, say=self.say
        )

    def run(self) -> int:
        """Start the job, wait for its end, and return the exit code."""
        handle = self.start()
        try:
            return self.finish(self, handle)
        finally:
            handle.close()
