"""Verdicts: over real error texts, exit codes and signals, and what is hopeless because it happened before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rolemesh.api.failures import Attempt, Cause, Failure, JobView, RankView, Verdict
from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_durable.protocol.failures import describe_exit
from rolemesh_durable.protocol.master.standard_diagnoser import StandardDiagnoser, StandardOptions
from rolemesh_runtime.operator_failure import cause_of

RECORD = PluginRecord(
    "diagnosers",
    "standard",
    "rolemesh-durable",
    "0.1.0",
    "rolemesh_durable.protocol.master.standard_diagnoser:StandardDiagnoser",
)
SEE_BELOW = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)
"""The text that PyTorch appends to each CUDA error."""


def judge(failure: Failure, *earlier: Failure, **options: Any) -> Verdict | None:
    plugins = JobPlugins()
    plugins.create("diagnosers.0", RECORD, StandardDiagnoser, StandardOptions(**options))
    view = JobView("job", 1, 0, (), (), failures=earlier)
    verdict: Verdict | None = plugins.call("diagnosers.0", "diagnose", failure=failure, view=view)
    return verdict


def raised(message: str, *, generation: int = 0, step: int = 7, rank: int = 0, role: str = "trainer") -> Failure:
    return Failure("exception", role, rank, "n0", "trainer.train", step, message, generation=generation)


CASES = yaml.safe_load(Path(__file__).with_name("error_texts.yaml").read_text())
TEXTS = [(case["text"].format(cuda=SEE_BELOW), case["kind"], case["reason"]) for case in CASES]


@pytest.mark.parametrize(("message", "kind", "reason"), TEXTS, ids=[text[:60] for text, _, _ in TEXTS])
def test_a_known_text_has_its_verdict(message: str, kind: str, reason: str) -> None:
    verdict = judge(raised(message))
    assert verdict is not None
    assert (verdict.kind, verdict.fatal) == (kind, False)
    assert reason in verdict.reason


@pytest.mark.parametrize(("message", "kind", "reason"), TEXTS, ids=[text[:60] for text, _, _ in TEXTS])
def test_only_exceptions_of_the_users_code_are_fatal_when_they_come_again(message: str, kind: str, reason: str) -> None:
    verdict = judge(raised(message, generation=1), raised(message))
    assert verdict is not None
    assert verdict.fatal == (kind == "user")
    if verdict.fatal:
        assert verdict.reason.endswith(", for the second time at step 7: it would again")


def test_the_cause_of_an_exception_counts_if_the_exception_itself_says_nothing() -> None:
    traceback = (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "flow.py", line 3, in f\n    raise Broken() from error\n'
        "flow.Broken: the engine died\n"
    )
    verdict = judge(Failure("exception", "rollout", 0, message="flow.Broken: the engine died", traceback=traceback))
    assert verdict is not None
    assert verdict.kind == "hardware"


def test_a_breach_of_contract_is_fatal_the_first_time() -> None:
    error = PluginError("it returned None", kind="misbehaved")
    verdict = judge(Failure(cause_of(error), "agent", 0, step=3, message=str(error)))
    assert verdict == Verdict("user", "a contract is broken, and would be again", fatal=True)
    assert cause_of(PluginError("it is broken")) == "exception"


def test_code_that_a_traceback_quotes_is_no_error() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "flow.py", line 3, in f\n    raise ValueError(a)  # Broken pipe\n'
        "ValueError: 1\n"
    )
    verdict = judge(Failure("exception", "rollout", 0, message="ValueError: 1", traceback=traceback))
    assert verdict is not None
    assert verdict.kind == "user"


FIRST = raised("ValueError: bad row 17 of <Row object at 0x7f21b>", generation=2)


@pytest.mark.parametrize(
    ("again", "fatal"),
    [
        (raised("ValueError: bad row 17 of <Row object at 0x6ac00>", generation=3), True),
        (raised(FIRST.message, generation=3, rank=1), True),
        (raised(FIRST.message, generation=2, rank=1), False),
        (raised(FIRST.message, generation=3, step=8), False),
        (raised(FIRST.message, generation=3, role="critic"), False),
        (raised("ValueError: bad row 18 of <Row object at 0x7f21b>", generation=3), False),
        (raised("KeyError: bad row 17 of <Row object at 0x7f21b>", generation=3), False),
    ],
    ids=["again", "on a mate", "on a mate at the same time", "other step", "other role", "other text", "other type"],
)
def test_fatal_is_the_same_exception_at_the_same_step_after_a_restart(again: Failure, fatal: bool) -> None:
    verdict = judge(again, FIRST)
    assert verdict is not None
    assert verdict.fatal is fatal


def test_before_the_first_step_counts_as_a_step() -> None:
    first, again = raised("KeyError: 'lr'", step=-1), raised("KeyError: 'lr'", step=-1, generation=1)
    verdict = judge(again, first)
    assert verdict is not None
    assert verdict.fatal
    assert "before the first step" in verdict.reason


def test_how_often_is_an_option() -> None:
    history = [raised("ValueError: x", generation=generation) for generation in range(3)]
    once = judge(history[0], repeats=1)
    twice = judge(history[1], history[0], repeats=3)
    thrice = judge(history[2], *history[:2], repeats=3)
    assert once is not None
    assert once == Verdict("user", "the job's own code raised it", fatal=True)
    assert twice is not None
    assert not twice.fatal
    assert thrice is not None
    assert "for the third time" in thrice.reason


def test_the_failure_itself_in_the_history_is_no_repetition() -> None:
    verdict = judge(FIRST, FIRST)
    assert verdict is not None
    assert not verdict.fatal


@pytest.mark.parametrize(
    ("failure", "kind", "reason"),
    [
        (describe_exit("a", 0, None, 9), "software", "killed from outside"),
        (describe_exit("a", 0, None, 11), "software", "a crash in native code"),
        (describe_exit("a", 0, None, 7), "software", "/dev/shm"),
        (describe_exit("a", 0, None, 6), "software", "gave up"),
        (describe_exit("a", 0, None, 40), "software", "ended by a signal"),
        (describe_exit("a", 0, 137, None), "software", "exit code 137 stands for signal 9: killed from outside"),
        (describe_exit("a", 0, 3, None), "software", "ended by itself"),
        (describe_exit("a", 0, None, None, error="OSError: Cannot allocate memory"), "software", "out of memory"),
        (describe_exit("a", 0, None, None, error="fork refused"), "software", "could not be started"),
        (Failure("node_lost", node="n0", message="the node died"), "hardware", "the node is lost"),
        (Failure("agent_lost", node="n0", message="the actor died unexpectedly"), "software", "agent's process ended"),
        (
            Failure("agent_lost", node="n0", message="it was killed due to the node running low on memory"),
            "software",
            "memory monitor",
        ),
        (Failure("hang", "a", 0, message="a/0 has been in f at step 3 for 31 s"), "software", "nothing moved"),
    ],
    ids=lambda value: value.cause + (f" {value.signal or value.exit_code}") if isinstance(value, Failure) else None,
)  # fmt: skip
def test_ends_without_an_exception_are_judged_by_how_they_ended(failure: Failure, kind: str, reason: str) -> None:
    verdict = judge(failure, failure, failure)
    assert verdict is not None
    assert (verdict.kind, verdict.fatal) == (kind, False)
    assert reason in verdict.reason


def test_an_environment_that_was_never_made_is_fatal_and_one_that_was_made_before_is_not() -> None:
    error = "its environment could not be made: pip ended with exit code 1\n| No matching distribution"
    never = describe_exit("a", 0, None, None, error, cause="environment")
    assert (never.message, never.traceback) == tuple(error.split("\n"))
    verdict = judge(never)
    assert verdict is not None
    assert verdict.fatal
    moved = judge(describe_exit("a", 0, None, None, error, generation=1, cause="environment"))
    assert moved is not None
    assert (moved.kind, moved.fatal) == ("software", False)


def test_a_straggler_is_reported_or_moved_to_another_node_as_configured() -> None:
    slow = Failure("straggler", "rollout", 3, message="it needs 2 s to compute a step")
    assert judge(slow) is None
    moved = judge(slow, stragglers="move")
    assert moved is not None
    assert moved.kind == "hardware"


def limited(limit: int, failure: Failure, *attempts: tuple[Cause, ...], nodes: tuple[str, ...] = ("n0",)) -> Verdict:
    """The verdict after recoveries of role `a` with these causes, one recovery each."""
    ranks = tuple(RankView("a", rank, node, "running", 0, len(attempts)) for rank, node in enumerate(nodes))
    before = tuple(Attempt("process", float(at), (("a", 0),), "", causes=each) for at, each in enumerate(attempts))
    view = JobView("job", 1, 0, ranks, ("a",), attempts=before, now=10_000.0)
    plugins = JobPlugins()
    options = StandardOptions(max_restarts=limit, repeats=None)
    plugins.create("diagnosers.0", RECORD, StandardDiagnoser, options)
    verdict = plugins.call("diagnosers.0", "diagnose", failure=failure, view=view)
    assert isinstance(verdict, Verdict)
    return verdict


DIED = describe_exit("a", 0, 3, None)


@pytest.mark.parametrize(
    ("limit", "attempts", "fatal"),
    [
        (0, [], True),
        (1, [], False),
        (1, [("exit",)], True),
        (2, [("exit",)], False),
        (2, [("exit",), ("exception", "signal")], True),
        (1, [("node_lost",)], False),
        (1, [("node_lost", "exception")], False),
        (1, [("agent_lost",), ("start",)], False),
        (1, [()], False),
    ],
    ids=[
        "none allowed", "one left", "one used", "one of two", "both", "a lost node", "and its echo", "an agent",
        "the next level after a plan that failed",
    ],
)  # fmt: skip
def test_max_restarts_counts_the_processes_own_failures_over_all_levels(
    limit: int, attempts: list[tuple[Cause, ...]], fatal: bool
) -> None:
    verdict = limited(limit, DIED, *attempts)
    assert verdict.fatal is fatal
    if fatal and limit:
        assert verdict.reason.endswith(f"{limit} of {limit} restarts used")


def test_a_lost_node_is_not_refused_a_recovery_by_max_restarts() -> None:
    lost = Failure("node_lost", node="n0", message="the node died")
    echo = Failure("exception", "a", 0, message="RuntimeError: Connection reset by peer")
    assert not limited(0, lost).fatal
    assert not limited(0, echo, nodes=("n0", "n1")).fatal
    assert limited(0, echo).fatal


def test_without_repeats_the_same_exception_is_never_fatal() -> None:
    history = [raised("ValueError: x", generation=generation) for generation in range(9)]
    verdict = judge(history[-1], *history[:-1], repeats=None)
    assert verdict is not None
    assert not verdict.fatal


XID = "step 11\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(("exit_code", "signal"), [(1, None), (134, None), (None, 6), (None, 11)])
def test_output_before_an_exit_names_the_fault(exit_code: int | None, signal: int | None) -> None:
    ended = msgspec.structs.replace(describe_exit("trainer", 0, exit_code, signal), log_tail=XID)
    verdict = judge(ended)
    assert verdict is not None
    assert verdict.kind == "hardware"
    assert "fallen off the bus" in verdict.reason


def test_output_before_a_kill_says_nothing_about_its_cause() -> None:
    verdict = judge(msgspec.structs.replace(describe_exit("trainer", 0, None, 9), log_tail=XID))
    assert verdict is not None
    assert verdict.kind == "software"
