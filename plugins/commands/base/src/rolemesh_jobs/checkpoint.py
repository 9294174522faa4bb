"""``rolemesh checkpoint``: list, verify and export the checkpoints of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rolemesh.cli.arguments import JsonFlag, RunsDir
from rolemesh.cli.output import print_json, print_table, print_text
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_STARTED, PluginError, RolemeshError
from rolemesh.graph.flow import place_of_error
from rolemesh.job_file.model import Use
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.runs.run import runs_folder
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.export import can_export
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.reshard import merge
from rolemesh_console.text import amount
from rolemesh_durable.api.jobs import ResumePoint, Run, find_source
from rolemesh_durable.content import own_version
from rolemesh_jobs.classes import Resolved, Resolver

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

Where = Annotated[
    str, typer.Argument(metavar="JOB|PATH", help="A job's name, a run's folder, or the folder of one snapshot in it.")
]
Step = Annotated[int | None, typer.Option("--step", help="The snapshot of this step.", show_default="all of them")]
TheStep = Annotated[int | None, typer.Option("--step", help="The snapshot of this step.", show_default="the newest")]


@app.command("list")
def list_(where: Where, step: Step = None, as_json: JsonFlag = False, runs_dir: RunsDir = None) -> None:
    """List a run's snapshots on disk, the newest first.

    Snapshots that were never completed are listed too, with the reason. Only `verify` reads the files.

    Exit code: 0, or 2 if there is no such run.
    """
    checkpoints = _checkpoints(_source(where, step, runs_dir))
    if as_json:
        print_json([_row(each) for each in checkpoints])
    elif checkpoints:
        rows = [(f"{each.step}", *_described(each), str(each.path)) for each in checkpoints]
        print_table(("step", "state", "ranks", "size", "folder"), rows)
    else:
        print_text(
            f"no snapshots of {where} on disk; engine.options.snapshots.persist_every=N writes one every N steps"
        )


@app.command()
def verify(where: Where, step: Step = None, as_json: JsonFlag = False, runs_dir: RunsDir = None) -> None:
    """Read every file of a run's snapshots and compare it with its checksum.

    Exit code: 0 if all complete snapshots are intact, 1 if one is damaged, 2 if there is none.
    """
    source = _source(where, step, runs_dir)
    checkpoints = _checkpoints(source)
    found = [(each, disk.verify(each.path) if each.manifest is not None else []) for each in checkpoints]
    if not any(each.manifest is not None for each in checkpoints):
        raise _none(source)
    damaged = [each for each, problems in found if problems or _is_damaged(each)]
    if as_json:
        print_json([_row(each) | {"problems": [p._asdict() for p in problems]} for each, problems in found])
        raise typer.Exit(EXIT_FAILED if damaged else EXIT_DONE)
    for each, problems in found:
        if each.manifest is None:
            print_text(f"step {each.step}: does not count: {each.warning}")
            continue
        print_text(f"step {each.step}: {'damaged' if problems else f'intact ({len(each.manifest.files)} files)'}")
        for problem in problems:
            print_text(f"  {problem.file}: {problem.what}")
    intact = [each.step for each, problems in found if each.manifest is not None and not problems]
    if damaged:
        use = f"the job resumes from step {intact[0]}" if intact else "no snapshot is left to resume from"
        print_text(f"  → {use}; remove {', '.join(str(each.path) for each in damaged)}", err=True)
        raise typer.Exit(EXIT_FAILED)


@app.command()
def export(
    where: Where,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write; it must not exist.", show_default="JOB-step-N"),
    ] = None,
    step: TheStep = None,
    role: Annotated[
        str | None, typer.Option("--role", help="The role to export.", show_default="each that can be")
    ] = None,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Write the states of roles in a form that other tools read; for `fsdp` that is a Hugging Face folder.

    The command joins the shards of all ranks; the `export` of the role's workload writes the files. Without --role it
    exports each role whose workload has `export`; if there are several, each gets a folder of its name in --out. It
    uses the newest intact snapshot, unless --step names another.

    Exit code: 0, 1 if the snapshot is damaged or an export fails, 2 if there is none or the role cannot be exported.

    Examples:

      rolemesh checkpoint export grpo -o grpo-trained

      rolemesh checkpoint export runs/grpo --step 9 --role trainer -o grpo-9
    """
    source = _source(where, step, runs_dir)
    found, damaged = disk.newest_intact(source.run_dir, source.step)
    for text in damaged:
        print_text(f"warning: {text}", err=True)
    if found is None or found.manifest is None:
        if damaged:
            raise SnapshotError("no intact snapshot is left", where=str(disk.snapshots_folder(source.run_dir)))
        raise _none(source)
    out = out or Path(f"{source.run_dir.name}-step-{found.step}")
    if out.exists():
        raise _refused(f"{out} exists already", remedy="name another folder with --out")
    chosen = _choose(role, source.run_dir, found.manifest)
    folders = {name: out / name if len(chosen) > 1 else out for name in chosen}
    failed = {}
    for name, folder in folders.items():
        try:
            _write(found.path, name, chosen[name], folder)
        except (RolemeshError, OSError) as error:
            if len(chosen) == 1:
                raise
            failed[name] = error
    with suppress(OSError):
        out.rmdir()  # nothing could be exported into it
    rows = [
        {"role": name, "folder": str(folder), "files": _files(folder)}
        for name, folder in folders.items()
        if name not in failed
    ]
    if as_json:
        print_json({"step": found.step} | (rows[0] if len(chosen) == 1 else {"folder": str(out), "roles": rows}))
    else:
        for row in rows:
            print_text(f"role {row['role']} after step {found.step}: {row['folder']}/ ({', '.join(row['files'])})")
    for name, why in failed.items():
        print_text(f"error: role {name} is not exported: {why}", err=True)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _write(checkpoint: Path, role: str, workload: Resolved, folder: Path) -> None:
    """Export `role` into the new `folder`. The folder appears only when it is complete."""
    states = disk.states(checkpoint, role)
    if not states:
        raise _refused(f"role {role} keeps no state", where=str(checkpoint))
    record, cls, options = workload
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _export(record, lambda: cls.export(options, merge(states), partial))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------------------ finding


def _source(where: str, step: int | None, runs_dir: Path | None) -> ResumePoint:
    found = find_source(where, runs_folder(runs_dir))
    return ResumePoint(found.run_dir, step if step is not None else found.step)


def _checkpoints(source: ResumePoint) -> list[disk.DiskCheckpoint]:
    return [each for each in disk.find_checkpoints(source.run_dir) if source.step in (None, each.step)]


def _workloads(run_dir: Path, manifest: disk.Manifest) -> tuple[dict[str, Resolved], dict[str, RolemeshError]]:
    """Return the roles with a state in the snapshot whose workload can be loaded, and the error of each other role.

    A role may need variables, files or plugins that are missing here. The other roles do not depend on that.
    """
    run, found, broken = Run(run_dir), dict[str, Resolved](), dict[str, RolemeshError]()
    resolver = Resolver(run, manifest.base)
    for name in manifest.world_sizes:
        if not any(file.startswith(f"{name}/") and file.endswith(".safetensors") for file in manifest.files):
            continue
        try:
            use = {key: run.job_value("roles", default, name, key) for key, default in (("use", ""), ("options", {}))}
            found[name] = resolver.find("workloads", Use.model_validate(use), f"roles.{name}")
            record, before = found[name].record, manifest.plugins.get(found[name].record.name, "")
            if before and not record.distribution and before != own_version(record):
                print_text(f"warning: {record.name} has changed since the job ran; it is used as it is now", err=True)
        except RolemeshError as error:
            broken[name] = error
    return found, broken


def _export(record: PluginRecord, write: Callable[[], None]) -> None:
    try:
        write()
    except RolemeshError:
        raise
    except Exception as error:
        at = f" ({place})" if (place := place_of_error(error)) else ""
        what = f"{record.what} failed in export(): {type(error).__name__}: {error}{at}"
        remedy = "check that its code is as it was when the job ran, or report it to " + record.author
        raise PluginError(what, remedy=remedy) from error


def _choose(role: str | None, run_dir: Path, manifest: disk.Manifest) -> dict[str, Resolved]:
    """Return the roles to export with their workloads: `role`, or all roles whose workload can export.

    Raises `SnapshotError` if there is none, and the error of a role that cannot be loaded if it is `role` or no other
    role can be exported.
    """
    workloads, broken = _workloads(run_dir, manifest)
    able = {name: each for name, each in workloads.items() if can_export(each.cls)}
    for name, error in broken.items():
        if name == role or (role is None and not able):
            raise error
        if role is None:
            print_text(f"warning: role {name} cannot be exported: {error}", err=True)
    if role is None and able:
        return able
    if role is None:
        raise _refused("no role can be exported", remedy=_these(able))
    if role not in manifest.world_sizes:
        raise _refused(f"the snapshot has no role {role!r}", remedy=f"it has {', '.join(sorted(manifest.world_sizes))}")
    if role in able:
        return {role: able[role]}
    if role in workloads:
        raise _refused(
            f"{workloads[role].cls.__name__}, the workload of role {role}, cannot be exported",
            remedy="give it a classmethod export(options, state, folder); see rolemesh.api.workload.Workload.export",
        )
    raise _refused(f"role {role} keeps no state", remedy=_these(able))


def _these(able: Collection[str]) -> str:
    return f"choose one with --role: {', '.join(able)}" if able else "no workload of this job has an export()"


# ------------------------------------------------------------------------------------------------------------ showing


def _is_damaged(each: disk.DiskCheckpoint) -> bool:
    """Return whether the checkpoint has a manifest that cannot be trusted. A checkpoint without one is unfinished, not
    damaged."""
    return each.manifest is None and (each.path / disk.MANIFEST).exists()


def _row(each: disk.DiskCheckpoint) -> dict[str, Any]:
    manifest = each.manifest
    row: dict[str, Any] = {"step": each.step, "folder": str(each.path), "complete": manifest is not None}
    if manifest is None:
        return row | {"warning": each.warning}
    size = sum(size for size, _ in manifest.files.values())
    return row | {"world_sizes": manifest.world_sizes, "files": len(manifest.files), "bytes": size}


def _described(each: disk.DiskCheckpoint) -> tuple[str, str, str]:
    if each.manifest is None:
        return ("damaged" if _is_damaged(each) else "unfinished"), "", ""
    ranks = " ".join(f"{role}:{size}" for role, size in sorted(each.manifest.world_sizes.items()))
    size = sum(size for size, _ in each.manifest.files.values())
    return "complete", ranks, amount(size)


def _none(source: ResumePoint) -> RolemeshError:
    what = "there is no complete snapshot" + (f" of step {source.step}" if source.step is not None else "")
    return _refused(
        what,
        where=str(disk.snapshots_folder(source.run_dir)),
        remedy="a job writes one after its last step, unless snapshots.keep is none, and earlier ones with a failover "
        "ladder or snapshots.persist_every",
    )


def _refused(what: str, *, where: str | None = None, remedy: str | None = None) -> SnapshotError:
    error = SnapshotError(what, where=where, remedy=remedy)
    error.exit_code = EXIT_NOT_STARTED
    return error
