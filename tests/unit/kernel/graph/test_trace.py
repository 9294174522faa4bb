"""The trace of a flow: the contents of its graph, and an error with place, cause and remedy for each mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh.api.partition import Broadcast, Partial, Partition, Sharded, Split
from rolemesh.api.workload import OperatorSpec, operator
from rolemesh.errors import FlowError, Problems, RolemeshError
from rolemesh.graph.checks import RoleShape
from rolemesh.graph.flow import flow
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace

HERE = Path(__file__).name


def op(name: str, returns: Partition | None = None, required: tuple[str, ...] | None = None, **inputs: Any) -> Any:
    return OperatorSpec(name, inputs, tuple(inputs) if required is None else required, returns)


def shape(*operators: OperatorSpec, world_size: int = 1) -> RoleShape:
    return RoleShape(world_size, {spec.name: spec for spec in operators})


GRPO = {
    "data": shape(op("next", Split())),
    "rollout": shape(
        op("generate", Split(), ("prompts",), prompts=Split(), weights=Broadcast(), greedy=Broadcast()),
        op("load_weights", weights=Broadcast()),
    ),
    "reward": shape(op("score", Split(), samples=Split()), world_size=3),
    "trainer": shape(op("train", samples=Split()), op("weights", Sharded()), world_size=2),
}


def traced(function: Callable[..., Any], roles: dict[str, RoleShape] | None = None, **kwargs: Any) -> LogicalGraph:
    return trace(flow(function), GRPO if roles is None else roles, **{"steps": 4, **kwargs})


def refused(function: Callable[..., Any], roles: dict[str, RoleShape] | None = None, **kwargs: Any) -> str:
    """The messages, after checking that each has a place and a remedy."""
    with pytest.raises(RolemeshError) as caught:
        traced(function, roles, **kwargs)
    errors = caught.value.errors if isinstance(caught.value, Problems) else (caught.value,)
    for error in errors:
        assert isinstance(error, FlowError)
        assert re.search(re.escape(HERE) + r":\d+$", error.where or ""), error.where
        assert error.remedy
    return str(caught.value)


def grpo(job: Any) -> None:
    samples = job.rollout.generate(job.data.next())
    job.trainer.train(job.reward.score(samples))
    job.rollout.load_weights(job.trainer.weights(), lag=1)


def small(body: Callable[[Any], Any]) -> Callable[[Any], None]:
    """`body` in a flow that calls all roles."""

    def whole(job: Any) -> None:
        body(job)
        grpo(job)

    return whole


def bind_to_feedback(job: Any) -> None:
    other = job.feedback("v")
    other.bind(job.trainer.weights())
    job.feedback("w").bind(other)


def test_the_graph_holds_calls_in_the_flows_order_and_an_edge_per_value() -> None:
    graph = traced(grpo, credits=5)
    assert [call.label for call in graph.ops] == [
        "data.next",
        "rollout.generate",
        "reward.score",
        "trainer.train",
        "trainer.weights",
        "rollout.load_weights",
    ]
    assert [(e.src, e.dst, e.param, e.lag, e.credits, e.window) for e in graph.edges] == [
        (0, 1, "prompts", 0, 5, 5),
        (1, 2, "samples", 0, 5, 5),
        (2, 3, "samples", 0, 5, 5),
        (4, 5, "weights", 1, 5, 6),
    ]
    assert graph.edges[3].src_partition == Sharded()
    assert graph.edges[3].dst_partition == Broadcast()
    assert [call.label for call in graph.of_role("rollout")] == ["rollout.generate", "rollout.load_weights"]
    assert all(HERE in call.where for call in graph.ops)


def test_settings_and_constants_of_a_call_are_recorded() -> None:
    def body(job: Any) -> None:
        weights = job.trainer.weights(every=2)
        job.rollout.generate(
            job.data.next(), weights=weights, greedy={"on": (True, 1.5)}, lag={"weights": 2}, credits=7, every=2
        )

    graph = traced(small(body))
    assert (graph.ops[0].every, graph.ops[0].at) == (2, 1)
    assert graph.ops[2].constants == {"greedy": {"on": [True, 1.5]}}
    assert [(e.param, e.lag, e.credits) for e in graph.inputs(2)] == [("prompts", 0, 7), ("weights", 2, 7)]
    assert [call.label for call in graph.ops if call.operator == "generate"] == [
        "rollout.generate",
        "rollout.generate#2",
    ]


def test_job_name_steps_seed_and_params_reach_the_flow() -> None:
    seen: list[Any] = []

    def body(job: Any, samples: int, *, extra: str = "x") -> None:
        seen.extend([job.name, job.steps, job.seed, samples, extra])
        grpo(job)

    traced(body, name="run-1", seed=3, params={"samples": 8})
    assert seen == ["run-1", 4, 3, 8, "x"]


def test_feedback_makes_an_edge_backwards() -> None:
    def body(job: Any) -> None:
        weights = job.feedback("weights")
        job.rollout.generate(job.data.next(), weights, lag={"weights": 1})
        weights.bind(job.trainer.weights())

    graph = traced(small(body))
    assert [(e.src, e.dst, e.param, e.lag) for e in graph.edges[:2]] == [(0, 1, "prompts", 0), (2, 1, "weights", 1)]


def test_a_cycle_without_lag_is_printed_through_the_order_of_calls_on_a_role() -> None:
    def body(job: Any) -> None:
        weights = job.feedback("weights")
        samples = job.rollout.generate(job.data.next(), weights)
        job.trainer.train(job.reward.score(samples))
        weights.bind(job.trainer.weights())

    message = refused(body)
    path = "rollout.generate → reward.score → trainer.train → trainer.weights → rollout.generate"
    assert f"a cycle without lag: {path}\n" in message
    assert "lag={'weights': 1}" in message


def test_a_call_that_waits_for_its_own_past_never_runs() -> None:
    roles = {"a": shape(op("turn", Broadcast(), x=Broadcast())), "b": shape(op("see", x=Broadcast()))}

    def body(job: Any) -> None:
        x = job.feedback("x")
        y = job.a.turn(x, lag=1)
        x.bind(y)
        job.b.see(y)

    message = refused(body, roles)
    assert "a.turn never runs" in message
    assert "a.turn → a.turn" in message
    assert "b.see" not in message


def test_a_call_whose_inputs_never_coincide_never_runs() -> None:
    message = refused(small(lambda job: job.reward.score(job.rollout.generate(job.data.next(every=2)), every=2, at=0)))
    assert "reward.score never runs: it has every=2, at=0, its inputs rollout.generate" in message


def test_several_mistakes_are_in_one_error() -> None:
    def body(job: Any) -> None:
        job.rolout.generate(job.data.next())
        job.trainer.trian(job.data.next())
        job.reward.score()

    message = refused(body)
    assert "the job has no role 'rolout'" in message
    assert "did you mean 'rollout'?" in message
    assert "role 'trainer' has no operator 'trian'" in message
    assert "did you mean 'train'?" in message
    assert "reward.score lacks 'samples'" in message
    assert "nobody calls" not in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda job: job.data.next(1), "data.next takes 0 arguments, not 1"),
        (lambda job: job.reward.score(sample=1), "reward.score has no parameter 'sample'"),
        (lambda job: job.reward.score(job.data.next(), samples=1), "reward.score gets 'samples' twice"),
        (lambda job: job.reward.score(np.zeros(2)), "a constant of type ndarray does not travel"),
        (lambda job: job.reward.score([job.data.next()]), "<value of data.next> is inside a list"),
        (lambda job: job.reward.score({1: 2}), "the key 1, which is not a string"),
        (lambda job: job.reward.score(job.data.next), "gets <operator data.next> instead of a value"),
        (lambda job: job.reward.score(job.data), "gets <role data> instead of a value"),
        (lambda job: job.reward.score(job.rollout.load_weights(job.trainer.weights())), "returns, which is nothing"),
        (lambda job: job.reward.score(job.data.next(), lag=-1), "reward.score: lag is -1"),
        (lambda job: job.reward.score(job.data.next(), lag=True), "reward.score: lag is True"),
        (lambda job: job.reward.score(job.data.next(), lag={"sampels": 1}), "lag for ['sampels']"),
        (lambda job: job.data.next(lag=1), "data.next: lag=1, but it takes no value"),
        (lambda job: job.data.next(every=0), "data.next: every is 0"),
        (lambda job: job.data.next(every=2, at=2), "at=2 never comes with every=2"),
        (lambda job: job.reward.score(job.data.next(), credits=0), "reward.score: credits is 0"),
        (lambda job: job.feedback("w"), "feedback 'w' is never bound"),
        (lambda job: job.feedback("w").bind(3), "feedback 'w'.bind gets 3 instead of a value"),
        (lambda job: bind_to_feedback(job), "feedback 'w' is bound to a feedback"),
        (lambda job: 1 if job.data.next() else 2, "cannot use it in if, while, and, or, not"),
        (lambda job: list(job.data.next()), "cannot use it in a loop or an unpacking"),
        (lambda job: job.data.next().reward, "cannot use it in .reward"),
        (lambda job: job.data.next() + 1, "cannot use it in +"),
        (lambda job: 2 * job.data.next(), "cannot use it in *"),
        (lambda job: job.data.next() == 1, "cannot use it in =="),
        (lambda job: job.data.next()["reward"], "cannot use it in [...]"),
        (lambda job: 1 // 0, "the flow raised ZeroDivisionError"),
    ],
)
def test_the_error_for_a_wrong_call_has_its_line(body: Callable[[Any], Any], expected: str) -> None:
    message = refused(small(body))
    assert expected in message
    assert message.count("\n  → ") == 1, message


def test_a_partition_mismatch_names_both_ends_and_their_sizes() -> None:
    roles = GRPO | {"reward": shape(op("score", Split(), samples=Partial()), world_size=3)}
    message = refused(grpo, roles)
    assert "rollout.generate → reward.score(samples): Split() over 1 rank cannot feed Partial() over 3" in message


def test_a_role_that_nobody_calls_is_refused_at_the_flows_definition() -> None:
    message = refused(grpo, GRPO | {"critic": shape(op("value"))})
    assert "nobody calls role 'critic'" in message
    assert "(value)" in message


def test_an_operators_parameter_may_not_be_a_setting() -> None:
    message = refused(lambda job: job.a.run(every=2), {"a": shape(op("run", required=(), every=Split()))})
    assert "operator a.run has a parameter 'every'" in message


def test_a_role_may_not_hide_an_attribute_of_the_job() -> None:
    assert "a role cannot be called 'steps'" in refused(grpo, GRPO | {"steps": shape(op("run"))})


def test_values_of_another_trace_are_refused() -> None:
    kept: list[Any] = []
    traced(small(lambda job: kept.append(job.data.next())))
    assert "of another trace" in refused(small(lambda job: job.reward.score(kept[0])))


def test_params_are_checked_against_the_flows_signature() -> None:
    def body(job: Any, samples: int, greedy: bool = False) -> None: ...

    message = refused(body, params={"sampels": 3})
    assert "has no parameter 'sampels'" in message
    assert "did you mean 'samples'?" in message
    assert "needs parameter 'samples'" in message
    assert "body(job" in message
    assert "does not take the job" in refused(lambda: None)


def test_a_flow_cannot_be_called_like_a_function() -> None:
    with pytest.raises(FlowError, match="only describes a job"):
        flow(grpo)(object())


def test_an_operator_without_parentheses_is_an_error_that_shows_how_to_write_it() -> None:
    with pytest.raises(TypeError, match=r"write @operator\(\)"):
        operator(lambda self, x: x)
