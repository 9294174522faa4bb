"""The figures of a run, computed from its files with nothing but the standard library.

No reader of the project is imported, so an error of theirs cannot be repeated here.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["Facts", "Recovery", "Span"]

Rank = tuple[str, int]
Json = dict[str, Any]


class Span(NamedTuple):
    """A line of a record that has a begin and a duration, in µs since 1970."""

    phase: str
    t: int
    end: int
    step: int
    op: int
    edge: int


class Recovery(NamedTuple):
    """A recovery, by the events. Times are seconds from the first symptom on the clock of the master."""

    number: int
    level: str
    failed: tuple[str, ...]
    messages: tuple[str, ...]
    restarted: tuple[str, ...]
    resumed: tuple[tuple[str, int], ...]
    ready_s: float | None
    regained_s: float | None
    began: float = 0.0


def lines(path: Path) -> list[Json]:
    """Return the complete lines of a file of JSON lines."""
    if not path.exists():
        return []
    found = path.read_bytes().split(b"\n")
    return [json.loads(each) for each in found[:-1] if each]


class Facts:
    """The figures of the run in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result: Json = json.loads((path / "result.json").read_text())
        self.flow: Json = json.loads((path / "record/flow.json").read_text())
        self.events, self.metrics = lines(path / "events.jsonl"), self._once(lines(path / "metrics.jsonl"))
        self.records: dict[Rank, list[Json]] = {}
        self.rows: list[Json] = []
        for role, size in json.loads((path / "run.json").read_text())["roles"].items():
            self.records |= {(role, rank): [] for rank in range(size)}
        for folder in sorted((path / "record").iterdir()):
            role, _, number = folder.name.rpartition("-")
            if number.isdecimal():
                parts = sorted(folder.glob("*.jsonl"))
                self.records[role, int(number)] = [line for part in parts for line in lines(part)]
        self.newest_rows: list[Json] = []  # of the newest file of each rank
        for folder in sorted((path / "record").glob("rows/*")):
            kept = [lines(part) for part in sorted(folder.glob("*.jsonl"))]
            self.rows += [row for part in kept for row in part]
            self.newest_rows += kept[-1] if kept else []
        self.nodes = {unquote(each.stem): lines(each) for each in (path / "record").glob("nodes/*.jsonl")}
        self.labels = {op["id"]: op["label"] for op in self.flow["ops"]}
        self.role_of = {op["id"]: op["role"] for op in self.flow["ops"]}
        self.every = {op["id"]: op.get("every", 1) for op in self.flow["ops"]}

    @staticmethod
    def _once(found: list[Json]) -> list[Json]:
        """A line that a later master wrote again counts once."""
        return [line for _, line in sorted({line["step"]: line for line in found}.items())]

    # ------------------------------------------------------------------------------------------------ the job

    def of_kind(self, *kinds: str) -> list[Json]:
        """Return the events of these kinds."""
        return [event for event in self.events if event["kind"] in kinds]

    @property
    def state(self) -> str:
        return str(self.of_kind("job_ended")[-1]["data"]["status"])

    @property
    def steps(self) -> tuple[int, int | None]:
        """The steps that are done, and those that were wanted; None without an end."""
        wanted = self.of_kind("job_started")[0]["data"]["steps"]
        return self.of_kind("job_ended")[-1]["data"]["committed"] + 1, wanted if wanted and wanted < 1 << 53 else None

    @property
    def least_s(self) -> float:
        """The seconds from the first to the last event: the job took longer, by what precedes and follows them."""
        return float(self.events[-1]["time"] - self.events[0]["time"])

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks of each role, in the order of the flow."""
        return {role: sum(one == role for one, _ in self.records) for role in self.flow["sizes"]}

    @property
    def restarts(self) -> Counter[str]:
        """How often each rank was started again, also if that process did not come up."""
        ranks = [rank for each in self.of_kind("recovery_launched") for rank in each["data"]["ranks"]]
        return Counter(f"{rank['role']}/{rank['rank']}" for rank in ranks)

    @property
    def starts(self) -> Counter[str]:
        """How many processes of each rank came up."""
        return Counter(f"{each['data']['role']}/{each['data']['rank']}" for each in self.of_kind("rank_up"))

    def end(self, rank: str) -> str:
        """How a rank ended, by its last event of these kinds."""
        ends = {"rank_up": "stopped", "rank_done": "done", "failure": "failed", "hang": "failed"}
        told = [(event["kind"], event["data"].get("failure", event["data"])) for event in self.of_kind(*ends)]
        return [ends[kind] for kind, data in told if f"{data['role']}/{data['rank']}" == rank][-1]

    @property
    def placement(self) -> dict[str, dict[str, tuple[int, int]]]:
        """The generation and the process of each rank on each node, those of its latest start."""
        latest = {(each["data"]["role"], each["data"]["rank"]): each["data"] for each in self.of_kind("rank_up")}
        found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        for (role, rank), data in latest.items():
            found[data["node"]][f"{role}/{rank}"] = data["generation"], data["pid"]
        return dict(found)

    @property
    def gpus(self) -> dict[str, float]:
        """The GPUs of each role at the end: those of its slots, which their ranks share."""
        plan = json.loads((self.path / "plan.json").read_text())
        sharers = Counter(rank["slot"] for rank in plan["ranks"])
        held = {slot["id"]: slot["gpu"] / sharers[slot["id"]] for slot in plan["slots"] if sharers[slot["id"]]}
        return {role: sum(held[rank["slot"]] for rank in plan["ranks"] if rank["role"] == role) for role in self.sizes}

    @property
    def recoveries(self) -> list[Recovery]:
        """The recoveries by their numbers; number 0 stands for failures after which none was planned."""
        found: dict[int, Recovery] = {}
        began: dict[int, float] = {}
        open_: list[Json] = []
        left = math.nan  # the first symptom of what no recovery has mended yet
        for event in self.events:
            data = event["data"]
            if event["kind"] in ("failure", "hang"):
                open_.append(data)
            elif event["kind"] == "recovery_planned":
                number = data["number"]
                symptoms = [each["at"] - each.get("silent_s", 0.0) for each in open_]
                left = began[number] = min(symptoms, default=data["at"]) if math.isnan(left) else left
                names = tuple(f"{each['failure']['role']}/{each['failure']['rank']}" for each in open_)
                said = tuple(str(each["failure"]["message"]) for each in open_)
                found[number] = Recovery(number, data["plan"]["level"], names, said, (), (), None, None, left)
                open_ = []
            elif event["kind"] == "recovery_launched":
                resumed = tuple((f"{each['role']}/{each['rank']}", each["resume"] + 1) for each in data["ranks"])
                old = found[data["number"]]
                found[old.number] = old._replace(restarted=tuple(name for name, _ in resumed), resumed=resumed)
            elif event["kind"] in ("recovered", "regained"):
                left = math.nan if event["kind"] == "recovered" else left
                seconds = data["at"] - began[data["number"]]
                key = "ready_s" if event["kind"] == "recovered" else "regained_s"
                found[data["number"]] = found[data["number"]]._replace(**{key: seconds})
        if open_:
            names = tuple(f"{each['failure']['role']}/{each['failure']['rank']}" for each in open_)
            said = tuple(str(each["failure"]["message"]) for each in open_)
            found[0] = Recovery(0, "", names, said, (), (), None, None)
        return list(found.values())

    @property
    def lost_s(self) -> float | None:
        """The seconds from failures until the ranks had caught up; None if some never did."""
        found, total, at = self.recoveries, 0.0, 0.0
        if any(each.regained_s is None for each in found):
            return None
        for began, end in sorted((each.began, each.began + (each.regained_s or 0.0)) for each in found):
            total += max(0.0, end - max(at, began))
            at = max(at, end)
        return total

    # ---------------------------------------------------------------------------------------------- metrics

    def points(self, name: str) -> list[tuple[int, int, float]]:
        """Return the last step, the number of steps and the value of each line with a metric."""
        found = [(line["step"], line["steps"], self._values(line)) for line in self.metrics]
        return [(step, steps, _number(values[name])) for step, steps, values in found if name in values]

    @staticmethod
    def _values(line: Json) -> Json:
        own = ("step", "steps", "time", "operators", "roles", "staleness", "records", "values")
        return {name: value for name, value in line.items() if name not in own} | line.get("values", {})

    @property
    def names(self) -> list[str]:
        return sorted({name for line in self.metrics for name in self._values(line)})

    def total(self, name: str) -> float:
        """Return the sum over all steps of a metric that operators count."""
        amounts = [(line["steps"], each.get(name, 0.0)) for line in self.metrics for each in line["operators"].values()]
        return math.fsum(steps * _number(amount) for steps, amount in amounts)

    @property
    def seconds_per_step(self) -> float | None:
        """Over the last 32 lines."""
        last = self.metrics[-32:]
        steps = sum(line["steps"] for line in last[1:])
        return (last[-1]["time"] - last[0]["time"]) / steps if steps else None

    # ------------------------------------------------------------------------------------------ use of time

    def accounts(self, rank: Rank) -> list[Json]:
        return [line for line in self.records[rank] if line["k"] == "account" and line["d"] > 0]

    def spans(self, rank: Rank) -> list[Span]:
        """Return the spans of a rank in the order of their ends."""
        return [
            Span(
                line["phase"], line["t"], line["t"] + line["d"], line["step"], line.get("op", -1), line.get("edge", -1)
            )
            for line in self.records[rank]
            if line["k"] == "span"
        ]

    @property
    def ends(self) -> tuple[int, int]:
        """The begin and the end of all records, in µs since 1970."""
        found = [line for each in self.records.values() for line in each]
        return min(line["t"] for line in found), max(line["t"] + line.get("d", 0) for line in found)

    def last_steps(self, seconds: float) -> tuple[int, int]:
        """Return the begin and the end of the last whole lines of metrics that take `seconds` together, or all."""
        times = [int(line["time"] * 1e6) for line in self.metrics]
        begin, end = self.ends
        times = [each for each in times if begin <= each <= end]
        if len(times) < 2:
            return max(begin, end - int(seconds * 1e6)), end
        since = max((each for each in times if each <= times[-1] - seconds * 1e6), default=times[0])
        late = end - times[-1] > max(seconds * 1e6, times[-1] - since)
        return since, end if late else times[-1]

    def spent(self, rank: Rank, since: int, until: int) -> tuple[dict[str, float], float, float]:
        """Return the µs by name between two times, the µs that accounts cover, and the steps."""
        found: dict[str, float] = defaultdict(float)
        wall = steps = 0.0
        for line in self.accounts(rank):
            share = max(0, min(until, line["t"] + line["d"]) - max(since, line["t"])) / line["d"]
            for name, us in line.get("spent", {}).items():
                found[name] += us * share
            wall, steps = wall + line["d"] * share, steps + line["steps"] * share
        positive = {name: us for name, us in found.items() if us > 0}
        if (rest := wall - sum(positive.values())) > 0:
            positive["engine"] = rest
        return positive, wall, steps

    def shares(self, role: str, since: int, until: int) -> dict[str, float]:
        """Return the shares of the time of a role's ranks."""
        found: Counter[str] = Counter()
        whole = 0.0
        for rank in self.records:
            if rank[0] == role:
                spent, wall, _ = self.spent(rank, since, until)
                found.update(spent)  # type: ignore[arg-type]
                whole += wall
        return {name: us / whole for name, us in found.items()} if whole else {}

    def waits(self, edge: Json, since: int, until: int) -> tuple[float, float]:
        """Return the shares of the time in which the consumers and the producers of an edge wait for each other."""
        producer, consumer = self.role_of[edge["src"]], self.role_of[edge["dst"]]
        name = f"edge {edge['id']}"
        blocked = 0.0 if producer == consumer else self.shares(producer, since, until).get(name, 0.0)
        return self.shares(consumer, since, until).get(name, 0.0), blocked

    def traffic(self, edge: Json, since: int, until: int) -> tuple[float, float]:
        """Return the bytes per second of all producers of an edge, and the values per second of a consumer."""
        sent, takers = 0.0, []
        for rank in self.records:
            _, wall, steps = self.spent(rank, since, until)
            if not wall:
                continue
            if rank[0] == self.role_of[edge["dst"]]:
                takers.append(steps / wall * 1e6)
            if rank[0] == self.role_of[edge["src"]]:
                amounts = [
                    line["sent"][str(edge["id"])][0]
                    * max(0, min(until, line["t"] + line["d"]) - max(since, line["t"])) / line["d"]
                    for line in self.accounts(rank)
                    if str(edge["id"]) in line.get("sent", {})
                ]  # fmt: skip
                sent += sum(amounts) / wall * 1e6
        steps_s = 1 / self.seconds_per_step if self.seconds_per_step else sum(takers) / max(1, len(takers))
        return sent, steps_s / self.every[edge["dst"]]

    @property
    def recent(self) -> tuple[int, int]:
        """The time that rates cover: the last five lines, but 10 s at least."""
        last = self.metrics[-6:]
        return self.last_steps(max(10.0, last[-1]["time"] - last[0]["time"]) if len(last) > 1 else 60.0)

    def most_on_path(self, label: str, since: int, until: int) -> float:
        """Return the largest possible share of an operator in the critical path: the time in which some rank runs it.

        The path ends with the last operator of some rank.
        """
        works = [
            [each.end for each in self.spans(rank) if each.phase in ("computing", "serving") and since < each.end]
            for rank in self.records
        ]
        shortest = min(max(each for each in ends if each <= until) for ends in works if any(e <= until for e in ends))
        ops = {op for op, each in self.labels.items() if each == label}
        found = sorted(
            (max(since, span.t), min(until, span.end))
            for rank in self.records
            for span in self.spans(rank)
            if span.phase == "computing" and span.op in ops and span.t < until and span.end > since
        )
        covered, at = 0, since
        for begin, end in found:
            covered += max(0, end - max(at, begin))
            at = max(at, end)
        return covered / max(1, shortest - since)

    def walk(self, since: int, until: int) -> dict[str, float] | None:
        """Return the share of each operator in the critical path, by a walk from call to call.

        Before a call the path goes to what ended last before it: the rank's own call; a call that made one of its
        values; or one of a consumer, if the rank waited for room. The path stays with a rank while that starts again.
        None for a flow with services, whose calls have no operators.
        """
        if self.flow.get("callers"):
            return None
        calls = {
            rank: [each for each in self.spans(rank) if each.phase == "computing" and each.t < until]
            for rank in self.records
        }
        since = max(since, min((each.t for own in calls.values() for each in own if each.end > since), default=since))
        last = []
        for rank, own in calls.items():
            steady = [each for each in own if self.every[each.op] == 1 and each.end > since]
            reached = max((line["step"] for line in self.accounts(rank) if line["t"] < until), default=-1)
            last += [(max(steady[-1].step, reached), -min(steady[-1].end, until), rank, steady[-1])] if steady else []
        if not last:
            return None
        _, end, rank, call = min(last, key=lambda each: each[:3])
        path: Counter[str] = Counter()
        at = whole = -end
        while at > since:
            path[self.labels[call.op]] += max(0, min(at, call.end) - max(since, call.t))
            found = self._before(calls, rank, call)
            if found is None:
                break
            (rank, call), at = found, call.t
        return {label: us / max(1, whole - max(since, min(at, whole))) for label, us in path.items()}

    def starts_of(self, rank: Rank) -> list[int]:
        """Return when the processes of a rank began, in µs since 1970."""
        return [line["t"] for line in self.records[rank] if line["k"] == "head" and not line.get("coarse")]

    def _before(self, calls: dict[Rank, list[Span]], rank: Rank, call: Span) -> tuple[Rank, Span] | None:
        own = max((each for each in calls[rank] if each.end <= call.t), key=lambda each: each.end, default=None)
        if own is not None and call.t - own.end < 2000:
            return rank, own
        if own is not None and (starts := [at for at in self.starts_of(rank) if own.end < at <= call.t]):
            call = call._replace(t=starts[0], step=own.step + 1)  # the one that the process before did not come to
        found = [(own.end, rank, own)] if own is not None else []
        waits = [each for each in self.spans(rank) if each.phase in ("blocked", "idle") and each.t < call.t]
        room = own is not None and any(each.end > own.end for each in waits)
        for edge in self.flow["edges"]:
            made, taken = edge["src"], edge["dst"]
            if call.op == taken and edge["lag"].isdigit():
                step = call.step - int(edge["lag"])
                found += self._ended(calls, made, call.t, lambda each, step=step: each.step == step)
            if call.op == made and self.role_of[made] != self.role_of[taken] and room:
                found += self._ended(calls, taken, call.t, lambda each: each.step < call.step)
        if not found:
            return None
        _, rank, call = max(found)
        return rank, call

    def _ended(
        self, calls: dict[Rank, list[Span]], op: int, before: int, fits: Callable[[Span], bool]
    ) -> list[tuple[int, Rank, Span]]:
        """Return the last fitting call of each rank before a time, but only the latest of all."""
        found = [
            (each.end, rank, each)
            for rank, own in calls.items() if rank[0] == self.role_of[op]
            for each in own if each.op == op and each.end <= before and fits(each)
        ]  # fmt: skip
        return [max(found)] if found else []

    # ------------------------------------------------------------------------------------------- kept rows

    def kept(self) -> Iterator[tuple[int, list[Json]]]:
        """Yield the kept rows of each step, the newest first."""
        steps: dict[int, list[Json]] = defaultdict(list)
        for row in self.rows:
            steps[row["step"]].append(row)
        yield from sorted(steps.items(), reverse=True)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
