"""``rolemesh plugins``: ``list``, ``show``, ``check`` and ``lock``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rolemesh.cli._output import print_json, print_progress, print_table
from rolemesh.errors import EXIT_FAILED, EXIT_NOT_STARTED, PluginError, nearest
from rolemesh.plugins.discovery import KINDS, PluginRecord, discover, normalized
from rolemesh.plugins.known import SINGULAR, Kind
from rolemesh.plugins.static import looked_at

if TYPE_CHECKING:
    from rolemesh.testing.check import Certificate

__all__ = ["app"]

OUTCOMES = ("passed", "failed", "overridden", "skipped")

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

KindOption = Annotated[str | None, typer.Option("--kind", help=f"One of {', '.join(KINDS)}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_plugins(
    kind: KindOption = None,
    as_json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Import each plugin, to see all that is broken.")] = False,
) -> None:
    """List the installed plugins: kind, name, distribution, version, status. Imports none of them without --check."""
    records = [looked_at(record) for record in discover(_kinds(kind))]
    if check:
        from rolemesh.plugins.describe import checked

        records = [checked(record) for record in records]
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    print_table(
        ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"),
        [
            (r.kind, r.name, r.distribution, r.version, f"{r.status}: {r.error}" if r.error else r.status)
            for r in records
        ],
    )


@app.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="The plugin's name, or distribution:name.")],
    kind: KindOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a plugin: options with types, defaults and docs, operators or hooks, distribution and version."""
    from rolemesh.plugins.describe import describe

    described = [describe(record) for record in _named(name, kind)]
    if as_json:
        print_json(described if len(described) > 1 else described[0])
    else:
        print("\n\n".join(_text(plugin) for plugin in described))
    if any(plugin["status"] in ("broken", "incompatible") for plugin in described):
        raise typer.Exit(EXIT_NOT_STARTED)


@app.command("check")
def check_plugins(
    plugin: Annotated[str, typer.Argument(help="An installed plugin's name, or a plugin's folder or test file.")],
    kind: KindOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the conformance kit against a plugin, in a process of its own, and print what it passes.

    For a name, the kit's class is the one that the plugin's distribution names in the entry-point group
    rolemesh.conformance, or that in the tests of the folder it is installed from (pip install -e). Exit code 0: nothing
    failed; 1: something did; 2: it could not be tested. Needs rolemesh's extra `test`.
    """
    from rolemesh.testing.check import check_folder, check_plugin

    path = Path(plugin)
    if path.exists() and (os.sep in plugin or path.suffix == ".py" or (path / "pyproject.toml").exists()):
        certificates = check_folder(path, discover(), print_progress)
    else:
        certificates = [one for record in _named(plugin, kind) for one in check_plugin(record, print_progress)]
    print_progress("")
    if as_json:
        print_json([msgspec.to_builtins(one) | {"passed": one.passed} for one in certificates])
    else:
        print("\n\n".join(_certificate(one) for one in certificates))
    if not all(one.passed for one in certificates):
        raise typer.Exit(EXIT_FAILED)


@app.command("lock")
def lock_plugins(
    job: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, as for `rolemesh run`.", show_default=False)
    ] = None,
) -> None:
    """Write down name, distribution, version and hash of every plugin that a job uses, for `rolemesh run --locked`.

    The lock is JOB.lock.yaml beside the job file. Keep it under version control: what changes in it is what has
    changed in the plugins.
    """
    from rolemesh.plugins.lock import lock_file, locked
    from rolemesh.plugins.select import select
    from rolemesh.spec import load

    records = select(load(job, overrides or ())).records
    path = lock_file(job)
    path.write_text(locked(job.name, records), encoding="utf-8")
    print(f"{path}: {len(records)} plugins")


def _named(name: str, kind: str | None) -> list[PluginRecord]:
    """The installed plugins that ``name`` or ``distribution:name`` means."""
    distribution, _, plain = name.rpartition(":")
    records = discover(_kinds(kind))
    found = [
        r
        for r in records
        if r.name == plain and (not distribution or normalized(r.distribution) == normalized(distribution))
    ]
    if not found:
        raise PluginError(f"there is no plugin {name!r}", remedy=nearest(plain, {record.name for record in records}))
    return found


def _kinds(kind: str | None) -> tuple[Kind, ...]:
    chosen = tuple(known for known in KINDS if kind in (None, known))
    if not chosen:
        raise PluginError(f"there is no kind {kind!r} of plugins", remedy=nearest(str(kind), KINDS))
    return chosen


def _certificate(one: Certificate) -> str:
    where = f"{one.distribution} {one.version}" if one.distribution else "not installed"
    fits = f"rolemesh{one.requires}" if one.requires else "any rolemesh"
    seconds = sum(test.seconds for test in one.tests)
    counts = [f"{n} {outcome}" for outcome in OUTCOMES if (n := one.count(outcome))]
    lines = [
        f"{'✔' if one.passed else '✘'} {SINGULAR[one.kind]} {one.name}  ({where})",
        f"  fits {fits}; this is rolemesh {one.kernel}{'' if one.fits else ', which it does not fit'}",
        f"  {', '.join(counts)} in {seconds:.1f} s",
    ]
    for outcome in OUTCOMES[1:]:
        for test in (test for test in one.tests if test.outcome == outcome):
            lines.append(f"  {outcome:<10}  {test.test}")
            lines += [f"              {line}" for line in (test.reason or test.message).splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def _text(plugin: dict[str, Any]) -> str:
    lines = [f"{plugin['name']}  ({plugin['kind']})", f"  {plugin['distribution']} {plugin['version']}"]
    lines.append(f"  {plugin['target']}, {plugin['status']}")
    if plugin["error"]:
        lines += [f"  {line}" for line in plugin["error"].splitlines()]
    if doc := plugin.get("doc"):
        lines += ["", *(f"  {line}" for line in doc.splitlines())]
    if "options" in plugin:
        lines += ["", "  options:" if plugin["options"] else "  no options"]
    for option in plugin.get("options", ()):
        default = "required" if option["required"] else f"default {json.dumps(option['default'], default=str)}"
        lines.append(f"    {option['name']}: {option['type']}  ({default})")
        lines += [f"        {line}" for line in option["doc"].splitlines()]
    if "operators" in plugin:
        lines += ["", "  operators:" if plugin["operators"] is not None else "  operators: they depend on the options"]
    for operator in plugin.get("operators") or ():
        inputs = ", ".join(f"{name}: {partition}" for name, partition in operator["inputs"].items())
        returns = f" -> {operator['returns']}" if operator["returns"] else ""
        lines.append(f"    {operator['name']}({inputs}){returns}{'  (streaming)' if operator['streaming'] else ''}")
        lines += [f"        {line}" for line in operator["doc"].splitlines()]
    if "hooks" in plugin:
        lines += ["", "  hooks:", *(f"    {signature}" for signature in plugin["hooks"].values())]
    return "\n".join(line.rstrip() for line in lines)
