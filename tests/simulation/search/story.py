"""A schedule that breaks, as a story: the job, what goes wrong, and what follows, up to the invariant's breach."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.run import run, scenario_of
from tests.simulation.schedule import Schedule
from tests.simulation.world import World

from rolemesh_view.stories import event_text

__all__ = ["story"]

OUTSIDE = ("nemesis", "weather", "backend")
"""Sources of lines about the job's surroundings."""
LAST = 40
"""Number of lines at the end that the story has in full."""


def story(schedule: Schedule) -> str:
    """Play a schedule; return its story."""
    world, broken = run(scenario_of(schedule, traced=True))
    return "\n".join(_told(schedule, world, broken))


def _told(schedule: Schedule, world: World, broken: str) -> Iterator[str]:
    scenario, job, trace = world.scenario, world.job, list(_in_words(world))
    invariant, _, why = broken.partition(": ")
    yield f"Broken: {invariant or 'nothing'}"
    yield from (f"  {line}" for line in why.strip().splitlines()[-6:])
    yield f"Again:  python -m tests.simulation {schedule}"
    yield f"Job:    {job.steps if job.steps < 10_000 else 'endless'} steps; " + ", ".join(
        f"{role} ×{size} ({job.kinds[role]})" for role, size in job.sizes.items()
    )
    for op in job.graph.ops:
        inputs = [job.graph.ops[e.src].label + f" (lag {e.lag})" * bool(e.lag)
                  for e in job.graph.edges if e.dst == op.id]  # fmt: skip
        yield f"        {op.label}" + (f" takes {', '.join(inputs)}" if inputs else "")
    homes: dict[str, list[str]] = {}
    for (role, rank), agent in sorted(scenario.homes.items()):
        homes.setdefault(agent, []).append(f"{role}/{rank}")
    yield "Nodes:  " + "; ".join(f"{agent} has {' '.join(ranks)}" for agent, ranks in sorted(homes.items()))
    net = scenario.net
    yield f"World:  {net.drop:.0%} of the messages are lost, {net.duplicate:.0%} come twice, after up to {net.delay} s"
    plan = scenario.plan
    yield f"        a snapshot each {plan.every} steps, every {plan.persist_every}. on disk, {plan.replicas} copies"
    first = max(0, len(trace) - LAST)
    outside = [
        line for line in trace[:first] if line.split(maxsplit=2)[1] in OUTSIDE or line[10:].startswith("master ")
    ]
    yield from ("What happens:", *_counted(outside)) if outside else ()
    yield from (f"The last {len(trace) - first} things:", *trace[first:])


def _in_words(world: World) -> Iterator[str]:
    """Yield the lines of the trace. Events have sentences, as users read them."""
    events = iter(world.journal.events)
    for line in world.trace or ():
        _, who, *rest = line.split()
        if who != "journal" or rest[1] == "committed":
            yield line
            continue
        event = next(events)
        yield f"{line[:9]} {f'master {event.epoch}':<14} {event.kind}: {event_text(event)}"


def _counted(lines: list[str]) -> Iterator[str]:
    """Lines that are alike but for their time come once, with their number."""
    before, count = "", 0
    for line in [*lines, ""]:
        if line.split(maxsplit=1)[1:] == before.split(maxsplit=1)[1:] and before:
            count += 1
            continue
        if before:
            yield before + (f"  (×{count})" if count > 1 else "")
        before, count = line, 1
