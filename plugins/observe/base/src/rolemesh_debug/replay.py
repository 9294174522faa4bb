"""Run a saved call alone, in this process: the workload is set up with its options, and its state is restored."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh.api.import_ref import import_paths
from rolemesh.api.port import LocalPort
from rolemesh.api.workload import OperatorSpec, RankContext, Workload
from rolemesh.graph.routes import by_demand
from rolemesh.job_file.loading import JobFile, Written, load
from rolemesh.plugins.select import Selection, select
from rolemesh.runs.run import JOB_FILE
from rolemesh_checkpoint import disk
from rolemesh_dataplane.codec import Received, decode, encode
from rolemesh_debug.failed_calls import About, FailedCall, ReplayError
from rolemesh_debug.spikes import wrong
from rolemesh_debug.watch import Judged, WatchError, decisions, decisions_file
from rolemesh_runtime.constructing import constructed
from rolemesh_runtime.items import Items, apart
from rolemesh_runtime.run_files import content_in
from rolemesh_runtime.variables import role_variables

__all__ = ["Replay", "inputs_of", "prepare"]


class Replay(NamedTuple):
    """An operator that is ready to run. `state` says in words where its state is from."""

    workload: Workload
    run: Callable[[], Any]
    state: str


class WatchedPort(LocalPort):
    """Fails at a metric for which the extension `watch` failed the operator in the job."""

    def __init__(self, judged: Mapping[str, Judged]) -> None:
        super().__init__()
        self._judged = judged

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """Raise `WatchError` for a value that the job's rule calls wrong."""
        for name in self._judged.keys() & values.keys():
            if found := wrong(float(values[name]), self._judged[name].before, self._judged[name].spike):
                raise WatchError(f"{name} {found}")
        super().metric(values, item)


def inputs_of(call: FailedCall, where: Path, *, trusted: bool) -> dict[str, Any]:
    """Return the inputs as the operator got them. Raises `ReplayError` for missing ones, and for pickles not `trusted`.

    Arrays are read-only, as in a job.
    """
    if call.about.missing:
        reasons = "; ".join(f"{name}: {why}" for name, why in call.about.missing.items())
        raise ReplayError(
            f"not all inputs were saved: {reasons}", where=str(where), remedy="raise max_mb of the extension debug"
        )
    if call.pickles and not trusted:
        raise ReplayError(
            f"{', '.join(call.pickles)} can only be read by unpickling, which runs whatever the file says",
            where=str(where),
            remedy="if nobody but you could write this file, add --trust-pickles",
        )
    values = call.values | {name: pickle.loads(data) for name, data in call.pickles.items()}
    return {name: _received(value) for name, value in values.items()}


def prepare(about: About, inputs: Mapping[str, Any], run_dir: Path, scratch: Path, *, restore: bool) -> Replay:
    """Set the workload up, and restore its newest state before the step unless told not to.

    A collective role runs as one rank. `scratch` is the workload's folder for output. Raises `RolemeshError`, and the
    errors of the workload's ``setup`` and ``restore``.
    """
    job = _job(about, run_dir)
    import_paths(job.base)
    selection = select(job)
    if about.role not in selection.roles:
        raise ReplayError(
            f"the run's job has no role {about.role!r}", where=str(job.path), remedy="give a file of this run"
        )
    selected = selection.roles[about.role]
    specs = selected.cls.operators(selected.options)
    if about.operator not in specs:
        raise ReplayError(
            f"role {about.role} has no operator {about.operator!r}; it has {', '.join(sorted(specs))}",
            where=str(job.path),
        )
    rank, size = (0, 1) if selected.cls.group == "collective" else (about.rank, about.world_size)
    told = decisions(decisions_file(run_dir, about.role, about.rank))
    port = WatchedPort({name: each for name, each in told.items() if each.step == about.step})
    ctx = _context(job, selection, about, scratch, port, rank=rank, size=size)
    os.environ.update(role_variables(selected, job.spec.roles[about.role].runtime_env.env_vars)[1])
    workload = constructed(selected.cls, selected.options)
    workload.setup(ctx)
    state = _restored(workload, ctx, run_dir, about.step) if restore else "as after setup"
    ctx.step = about.step
    method = partial(_finished, getattr(workload, about.operator))
    return Replay(workload, _by_item(method, specs[about.operator], inputs, ctx) or partial(method, **inputs), state)


def _by_item(
    method: Callable[..., Any], spec: OperatorSpec, inputs: Mapping[str, Any], ctx: RankContext
) -> Callable[[], Any] | None:
    """Return a function that runs all items, if ranks take the rows of the operator by demand; else None."""
    for param, partition in spec.inputs.items():
        how = by_demand(partition)
        if how is not None and param in inputs:
            items, numbers = Items(ctx, param, how), range(apart(inputs[param], how.rows)[1])
            return partial(_all, items.run, method, inputs, numbers)
    return None


def _all(run: Callable[..., Iterator[Any]], *given: Any) -> list[Any]:
    return list(run(*given))


def require_own(path: Path) -> None:
    """Raise `ReplayError` for a file that another user may have written: it chooses which code runs here."""
    at = path.stat()
    if at.st_uid != os.geteuid() or at.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ReplayError(
            "other users may have written this file, and it chooses which code runs",
            where=str(path),
            remedy="look at its content, then make it yours: chown and chmod go-w",
        )


def _job(about: About, run_dir: Path) -> JobFile:
    """Return the job file as it was resolved when the job began."""
    path = run_dir / JOB_FILE
    try:
        require_own(path)
        text = content_in(run_dir, JOB_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(
            f"the run's job file cannot be read: {error}", where=str(path), remedy="give a file within a run's folder"
        ) from error
    base = Path(about.base)
    if not base.is_dir():
        raise ReplayError(
            f"the job file's folder {base} is gone, and with it the code",
            where=str(path),
            remedy="bring the folder back; the run's job.yaml names the code relative to it",
        )
    return load(Written(text, base, JOB_FILE))


def _context(
    job: JobFile, selection: Selection, about: About, scratch: Path, port: LocalPort, *, rank: int, size: int
) -> RankContext:
    role = job.spec.roles[about.role]
    plugins = {key: partial(lambda each: each.cls(each.options), each) for key, each in selection.declared.items()}
    return RankContext(
        options=selection.roles[about.role].options, job=about.job, role=about.role, rank=rank, world_size=size,
        seed=job.spec.seed, steps=job.spec.steps, cpus=role.resources.cpu, memory_gb=role.resources.memory_gb,
        run_dir=scratch, tmp_dir=scratch, base=job.base, plugins=plugins, port=port,
    )  # fmt: skip


def _restored(workload: Workload, ctx: RankContext, run_dir: Path, step: int) -> str:
    """Restore the newest state before `step`, from an intact checkpoint on disk; return in words what happened."""
    if not type(workload).stateful(ctx.options):
        return "as after setup: the workload keeps none"
    for each in disk.find_checkpoints(run_dir):
        if each.manifest is None or each.step >= step or disk.verify(each.path):
            continue
        found = disk.load(each.path, ctx.role, ctx.rank, ctx.world_size, workload.snapshot)
        if found.state is not None:
            workload.restore(found.state)
            behind = step - 1 - each.step
            return f"that after step {each.step}" + (f", {behind} steps before the failure" if behind else "")
    return f"as after setup: no checkpoint on disk is from before step {step}"


def _finished(method: Callable[..., Any], /, **inputs: Any) -> Any:
    """Call an operator, and wait for its coroutine or for all of its chunks."""
    result = method(**inputs)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return list(result) if inspect.isgenerator(result) else result


def _received(value: Any) -> Any:
    """Return a value as a rank receives it."""
    header, buffers = encode(value)
    return decode(header, Received(memoryview(buffer).toreadonly() for buffer in buffers))
