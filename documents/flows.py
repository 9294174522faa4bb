"""The pictures of the examples' flows, from the graph that the kernel traces."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.imports import import_paths
from rolemesh.plugins.discovery import discover, find
from rolemesh.plugins.drivers import load as load_plugin
from rolemesh.plugins.select import validate_options
from rolemesh.spec import load

__all__ = ["EXAMPLES", "picture", "with_pictures"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BLOCK = re.compile(r"(<!-- flow of examples/([\w-]+)( [^>]*?)? -->\n\n)(?:```mermaid\n.*?```\n)?", re.DOTALL)


def picture(example: str, overrides: tuple[str, ...] = ()) -> str:
    """The flow of an example's job file in mermaid's language: a node per call, an edge per value.

    The job is not checked against this machine: models that it needs do not have to be here.
    """
    job = load(EXAMPLES / example / "job.yaml", overrides)
    import_paths(job.base)
    records = discover(environ={})
    roles = {}
    for name, role in job.spec.roles.items():
        workload = load_plugin(find("workloads", role.use, records))
        options = validate_options(job, workload, role.options, ("roles", name, "options"))
        roles[name] = SimpleNamespace(cls=workload, options=options)
    graph = trace_job(job, SimpleNamespace(roles=roles))  # type: ignore[arg-type]
    return _mermaid(graph, {name: role.world_size for name, role in job.spec.roles.items()})


def _mermaid(graph: LogicalGraph, world_sizes: dict[str, int]) -> str:
    lines = ["flowchart LR"]
    for op in graph.ops:
        ranks = f"{op.role} × {int(world_sizes[op.role])}" if world_sizes[op.role] > 1 else op.role
        when = "" if op.every == 1 else f"<br>every {op.every}, at {op.at}"
        lines.append(f'    c{op.id}["{ranks}<br>{op.operator}{when}"]')
    for edge in graph.edges:
        lag = f", lag {edge.lag}" if edge.lag else ""
        arrow = "-.->" if edge.lag else "-->"
        lines.append(f'    c{edge.src} {arrow}|"{edge.param}{lag}"| c{edge.dst}')
    return "\n".join(lines)


def with_pictures(text: str) -> str:
    """The document with each picture renewed that a comment ``<!-- flow of examples/NAME [OVERRIDES] -->`` asks for."""

    def renewed(found: re.Match[str]) -> str:
        return f"{found[1]}```mermaid\n{picture(found[2], tuple((found[3] or '').split()))}\n```\n"

    return BLOCK.sub(renewed, text)
