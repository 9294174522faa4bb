"""The pictures of the examples' flows, from the graph that the kernel traces."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rolemesh.api.import_ref import OWN, import_paths
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.job_file import load
from rolemesh.job_file.overrides import types_of_spec
from rolemesh.plugins.discovery import discover, resolve
from rolemesh.plugins.drivers import load as load_plugin
from rolemesh.plugins.select import validate_options

__all__ = ["EXAMPLES", "picture", "with_pictures"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BLOCK = re.compile(r"(<!-- flow of examples/([\w-]+)( [^>]*?)? -->\n)(?:\n```mermaid\n.*?```\n)?", re.DOTALL)


def picture(example: str, overrides: tuple[str, ...] = ()) -> str:
    """The flow of an example's job file in mermaid's language: a node per call, an edge per value.

    The job is not checked against this machine: models that it needs do not have to be here.
    """
    with _own_modules():
        return _picture(example, overrides)


@contextmanager
def _own_modules() -> Iterator[None]:
    """Forget the modules of an example afterwards: another one may have modules of the same names."""
    modules, path, own = set(sys.modules), [*sys.path], [*OWN]
    try:
        yield
    finally:
        sys.path[:], OWN[:] = path, own
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{EXAMPLES}/"):
                del sys.modules[name]


def _picture(example: str, overrides: tuple[str, ...]) -> str:
    job = load(EXAMPLES / example / "job.yaml", overrides)
    import_paths(job.base)
    roles = {}
    for name, role in job.spec.roles.items():
        workload = _own_workload(EXAMPLES / example, role.use) or load_plugin(
            resolve("workloads", role.use, discover(environ={}), job.base)
        )
        options = validate_options(job, workload, role.options, ("roles", name, "options"), types_of_spec)
        roles[name] = SimpleNamespace(cls=workload, options=options)
    graph = trace_job(job, roles)
    return _mermaid(graph, {name: role.world_size for name, role in job.spec.roles.items()})


def _own_workload(folder: Path, name: str) -> type[Any] | None:
    """The workload of this name that an example brings in a distribution of its own, which need not be installed."""
    if not (folder / "pyproject.toml").is_file():
        return None
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    target = points.get("rolemesh.workloads", {}).get(name)
    if target is None:
        return None
    import_paths(folder / "src")
    module, _, attr = target.partition(":")
    found: type[Any] = getattr(import_module(module), attr)
    return found


def _mermaid(graph: LogicalGraph, world_sizes: dict[str, int]) -> str:
    lines = ["flowchart LR"]
    for op in graph.ops:
        ranks = f"{op.role} × {int(world_sizes[op.role])}" if world_sizes[op.role] > 1 else op.role
        when = "" if op.every == 1 else f"<br>every {op.every}, at {op.at}"
        lines.append(f'    c{op.id}["{ranks}<br>{op.operator}{when}"]')
    for edge in graph.edges:
        lag = f", lag {edge.lag_shown}" if edge.lag else ""
        arrow = "-.->" if edge.lag else "-->"
        lines.append(f'    c{edge.src} {arrow}|"{edge.param}{lag}"| c{edge.dst}')
    return "\n".join(lines)


def with_pictures(text: str) -> str:
    """The document with each picture renewed that a comment ``<!-- flow of examples/NAME [OVERRIDES] -->`` asks for."""

    def renewed(found: re.Match[str]) -> str:
        return f"{found[1]}\n```mermaid\n{picture(found[2], tuple((found[3] or '').split()))}\n```\n"

    return BLOCK.sub(renewed, text)
