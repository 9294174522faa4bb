"""The page on the command line: every verb with what it says about itself, its arguments and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from rolemesh import cli
from rolemesh.cli.verbs import verbs
from rolemesh_schema.describe import type_name

__all__ = ["page"]

HEAD = """\
# Command line

<!-- Made by `python -m docs.generator` from the command line itself. -->

`rolemesh VERB --help` says the same.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a job that was started has failed, or something that was there cannot be read |
| 2 | nothing was started: the job file, a plugin, the flow, the placement or the backend is wrong |
| 130 | interrupted (Ctrl-C, `rolemesh stop`) |
"""


def page() -> str:
    """The whole page, as Markdown."""
    sections = [HEAD]
    for name in verbs():
        if "." not in name:
            below = [each.rpartition(".")[2] for each in verbs() if each.startswith(f"{name}.")]
            root = typer.main.get_command(cli._app([name, *below]))
            sections += _sections(f"rolemesh {name}", root.commands[name], 2)  # type: ignore[attr-defined]
    return "\n".join(sections)


def _sections(path: str, command: Any, level: int) -> Iterator[str]:
    below = getattr(command, "commands", {})
    text = f"{'#' * level} `{path}`\n\n{_prose(command.help or '')}\n"
    if not below:
        text += f"\n```\n{_usage(path, command)}\n```\n"
        rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
        if rows:
            text += "\n" + "\n".join(["| | takes | default | |", "| --- | --- | --- | --- |", *rows]) + "\n"
    yield text
    for name, inner in below.items():
        yield from _sections(f"{path} {name}", inner, level + 1)


def _prose(text: str) -> str:
    """Help as Markdown: lines that are indented or begin with the program's name are examples."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [line.strip() for line in block.splitlines()]
        if all(line.startswith("rolemesh ") for line in lines):
            lines = ["```", *lines, "```"]
        elif all(re.fullmatch(r"\S+ {2,}\S.*", line) for line in lines):
            lines = ["```text", *lines, "```"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks).replace("```\n\n```\n", "")


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _name(argument: Any) -> str:
    """Without the brackets around it and the dots behind it, which `_usage` puts there itself."""
    name = str(argument.metavar or argument.name.upper()).removesuffix("...")
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _usage(path: str, command: Any) -> str:
    words = [path]
    for parameter in command.params:
        if not _is_option(parameter):
            name = _name(parameter)
            name += "..." if parameter.nargs == -1 else ""
            words.append(name if parameter.required else f"[{name}]")
    options = any(_is_option(parameter) and parameter.name != "help" for parameter in command.params)
    return " ".join([*words, "[OPTIONS]"] if options else words)


def _row(parameter: Any) -> str:
    if _is_option(parameter):
        name = ", ".join(f"`{opt}`" for opt in dict.fromkeys((*parameter.opts, *parameter.secondary_opts)))
    else:
        name = f"`{_name(parameter)}`"
    flag = _is_option(parameter) and parameter.is_flag
    takes = "" if flag else f"`{_type(parameter)}`"
    default = "required" if parameter.required else ""
    if isinstance(parameter.show_default, str):
        default = f"`{parameter.show_default}`"
    elif parameter.default not in (None, False, ()) and not flag:
        default = f"`{parameter.default}`"
    said = parameter.help or ""
    if parameter.envvar:
        said += f" Also from the variable `{parameter.envvar}`."
    return (
        "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in (name, takes, default, said)) + " |"
    )


def _type(parameter: Any) -> str:
    names = {"Path": "path", "str": "text", "list[str]": "text, several", "int": "number", "float": "number"}
    name = type_name(parameter.type_descriptor.annotation)
    shown = parameter.metavar if _is_option(parameter) else None
    return shown or names.get(name) or name.removeprefix("Literal[").removesuffix("]").replace("'", "")
