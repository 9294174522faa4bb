"""``rolemesh plan``: the dry run. What would run where, and why; nothing is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolemesh.cli._output import print_json

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command", "show"]

WIDTH = 100


def command(
    job: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Values to set, e.g. roles.trainer.world_size=4.", show_default=False)
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Plan for these nodes, e.g. '4x(cpu=32,gpu=8)'; default: this machine.", metavar="SPEC"),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--profile", help="Run some steps in this process to measure what edges carry, first.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show the graph, and ranks on nodes and slots with who decided it, without starting anything.

    With --profile the job's first steps are run in this process, and the sizes of what operators return are shown as
    `edges.sizes`, to be put into the job file: strategies such as `subgraph` keep on one node what moves most.

    Exit code 2 if something does not fit; the reasons are told role by role.
    """
    from rolemesh.job.explain import explain
    from rolemesh.job.planning import check_placed, plan_job
    from rolemesh.job.prepared import prepare
    from rolemesh.placement.nodes import parse_nodes, this_machine

    cluster = parse_nodes(nodes) if nodes else this_machine()
    given = list(overrides or ())
    measured: dict[str, int] = {}
    if measure:
        from rolemesh.inline.profile import profile

        measured = profile(job, given)
        given.append(f"edges.sizes={json.dumps(measured)}")
    prepared = prepare(job, given).fitted(cluster)
    plan = prepared.plan(cluster)
    request = prepared.request
    by_role = plan_job(request, cluster, [])
    told = explain(prepared.job, prepared.graph, plan, cluster, request, by_role)
    if as_json:
        print_json(told)
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Console(highlight=False, width=WIDTH)
        show(told, console)
        if measured:
            console.print("\nmeasured; put it into the job file:\n\nedges:\n  sizes:", markup=False)
            for label, amount in measured.items():
                console.print(f"    {label}: {amount}", markup=False)
    check_placed(plan, prepared.job)


def show(told: Mapping[str, Any], console: Console) -> None:
    """The tables of a plan that `rolemesh.job.explain` has put into words."""
    edges = told["edges"]
    ranks = sum(role["world_size"] for role in told["roles"].values())
    console.print(
        f"[bold]{told['job']}[/]: flow {told['flow']}; steps: {told['steps']}, "
        f"roles: {len(told['roles'])}, ranks: {ranks}, edges: {len(edges)}\n"
    )
    _table(
        console,
        "Operators, in the flow's order",
        ("operator", "role's plugin", "ranks", "runs", "written at"),
        [
            (
                op["label"],
                told["roles"][op["role"]]["use"],
                str(told["roles"][op["role"]]["world_size"]),
                _runs(op),
                op["where"],
            )
            for op in told["operators"]
        ],
    )
    _table(
        console,
        "Edges",
        ("from → to (parameter)", "partition → partition", "route", "lag", "credits", "window"),
        [
            (
                f"{edge['from']} → {edge['to']}({edge['param']})",
                f"{edge['from_partition']} → {edge['to_partition']}",
                edge["route"],
                str(edge["lag"]),
                str(edge["credits"]),
                str(edge["window"]),
            )
            for edge in edges
        ],
    )
    _table(
        console,
        "Ranks",
        ("ranks", "node", "slot", "cpu", "GPUs", "decided by"),
        [_rank_row(told, group) for group in _grouped(told)],
    )
    if any(role["runtime_env"] for role in told["roles"].values()):
        _table(console, "Environments of their own", ("ranks", "has"), _environments(told["roles"]))
    _table(
        console,
        "Bundles, one per node",
        ("node", "has", "reserved"),
        [(node["id"], _amounts(node), _amounts(told["bundles"].get(node["id"], {}))) for node in _nodes(told)],
    )
    for constraint in told["constraints"]:
        console.print(f"held to: {constraint}", markup=False)
    if told["traffic"]["total"]:
        console.print(_traffic(told["traffic"]))


def _table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, header_style="dim", overflow="fold", justify="right" if name in NUMBERS else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    console.print()


def _traffic(traffic: Mapping[str, Any]) -> str:
    total, cross, by_role = traffic["total"], traffic["crossing"], traffic["crossing_by_role"]
    told = f"crosses nodes: {_size(cross)} of {_size(total)} a step ({cross / total:.0%})"
    told += f"; packed role by role: {_size(by_role)} ({by_role / total:.0%})"
    unknown = traffic["unknown_flows"]
    return told + (f"; {unknown} flows of unknown size do not count (edges.sizes)" if unknown else "")


def _size(amount: float) -> str:
    """Bytes with three digits: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


NUMBERS = ("lag", "credits", "window", "cpu")


def _runs(op: Mapping[str, Any]) -> str:
    start = f" from step {op['first_step']}" if op["first_step"] else ""
    if op["every"] == 1:
        return f"every step{start}"
    return f"every {op['every']} steps{start}"


def _grouped(told: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Neighbouring ranks of a role that were placed on one node, with equal shares, by one rule."""
    groups: list[list[dict[str, Any]]] = []
    for rank in told["ranks"]:
        last = groups[-1][-1] if groups else None
        same = last is not None and all(last[key] == rank[key] for key in ("role", "node", "rule"))
        if same and last is not None and _shape(told, last) == _shape(told, rank):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return groups


def _shape(told: Mapping[str, Any], rank: Mapping[str, Any]) -> tuple[float, float, Any]:
    slot = told["slots"][rank["slot"]]
    return slot["cpu"], slot["gpu"], slot["custom"]


def _rank_row(told: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first, last = group[0], group[-1]
    slot = told["slots"][first["slot"]]
    name = f"{first['role']}/{first['rank']}" + (f"–{last['rank']}" if len(group) > 1 else "")
    gpus = sorted({gpu for rank in group for gpu in rank["gpus"]})
    share = f" ({slot['gpu']:g} of each)" if 0 < slot["gpu"] < 1 else ""
    cpu = f"{slot['cpu']:g}" + (f" ×{len(group)}" if len(group) > 1 else "")
    return name, first["node"], _span([rank["slot"] for rank in group]), cpu, _span(gpus) + share, first["rule"]


def _environments(roles: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Roles that name the same environment share it."""
    shared: dict[str, list[str]] = {}
    for name, role in roles.items():
        asked = role["runtime_env"]
        parts = [f"pip: {', '.join(asked['pip'])}"] if "pip" in asked else []
        parts += [f"variables: {', '.join(asked['env_vars'])}"] if "env_vars" in asked else []
        parts += [f"working_dir: {asked['working_dir']}"] if "working_dir" in asked else []
        size = role["world_size"]
        ranks = f"{name}/0" + (f"–{size - 1}" if size > 1 else "")
        shared.setdefault("\n".join(parts) or "–", []).append(ranks)
    return [(", ".join(ranks), environment) for environment, ranks in shared.items()]


def _span(numbers: Sequence[int]) -> str:
    """``0–3,6``"""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)


def _amounts(amounts: Mapping[str, Any]) -> str:
    flat = {**amounts, **amounts.get("custom", {})}
    return ", ".join(f"{n} {a:g}" for n, a in flat.items() if isinstance(a, (int, float)) and (a or n == "cpu")) or "–"


def _nodes(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The nodes with something on them; all of them if they are few."""
    nodes: list[dict[str, Any]] = told["nodes"]
    return nodes if len(nodes) <= 8 else [node for node in nodes if node["id"] in told["bundles"]]
