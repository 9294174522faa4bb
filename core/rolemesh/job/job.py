"""A job built in Python, for scripts and notebooks. It has the same content as a job file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import JobFileError
from rolemesh.graph.flow import Flow
from rolemesh.job.engine import RunHandle
from rolemesh.job.prepared import Prepared, prepare
from rolemesh.job.run import JobRun, engine_named, options_for, watchers
from rolemesh.job_file.environment import literal
from rolemesh.job_file.loading import Written
from rolemesh.job_file.places import dump_yaml
from rolemesh.placement import PlacementPlan
from rolemesh.placement.nodes import parse_nodes, this_machine
from rolemesh.runs.run import runs_folder


def _silent(text: str) -> None:
    """Nobody watches."""


class Job:
    """``Job("sft", steps=10).role("trainer", use="fsdp", world_size=2).flow(fn).run()``.

    Settings are the top-level keys of a job file. Values stay as given: ``${…}`` in a string is no
    variable. Paths are relative to `base`. `validate` checks the job, and `plan`, `run` and
    `submit` call it first.
    """

    def __init__(self, name: str, *, base: str | Path = ".", **settings: Any) -> None:
        self._data: dict[str, Any] = {"name": name, **settings}
        self._base = Path(base)
        self._called = f"Job({name!r})"
        self._flow: Flow | None = None

    def set(self, **settings: Any) -> Self:
        """Set top-level keys of the job file: ``steps=10``, ``engine={"options": {"lease_s":
        5}}``."""
        self._data |= settings
        return self

    def role(
        self, role: str, *, use: str, options: Mapping[str, Any] | None = None, **settings: Any
    ) -> Self:
        """Add a role that runs the workload `use`. `settings` are ``world_size``, ``resources`` and
        ``runtime_env``."""
        given = (
            {"options": dict(options) if isinstance(options, Mapping) else options}
            if options
            else {}
        )
        if isinstance(
            before := self._data.get("roles", {}), Mapping
        ):  # `validate` refuses anything else
            self._data["roles"] = {**before, role: {"use": use, **settings, **given}}
        return self

    def flow(self, flow: Flow | str, /, **params: Any) -> Self:
        """Set the flow, which says what the roles do in a step: a function marked with `@flow`, or
        an import string, with its `params`."""
        if not isinstance(flow, Flow | str):
            remedy = "mark the function with @rolemesh.flow, or give an import string 'module:name'"
            raise JobFileError(f"{flow!r} is no flow", where=self._called, remedy=remedy)
        self._flow = flow if isinstance(flow, Flow) else None
        self._data["flow"] = (
            flow if isinstance(flow, str) else f"{flow.function.__module__}:{flow.name}"
        )
        if params:
            self._data["params"] = params
        return self

    def placement(self, use: str, /, **options: Any) -> Self:
        """Add a placement strategy."""
        return self._add("placement", use, options)

    def failover(self, use: str, /, **options: Any) -> Self:
        """Add a failover level at the end of the ladder."""
        return self._add("failover", use, options)

    def observer(self, use: str, /, **options: Any) -> Self:
        """Add an observer."""
        return self._add("observers", use, options)

    def text(self) -> str:
        """Return the text of the job file. Raises `JobFileError` for a value that YAML cannot
        express."""
        return dump_yaml(literal(self._data, self._called))

    def validate(self, engine: str | None = None) -> Prepared:
        """Check everything that needs no cluster, for `engine` or the job's own engine.

        Raises `RolemeshError` with all problems.
        """
        written = Written(self.text(), self._base, self._called)
        return prepare(written, flow=self._flow, engine=engine)

    def plan(self, nodes: str | ClusterView | None = None) -> PlacementPlan:
        """Return the places of the ranks on `nodes` (``4x(cpu=32,gpu=8)``), or on this machine."""
        if not isinstance(nodes, ClusterView):
            nodes = parse_nodes(nodes) if nodes else this_machine()
        return self.validate().fitted(nodes).plan(nodes)

    def run(
        self, *, engine: str | None = None, runs_dir: str | Path | None = None, **options: Any
    ) -> dict[str, Any]:
        """Run the job to its end, and return the content of ``result.json``. `options` are those of
        the engine, and those of commands that look at the run at its end: ``no_report=True``.

        A job that fails has a result with the status ``failed``. Raises `RolemeshError` if nothing
        was started, and `KeyboardInterrupt` after the job was interrupted and has stopped.
        """
        watching = watchers(options, self._called)
        run = self._run(engine, runs_dir, options, detached=False)
        handle = run.start()
        with ExitStack() as after:
            for each in watching:
                after.callback(each.ended, run)
            after.callback(handle.close)
            result = handle.wait()
        if result is None:
            what, where = "the job died without a result", str(handle.run_dir)
            raise JobFileError(what, where=where, remedy="look into its logs")
        return result

    def submit(
        self, *, engine: str | None = None, runs_dir: str | Path | None = None, **options: Any
    ) -> RunHandle:
        """Start the job, and return when it runs. If the engine's jobs can outlive their process,
        it continues without this one."""
        run = self._run(engine, runs_dir, options, detached=True)
        handle = run.start()
        if run.engine.outlives:
            handle.leave()
        return handle

    def _add(self, key: str, use: str, options: Mapping[str, Any]) -> Self:
        before = self._data.get(key, [])
        added = {"use": use, **({"options": dict(options)} if options else {})}
        self._data[key] = [*(before if isinstance(before, list | tuple) else [before]), added]
        return self

    def _run(
        self,
        engine: str | None,
        runs_dir: str | Path | None,
        given: Mapping[str, Any],
        *,
        detached: bool,
    ) -> JobRun:
        if engine is not None:
            engine_named(engine)  # an unknown one is the first thing to say
        job = self.validate(engine)
        cls = job.selection.engine.cls
        options = options_for(cls, given, self._called)
        return JobRun(job, cls, options, runs_folder(runs_dir), _silent, detached=detached)
