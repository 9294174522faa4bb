"""A rank's loop: stops at once while it waits, names what failed, counts where time goes."""

from multiprocessing import get_context

from tests.waiting import HANG_S

from rolemesh.api.partition import Split
from rolemesh_durable.protocol.messages import RankMetrics, Stop, Watermarks
from rolemesh_durable.protocol.rank.page import COMPUTING, WAITING


def pair(flow, **settings):
    graph, edge = flow
    return graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, **settings)])


def test_a_rank_that_waits_for_input_stops_at_once_on_request(fleet, flow, role):
    def drive(agent):
        agent.send(("b", 0), Watermarks(1, 0, 4, -1))
        agent.until(("b", 0), lambda at: at.phase == WAITING and at.edge == 0 and at.step == 1)
        agent.send(("b", 0), Stop(1, 5.0))
        agent.send(("a", 0), Stop(1, 5.0))

    out = fleet.run(
        pair(flow),
        {
            "a": (lambda: role(make=lambda self: [1]), 1),
            "b": (lambda: role(take=lambda self, x: self.seen.append(x)), 1),
        },
        steps=5,
        granted=0,
        drive=drive,
    )
    assert out["b", 0].finished == 0
    assert out["b", 0].seen == [[1]]
    assert [o.failure for o in out.values()] == ["", ""]


def test_an_exception_names_the_call_and_shows_only_the_users_frames(fleet, flow, role):
    def helper():
        return {}["reward"]

    def make(self):
        if self.ctx.step == 2:
            helper()
        return [1]

    def drive(agent):
        agent.until(("b", 0), lambda at: at.finished == 1)
        agent.send(("b", 0), Stop(1, 5.0))

    out = fleet.run(
        pair(flow),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=lambda self, x: None), 1)},
        steps=5,
        drive=drive,
    )
    assert out["a", 0].failure == "a.make@2: KeyError('reward')"
    shown = out["a", 0].traceback
    assert "in helper" in shown
    assert "KeyError: 'reward'" in shown
    assert "rolemesh_durable/" not in shown


def test_an_exception_inside_a_generator_is_the_users_too(fleet, flow, role):
    def make(self):
        yield [1]
        raise ValueError("second chunk")

    out = fleet.run(
        pair(flow),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=lambda self, x: None), 1)},
        steps=1,
        drive=lambda agent: (agent.until(("b", 0), lambda at: at.phase == WAITING), agent.send(("b", 0), Stop(1, 5.0))),
    )
    assert out["a", 0].failure == "a.make@0: ValueError('second chunk')"
    assert "rolemesh_durable/" not in out["a", 0].traceback


def test_a_value_that_cannot_be_split_is_the_operators_error(fleet, flow, role):
    out = fleet.run(
        pair(flow),
        {"a": (lambda: role(make=lambda self: 3), 1), "b": (lambda: role(take=lambda self, x: None), 2)},
        steps=1,
        drive=lambda agent: [agent.send(("b", r), Stop(1, 5.0)) for r in (0, 1)],
    )
    assert out["a", 0].failure.startswith("a.make@0: PluginError('a int has no rows to split")


def test_metrics_are_gathered_per_window_and_operator_and_sent_to_the_agent(fleet, flow, role):
    reports = []

    def make(self):
        self.ctx.metric(loss=self.ctx.step)
        self.ctx.count(tokens=10)
        if self.ctx.step == 4:
            self.ctx.record(note="last")
        return [1]

    def drive(agent):
        while sum(len(r.lines) for r in reports if r.role == "a") < 3:
            reports.append(agent.report())

    out = fleet.run(
        pair(flow),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=lambda self, x: None), 1)},
        steps=5,
        every=2,
        drive=drive,
    )
    assert all(isinstance(report, RankMetrics) for report in reports)
    lines = out["a", 0].lines
    assert [(line.step, line.steps, line.ranks) for line in lines] == [(1, 2, 1), (3, 2, 1), (4, 1, 1)]
    assert lines[1].means == {"a.make": {"loss": [5.0, 2.0]}}
    assert lines[1].sums == {"a.make": {"tokens": 20.0}}
    assert [line.records for line in lines] == [{}, {}, {"note": "last"}]
    assert [line.means for line in out["b", 0].lines] == [{}, {}, {}]


def test_waiting_inside_a_stream_does_not_count_as_computing(fleet, flow, role):
    def make(self):
        end = self.ctx.step + 1_500_000
        yield [sum(range(end))]
        yield [sum(range(end))]

    def take(self, x):
        self.seen.append(len(list(x)))

    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None, {"streaming": True}), edges=[edge(0, 0, 1)]),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=take), 1)},
        steps=1,
    )
    computing, waiting, _ = out["b", 0].lines[0].times
    assert waiting > computing >= 0


def test_the_board_shows_the_operator_that_runs(fleet, flow, role):
    seen = get_context("fork").Event()

    def drive(agent):
        agent.until(("b", 0), lambda at: (at.phase, at.op, at.step, at.finished) == (COMPUTING, 1, 0, -1))
        seen.set()

    out = fleet.run(
        pair(flow),
        {
            "a": (lambda: role(make=lambda self: [1]), 1),
            "b": (lambda: role(take=lambda self, x: self.seen.append(seen.wait(HANG_S))), 1),
        },
        steps=1,
        drive=drive,
    )
    assert out["b", 0].seen == [True]
