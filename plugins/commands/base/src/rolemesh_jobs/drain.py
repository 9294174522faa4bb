"""`rolemesh drain`: move the ranks of a running job off a node that will go away."""

from __future__ import annotations

from typing import Annotated

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import EXIT_FAILED
from rolemesh_console.sentences import sentence
from rolemesh_durable.api.jobs import ControlClient, DrainNode, Request
from rolemesh_jobs.asking import request, running, tell
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
    drain = _Drain(node, reason(f"drain{' --back' * back}"), within, back=back)
    told = request(run, drain, wait=wait and not back)
    said = f"{run.name}: {sentence(told)}" if told is not None else ""
    tell(run, told, said, {"node": drain.node}, as_json=as_json, refused=False)
    if told is not None and told.kind == "drain_over" and not back:
        raise typer.Exit(EXIT_FAILED)


class _Drain(Request):
    """A drain of a node, or its cancellation, from its request to its outcome. `node` is its name or the beginning."""

    def __init__(self, node: str, reason: str, within_s: float, *, back: bool) -> None:
        self.node = node
        self._reason, self._within_s, self._back = reason, within_s, back

    def send(self, client: ControlClient) -> None:
        nodes = {agent.node for agent in client.status().agents if agent.node.startswith(self.node)}
        self.node = nodes.pop() if len(nodes) == 1 else self.node
        client.ask(DrainNode(self.node, self._reason, self._within_s, self._back))

    def is_accepted(self, event: Event) -> bool:
        return self._reason in (event.data.get("reason"), event.data.get("why"))

    def is_outcome(self, accepted: Event, event: Event) -> bool:
        return event.kind in ("drained", "drain_over") and event.data["node"] == accepted.data["node"]

    def progress(self, event: Event) -> None:
        if event.kind in ("drain_waiting", "stop_point"):
            print_text(sentence(event) or event.kind, err=True)
