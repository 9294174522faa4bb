"""Hypothesis strategies for what plugins are asked: requests and clusters for placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rolemesh.cluster import ClusterView, NodeView
from rolemesh.placement import Apart, Constraint, Flow, PlacementRequest, RoleRequest, Spread, Within

__all__ = ["clusters", "constraints", "for_all", "requests"]

GPUS = (0.0, 0.0, 1.0, 0.25, 0.5, 1.5, 2.0)


def for_all(check: Callable[..., None], *drawn: st.SearchStrategy[Any], examples: int = 40) -> None:
    """Call `check` with `examples` draws of each of `drawn`, always the same ones.

    Raises what it raises, for the simplest draw that makes it raise.
    """
    limits = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )

    def checked(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    limits(given(st.tuples(*drawn))(checked))()


@st.composite
def requests(draw: st.DrawFn, roles: Sequence[str], most: int = 5, custom: str = "disk") -> PlacementRequest:
    """Requests of all of `roles`, in any order, with 1 to `most` ranks each, and with flows between some of them.

    Half of the time all roles have the same number of ranks. Ranks need cores, whole GPUs or fractions, some `custom`.
    """
    order = draw(st.permutations(list(roles)))
    same = draw(st.booleans())
    size = draw(st.integers(1, most))
    asked = tuple(
        RoleRequest(
            role,
            size if same else draw(st.integers(1, most)),
            draw(st.sampled_from((0.0, 0.5, 1.0, 2.0))),
            draw(st.sampled_from(GPUS)),
            draw(st.sampled_from(({}, {}, {custom: 1.0}, {custom: 0.5}))),
            draw(st.sampled_from(("independent", "collective"))),
        )
        for role in order
    )
    pairs = [(src, dst) for src in roles for dst in roles if src != dst]
    between = draw(st.lists(st.sampled_from(pairs), max_size=3, unique=True)) if pairs else []
    flows = tuple(
        Flow(src, dst, draw(st.sampled_from(("aligned", "all"))), draw(st.sampled_from((None, 1.0, float(1 << 30)))))
        for src, dst in between
    )
    return PlacementRequest(asked, flows)


@st.composite
def clusters(draw: st.DrawFn, labels: Mapping[str, Sequence[str]], most: int = 5, custom: str = "disk") -> ClusterView:
    """Clusters of 1 to `most` nodes, equal or not, with GPUs or without, with some of `labels` (values by name)."""

    def node(number: int) -> NodeView:
        return NodeView(
            f"node-{number}",
            cpu=draw(st.sampled_from((0.0, 1.0, 2.5, 4.0, 16.0))),
            gpu=draw(st.sampled_from((0, 0, 1, 2, 8))),
            custom=draw(st.sampled_from(({}, {custom: 1.0}, {custom: 4.0}))),
            labels={
                name: draw(st.sampled_from(values)) for name, values in labels.items() if draw(st.integers(0, 3)) > 0
            },
        )

    count = draw(st.integers(1, most))
    if draw(st.booleans()):
        first = node(0)
        return ClusterView(tuple(_renamed(first, number) for number in range(count)))
    return ClusterView(tuple(node(number) for number in range(count)))


def _renamed(node: NodeView, number: int) -> NodeView:
    return NodeView(f"node-{number}", node.host, node.cpu, node.gpu, dict(node.custom), dict(node.labels))


@st.composite
def constraints(draw: st.DrawFn, roles: Sequence[str], labels: Mapping[str, Sequence[str]]) -> tuple[Constraint, ...]:
    """What a strategy before may have demanded of `roles`: one or two constraints, by ``"kit"``."""
    domains = ("node", "device", *(f"label.{name}" for name in labels))

    def constraint() -> Constraint:
        kind = draw(st.sampled_from(("apart", "spread", "within")))
        if kind == "apart" and len(roles) > 1:
            left, right = draw(st.permutations(list(roles)))[:2]
            return Apart("kit", (left,), (right,), draw(st.sampled_from(domains)))
        if kind == "within" and labels:
            name = draw(st.sampled_from(sorted(labels)))
            return Within("kit", draw(st.sampled_from(roles)), ((name, draw(st.sampled_from(labels[name]))),))
        domain = draw(st.sampled_from([each for each in domains if each != "device"]))
        return Spread("kit", draw(st.sampled_from(roles)), draw(st.integers(1, 3)), domain)

    return tuple(dict.fromkeys(constraint() for _ in range(draw(st.integers(1, 2)))))
