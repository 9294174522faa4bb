"""``rolemesh plugins``: ``list`` and ``show``. Others add verbs below it: ``check``, ``lock``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from rolemesh.cli._output import print_json, print_table
from rolemesh.cli.arguments import JsonFlag
from rolemesh.errors import EXIT_NOT_STARTED, PluginError, nearest
from rolemesh.kinds import kind_names
from rolemesh.kinds.installed import leftovers
from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.static import looked_at

command = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

KindOption = Annotated[str | None, typer.Option("--kind", help=f"One of {', '.join(kind_names())}.")]


@command.command("list")
def list_plugins(
    kind: KindOption = None,
    as_json: JsonFlag = False,
    check: Annotated[bool, typer.Option("--check", help="Import each plugin, to see all that is broken.")] = False,
) -> None:
    """List the installed plugins: kind, name, distribution, version, status. Imports none of them without --check."""
    records = [looked_at(record) for record in discover((kind,) if kind is not None else None)]
    if check:
        from rolemesh.plugins.describe import checked

        records = [checked(record) for record in records]
    for left in leftovers():
        typer.echo(f"warning: {left}", err=True)
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    status = {record: f"{record.status}: {record.error}" if record.error else record.status for record in records}
    rows = [(record.kind, record.name, record.distribution, record.version, status[record]) for record in records]
    print_table(("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"), rows)


@command.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="The plugin's name, or distribution:name.")],
    kind: KindOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a plugin: options with types, defaults and docs, operators or hooks, distribution and version."""
    from rolemesh.plugins.describe import describe

    described = [describe(record) for record in named(name, kind)]
    if as_json:
        print_json(described if len(described) > 1 else described[0])
    else:
        print("\n\n".join(_text(plugin) for plugin in described))
    if any(plugin["status"] in ("broken", "incompatible") for plugin in described):
        raise typer.Exit(EXIT_NOT_STARTED)


def named(name: str, kind: str | None) -> list[PluginRecord]:
    """The installed plugins that ``name`` or ``distribution:name`` means."""
    records = discover((kind,) if kind is not None else None)
    if found := [record for record in records if record.is_called(name)]:
        return found
    hint = nearest(name.rpartition(":")[2], {record.name for record in records})
    raise PluginError(f"there is no plugin {name!r}", remedy="; ".join([hint, *map(str, leftovers())]))


def _text(plugin: dict[str, Any]) -> str:
    lines = [f"{plugin['name']}  ({plugin['kind']})", f"  {plugin['distribution']} {plugin['version']}"]
    lines.append(f"  {plugin['target']}, {plugin['status']}")
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
