"""Master and agents as state machines, joined by a simulated network: no process, no socket, no clock."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh import failures
from rolemesh.cluster import AgentPlace
from rolemesh.failures import Failure
from rolemesh.protocol import agent as ag
from rolemesh.protocol import master as ms
from rolemesh.protocol import messages as m


def launch(role: str, rank: int, world_size: int) -> m.RankLaunch:
    return m.RankLaunch(role, rank, world_size, rank, world_size, 0, {}, {})


def outline(agents: int = 2, ranks: int = 2, steps: int = 10, grant: int = 4, lease: float | None = None) -> Any:
    names = [f"a{i}" for i in range(agents)]
    launches: dict[str, list[m.RankLaunch]] = {name: [] for name in names}
    for i in range(ranks):
        launches[names[i % agents]].append(launch("work", i, ranks))
    return ms.JobOutline(
        name="job",
        epoch=1,
        steps=steps,
        grant=grant,
        places=tuple(AgentPlace(name, f"n{i}", {"cpu": 1.0}) for i, name in enumerate(names)),
        launches={name: tuple(those) for name, those in launches.items()},
        start_timeout_s=60.0,
        stop_grace_s=1.0,
        owner_lease_s=lease,
    )


class Rank:
    """A rank that runs one step per turn within its grant."""

    def __init__(self, launch: m.RankLaunch) -> None:
        self.launch = launch
        self.granted = -1
        self.finished = -1
        self.state = "hello"
        self.stopping = False

    def turn(self, steps: int) -> list[m.RankToAgent]:
        r, n = self.launch.role, self.launch.rank
        if self.state == "hello":
            self.state = "waiting"
            return [m.RankHello(r, n, 0, 100 + n, {"control": "x"})]
        if self.state == "setup":
            self.state = "running"
            return [m.RankReady(r, n, 0, 0.1)]
        if self.state == "running" and self.finished < min(self.granted, steps - 1):
            self.finished += 1
            if self.finished == steps - 1:
                self.state = "done"
                return [m.RankDone(r, n, 0, self.finished, f"sha{n}")]
        return []


class World:
    """One job on a network whose links keep order but whose parties act in any order."""

    def __init__(self, o: ms.JobOutline, seed: int = 0) -> None:
        self.o, self.now, self.random = o, 0.0, random.Random(seed)
        self.master = ms.MasterMachine(o)
        self.agents: dict[str, ag.AgentMachine] = {}
        self.ranks: dict[tuple[str, str, int], Rank] = {}
        self.to_agent: dict[str, deque[Any]] = {}
        self.to_master: dict[str, deque[Any]] = {}
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.ended: ms.End | None = None
        self.max_grant_lead = 0
        self.master_event(ms.Begin())

    def master_event(self, event: ms.Event) -> None:
        for effect in self.master.handle(event, self.now):
            match effect:
                case ms.StartAgents():
                    for place in self.o.places:
                        self.agents[place.agent] = ag.AgentMachine(place.agent, place.node, 10.0)
                        self.to_agent[place.agent] = deque()
                        self.to_master[place.agent] = deque([m.AgentUp(place.agent, place.node, 1, "h")])
                case ms.ToAgent(agent, message):
                    self.to_agent[agent].append(message)
                case ms.Record(kind, data):
                    self.records.append((kind, data))
                case ms.End():
                    assert self.ended is None
                    self.ended = effect

    def agent_event(self, name: str, event: ag.Event) -> None:
        for effect in self.agents[name].handle(event, self.now):
            match effect:
                case ag.Fork(launch):
                    self.ranks[name, launch.role, launch.rank] = Rank(launch)
                case ag.ToMaster(message):
                    self.to_master[name].append(message)
                case ag.Kill(role, n):
                    if self.ranks.pop((name, role, n), None) is not None:
                        self.agent_event(name, ag.RankExited(role, n, 0, signal=9))
                case ag.ToRank(role, n, message):
                    if (rank := self.ranks.get((name, role, n))) is not None:
                        match message:
                            case m.WireRank():
                                rank.state = "setup"
                            case m.Grant(until=until):
                                rank.granted = until
                            case m.Stop():
                                rank.stopping = True

    def kill_rank(self, key: tuple[str, str, int]) -> None:
        if self.ranks.pop(key, None) is not None:
            self.agent_event(key[0], ag.RankExited(key[1], key[2], 0, signal=9))

    def kill_agent(self, name: str) -> None:
        if name in self.agents and self.agents.pop(name):
            self.ranks = {key: rank for key, rank in self.ranks.items() if key[0] != name}
            self.to_agent[name].clear()
            self.to_master[name].clear()
            self.master_event(ms.AgentLost(name, "its process is gone"))

    def turn(self) -> None:
        self.now += 0.02
        choices: list[Any] = ["tick"]
        choices += [("agent", n) for n, q in self.to_agent.items() if q and n in self.agents]
        choices += [("master", n) for n, q in self.to_master.items() if q]
        choices += [("rank", key) for key in self.ranks]
        choices += [("sample", n) for n in self.agents]
        match self.random.choice(choices):
            case "tick":
                self.master_event(ms.Tick())
            case ("agent", name):
                self.agent_event(name, ag.FromMaster(self.to_agent[name].popleft()))
            case ("master", name):
                self.master_event(ms.FromAgent(name, self.to_master[name].popleft()))
            case ("rank", key):
                rank = self.ranks[key]
                for report in rank.turn(self.o.steps):
                    self.agent_event(key[0], ag.FromRank(report))
                lead = rank.finished - self.master.committed
                self.max_grant_lead = max(self.max_grant_lead, lead)
                if rank.stopping:
                    self.ranks.pop(key, None)
                    self.agent_event(key[0], ag.RankExited(key[1], key[2], 0, exit_code=0))
            case ("sample", name):
                positions = tuple(
                    m.RankPosition(k[1], k[2], 1, "alive", r.finished) for k, r in self.ranks.items() if k[0] == name
                )
                self.agent_event(name, ag.Sampled(positions))

    def run(self, turns: int = 20_000) -> ms.End:
        for _ in range(turns):
            if self.ended:
                return self.ended
            self.turn()
        raise AssertionError(f"no end; phase {self.master.phase}, committed {self.master.committed}")

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.records]


def test_an_undisturbed_job_commits_every_step_and_ends_done() -> None:
    world = World(outline())
    assert world.run() == ms.End("done", "")
    assert world.master.committed == 9
    assert world.kinds()[0] == "job_started"
    assert world.kinds()[-1] == "job_ended"
    committed = [data["step"] for kind, data in world.records if kind == "committed"]
    assert committed == sorted(set(committed))
    assert committed[-1] == 9


@given(
    seed=st.integers(0, 10_000),
    agents=st.integers(1, 4),
    ranks=st.integers(1, 6),
    steps=st.integers(1, 30),
    grant=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_any_order_of_events_ends_done_and_no_rank_outruns_its_grant(
    seed: int, agents: int, ranks: int, steps: int, grant: int
) -> None:
    world = World(outline(agents, max(ranks, agents), steps, grant), seed)
    assert world.run().status == "done"
    assert world.master.committed == steps - 1
    assert world.max_grant_lead <= grant


@given(seed=st.integers(0, 10_000), when=st.integers(0, 600), what=st.sampled_from(["rank", "agent"]))
@settings(max_examples=150, deadline=None)
def test_a_death_at_any_moment_ends_the_job_failed_with_nothing_left(seed: int, when: int, what: str) -> None:
    world = World(outline(agents=3, ranks=5, steps=40), seed)
    for _ in range(when):
        world.turn()
    running = world.ended is None and world.master.phase in ("starting", "running")
    if what == "rank" and world.ranks:
        victim = world.random.choice(sorted(world.ranks))
        undone = running and world.ranks[victim].state != "done" and not world.agents[victim[0]].stopping
        world.kill_rank(victim)
    elif what == "agent" and world.agents:
        world.kill_agent(world.random.choice(sorted(world.agents)))
        undone = running
    else:
        undone = False
    end = world.run()
    assert end.status == ("failed" if undone else end.status)
    assert not world.ranks


@given(seed=st.integers(0, 10_000), when=st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_a_stop_at_any_moment_ends_the_job(seed: int, when: int) -> None:
    world = World(outline(agents=2, ranks=4, steps=50), seed)
    for _ in range(when):
        world.turn()
    world.master_event(ms.StopAsked("enough"))
    assert world.run().status in ("interrupted", "done")
    assert not world.ranks


def test_an_owner_that_is_not_heard_of_ends_the_job_by_its_lease() -> None:
    world = World(outline(steps=10**6, lease=3.0))
    for _ in range(500):
        world.turn()
        if world.now < 5:
            world.master_event(ms.OwnerSeen())
    assert world.master.phase != "running"
    end = world.run()
    assert end.status == "interrupted"
    assert "driver" in end.message


def test_a_detached_job_outlives_its_owner() -> None:
    world = World(outline(lease=1.0))
    world.master_event(ms.Disown())
    assert world.run().status == "done"


def test_an_agent_that_does_not_hear_its_master_ends_its_ranks_and_itself() -> None:
    machine = ag.AgentMachine("a", "n", lease_s=5.0)
    machine.handle(ag.FromMaster(m.Launch(1, (launch("work", 0, 1),))), 0.0)
    assert ag.Kill("work", 0) not in machine.handle(ag.Sampled(), 4.9)
    assert ag.Kill("work", 0) in machine.handle(ag.Sampled(), 5.1)
    effects = machine.handle(ag.RankExited("work", 0, 0, signal=9), 5.2)
    assert ag.CleanUp() in effects


def test_an_agent_ignores_an_older_epoch() -> None:
    machine = ag.AgentMachine("a", "n", lease_s=5.0)
    machine.handle(ag.FromMaster(m.Launch(2, (launch("work", 0, 1),))), 0.0)
    assert machine.handle(ag.FromMaster(m.Stop(1, 0.0)), 0.1) == []
    assert not machine.stopping


def test_the_ranks_own_report_wins_over_its_exit_code() -> None:
    machine = ag.AgentMachine("a", "n", lease_s=5.0)
    machine.handle(ag.FromMaster(m.Launch(1, (launch("work", 0, 1),))), 0.0)
    machine.handle(ag.RankExited("work", 0, 0, exit_code=1), 0.0)
    told = machine.handle(ag.FromRank(m.RankFailed(Failure("exception", "work", 0, message="boom"))), 0.05)
    assert [e.message.failure.message for e in told] == ["boom"]
    later = machine.handle(ag.Sampled(), 1.0)
    assert not [e for e in later if isinstance(e, ag.ToMaster) and isinstance(e.message, m.RankFailed)]


def test_a_survivors_broken_connection_is_not_taken_for_the_cause() -> None:
    echo = Failure("exception", "trainer", 0, message="RuntimeError: Connection reset by peer [gloo]")
    death = failures.describe_exit("trainer", 1, None, 9)
    assert failures.primary([echo, death]) is death
    bug = Failure("exception", "trainer", 1, message="ValueError: bad row")
    assert failures.primary([echo, bug]) is bug


@pytest.mark.parametrize("status", [9, 11])
def test_a_killed_rank_is_described_with_its_signal(status: int) -> None:
    failure = failures.describe_exit("reward", 2, None, status)
    assert failures.describe(failure).startswith("role reward, rank 2: its process was killed by SIG")


def test_agents_that_never_confirm_do_not_keep_the_job_alive() -> None:
    machine = ms.MasterMachine(outline(agents=1, ranks=1))
    machine.handle(ms.Begin(), 0.0)
    machine.handle(ms.FromAgent("a0", m.AgentUp("a0", "n0", 1, "h")), 0.1)
    machine.handle(ms.StopAsked("enough"), 1.0)
    assert machine.phase == "stopping"
    effects = machine.handle(ms.Tick(), 1.0 + 1.0 + ms.STOP_MARGIN_S)
    assert ms.End("interrupted", "enough") in effects


def test_a_job_whose_ranks_do_not_get_ready_in_time_fails_and_names_them() -> None:
    world = World(outline(agents=1, ranks=2))
    for _ in range(5):
        world.turn()
    world.now = 61.0
    world.master_event(ms.Tick())
    assert world.master.status == "failed"
    assert "work/0" in world.master.message
    assert "start_timeout_s" in world.master.message
