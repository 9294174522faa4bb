"""``rolemesh plugins list``. Other distributions add verbs below ``plugins``: ``check``, ``lock``,
``show``."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from rolemesh.cli.arguments import JsonFlag
from rolemesh.cli.output import print_json, print_table, print_text
from rolemesh.errors import PluginError, nearest
from rolemesh.kinds import kind_names
from rolemesh.kinds.installed import leftovers
from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.static import looked_at

command = typer.Typer(
    no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)

KindOption = Annotated[
    str | None, typer.Option("--kind", help=f"One of {', '.join(kind_names())}.")
]


@command.command("list")
def list_plugins(
    kind: KindOption = None,
    as_json: JsonFlag = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import each plugin, to see all that is broken.")
    ] = False,
) -> None:
    """List the installed plugins: kind, name, distribution, version, status. No plugin is imported
    without --check."""
    records = [looked_at(record) for record in discover((kind,) if kind is not None else None)]
    if check:
        from rolemesh.plugins.drivers import checked

        records = [checked(record) for record in records]
    for left in leftovers():
        print_text(f"warning: {left}", err=True)
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    status = {
        record: f"{record.status}: {record.error}" if record.error else record.status
        for record in records
    }
    rows = [
        (record.kind, record.name, record.distribution, record.version, status[record])
        for record in records
    ]
    print_table(("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"), rows)


def named(name: str, kind: str | None) -> list[PluginRecord]:
    """Return the installed plugins that ``name`` or ``distribution:name`` means."""
    records = discover((kind,) if kind is not None else None)
    if found := [record for record in records if record.is_called(name)]:
        return found
    hint = nearest(name.rpartition(":")[2], {record.name for record in records})
    raise PluginError(
        f"there is no plugin {name!r}",
        kind="missing",
        remedy="; ".join([hint, *map(str, leftovers())]),
    )
