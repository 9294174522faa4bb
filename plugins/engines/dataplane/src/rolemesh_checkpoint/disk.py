"""Persisted snapshots: ``<run>/snapshots/step-<P>/``, a folder per role, and a manifest that makes it a checkpoint.

``<role>/rank-<n>-of-<N>.safetensors`` is a rank's state, as `torch.distributed.checkpoint` reads it, and
``rank-<n>-of-<N>.edges`` what the rank had sent and others still needed. A checkpoint without a manifest does not
exist. Agents write under names of their own (`attempt_file`); the files that belong to a checkpoint get theirs when it
is completed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import State
from rolemesh.graph.logical import LogicalGraph
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.memory import MemorySnapshot
from rolemesh_checkpoint.reading import StateFile, map_file
from rolemesh_checkpoint.reshard import elsewhere, reshard
from rolemesh_runtime import syncing
from rolemesh_runtime.run_files import content_in, names_in, open_in

__all__ = [
    "MANIFEST",
    "DiskCheckpoint",
    "Manifest",
    "Problem",
    "attempt_file",
    "edges_file",
    "find_checkpoints",
    "flow_lines",
    "has_log",
    "has_state",
    "load",
    "newest_complete",
    "newest_intact",
    "place",
    "prune",
    "ranks_with",
    "read_manifest",
    "snapshots_folder",
    "state_file",
    "states",
    "step_folder",
    "verify",
    "write_manifest",
]

MANIFEST = "manifest.json"
FORMAT = 1

NO_LOG = -1
"""Position in the log of a state whose rank kept no log."""
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")
MOST_RANKS = 1_000_000
"""Maximum world size in a manifest, because a loop over the ranks must end."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a checkpoint. `files` maps names, relative to the checkpoint's folder, to [bytes, sha256].

    - `base`: the folder to which relative paths in the job file refer.
    - `world_sizes`: ranks of these roles without a file are stateless.
    - `flow`: the traced flow in lines.
    - `written`: when the checkpoint became complete (ISO 8601, UTC).
    - `sha256`: hash of the manifest without this field.
    """

    job: str
    job_id: str
    step: int
    steps: int | None
    world_sizes: dict[str, int]
    files: dict[str, tuple[int, str]]
    plugins: dict[str, str] = {}
    base: str = ""
    written: str = ""
    flow: tuple[str, ...] = ()
    format: int = FORMAT
    sha256: str = ""


class Problem(NamedTuple):
    """The fault of a file in a checkpoint. `file` is relative to the checkpoint's folder."""

    file: str
    what: str


class DiskCheckpoint(NamedTuple):
    """The folder of a step. `manifest` is None if the checkpoint does not count; `warning` says why."""

    path: Path
    step: int
    manifest: Manifest | None
    warning: str


def flow_lines(graph: LogicalGraph) -> tuple[str, ...]:
    """Return the flow in words, a line for each call and each edge. Equal lines mean that steps mean the same."""
    calls = [f"call {op.id}: {op.label}, every {op.every} at {op.at}" for op in graph.ops]
    edges = [
        f"edge {edge.id}: {graph.ops[edge.src].label} → {graph.ops[edge.dst].label}({edge.param}), "
        f"lag {edge.lag_shown}, {type(edge.src_partition).__name__} → {type(edge.dst_partition).__name__}"
        + (f", at first {edge.initial[0]!r}" if edge.initial else "")
        for edge in graph.edges
    ]
    return (*calls, *edges)


def snapshots_folder(run_dir: str | Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(run_dir) / "snapshots"


def step_folder(run_dir: str | Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return snapshots_folder(run_dir) / f"step-{step}"


def state_file(role: str, rank: int, world_size: int) -> str:
    """Return the name of a rank's state, relative to the checkpoint's folder."""
    return f"{role}/rank-{rank}-of-{world_size}.safetensors"


def edges_file(role: str, rank: int, world_size: int) -> str:
    """Return the name of the file with the values that a rank had sent, relative to the checkpoint's folder."""
    return f"{role}/rank-{rank}-of-{world_size}.edges"


def has_log(folder: Path, manifest: Manifest) -> bool:
    """Return whether the ranks of the checkpoint in `folder` kept a log, so that it has all values in flight."""
    ranks = [(role, rank) for role in manifest.world_sizes for rank in ranks_with(manifest, role, "safetensors")]
    return not any(_open(folder, manifest, *each).log == NO_LOG for each in ranks)


def has_state(manifest: Manifest, role: str) -> bool:
    """Return whether ranks of `role` have stored a state."""
    return any(name.startswith(f"{role}/") and name.endswith(".safetensors") for name in manifest.files)


def ranks_with(manifest: Manifest, role: str, kind: str) -> list[int]:
    """Return the ranks of `role` that have a file of this kind, ``safetensors`` or ``edges``."""
    parts = re.compile(rf"{re.escape(role)}/rank-(0|[1-9][0-9]*)-of-{manifest.world_sizes[role]}\.{kind}")
    return sorted(int(found[1]) for found in map(parts.fullmatch, manifest.files) if found)


def place(folder: str | Path, name: str) -> tuple[Path, *tuple[str, ...]]:
    """Return the file `name` of the checkpoint in `folder` for `rolemesh_runtime.run_files`: the run's folder, and the
    names below it."""
    folder = Path(folder).absolute()
    names = *folder.parts[-2:], *name.split("/")
    return folder.parents[1], *names


def attempt_file(name: str, attempt: str) -> str:
    """Return the name under which one attempt writes the file `name`, relative to the checkpoint's folder.

    Readers ignore it, and no other attempt writes it.
    """
    path = PurePosixPath(name)
    return str(path.with_name(f".{path.name}.{attempt}"))


# -------------------------------------------------------------------------------------------------------------- sets


def write_manifest(run_dir: str | Path, manifest: Manifest, attempts: Mapping[str, str] = {}) -> Path:
    """Complete the checkpoint of ``manifest.step`` when all its files are on disk; return its folder.

    `attempts` gives the attempt of each file; files that are missing there already have their final names. Unlisted
    files of other attempts or other world sizes are removed. May be repeated after a crash. Raises `OSError`, and
    `SnapshotError` if files that agents have written are missing here.
    """
    folder = step_folder(run_dir, manifest.step)
    moves = []
    for name, (size, sha256) in sorted(manifest.files.items()):
        attempt = attempts.get(name, "")
        written = folder / attempt_file(name, attempt) if attempt else folder / name
        if _size(written) == size:
            moves.append((written, folder / name))
        elif not attempt or _size(folder / name) != size or _sha256(folder / name) != sha256:
            # Else a master that died before the manifest has given it its name.
            raise SnapshotError(
                f"{name} of a checkpoint is not where the master is, though an agent has written it",
                where=str(folder.parent),
                remedy="the run's folder must be one folder that all nodes share (--runs-dir)",
            )
    for written, path in moves:
        if written != path:
            os.replace(written, path)
    for path in _files(folder):
        if path.relative_to(folder).as_posix() not in manifest.files and path.name != MANIFEST:
            path.unlink(missing_ok=True)
    # Also of what an earlier attempt at this has moved already: it may not have come so far as to sync it.
    for each in sorted({(folder / name).parent for name in manifest.files} - {folder}):
        syncing.sync_folder(each)
    data = msgspec.json.format(msgspec.json.encode(_sealed(manifest)), indent=1) + b"\n"
    folder.mkdir(parents=True, exist_ok=True)  # nobody has made it where no rank had anything to write
    temporary = folder / f".{MANIFEST}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        syncing.sync(file.fileno())
    os.replace(temporary, folder / MANIFEST)
    for each in (folder, folder.parent):
        syncing.sync_folder(each)
    return folder


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of the checkpoint in `folder`. Raises `SnapshotError` if it is missing or damaged."""
    path = Path(folder) / MANIFEST
    try:
        manifest = msgspec.json.decode(content_in(*place(folder, MANIFEST)), type=Manifest)
    except FileNotFoundError as error:
        raise SnapshotError(
            "the checkpoint has no manifest: it was never finished", where=str(folder), remedy=_OTHER
        ) from error
    except (OSError, *UNDECODABLE) as error:
        raise SnapshotError(f"the manifest is damaged: {error}", where=str(path), remedy=_OTHER) from error
    if manifest.format != FORMAT:
        raise SnapshotError(
            f"the checkpoint has format {manifest.format}, this rolemesh reads {FORMAT}", where=str(path)
        )
    if _sealed(manifest).sha256 != manifest.sha256:
        raise SnapshotError("the manifest is damaged: its checksum is another", where=str(path), remedy=_OTHER)
    for role, size in manifest.world_sizes.items():
        if "/" in role or role[:1] in ("", ".") or not 0 <= size <= MOST_RANKS:
            what = f"the manifest is damaged: no job has a role {role!r} of {size} ranks"
            raise SnapshotError(what, where=str(path), remedy=_OTHER)
    return manifest


_OTHER = "use another step: 'rolemesh checkpoint list' shows them"


def find_checkpoints(run_dir: str | Path) -> list[DiskCheckpoint]:
    """Return all checkpoints of a run, the newest first, including those that do not count. Reads only the
    manifests."""
    found = []
    folder = snapshots_folder(run_dir)
    try:
        names = names_in(run_dir, folder.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        what, remedy = f"the snapshots cannot be read: {error.strerror}", "make it a folder that this user may read"
        raise SnapshotError(what, where=str(folder), remedy=remedy) from error
    for match in filter(None, map(_STEP.fullmatch, names)):
        path, step = folder / match[0], int(match[1])
        if not path.is_dir():
            continue
        try:
            manifest = read_manifest(path)
        except SnapshotError as error:
            found.append(DiskCheckpoint(path, step, None, error.what))
            continue
        if manifest.step != step:
            found.append(DiskCheckpoint(path, step, None, f"its manifest is that of step {manifest.step}"))
        else:
            found.append(DiskCheckpoint(path, step, manifest, ""))
    return sorted(found, key=lambda each: -each.step)


def verify(folder: str | Path) -> list[Problem]:
    """Read every file of a checkpoint and compare it with the manifest. Return the faults; empty if the checkpoint is
    intact."""
    folder = Path(folder)
    try:
        manifest = read_manifest(folder)
    except SnapshotError as error:
        return [Problem(MANIFEST, error.what)]
    problems = []
    for name, (size, sha256) in sorted(manifest.files.items()):
        try:
            with open_in(*place(folder, name)) as file:
                present = os.fstat(file.fileno()).st_size
                if present != size:
                    problems.append(Problem(name, f"it has {present} bytes, not {size}"))
                elif hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    problems.append(Problem(name, "its bytes are not those that were written: the checksum is another"))
        except FileNotFoundError:
            problems.append(Problem(name, "it is missing"))
        except OSError as error:
            problems.append(Problem(name, f"it cannot be read: {error.strerror}"))
    return problems


def newest_complete(run_dir: str | Path, job_id: str | None = None) -> int:
    """Return the step of the newest complete checkpoint (of job `job_id`, if given), intact or not; -1 if there is
    none."""
    return max((each.step for each in find_checkpoints(run_dir) if _is_of(each, job_id)), default=-1)


def newest_intact(
    run_dir: str | Path, step: int | None = None, job_id: str | None = None
) -> tuple[DiskCheckpoint | None, list[str]]:
    """Return the newest complete checkpoint whose files are all intact, and the faults of newer ones.

    If given, only `step` and only job `job_id` count. Unfinished checkpoints are skipped silently, unless `step` names
    one.
    """
    passed_over = []
    for each in find_checkpoints(run_dir):
        if step is not None and each.step != step:
            continue
        if each.manifest is None:
            if step is None and not (each.path / MANIFEST).exists():
                continue  # never finished, which is no damage
            passed_over.append(f"the snapshot of step {each.step} does not count: {each.warning}")
            continue
        if not _is_of(each, job_id):
            passed_over.append(
                f"the snapshot of step {each.step} is that of another job ({each.manifest.job_id}), and is left alone"
            )
            continue
        problems = verify(each.path)
        if not problems:
            return each, passed_over
        first = f"{problems[0].file}: {problems[0].what}"
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        passed_over.append(f"the snapshot of step {each.step} is damaged: {first}{more}")
    return None, passed_over


def _is_of(each: DiskCheckpoint, job_id: str | None) -> bool:
    return each.manifest is not None and job_id in (None, each.manifest.job_id)


def prune(run_dir: str | Path, keep: int, job_id: str | None = None, needed: int = -1) -> list[int]:
    """Remove all but the newest `keep` complete checkpoints, and unfinished ones. Return the removed steps.

    With `job_id`, complete checkpoints of other jobs stay; that of step `needed` always stays. Unfinished checkpoints
    that are newer than every complete one stay, because they may still be completed: roles that run ahead have their
    parts of several checkpoints on disk before the first of them is complete.
    """
    found = find_checkpoints(run_dir)
    complete = [each for each in found if _is_of(each, job_id)]
    newest = complete[0].step if complete else -1
    gone = [each for each in complete[keep:] if each.step != needed]
    gone += [each for each in found if each.manifest is None and each.step < newest]
    for each in gone:
        (each.path / MANIFEST).unlink(missing_ok=True)  # first, or a kill would leave a checkpoint that looks complete
        with contextlib.suppress(OSError):
            syncing.sync_folder(each.path)  # and a power cut likewise
        shutil.rmtree(each.path, ignore_errors=True)
    return sorted(each.step for each in gone)


# ------------------------------------------------------------------------------------------------------------ states


def load(
    origin: str | Path, role: str, rank: int, world_size: int, template: Callable[[], State | None]
) -> MemorySnapshot:
    """Return the state of a rank from the checkpoint in the folder `origin`, for any world size that its role had.

    `template` returns the workload's `snapshot` after `setup`. With the same world size, and shards that are the same
    blocks, it is the rank's own state. Otherwise the shards of `template` are filled from the old ranks' pieces. A
    value that is no shard is passed on if all old ranks agree on it, and is left out otherwise. Raises `SnapshotError`.
    """
    folder = Path(origin)
    manifest = read_manifest(folder)
    old = _world_size(folder, manifest, role)
    if old == world_size:
        if state_file(role, rank, old) not in manifest.files:
            return MemorySnapshot(None, -1)
        found = _open(folder, manifest, role, rank)
        if not elsewhere(state := found.state(), template):
            return MemorySnapshot(state, found.log)
    every = states(folder, role)
    if not every:
        return MemorySnapshot(None, -1)
    if (wanted := template()) is None:
        raise SnapshotError(
            f"role {role} stored a state, but its workload has none after setup()",
            where=RankRef(role, rank).in_words,
            remedy=f"let snapshot() give the same names right after setup() as later, or use world_size {old}",
        )
    return MemorySnapshot(reshard(every, wanted), found.log if old == world_size else -1)


def states(origin: str | Path, role: str) -> list[State]:
    """Return the states of the old ranks of `role`, in rank order; empty for a stateless role. Raises
    `SnapshotError`."""
    folder = Path(origin)
    manifest = read_manifest(folder)
    _world_size(folder, manifest, role)
    return [_open(folder, manifest, role, rank).state() for rank in ranks_with(manifest, role, "safetensors")]


def _world_size(folder: Path, manifest: Manifest, role: str) -> int:
    if role not in manifest.world_sizes:
        known = ", ".join(sorted(manifest.world_sizes))
        raise SnapshotError(f"the checkpoint has no role {role!r}, only {known}", where=str(folder))
    return manifest.world_sizes[role]


def _open(folder: Path, manifest: Manifest, role: str, rank: int) -> StateFile:
    name = state_file(role, rank, manifest.world_sizes[role])
    try:
        mapped = map_file(*place(folder, name))
    except (OSError, ValueError) as error:
        raise SnapshotError(f"the state cannot be read: {error}", where=str(folder / name), remedy=_OTHER) from error
    if len(mapped) != manifest.files[name][0]:
        what = f"the file has {len(mapped)} bytes, not {manifest.files[name][0]}"
        raise SnapshotError(what, where=str(folder / name))
    return StateFile(mapped, str(folder / name))


def _sealed(manifest: Manifest) -> Manifest:
    bare = msgspec.structs.replace(manifest, sha256="")
    return msgspec.structs.replace(bare, sha256=hashlib.sha256(msgspec.json.encode(bare)).hexdigest())


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterable[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
