"""Facts of folders: empty, damaged, hostile; shares, stories, series and advice."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.api.rank_ref import RankRef
from rolemesh.runs.jsonl import metrics_line
from rolemesh_durable.options import DurableOptions
from rolemesh_facts import RunFacts
from rolemesh_facts.advice import HINDRANCES, Evidence, Old, advice
from rolemesh_facts.critical import Critical, Station
from rolemesh_facts.edge_states import EdgeState, edge_states
from rolemesh_facts.labels import GOODPUT
from rolemesh_facts.recoveries import Story, stories
from rolemesh_facts.row_meaning import meaning
from rolemesh_facts.series import centred, exponential, thinned
from rolemesh_facts.time_use import EdgeUse, Use, use_of, whole_steps
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp
from rolemesh_recorder.reading import latest_rows
from rolemesh_recorder.rows import Row, rows_folder


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff", b"[]", b'{"a": 1}\n{"b"', b"null\n"])
def test_missing_and_damaged_files_are_empty_facts(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "record" / "trainer-0").mkdir(parents=True)
        for name in ("events.jsonl", "metrics.jsonl", "run.json", "result.json", "plan.json", "record/flow.json"):
            (tmp_path / name).write_bytes(content)
        (tmp_path / "record" / "trainer-0" / "000000.jsonl").write_bytes(content)
    facts = RunFacts(tmp_path)
    since, until = facts.window()
    assert facts.summary().name == tmp_path.name
    assert facts.critical(since, until) is None
    assert not any(use.wall for use in facts.uses(since, until).values())
    assert facts.edges(since, until) == facts.stories() == facts.advice() == facts.arrows(since, until) == []
    assert facts.latest() == {}


def test_a_run_without_metrics_has_the_steps_of_its_result_and_why_it_ended(tmp_path: Path) -> None:
    info = {"name": "small", "run_dir": "", "steps": 20, "roles": {"a": 1}, "operators": []}
    (tmp_path / "run.json").write_text(json.dumps(info))
    result = {"status": "done", "message": "", "reason": "source/0: no more records", "committed_steps": 7}
    (tmp_path / "result.json").write_text(json.dumps(result))
    summary = RunFacts(tmp_path).summary()
    assert (summary.state, summary.step, summary.message) == ("done", 6, "source/0: no more records")
    assert RunFacts(tmp_path).summary(result | {"status": "failed", "message": "bad"}).message == "bad"


def test_metrics_are_read_on_from_where_they_were_and_a_repeated_step_counts_once(tmp_path: Path) -> None:
    def line(step: int, **values: float) -> bytes:
        return metrics_line(StepMetrics(step, 1, float(step), values, staleness={"edge": step}))[1]

    facts, path = RunFacts(tmp_path), tmp_path / "metrics.jsonl"
    path.write_bytes(line(0, loss=3.0) + line(2, loss=1.0) + line(1, loss=2.0, kl=float("nan")) + line(1 << 70, loss=0))
    assert (facts.metric_names(), facts.points("loss")) == (["kl", "loss"], ([0, 1, 2], [3.0, 2.0, 1.0]))
    path.write_bytes(line(0, loss=3.0) + line(2, loss=1.0))
    facts = RunFacts(tmp_path)
    assert len(facts.metrics()) == 2
    with path.open("ab") as file:
        for more in (line(3, loss=4.0)[:20], line(3, loss=4.0)[20:], b"damaged\n", line(4, loss=5.0)):
            file.write(more)
            file.flush()
            facts.metrics()
    assert [each.step for each in facts.metrics()] == [0, 2, 3, 4]
    assert facts.points("loss") == ([0, 2, 3, 4], [3.0, 1.0, 4.0, 5.0])
    last = facts.last_metrics()
    assert last is not None
    assert (last.step, last.staleness) == (4, {"edge": 4})


def test_events_are_read_on_while_they_are_written(tmp_path: Path) -> None:
    def line(seq: int) -> bytes:
        return json.dumps({"seq": seq, "epoch": 1, "time": 1.0, "kind": "persisted", "data": {"step": seq}}).encode()

    facts, path = RunFacts(tmp_path), tmp_path / "events.jsonl"
    path.write_bytes(line(1) + b"\n" + line(2)[:20])
    assert [event.seq for event in facts.events()] == [1]
    path.write_bytes(line(1) + b"\n" + line(2) + b"\n")
    assert [event.seq for event in facts.events()] == [1, 2]
    other = line(1).replace(b"persisted", b"job_started")
    path.write_bytes(other + b"\n" + line(2) + b"\n" + line(3) + b"\n")
    kinds = [event.kind for event in facts.events()]
    assert kinds == ["job_started", "persisted", "persisted"], "a new run in the same folder"


@pytest.mark.parametrize(
    ("ends", "end", "least", "found"),
    [
        ([100, 200, 300, 400], 420, 150, (200, 400)),  # two steps are enough
        ([100, 200, 300, 400], 420, 60, (300, 400)),
        ([100, 200, 300, 400], 420, 5000, (100, 400)),  # the first step may contain the start
        ([100, 200, 300, 400], 900, 60, (300, 900)),  # the present step takes longer than the others
        ([100], 420, 60, (360, 420)),
        ([], 420, 60, (360, 420)),
        ([], 40, 60, (0, 40)),
    ],
)
def test_the_latest_part_of_a_run_is_of_whole_steps(
    ends: list[int], end: int, least: int, found: tuple[int, int]
) -> None:
    assert whole_steps(ends, 0, end, least) == found


def test_an_account_on_the_edge_of_the_window_counts_in_proportion() -> None:
    use = use_of([Account(0, 100, 9, 10, {"computing": 60}), Account(100, 100, 19, 10, {"computing": 20})], 50, 150)
    assert (use.wall, use.steps) == (100, 10)
    assert use.shares == {"engine": 0.6, "computing": 0.4}


def test_the_state_of_an_edge_names_the_longest_queue_the_fewest_credits_and_the_rates_of_all_producers() -> None:
    ops = (FlowOp(0, "source", "source.make"), FlowOp(1, "sink", "sink.take", every=2))
    edges = (FlowEdge(0, 0, 1, "batch", "", lag="newest 3"), FlowEdge(1, 1, 0, "weights", "", lag="2"))
    flow = FlowFile("f", ops, edges, {}, {})

    def use(role: str, number: int, account: Account) -> tuple[RankRef, Use]:
        return RankRef(role, number), use_of([account])

    second = 1_000_000
    uses = dict(
        [
            use("source", 0, Account(0, second, 9, 10, {}, sent={0: (500, 2, 1)}, travelled={0: (800, 100)})),
            use("source", 1, Account(0, second, 9, 10, {}, sent={0: (700, 3, 0)})),
            use("sink", 0, Account(0, second, 9, 8, {}, queued={0: 4}, travelled={0: (0, 100), 1: (0, 5)})),
            use("sink", 1, Account(0, second, 9, 8, {}, queued={0: 1})),
        ]
    )
    first, other = edge_states(flow, uses, {"sink.take": 1.5})
    assert first == EdgeState(0, 4, 3, 0, 1200.0, 4.0, 1.5, 0.75)
    assert other == EdgeState(1, None, None, None, None, 10.0, 2.0)


def test_a_recovery_has_its_failures_and_its_times() -> None:
    def event(time: float, kind: str, **data: object) -> Event:
        return Event(int(time), 1, time, kind, dict(data))

    failure = {"role": "sink", "rank": 0, "message": "gone"}
    plan = {"level": "process", "reason": "again", "source": "memory"}
    [story] = stories(
        [
            event(10, "failure", failure=failure, silent_s=2.0),
            event(11, "recovery_planned", number=1, plan=plan, trail=["x"]),
            event(12, "recovery_launched", number=1, ranks=[{"role": "sink", "rank": 0, "resume": 8}, "junk"]),
            event(13, "recovered", number=1),
            event(14, "regained", number=1),
        ]
    )
    assert (story.began, story.ready_s, story.regained_s) == (8, 5, 6)
    assert (story.failures, story.level, story.restarted) == ((failure,), "process", ("sink/0",))
    assert (story.resume, story.source) == ((("sink/0", 9),), "memory"), "the step after the last finished one"
    planned = event(11, "recovery_planned", number=1, plan=plan)
    [anew] = stories(
        [planned, event(12, "recovery_launched", number=1, ranks=[{"role": "a", "rank": 0, "resume": -1}])]
    )
    assert (anew.resume, anew.source) == ((("a/0", 0),), ""), "a rank that begins at step 0 has no state to restore"
    event_of_strange_types = event(11, "recovery_planned", number=2, plan=7, trail=5)
    assert stories([event_of_strange_types, event(12, "recovery_launched", number=2, ranks=3)])[0].trail == ()
    [alone] = stories([event(10, "failure", failure=failure)])
    assert (alone.number, alone.failures) == (0, (failure,))


def test_thinning_keeps_extremes_and_values_that_are_no_numbers() -> None:
    values = [math.sin(step / 50) for step in range(10_000)]
    values[777], values[5_000] = 99.0, math.nan
    steps, kept = thinned((list(range(10_000)), values), 200)
    assert len(steps) <= 202
    assert 99.0 in kept
    assert any(math.isnan(value) for value in kept)
    assert steps == sorted(steps)
    assert steps[-1] == 9_999


def test_a_centred_mean_is_not_late_and_an_exponential_one_begins_at_the_first_value() -> None:
    ramp = [float(step) for step in range(100)]
    assert centred(ramp, 21) == ramp
    many = [float(step) for step in range(20_000)]
    assert centred(many, 10_000) == many  # in less than a second: the price does not depend on the width
    assert centred([1e20, 0.5, 1e-3, 3e-3, 2e-3, 0.25], 3)[3] == pytest.approx(2e-3, rel=1e-12)
    assert exponential([5.0] * 4, 0.9) == pytest.approx([5.0] * 4)
    assert math.isnan(centred([1.0, math.nan, 3.0], 3)[1])


def test_advice_begins_above_its_limits() -> None:
    def said(waiting: float = 0.0, blocked: float = 0.0, **given: Any) -> list[str]:
        edge = EdgeUse(0, "a", "b", "x", waiting, blocked)
        return [
            each.title
            for each in advice(Evidence(**{"uses": {}, "edges": [edge], "stories": [], "metrics": {}} | given))
        ]

    def saved(share: float, seconds: float) -> dict[RankRef, Use]:
        return {RankRef("a", 0): Use({"saving": share * seconds * 1e6}, seconds * 1e6, 1)}

    def steps(*costs: float) -> dict[RankRef, Use]:
        return {RankRef("a", rank): Use({"computing": cost * 1e6}, 4e6, 1) for rank, cost in enumerate(costs)}

    def restarted(times: int, *failures: dict[str, Any]) -> list[Story]:
        return [Story(number, 0.0, failures, restarted=("a/0",)) for number in range(times)]

    assert (said(waiting=0.5), said(waiting=0.51)) == ([], ["b waits for a"])
    assert (said(blocked=0.5), said(blocked=0.51)) == ([], ["a waits until b takes its values"])
    assert (said(uses=saved(0.01, 60)), said(uses=saved(0.011, 60))) == ([], ["snapshots of a cost time"])
    assert said(uses=saved(0.3, 3)) == [], "a short run with one snapshot at its end"
    slower = "a/2 is slower than the others of its role"
    assert (said(uses=steps(1, 1, 1.49)), said(uses=steps(1, 1, 1.51))) == ([], [slower])
    assert (said(uses=steps(9)), said(uses=steps(0, 0, 9))) == ([], []), "nothing to compare with"
    again = {"message": "killed"}
    assert (said(stories=restarted(2, again)), said(stories=restarted(3, again))) == ([], ["a/0 was restarted 3 times"])
    assert said(stories=restarted(3)) == [], "resizes"
    for age, expected in ((1.9, []), (2.0, ["b uses values of a that are as old as allowed"])):
        assert said(old=[Old("a", "b", "weights", age, 2)]) == expected
    assert said(old=[Old("a", "b", "weights", 0.0, 0)]) == [], "on policy"
    for name, well, bad in (
        ("truncated", 0.2, 0.21),
        ("degenerate_groups", 0.33, 0.34),
        ("informative_groups", 0.67, 0.66),
    ):
        assert [len(said(metrics={name: ([0], [value])})) for value in (well, bad, math.nan, 7.0)] == [0, 1, 0, 0], name


def test_advice_counts_the_newest_kept_rows(tmp_path: Path) -> None:
    def said(columns: dict[str, Any], **metrics: Any) -> list[str]:
        rows = [{"ended": "finished", "others": [], "reward": 1.0}] * 7 + [columns] * 3
        folder = rows_folder(tmp_path, "agent", 0)
        folder.mkdir(parents=True, exist_ok=True)
        kept = (Row(0, "agent.converse", at, each) for at, each in enumerate(rows))
        (folder / "000000.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
        found = [meaning(row.columns) for row in latest_rows(tmp_path)]
        return [f"{each.title}: {each.why}" for each in advice(Evidence({}, [], [], metrics, rows=found))]

    assert said({"ended": "finished"}) == []
    (cut,) = said({"ended": "truncated"})
    assert cut == "samples are cut off: 3 of the newest 10 kept rows are of this kind"
    assert said({"ended": "truncated"}, truncated=([0], [0.1])) == [], "the metric covers all rows"
    assert said({"error": "refused"}) == [
        "samples or their tools fail: 3 of the newest 10 kept rows are of this kind: refused"
    ]
    assert [each.split(":")[0] for each in said({"text": ""})] == ["completions are empty"]
    assert said({"reward": "nan"})[0].endswith("kind: reward")


def test_advice_compares_sampler_and_trainer_where_the_weights_are_the_newest() -> None:
    def said(difference: float, age: float | None = 0.0) -> list[str]:
        ages = {} if age is None else {"staleness": ([0, 1], [age, age])}
        return [each.why for each in advice(Evidence({}, [], [], {"logprob_diff": ([0, 1], [difference] * 2), **ages}))]

    assert [said(0.05), said(math.nan), said(0.3, age=1.0)] == [[], [], []]
    [told] = said(0.22)
    assert told == "`logprob_diff` is 0.22, the mean of its last 2 values, with the newest weights"
    assert said(0.22, age=None) == [told]


def test_a_straggler_is_named_with_numbers() -> None:
    uses = {RankRef("trainer", n): Use({"computing": 1e6 * (3 if n == 2 else 1)}, 4e6, 1) for n in range(3)}
    [found] = advice(Evidence(uses, [], [], {}))
    assert "3 s" in found.why
    [waits, _] = advice(Evidence(uses, [EdgeUse(0, "trainer", "b", "x", 0.9, 0.0)], [], {}))
    assert waits.remedy.startswith("trainer/2 is slower")


@pytest.mark.parametrize("name", HINDRANCES)
def test_a_role_that_does_not_compute_gets_no_more_ranks(name: str) -> None:
    for waiting, blocked, role in ((0.9, 0.0, "a"), (0.0, 0.9, "b")):
        uses = {RankRef(role, 0): Use({name: 80.0, "computing": 20.0}, 100.0, 1)}
        [found] = advice(Evidence(uses, [EdgeUse(0, "a", "b", "x", waiting, blocked)], [], {}))
        what, remedy = HINDRANCES[name]
        assert found.remedy == f"{role} {what} for 80% of the time: {remedy}"


def test_options_in_remedies_exist() -> None:
    source = inspect.getsource(inspect.getmodule(advice))
    named = set(re.findall(r"engine\.options\.([a-z_.]+[a-z_])", source))
    assert len(named) >= 2
    for name in named:
        model: Any = DurableOptions
        for key in name.split("."):
            model = model.model_fields[key].annotation
            model = next((each for each in get_args(model) if hasattr(each, "model_fields")), model)


def test_advice_gives_ranks_to_the_role_that_does_not_wait_itself() -> None:
    chain = [EdgeUse(0, "a", "b", "x", 0.9, 0.0), EdgeUse(1, "b", "c", "y", 0.9, 0.0)]
    [found] = advice(Evidence({}, chain, [], {}))
    assert (found.title, found.remedy[:17]) == ("b waits for a", "give a more ranks")
    loop = [*chain, EdgeUse(2, "c", "a", "z", 0.9, 0.0)]
    assert [each.remedy[:12] for each in advice(Evidence({}, loop, [], {}))] == [f"{role} waits, too" for role in "abc"]
    [slow, _] = advice(Evidence({}, [EdgeUse(0, "a", "b", "x", 0.9, 0.8)], [], {}))
    assert slow.remedy.startswith("the edge itself is slow")


def test_advice_is_silent_about_waits_for_what_the_critical_path_does_not_have() -> None:
    def said(role: str, share: float, edge: EdgeUse) -> list[str]:
        stations = (Station("operator", f"{role}.work", share, role), Station("operator", "z.work", 1 - share, "z"))
        path = Critical(stations, (), 0, 1)
        return [each.title for each in advice(Evidence({}, [edge], [], {}, critical=path))]

    waits, blocked = EdgeUse(0, "a", "b", "x", 0.9, 0.0), EdgeUse(0, "a", "b", "x", 0.0, 0.9)
    assert [said("a", share, waits) for share in (0.19, 0.2)] == [[], ["b waits for a"]]
    assert [said("b", share, blocked) for share in (0.19, 0.2)] == [[], ["a waits until b takes its values"]]


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 864_000.0])
def test_a_step_of_the_wall_clock_changes_neither_the_durations_nor_the_order_of_recoveries(step_s: float) -> None:
    def told(number: int, wall: float, at: float) -> list[Event]:
        failure = {"failure": {"role": "a", "rank": 0}, "silent_s": 0.5, "at": at}
        after = {"number": number, "at": at + 2}
        return [
            Event(1, 1, wall, "failure", failure),
            Event(2, 1, wall, "recovery_planned", {"number": number, "plan": {}}),
            Event(3, 1, wall + step_s + 2, "recovered", after),
            Event(4, 1, wall + step_s + 2, "regained", after),
        ]

    begun = Event(0, 1, 1.7e9, "job_started", {"at": 5.0, "clock": "boot"})
    found = stories([begun, *told(1, 1.7e9 + 5, 10.0), *told(2, 1.7e9 + step_s + 15, 20.0)])
    assert [(each.number, each.ready_s, each.regained_s) for each in found] == [(1, 2.5, 2.5), (2, 2.5, 2.5)]
    again = Event(5, 2, 1.7e9 + 7, "master_recovered", {"at": 3.0, "clock": "another boot"})
    planned, done = told(3, 1.7e9 + 6, 30.0)[:2], Event(6, 2, 1.7e9 + 9, "recovered", {"number": 3, "at": 5.0})
    assert stories([begun, *planned, again, done])[0].ready_s == 3.5, (
        "the monotonic clocks of two boots have no distance"
    )


def test_a_recovery_that_takes_over_counts_from_the_first_failure() -> None:
    def failed(at: float, number: int) -> list[Event]:
        failure = Event(1, 1, at, "failure", {"failure": {"role": "a", "rank": number}, "silent_s": 0.0, "at": at})
        return [failure, Event(2, 1, at, "recovery_planned", {"number": number, "plan": {}})]

    ready = Event(5, 1, 13.0, "recovered", {"number": 2, "at": 13.0})
    found = stories([*failed(10.0, 1), *failed(11.0, 2), ready, *failed(20.0, 3)])
    assert [(each.began, each.ready_s) for each in found] == [(10.0, None), (10.0, 3.0), (20.0, None)]


def test_a_lane_is_empty_only_while_the_rank_had_no_process(seen: Path) -> None:
    """A killed rank has what its last account counts, although its last spans have no line."""
    facts = RunFacts(seen)
    since, until = facts.window(None)
    for ref, pieces in facts.lanes(since, until).items():
        alive = set[int]()
        for path in (seen / "record" / f"{ref.role}-{ref.rank}").glob("*.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()):
                if line["k"] in ("account", "life"):
                    alive |= {*range(line["t"] // 1000, (line["t"] + line["d"]) // 1000)}
        drawn = {ms for piece in pieces for ms in range(piece.t // 1000, piece.end // 1000)}
        assert len(alive ^ drawn) <= 10 + len(pieces), "to a millisecond at each end"
        assert len(alive) >= 500


def test_goodput_is_explained_as_the_documentation_defines_it() -> None:
    text = (Path(__file__).parents[4] / "docs" / "fault-tolerance.md").read_text()
    assert f"`goodput.share`: {GOODPUT}." in " ".join(text.split())
