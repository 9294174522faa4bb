"""`rolemesh drain`: move the ranks of a running job off a node that will go away."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh.errors import EXIT_FAILED
from rolemesh_console.sentences import sentence
from rolemesh_durable.api.jobs import ControlClient, DrainNode, ask
from rolemesh_jobs.asking import is_over, running, tell
from rolemesh_jobs.runs import reason

__all__ = ["command"]


def command(
    job: JobName,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The node's name in 'rolemesh status', or its beginning.")
    ],
    within: Annotated[
        float,
        typer.Option(
            "--within", metavar="S", min=0, help="Seconds until the node goes away; 0: as soon as it is empty."
        ),
    ] = 0.0,
    back: Annotated[bool, typer.Option("--back", help="Cancel: the node stays and may get ranks again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when it is done, or as soon as it is accepted.")
    ] = True,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Move the ranks of a running job off a node that will go away, without losing a step.

    As soon as other nodes have room, all ranks stop after the same step. The ranks of the node, and their groups, take
    a snapshot and continue from it elsewhere; all others keep their processes. The node gets no ranks until --back.
    While there is no room, the job continues and shows a warning.

    Exit code: 0 when the node has no ranks (with --no-wait: when the request is accepted); 2 if it cannot be drained
    (no such job or node, the last node, a job that does not run yet or takes no snapshots); 1 if the job ended first,
    its master was lost, or somebody took the node back.

    Examples:

      rolemesh drain grpo node-2

      rolemesh drain grpo node-2 --within 120 --no-wait

      rolemesh drain grpo node-2 --back
    """
    run = running(job, runs_dir)
    why = reason(f"drain{' --back' * back}")
    name = ""

    def send(client: ControlClient) -> None:
        nonlocal name
        nodes = {agent.node for agent in client.status().agents if agent.node.startswith(node)}
        name = nodes.pop() if len(nodes) == 1 else node
        client.ask(DrainNode(name, why, within, back))

    def is_it(event: Event) -> bool:
        return why in (event.data.get("reason"), event.data.get("why"))

    def say(event: Event) -> None:
        if event.kind in ("drain_waiting", "stop_point"):
            typer.echo(sentence(event), err=True)

    told = ask(run.path, send, is_it, _comes_of, partial(is_over, run), wait=wait and not back, tell=say)
    said = f"{run.name}: {sentence(told)}" if told is not None else ""
    tell(run, told, said, {"node": name}, as_json=as_json, refused=False)
    if told is not None and told.kind == "drain_over" and not back:
        raise typer.Exit(EXIT_FAILED)


def _comes_of(asked: Event, event: Event) -> bool:
    """Return whether `event` ends the drain that `asked` began."""
    return event.kind in ("drained", "drain_over") and event.data["node"] == asked.data["node"]
