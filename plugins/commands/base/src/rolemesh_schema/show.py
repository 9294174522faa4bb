"""``rolemesh plugins show``: describe a plugin for authors of job files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.cli.arguments import JsonFlag
from rolemesh.cli.output import print_json
from rolemesh.cli.plugins import KindOption, named
from rolemesh.errors import EXIT_NOT_STARTED
from rolemesh_schema.describe import describe

__all__ = ["ShowVerb"]


class ShowVerb(Command):
    """`rolemesh plugins show`."""

    help: ClassVar[str] = "Show a plugin: its options, and its operators and services, or hooks."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return command


def command(
    name: Annotated[str, typer.Argument(help="The plugin's name, or distribution:name.")],
    kind: KindOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a plugin: options with types, defaults and docs; operators and services, or hooks; and its distribution."""
    described = [describe(record) for record in named(name, kind)]
    if as_json:
        print_json(described if len(described) > 1 else described[0])
    else:
        print("\n\n".join(_text(plugin) for plugin in described))
    if any(plugin["status"] in ("broken", "incompatible") for plugin in described):
        raise typer.Exit(EXIT_NOT_STARTED)


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
    if plugin.get("services"):
        lines += ["", "  services:"]
    for service in plugin.get("services") or ():
        limit = f"at most {service['timeout_s']:g} s" if service["timeout_s"] is not None else "no time limit"
        at_once = f"{service['concurrency']} at once, {limit}{', recorded' if service['recorded'] else ''}"
        lines.append(f"    {service['name']}{service['signature']}  ({at_once})")
        lines += [f"        {line}" for line in service["doc"].splitlines()]
    if plugin.get("hooks"):
        lines += ["", "  hooks:", *(f"    {signature}" for signature in plugin["hooks"].values())]
    return "\n".join(line.rstrip() for line in lines)
