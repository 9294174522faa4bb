"""From a job file to a running job: validate, trace, plan, start, watch. What a program calls; the command line does.

Up to the plan nothing is started and neither Ray nor torch is imported, so everything that can be wrong with a job
file is said in a second, with exit code 2.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rolemesh.bundling import bundle_job, snapshot_plan
from rolemesh.claims import claim
from rolemesh.control import ControlClient, MasterGoneError
from rolemesh.environments import environments
from rolemesh.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    BackendError,
    JobFailedError,
    JobFileError,
)
from rolemesh.failures import job_failed
from rolemesh.follow import ANSWER_S, PATIENCE_S, follow
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.growth import Growth, with_own, without
from rolemesh.placement import PlacementPlan
from rolemesh.planning import (
    check_placed,
    elastic_roles,
    explain,
    has_room,
    largest,
    parse_nodes,
    plan_selected,
    request_of,
)
from rolemesh.plugins.lock import lock_file, read_lock
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.select import Selection, select
from rolemesh.protocol.job import JobBundle
from rolemesh.rank.trust import TRUST_FLAG
from rolemesh.rehearsal.account import account, differences
from rolemesh.rehearsal.injector import Injector
from rolemesh.rehearsal.spec import Rehearsal, parse
from rolemesh.resuming import check_pickles, find_origin, find_source
from rolemesh.room import Shared, find_room
from rolemesh.runs import LOGS_DIR, PLAN_FILE, Run, runs_folder, write_job_file, write_json
from rolemesh.snapshots import disk
from rolemesh.spec import JobFile, load

if TYPE_CHECKING:
    from rolemesh.cluster import ClusterView

__all__ = ["Prepared", "RunOptions", "ask_to_stop", "prepare", "run"]


@dataclass(frozen=True)
class RunOptions:
    """What a person asked `rolemesh run` for."""

    job: Path
    overrides: Sequence[str] = ()
    backend: Literal["ray", "local", "inline"] = "ray"
    address: str | None = None
    detach: bool = False
    nodes: str | None = None
    runs_dir: Path | None = None
    resume: str | None = None
    trust_pickles: bool = False
    chaos: str | None = None
    compare: bool = False
    locked: bool = False


@dataclass(frozen=True)
class Prepared:
    """A job that has passed every check that needs no cluster."""

    job: JobFile
    selection: Selection
    graph: LogicalGraph


class Backend(Protocol):
    """What `run` needs of a backend."""

    name: str

    def cluster(self) -> ClusterView: ...
    def knows(self, job: str) -> bool: ...
    def start(self, bundle: JobBundle, lock: int) -> None: ...
    def alive(self) -> bool: ...
    def close(self) -> None: ...


def prepare(path: Path, overrides: Sequence[str] = (), *, locked: bool = False) -> Prepared:
    """Load, select plugins, trace. With `locked`, plugins must be those of the job's lock.

    Raises `RolemeshError` with every problem that was found.
    """
    lock = None
    if locked:
        lock = read_lock(lock_file(path))
        lock.check_kernel(str(lock_file(path)))
    job = load(path, overrides)
    selection = select(job, lock=lock)
    environments(job)
    return Prepared(job, selection, trace_job(job, selection))


def fit(
    path: Path, overrides: Sequence[str], asked: Prepared, cluster: ClusterView, *, locked: bool = False
) -> Prepared:
    """The job `asked` for, with as many ranks of its elastic roles as there is room for on `cluster`.

    `path`, `overrides` and `locked` are what it was prepared from.
    """
    ranges = elastic_roles(asked.job)
    if not ranges:
        return asked
    sizes = largest(ranges, lambda sizes: has_room(asked.job, asked.selection, asked.graph, cluster, sizes))
    sized = (f"roles.{role}.world_size={size}" for role, size in sizes.items())
    return prepare(path, (*overrides, *sized), locked=locked)


def run(options: RunOptions) -> int:
    """Run a job to its end (or, detached, until it runs) and return the exit code. Raises `JobFailedError`."""
    _check(options)
    prepared = prepare(options.job, options.overrides, locked=options.locked)
    run_dir = (runs_folder(options.runs_dir) / prepared.job.spec.name).resolve()
    if options.backend == "inline":
        from rolemesh.backends.inline import run_inline

        least = [f"roles.{role}.world_size={low}" for role, (low, _) in elastic_roles(prepared.job).items()]
        if least:
            prepared = prepare(options.job, (*options.overrides, *least), locked=options.locked)
        with claim(run_dir):
            return _exit_code(run_inline(prepared.job, prepared.selection, prepared.graph, run_dir))
    if options.detach and options.backend == "ray" and options.address is None:
        return _run_owner_in_background(options, run_dir)
    with _terminating_signals_interrupt():
        if options.chaos is None:
            return _run(options, prepared, run_dir)
        return _rehearse(options, prepared, run_dir)


def _check(options: RunOptions) -> None:
    if options.chaos is not None and (options.detach or options.backend == "inline"):
        raise JobFileError("--chaos disturbs a job that this command watches", remedy="leave --detach and --inline out")
    if options.compare and options.chaos is None:
        raise JobFileError("--chaos-compare compares a rehearsal with an undisturbed run", remedy="add --chaos kills=5")
    if options.nodes and options.backend != "local":
        raise JobFileError("--nodes emulates nodes on the local backend only", remedy="add --backend local")
    if options.address and options.backend != "ray":
        raise JobFileError(f"--address is Ray's, and the backend is {options.backend}", remedy="leave one of them out")
    if options.trust_pickles and not options.resume:
        raise JobFileError("--trust-pickles is about the snapshot to resume from", remedy="add --resume")
    if options.resume and options.backend == "inline":
        raise JobFileError("--inline takes no snapshots, so it cannot resume from one", remedy="leave one of them out")
    if options.detach and options.backend == "inline":
        raise JobFileError("--inline runs in this process, so it cannot be detached", remedy="leave one of them out")


def _rehearse(options: RunOptions, prepared: Prepared, run_dir: Path) -> int:
    """A run with failures and, if asked for, one without: do they end alike?"""
    rehearsal = parse(options.chaos or "")
    spec = prepared.job.spec
    if not spec.failover:
        raise JobFileError(
            "this job has no failover level, so the first failure ends it",
            where=prepared.job.where(("failover",)),
            remedy="add failover: [{use: process}, {use: node}, {use: job}]",
        )
    if "node" in rehearsal.targets and options.backend == "ray":
        raise JobFileError(
            "the nodes of a Ray cluster are not ours to take away",
            where="--chaos",
            remedy="rehearse it with --backend local --nodes 3x(cpu=2), or take a node away yourself",
        )
    if "stop" in rehearsal.targets and (spec.hang.after_s is None or spec.hang.after_s > 60):
        raise JobFileError(
            f"a stopped rank is noticed after hang.after_s = {spec.hang.after_s} s",
            where=prepared.job.where(("hang", "after_s")),
            remedy="add hang.after_s=5 for the rehearsal, or leave `stop` out of its targets",
        )
    code = _run(options, prepared, run_dir, rehearsal)
    result = Run(run_dir).result()
    if not options.compare or code != EXIT_DONE or result is None:
        return code
    name = f"{spec.name}-undisturbed"
    calm = dataclasses.replace(options, overrides=(*options.overrides, f"name={name}"), chaos=None, compare=False)
    code = _run(calm, prepare(calm.job, calm.overrides, locked=calm.locked), run_dir.parent / name)
    other = Run(run_dir.parent / name).result()
    if code != EXIT_DONE or other is None:
        return code
    unequal = differences(result, other)
    if unequal:
        print("error: the run with failures ended differently:\n  " + "\n  ".join(unequal), file=sys.stderr)
        return EXIT_FAILED
    if not any(result["state_sha256"].values()):
        print(
            "warning: both runs have ended, and nothing was compared: no role keeps a state\n"
            "  → give a class that does snapshot() and restore()",
            file=sys.stderr,
        )
        return EXIT_DONE
    print("the run with failures ended exactly as the undisturbed one: state_sha256 is equal for every role")
    return EXIT_DONE


def _run(options: RunOptions, asked: Prepared, run_dir: Path, rehearsal: Rehearsal | None = None) -> int:
    """One run, or as many as it takes: a job whose elastic roles can grow goes on with more ranks, and one that has
    failed because it has lost nodes with fewer."""
    gone: frozenset[str] = frozenset()
    while True:
        try:
            code, again = _run_once(options, asked, run_dir, rehearsal, gone)
        except _NodesLost as lost:
            gone, again = gone | lost.nodes, True
        if not again:
            return code
        # What this command's own job has written a moment ago is no stranger's.
        options = dataclasses.replace(options, resume=str(run_dir), trust_pickles=True)


class _NodesLost(Exception):
    """A job has failed because these nodes are gone, and can go on without them."""

    def __init__(self, nodes: frozenset[str]) -> None:
        self.nodes = nodes


def _run_once(
    options: RunOptions, asked: Prepared, run_dir: Path, rehearsal: Rehearsal | None, gone: frozenset[str]
) -> tuple[int, bool]:
    """The exit code, and whether the job was stopped only to go on with more ranks. `asked` is the job as it was asked
    for, with its elastic roles; the nodes in `gone` were lost. Raises `_NodesLost` where fewer ranks would do."""
    prepared = asked

    def on(cluster: ClusterView) -> PlacementPlan:
        nonlocal prepared
        prepared = fit(options.job, options.overrides, asked, cluster, locked=options.locked)
        return plan_selected(prepared.job, prepared.selection, prepared.graph, cluster)

    if not options.address:
        check_placed(on(without(_nodes(options), gone)), prepared.job)
    backend: Backend | None = None
    try:
        backend = _open(options, gone)
        cluster = backend.cluster()
        if rehearsal is not None and "node" in rehearsal.targets and len(cluster.nodes) < 2:
            raise JobFileError("the only node cannot be lost in a rehearsal", remedy="leave node out of its targets")
        plan = on(cluster)
        check_placed(plan, prepared.job)
        spec = prepared.job.spec
        if isinstance(backend, Shared):
            plan, cluster = find_room(
                backend,
                spec.name,
                spec.priority,
                on,
                spec.room_wait_s,
                prepared.job.where(("room_wait_s",)),
            )
        origin = _origin(options, options.resume, prepared, run_dir.parent) if options.resume else ("", -1)
        with claim(run_dir, lambda: backend.knows(spec.name)) as (earlier, lock):
            if earlier is not None and Path(origin[0]).is_relative_to(run_dir):
                origin = (str(earlier / Path(origin[0]).relative_to(run_dir)), origin[1])
            bundle = bundle_job(
                prepared.job,
                prepared.selection,
                prepared.graph,
                plan,
                request_of(prepared.job, prepared.selection, prepared.graph),
                cluster,
                run_dir=str(run_dir),
                backend=backend.name,
                owned=True,
                rehearsed=rehearsal is not None,
                ray_address=getattr(backend, "gcs_address", ""),
                origin=origin,
                trust_pickles=options.trust_pickles,
            )
            _write_plan(prepared, plan, cluster, run_dir)
            backend.start(bundle, lock)
        if options.detach:
            return _until_running(run_dir, backend), False
        if rehearsal is None:
            growth = _growth(asked, prepared, plan, backend, run_dir)
            try:
                code = _watch(prepared, run_dir, backend)
            except JobFailedError:
                _raise_if_fewer_would_do(asked, prepared, backend, run_dir)
                raise
            finally:
                grows = growth is not None and growth.stop()
            return code, grows and code == EXIT_INTERRUPTED
        injector = Injector(rehearsal, run_dir)
        injector.start()
        try:
            code = _watch(prepared, run_dir, backend)
        finally:
            print(account(injector.stop(), rehearsal.kills, Run(run_dir).result() or {}))
        if code == EXIT_DONE:
            injector.check()
        return code, False
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED, False
    finally:
        if backend is not None and not (options.detach and backend.alive()):
            backend.close()


def _growth(asked: Prepared, prepared: Prepared, plan: PlacementPlan, backend: Backend, run_dir: Path) -> Growth | None:
    """Watch for room for more ranks, if some role may have more and nodes can join."""
    ranges = elastic_roles(asked.job)
    sizes = {role: int(prepared.job.spec.roles[role].world_size) for role in ranges}
    if not isinstance(backend, Shared) or all(sizes[role] == most for role, (_, most) in ranges.items()):
        return None
    if not snapshot_plan(prepared.job, resumes=False).enabled:
        print("elastic roles stay as they are: a job grows from a snapshot, and this one takes none", file=sys.stderr)
        return None

    def room() -> dict[str, int]:
        cluster = with_own(backend.free(), plan)
        return largest(ranges, lambda sizes: has_room(asked.job, asked.selection, asked.graph, cluster, sizes))

    growth = Growth(run_dir, sizes, room)
    growth.start()
    return growth


def _raise_if_fewer_would_do(asked: Prepared, prepared: Prepared, backend: Backend, run_dir: Path) -> None:
    """Raise `_NodesLost` if the job has failed after it has lost nodes, and its elastic roles fit on what is left."""
    ranges = elastic_roles(asked.job)
    lost = frozenset((Run(run_dir).result() or {}).get("lost_nodes", ()))
    if not ranges or not lost or disk.newest_complete(run_dir) < 0:
        return
    cluster = without(backend.cluster(), lost)

    def fits(sizes: Mapping[str, int]) -> bool:
        return has_room(asked.job, asked.selection, asked.graph, cluster, sizes)

    before = {role: int(prepared.job.spec.roles[role].world_size) for role in ranges}
    sizes = largest(ranges, fits)
    if sizes != before and all(sizes[role] <= before[role] for role in ranges) and fits(sizes):
        told = ", ".join(f"{role} {before[role]} → {size}" for role, size in sizes.items() if size != before[role])
        print(f"{', '.join(sorted(lost))} lost: {told}, from the newest snapshot on disk", file=sys.stderr)
        raise _NodesLost(lost)


def _origin(options: RunOptions, reference: str, prepared: Prepared, runs: Path) -> tuple[str, int]:
    """Folder and step of the snapshot to start from."""
    roles = prepared.selection.roles
    if prepared.job.spec.snapshots.enabled is False:
        raise JobFileError(
            "a job that resumes restores its ranks from snapshots, and takes some itself",
            where=prepared.job.where(("snapshots", "enabled")),
            remedy="leave snapshots.enabled out",
        )
    stateful = [name for name, selected in roles.items() if selected.cls.stateful(selected.options)]
    source = find_source(reference, runs)
    found, damaged = find_origin(source, prepared.job.spec.steps, stateful, prepared.graph.lines)
    for text in damaged:
        print(f"warning: {text}", file=sys.stderr)
    check_pickles(found, prepared.graph, trusted=options.trust_pickles)
    print(f"resuming after step {found.step} from {found.path}", file=sys.stderr)
    return str(found.path), found.step


def _nodes(options: RunOptions) -> ClusterView:
    from rolemesh.backends.local import this_machine

    return parse_nodes(options.nodes) if options.nodes else this_machine()


def _open(options: RunOptions, gone: frozenset[str]) -> Backend:
    if options.backend == "local":
        from rolemesh.backends.local import LocalBackend

        return LocalBackend(without(_nodes(options), gone))
    try:
        from rolemesh.backends.ray import RayBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise BackendError(
            "Ray is not installed", remedy="pip install 'rolemesh[ray]', or run with --backend local"
        ) from error
    return RayBackend(options.address)


def _write_plan(prepared: Prepared, plan: PlacementPlan, cluster: ClusterView, run_dir: Path) -> None:
    write_job_file(run_dir, prepared.job.dump())
    request = request_of(prepared.job, prepared.selection, prepared.graph)
    write_json(run_dir / PLAN_FILE, explain(prepared.job, prepared.graph, plan, cluster, request))


def _watch(prepared: Prepared, run_dir: Path, backend: Backend) -> int:
    observers = watchers(prepared.selection)
    info = Run(run_dir).info()
    if info is not None:
        observers.broadcast("job_started", run=info)
    asked = told = False

    def interrupted() -> None:
        nonlocal asked
        asked = True
        print("\nstopping (Ctrl-C again to leave at once) …", file=sys.stderr)
        threading.Thread(target=ask_to_stop, args=(run_dir,), name="stop", daemon=True).start()

    def alive() -> bool:
        nonlocal told
        lives = backend.alive()
        if lives and not told:
            told = True
            print(f"the master has been silent for {PATIENCE_S:g} s: it is waited for", file=sys.stderr)
        return lives

    result = follow(run_dir, observers, owner=True, alive=alive, interrupted=interrupted)
    if result is None:
        print(f"error: the master of job {prepared.job.spec.name!r} died; see {run_dir / LOGS_DIR}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_INTERRUPTED if asked and result["status"] != "done" else _exit_code(result)


def _exit_code(result: Mapping[str, Any]) -> int:
    if result["status"] == "failed":
        raise job_failed(result)
    return int(result["exit_code"])


def watchers(selection: Selection) -> JobPlugins:
    """The observers of a job that live where a person watches."""
    observers = JobPlugins()
    for index, selected in enumerate(selection.observers):
        if selected.cls.side == "driver":
            name = f"{selected.record.name}#{index}"
            observers.create(name, selected.record, selected.cls, selected.options, selected.where)
    return observers


def ask_to_stop(run_dir: Path) -> None:
    """Return when the master has been asked, or the job has ended: a master may be about to be started again."""
    with ControlClient(run_dir, ANSWER_S) as client:
        while Run(run_dir).result() is None:
            try:
                client.stop("interrupted by Ctrl-C")
                return
            except MasterGoneError:
                time.sleep(0.1)


def _until_running(run_dir: Path, backend: Backend) -> int:
    run = Run(run_dir)
    with ControlClient(run_dir) as client:
        while (result := run.result()) is None:
            try:
                status = client.watch(owner=True).status
                if status.state == "running":
                    client.detach()
                    print(f"job {status.name} is running (pid {status.master_pid}); rolemesh attach {status.name}")
                    return EXIT_DONE
            except MasterGoneError:
                if not backend.alive() and run.result() is None:
                    print(f"the master died while it started the job; see {run_dir / LOGS_DIR}", file=sys.stderr)
                    return EXIT_FAILED
            time.sleep(0.1)
    return _exit_code(result)


def _run_owner_in_background(options: RunOptions, run_dir: Path) -> int:
    """A Ray of its own must outlive this process, so a second driver, in its own session, owns Ray and the job."""
    log = run_dir.parent / f".{run_dir.name}.driver.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rolemesh.cli", "run", str(options.job), *options.overrides]
    if options.runs_dir is not None:
        command += ["--runs-dir", str(options.runs_dir)]
    if options.resume is not None:
        command += ["--resume", options.resume]
    if options.locked:
        command.append("--locked")
    if options.trust_pickles:
        command.append(TRUST_FLAG)
    run = Run(run_dir)
    before, earlier = run.result(), run.control()
    with log.open("wb") as out:
        owner = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    while owner.poll() is None:
        result = run.result()
        if result is not None and result != before:
            break
        # A job of this name that lived before is not ours: the owner will refuse, and end.
        status = run.status() if run.control() != earlier else None
        if status is not None and status.state == "running":
            print(f"job {status.name} is running; rolemesh attach {status.name}")
            return EXIT_DONE
        time.sleep(0.2)
    code = owner.wait()
    sys.stderr.write(log.read_text())
    return code


@contextmanager
def _terminating_signals_interrupt() -> Iterator[None]:
    """SIGTERM and a lost terminal end a job as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
