"""``rolemesh plan``: the dry run. It shows where each rank would run and why, and starts
nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rolemesh.api.command import PlanOption
from rolemesh.cli.arguments import JobArgument, JsonFlag, Overrides, chosen, with_options
from rolemesh.cli.output import print_json
from rolemesh.job.explain import explain
from rolemesh.job.planning import check_placed
from rolemesh.job.prepared import prepare
from rolemesh.job.run import options_of
from rolemesh.placement.nodes import parse_nodes, this_machine

WIDTH = 100
NUMBERS = ("lag", "credits", "window", "cpu")


def verb(given: Sequence[str]) -> Any:
    """Return the verb, with the options of plugins that add to a plan."""
    extra = options_of("plan")
    return with_options(
        lambda **values: _plan(chosen(extra, values), values), fixed, [e.Options for e in extra]
    )


def fixed(
    job: JobArgument,
    overrides: Overrides = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Plan for these nodes, e.g. '4x(cpu=32,gpu=8)'; default: this machine.",
            metavar="SPEC",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the graph, and the node and slot of each rank with the strategy that chose it. Starts
    nothing.

    Exit code 2 if something does not fit; the reasons are listed role by role.
    """


def _plan(extra: Sequence[PlanOption], values: Mapping[str, Any]) -> None:
    job, nodes = values["job"], values["nodes"]
    given = list(values["overrides"] or ())
    cluster = parse_nodes(nodes) if nodes else this_machine()
    for option in extra:
        given += option.overrides(job, given)
    prepared = prepare(job, given).fitted(cluster)
    plan = prepared.plan(cluster)
    told = explain(prepared, plan, cluster)
    texts = list[str]()
    for option in extra:
        more, text = option.tell(prepared, cluster, plan)
        told |= more
        texts += [text] if text else []
    if values["as_json"]:
        print_json(told)
    else:
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
        _show(told, Console(highlight=False, width=width))
        print(*texts, sep="\n", end="\n" if texts else "")
    check_placed(plan, prepared.job)


def _show(told: Mapping[str, Any], console: Console) -> None:
    """Print the tables of a plan that `rolemesh.job.explain` has put into words."""
    roles, edges = told["roles"], told["edges"]
    ranks = sum(role["world_size"] for role in roles.values())
    console.print(
        f"[bold]{told['job']}[/]: flow {told['flow']}; steps: {told['steps'] or 'no end'}, "
        f"roles: {len(roles)}, ranks: {ranks}, edges: {len(edges)}\n"
    )
    for title, header, rows in _tables(told):
        look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "pad_edge": False}
        table = Table(title=title, box=None, padding=(0, 2, 0, 0), **look)
        for name in header:
            side: Any = "right" if name in NUMBERS else "left"
            table.add_column(name, header_style="dim", overflow="fold", justify=side)
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        if table.rows:
            console.print(table)
            console.print()
    for constraint in told["constraints"]:
        console.print(f"held to: {constraint}", markup=False)


def _tables(
    told: Mapping[str, Any],
) -> Iterator[tuple[str, Sequence[str], Iterable[Sequence[object]]]]:
    """Yield title, header and rows of each table."""
    roles, nodes, bundles = told["roles"], told["nodes"], told["bundles"]
    uses = {name: (role["use"], role["world_size"]) for name, role in roles.items()}
    calls = [(op["label"], *uses[op["role"]], _runs(op), op["where"]) for op in told["operators"]]
    header: Sequence[str] = ("operator", "role's plugin", "ranks", "runs", "written at")
    yield "Operators, in the flow's order", header, calls
    header = ("from → to (parameter)", "partition → partition", "route", "lag", "credits", "window")
    yield "Edges", header, map(_edge, told["edges"])
    yield "Ranks", ("ranks", "node", "slot", "cpu", "GPUs", "decided by"), _rank_rows(told)
    if any(role["runtime_env"] for role in roles.values()):
        yield "Environments of their own", ("ranks", "has"), _environments(roles)
    # Those with something on them, where there are many.
    shown = nodes if len(nodes) <= 8 else [node for node in nodes if node["id"] in bundles]
    rows = [(node["id"], _amounts(node), _amounts(bundles.get(node["id"], {}))) for node in shown]
    yield "Bundles, one per node", ("node", "has", "reserved"), rows


def _edge(edge: Mapping[str, Any]) -> Sequence[object]:
    ends = f"{edge['from']} → {edge['to']}({edge['param']})"
    partitions = f"{edge['from_partition']} → {edge['to_partition']}"
    lag = f"≤ {edge['lag']}" if edge["newest"] else edge["lag"]
    window = f"{edge['window']}{'' if edge['credits'] else '+'}"
    return ends, partitions, edge["route"], lag, edge["credits"] or "auto", window


def _runs(op: Mapping[str, Any]) -> str:
    start = f" from step {op['first_step']}" if op["first_step"] else ""
    return f"every step{start}" if op["every"] == 1 else f"every {op['every']} steps{start}"


def _rank_rows(told: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield one row per range of neighbouring ranks of a role on the same node, with equal shares
    and by the same rule."""

    def alike(rank: Mapping[str, Any]) -> Sequence[Any]:
        slot = told["slots"][rank["slot"]]
        return *(rank[key] for key in ("role", "node", "rule")), *(
            slot[key] for key in ("cpu", "gpu", "custom")
        )

    for (role, node, rule, cpu, gpu, _), same in groupby(told["ranks"], alike):
        group = list(same)
        name = f"{role}/{group[0]['rank']}" + (f"–{group[-1]['rank']}" if len(group) > 1 else "")
        share = f" ({gpu:g} of each)" if 0 < gpu < 1 else ""
        gpus = _span([index for rank in group for index in rank["gpus"]]) + share
        cpus = f"{cpu:g}" + (f" ×{len(group)}" if len(group) > 1 else "")
        yield name, node, _span([rank["slot"] for rank in group]), cpus, gpus, rule


def _environments(roles: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the environments of roles; roles with equal environments share a row."""
    shared: dict[str, list[str]] = {}
    for name, role in roles.items():
        asked = role["runtime_env"]
        size = role["world_size"]
        variables = {"variables": list(asked["env_vars"])} if "env_vars" in asked else {}
        told = {"pip": asked.get("pip"), **variables, "working_dir": asked.get("working_dir")}
        parts = [
            f"{what}: {each if isinstance(each, str) else ', '.join(each)}"
            for what, each in told.items()
            if each
        ]
        shared.setdefault("\n".join(parts) or "–", []).append(
            f"{name}/0" + (f"–{size - 1}" if size > 1 else "")
        )
    return [(", ".join(ranks), environment) for environment, ranks in shared.items()]


def _span(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: ``0–3,6``."""
    inner = groupby(enumerate(sorted(set(numbers))), lambda counted: counted[1] - counted[0])
    runs = [[number for _, number in run] for _, run in inner]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _amounts(amounts: Mapping[str, Any]) -> str:
    flat = {**amounts, **amounts.get("custom", {})}
    shown = {n: a for n, a in flat.items() if isinstance(a, (int, float)) and (a or n == "cpu")}
    return ", ".join(f"{name} {amount:g}" for name, amount in shown.items()) or "–"
