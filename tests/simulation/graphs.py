"""The jobs that are simulated: the flow of a GRPO job in small, and random graphs beyond it."""

from __future__ import annotations

import random

from msgspec.structs import replace
from tests.simulation.model import Job, Kind

from rolemesh.api.partition import Balanced, Broadcast, Partition, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity

__all__ = ["apart_job", "chain_job", "grpo", "random_job", "seldom_job", "shared_job", "versions_group", "versions_job",
           "versions_shared"]  # fmt: skip


def grpo(rng: random.Random, steps: int) -> Job:
    """data → rollout → reward → trainer, whose weights go back to the rollout, one step late or within the step."""
    lag, credits = rng.choice((0, 1, 1, 1, 2)), rng.choice((1, 2))
    split, whole = Split(), Broadcast()
    ops = (
        OpCall(0, "data", "next", "data.next", split),
        OpCall(1, "rollout", "generate", "rollout.generate", split),
        OpCall(2, "reward", "score", "reward.score", split, streaming=rng.random() < 0.5),
        OpCall(3, "trainer", "train", "trainer.train", None),
        OpCall(4, "trainer", "weights", "trainer.weights", whole),
        OpCall(5, "rollout", "load_weights", "rollout.load_weights", None, every=rng.choice((1, 1, 2))),
    )
    edges = (
        Edge(0, 0, 1, "prompts", split, split, 0, credits),
        Edge(1, 1, 2, "samples", split, split, 0, credits),
        Edge(2, 2, 3, "scored", split, split, 0, credits),
        Edge(3, 4, 5, "weights", whole, whole, lag, credits, newest=lag > 0 and steps % 3 == 0),
    )
    sizes = {"data": 1, "rollout": rng.choice((1, 1, 2)), "reward": rng.choice((1, 1, 2)), "trainer": 2}
    kinds: dict[str, Kind] = {"data": "source", "rollout": "stateless", "reward": "stateless", "trainer": "collective"}
    return Job(LogicalGraph("grpo", ops, edges), sizes, kinds, steps)


def shared_job(rng: random.Random, steps: int, *, first: bool = False, behind: int = 0) -> Job:
    """data → rollout → reward → trainer. Rollouts and rewards take rows by demand; weights may go back.
    With `first` the trainer takes the items that are finished first. Rewards are `behind` steps behind."""
    split, whole, credits = Split(), Broadcast(), rng.choice((1, 2, 3))
    shared, second = Balanced(rng.choice((1, 1, 2))), rng.choice((Balanced(rng.choice((1, 2))), split))
    second = Balanced(rng.choice((1, 2))) if first else second
    scores = second if isinstance(second, Balanced) else split
    lag = rng.choice((0, 1, 1, 2))
    ops = [
        OpCall(0, "data", "next", "data.next", split),
        OpCall(1, "rollout", "generate", "rollout.generate", shared),
        OpCall(2, "reward", "score", "reward.score", scores),
        OpCall(3, "trainer", "train", "trainer.train", None),
        OpCall(4, "trainer", "weights", "trainer.weights", split),
        OpCall(5, "rollout", "load_weights", "rollout.load_weights", None),
    ]
    edges = [
        Edge(0, 0, 1, "prompts", split, shared, 0, credits),
        Edge(1, 1, 2, "samples", shared, second, behind, credits),
        Edge(2, 2, 3, "scored", scores, split, rng.choice((1, 2)) if first else 0, credits, newest=first),
        Edge(3, 4, 5, "weights", split, whole, lag, credits),
    ]
    if rng.random() < 0.5:
        ops, edges = ops[:4], edges[:3]
    trainers: Kind = rng.choice(("collective", "stateful"))
    sizes = {"data": rng.choice((1, 2)), "rollout": rng.choice((2, 3, 4)), "reward": rng.choice((1, 2, 3))}
    kinds: dict[str, Kind] = {"data": "source", "rollout": "stateless", "reward": "stateless", "trainer": trainers}
    return Job(LogicalGraph("shared", tuple(ops), tuple(edges)), {**sizes, "trainer": 2}, kinds, steps)


def versions_job(rng: random.Random, steps: int) -> Job:
    """A value that three roles take, one of them as a stream, and what one of them says of it goes back."""
    kinds: dict[str, Kind] = {"rollout": rng.choice(("stateless", "stateful"))}
    kinds |= {role: rng.choice(("stateful", "stateful", "stateless")) for role in "abc"}
    sizes = {role: rng.choice((1, 1, 2)) for role in kinds}
    split, whole = Split(), Broadcast()
    ops = (
        OpCall(0, "rollout", "make", "rollout.make", split),
        OpCall(1, "a", "take", "a.take", split),
        OpCall(2, "b", "take", "b.take", None, streaming=True),
        OpCall(3, "c", "take", "c.take", None),
    )
    credits, lag = rng.choice((1, 2, 3)), rng.choice((1, 2))
    edges = (
        Edge(0, 0, 1, "rows", split, whole, 0, credits),
        Edge(1, 0, 2, "rows", split, whole, 0, rng.choice((1, 3))),
        Edge(2, 0, 3, "rows", split, whole, rng.choice((0, 1)), credits),
        Edge(3, 1, 0, "said", split, whole, lag, credits, (3,)),
    )
    return Job(LogicalGraph("shared", ops, edges), sizes, kinds, steps)


def versions_group(rng: random.Random, steps: int) -> Job:
    """As `versions_job`, but a group makes the value, each rank a part."""
    job = versions_job(rng, steps)
    kinds: dict[str, Kind] = {**job.kinds, "rollout": "collective"}
    sizes = {**job.sizes, "rollout": rng.choice((2, 2, 3)), **{role: rng.choice((1, 2, 3)) for role in "abc"}}
    edges = tuple(replace(e, dst_partition=rng.choice((Split(), Broadcast()))) for e in job.graph.edges[:3])
    return Job(LogicalGraph("group", job.graph.ops, (*edges, job.graph.edges[3])), sizes, kinds, steps)


def versions_shared(rng: random.Random, steps: int) -> Job:
    """Rows by demand for three roles, one of which may take them by demand itself, and says something of them."""
    split, whole, shared = Split(), Broadcast(), Balanced(rng.choice((1, 1, 2)))
    second = rng.choice((Balanced(1), whole, split))
    said = second if isinstance(second, Balanced) else split
    ops = (
        OpCall(0, "data", "next", "data.next", split),
        OpCall(1, "rollout", "make", "rollout.make", shared),
        OpCall(2, "a", "take", "a.take", said),
        OpCall(3, "b", "take", "b.take", None),
        OpCall(4, "c", "take", "c.take", None),
    )
    credits, lag = rng.choice((1, 2, 3)), rng.choice((1, 2))
    edges = (
        Edge(0, 0, 1, "prompts", split, shared, 0, credits),
        Edge(1, 1, 2, "rows", shared, second, 0, credits),
        Edge(2, 1, 3, "rows", shared, rng.choice((split, whole)), 0, rng.choice((1, 3))),
        Edge(3, 1, 4, "rows", shared, whole, rng.choice((0, 1)), credits),
        Edge(4, 2, 1, "said", said, whole, lag, credits, (3,)),
    )
    kinds: dict[str, Kind] = {"data": "source", "rollout": "stateless", "a": "stateless"}
    kinds |= {role: rng.choice(("stateful", "stateful", "stateless")) for role in "bc"}
    sizes = {"data": 1, "rollout": rng.choice((2, 3)), **{role: rng.choice((1, 2)) for role in "abc"}}
    return Job(LogicalGraph("shared", ops, edges), sizes, kinds, steps)


def chain_job(rng: random.Random, steps: int, *, groups: bool = False) -> Job:
    """Roles in a row, whose first may wait for the last in the middle of its step; some of them groups."""
    roles = [f"r{i}" for i in range(rng.randint(2, 4))]
    kinds: dict[str, Kind] = {role: rng.choice(("stateful", "stateless")) for role in roles}
    if groups:
        kinds |= dict.fromkeys(roles[rng.randrange(len(roles)) :][:2], "collective")
    callers = [*roles, "r0"] if rng.random() < 0.5 else roles
    part = rng.choice((Split(), Broadcast()))
    last = len(callers) - 1
    ops = [OpCall(i, role, f"op{i}", f"{role}.op{i}", part if i < last else None) for i, role in enumerate(callers)]
    edges = [Edge(i, i, i + 1, "x", part, part, 0, rng.choice((1, 2, 3))) for i in range(last)]
    sizes = {role: 2 if kinds[role] == "collective" else rng.choice((1, 1, 2)) for role in roles}
    return Job(LogicalGraph("chain", tuple(ops), tuple(edges)), sizes, kinds, steps)


def apart_job(rng: random.Random, steps: int) -> Job:
    """A group whose ranks run by themselves, maybe beside roles that have to do with each other."""
    ops, edges = [OpCall(0, "script", "step", "script.step", None)], list[Edge]()
    sizes, kinds = {"script": rng.choice((2, 2, 3))}, dict[str, Kind](script="apart")
    if rng.random() < 0.5:
        ops += [OpCall(1, "data", "next", "data.next", Split()), OpCall(2, "sink", "take", "sink.take", None)]
        edges = [Edge(0, 1, 2, "rows", Split(), Broadcast(), 0, 2)]
        sizes |= {"data": 1, "sink": rng.choice((1, 2))}
        kinds |= {"data": "source", "sink": "stateful"}
    return Job(LogicalGraph("apart", tuple(ops), tuple(edges)), sizes, kinds, steps)


def seldom_job(rng: random.Random, steps: int) -> Job:
    """A role that makes a value in some steps only, and a sink that takes the newest of them or an initial one."""
    every = rng.choice((2, 2, 3))
    part = rng.choice((Split(), Broadcast()))
    ops = (
        OpCall(0, "r0", "make", "r0.make", part, every=every, at=rng.randrange(every)),
        OpCall(1, "r1", "take", "r1.take", None, every=rng.choice((1, 1, 2))),
    )
    lag = max(every - 1, rng.choice((1, 2)))
    edges = (Edge(0, 0, 1, "newest", part, part, lag, rng.choice((1, 2)), (0,), newest=True),)
    kinds: dict[str, Kind] = {"r0": rng.choice(("stateful", "stateless")), "r1": rng.choice(("stateless", "loader"))}
    sizes = {role: rng.choice((1, 1, 2)) for role in kinds}
    return Job(LogicalGraph("seldom", ops, edges), sizes, kinds, steps)


def random_job(rng: random.Random, steps: int) -> Job:
    """Two to four roles, two to six calls in the flow's order, and edges with and without lag between them."""
    roles = [f"r{i}" for i in range(rng.randint(2, 4))]
    kinds: dict[str, Kind] = {role: rng.choice(("stateless", "stateful", "collective")) for role in roles}
    kinds["r0"] = rng.choice(("source", "stateful", "stateless"))
    kinds |= {role: "loader" for role in roles[1::2] if kinds[role] == "stateful"}
    sizes = {role: rng.choice((1, 1, 2, 3)) if kinds[role] != "collective" else 2 for role in roles}
    callers = roles + [rng.choice(roles) for _ in range(rng.randint(0, 3))]
    rng.shuffle(callers)
    partitions: tuple[Partition, ...] = (Split(), Broadcast())
    returns: list[Partition | None] = [rng.choice((*partitions, *partitions, None)) for _ in callers]
    if all(r is None for r in returns):
        returns[0] = Split()
    edges: list[Edge] = []
    pairs: set[tuple[int, int]] = set()
    for dst in range(len(callers)):
        for src in rng.sample(range(len(callers)), min(2, len(callers))):
            makes = returns[src]
            if makes is None or rng.random() < 0.3 or (src, dst) in pairs:
                continue
            forward = src < dst and callers[src] != callers[dst]
            lag = rng.choice((0, 0, 1, 2)) if forward else rng.choice((1, 1, 2))
            takes = rng.choice(partitions)
            pairs.add((src, dst))
            initial = (len(edges),) if lag and len(edges) % 3 == 1 else ()
            newest = lag > 0 and len(edges) % 4 == 1 and kinds[callers[dst]] != "collective"
            ends = src, dst, f"p{src}", makes, takes
            edges.append(Edge(len(edges), *ends, lag, rng.choice((1, 2, 3)), initial, newest))
    fed = {edge.dst for edge in edges}
    ops = tuple(
        OpCall(
            i,
            role,
            f"op{i}",
            f"{role}.op{i}",
            returns[i],
            streaming=i in fed and rng.random() < 0.3,
            every=rng.choice((1, 1, 1, 2, 3)) if not any(e.src == i for e in edges) else 1,
        )
        for i, role in enumerate(callers)
    )
    graph = LogicalGraph("random", ops, tuple(edges))
    activity = Activity(graph)
    if any(edge.initial and activity.apart(edge) for edge in edges):
        graph = LogicalGraph("random", ops, tuple(replace(edge, initial=()) for edge in edges))
    return Job(graph, sizes, kinds, steps)
