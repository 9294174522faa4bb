"""Compares what pages, verbs and trackers show of a run with the figures of its files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tests.figures.facts import Facts, Recovery
from tests.figures.jobs import Ended
from tests.figures.page import Element, number, page

__all__ = ["VIEWS", "Compared", "compared"]

TOKEN = "a-token"
PRICE = 2.5
"""The price of a GPU for an hour."""
LEAST = 0.0005
"""Share below which pages leave a part out."""


class Figure(NamedTuple):
    """A figure of a view, and the same one of the files."""

    view: str
    what: str
    shown: object
    wanted: object


class Compared:
    """The figures of a run that were compared, and those that differ."""

    def __init__(self, ended: Ended, *, walks: bool) -> None:
        """`walks`: compare the critical path with the judge's walk, too, besides its bounds. The two may choose other
        ways on a machine whose ranks wait for processors."""
        self.ended, self.facts, self.walks = ended, Facts(ended.path), walks
        self.counts: Counter[str] = Counter()
        self.wrong: list[Figure] = []
        self.view = ""

    def same(self, what: str, shown: object, wanted: object, within: float = 0.0) -> None:
        """Compare a figure. A text with a number may differ by its last digit, any other one not at all.

        `within`: a distance that the files leave open, since two clocks or two samples made the figures.
        """
        self.counts[self.view] += 1
        if isinstance(wanted, float) and isinstance(shown, str):
            value, half = number(shown)
            fits = math.isclose(value, wanted, rel_tol=1e-6, abs_tol=half + within)
        elif isinstance(wanted, float) and isinstance(shown, int | float):
            both = math.isnan(wanted) and math.isnan(shown)
            fits = both or math.isclose(shown, wanted, rel_tol=1e-6, abs_tol=1e-9 + within)
        else:
            fits = shown == wanted
        if not fits:
            self.wrong.append(Figure(self.view, what, shown, wanted))

    def most(self, what: str, shown: float, bound: float) -> None:
        """Compare a figure with its upper bound."""
        self.counts[self.view] += 1
        if not shown <= 1.03 * bound + 0.01:
            self.wrong.append(Figure(self.view, what, shown, f"at most {bound}"))

    def verb(self, *arguments: str) -> str:
        """Return what a verb prints about the run."""
        from rolemesh.cli import main

        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out):
            assert main([*arguments]) == 0, arguments
        out.seek(0)
        return out.read()

    def address(self, path: str) -> str:
        """Return the answer of the viewer to an address below the run."""
        while True:
            answer = self.client.get(f"/run/{self.ended.name}/{path}")
            assert answer.status_code == 200, answer.text
            if "<title>Reading" not in answer.text:
                return str(answer.text)

    @property
    def client(self) -> Any:
        """A browser of the runs in the run's folder."""
        if not hasattr(self, "_client"):
            from starlette.testclient import TestClient

            from rolemesh_view import application
            from rolemesh_view.guard import Access
            from rolemesh_view.server import templates
            from rolemesh_view.viewed import Runs

            templates().globals["price_per_gpu_hour"] = PRICE  # as the option --gpu-hour-price does
            app = application(Runs(self.ended.path.parent), Access(TOKEN))
            self._client = TestClient(app, "http://127.0.0.1:8000", headers={"authorization": f"Bearer {TOKEN}"})
            while "reads the records" in self.address("flow") + self.address("overview"):
                pass
        return self._client


def steps_text(facts: Facts) -> str:
    done, wanted = facts.steps
    return f"{done:,} of {wanted:,} steps" if wanted is not None else f"{done:,} step{'s' * (done != 1)}"


def bare(text: str) -> str:
    """Return the number and the unit at the beginning of a text."""
    match = re.match(r"[-+]?[\d,.]+(?:e[-+]?\d+)?\s*(?:%|(?:steps/s|[kMG]?B/s|ms|min|s|h)\b(?: per step)?)?", text)
    return match[0].strip() if match else text


# ----------------------------------------------------------------------------------------------------- pages


def jobs(seen: Compared) -> None:
    facts, answer = seen.facts, seen.client.get("/")
    (row,) = [each for each in page(answer.text).table() if each["job"] == seen.ended.name]
    seen.same("state", row["state"], facts.state)
    seen.same("steps", row["steps"], steps_text(facts))
    seen.same("goodput", row["goodput"], facts.result["goodput"]["share"])
    seen.same("time", row["time"], facts.result["wall_s"])
    seen.same("ranks", row["ranks"], ", ".join(f"{role} {size}" for role, size in facts.sizes.items()))
    if row["result"]:
        name, _, value = row["result"].rpartition(" ")
        seen.same(f"result: {name}", value, facts.points(name)[-1][2])


def overview(seen: Compared) -> None:
    facts, shown = seen.facts, page(seen.address("overview"))
    tiles = shown.pairs()
    seen.same("steps", tiles["steps"], steps_text(facts))
    seen.same("took", tiles["took"], facts.result["wall_s"])
    seen.same("goodput", tiles["goodput"], facts.result["goodput"]["share"])
    seen.same("recoveries", tiles["recoveries"], str(sum(each.number > 0 for each in facts.recoveries)))
    if (pace := facts.seconds_per_step) is not None:
        text = tiles["speed"]
        seen.same("speed", text, pace if text.endswith("per step") else 1 / pace)
    status = shown.all("span")[0].text
    seen.same("head: state", status.split()[0], facts.state)
    seen.same("head: steps", steps_text(facts) in status, True)
    for each in shown.all("figure"):
        name = each.attributes["data-key"]
        curve(seen, name, each)
        said = each.all("figcaption")[0].text.removeprefix(name).strip()
        if match := re.search(r"from (\S+) to ([^\s,;]+)", said):
            first, last = thirds(facts, name)
            seen.same(f"{name}: first third", match[1], first)
            seen.same(f"{name}: last third", match[2], last)
    told = {each.number: each for each in facts.recoveries}
    for each in shown.section("What failed?").all("p"):
        if "data-key" in each.attributes:
            of = told[int(each.attributes["data-key"])]
            seen.same(f"recovery {of.number}", f"{of.failed[0]}: {of.messages[0]}"[:150] in each.text, True)
            ready(seen, of, re.split("ready after:? ", each.text)[-1])
    advised(seen, [[each.all(tag)[0].text for tag in ("h3", "p")] for each in shown.all("article")])
    cost(seen, shown.section("What does it cost?"))
    bottleneck = shown.section("What does it wait for?").text
    for name, share in re.findall(r"(?:the edge |then |most for )?([\w.]+) \((\d+)%\)", bottleneck):
        on_path(seen, name, int(share) / 100)


def thirds(facts: Facts, name: str) -> tuple[float, float]:
    """Return the means over the first and the last lines that have a third of the steps at most, by their steps."""
    found = [(steps, value) for _, steps, value in facts.points(name) if math.isfinite(value)]
    return third(found), third(found[::-1])


def third(found: list[tuple[int, float]]) -> float:
    whole, amount, steps = sum(steps for steps, _ in found) / 3, 0.0, 0
    for more, value in found:
        if steps and steps + more > whole:
            break
        amount, steps = amount + more * value, steps + more
    return amount / steps


def curve(seen: Compared, name: str, figure: Element) -> None:
    """The points of a curve lie where the values are, between the texts of its axes."""
    points = [each for each in seen.facts.points(name) if math.isfinite(each[2])]
    values = [value for _, _, value in points]
    (path,) = [each for each in figure.all("path") if "raw" in each.attributes.get("class", "").split()]
    places = [tuple(map(float, each)) for each in re.findall(r"([\d.]+),([\d.]+)", path.attributes["d"])]
    seen.same(f"{name}: points", len(places), len(points))
    low, high = min(values), max(values)
    texts = [re.sub("^step ", "", each.text) for each in figure.all("text")]
    if low < high:
        seen.same(f"{name}: highest", texts[0], high)
        seen.same(f"{name}: lowest", texts[1], low)
        top, floor = min(y for _, y in places), max(y for _, y in places)
        for (_, y), (step, _, value) in zip(places, points, strict=True):
            height = low + (floor - y) / (floor - top) * (high - low)
            seen.same(f"{name}: step {step}", height, value, within=0.2 / (floor - top) * (high - low))
    seen.same(f"{name}: first step", texts[2], str(points[0][0]))
    seen.same(f"{name}: last step", texts[3], str(seen.facts.metrics[-1]["step"]))


def ready(seen: Compared, of: Recovery, text: str) -> None:
    if of.ready_s is not None:
        seen.same(f"recovery {of.number}: ready after", text, of.ready_s)
    else:
        seen.same(f"recovery {of.number}: not ready", text[:1].isdecimal(), False)


def cost(seen: Compared, shown: Element) -> None:
    facts, lasted, whole = seen.facts, seen.facts.result["wall_s"], 0.0
    for row, (role, size) in zip(shown.table(), facts.sizes.items(), strict=True):
        gpu_h = facts.gpus[role] * lasted / 3600
        whole += gpu_h * PRICE
        seen.same(f"{role}: role", row["role"], role)
        seen.same(f"{role}: rank-hours", row["rank-hours"], size * lasted / 3600)
        seen.same(f"{role}: GPU-hours", row["GPU-hours"], gpu_h)
        seen.same(f"{role}: price", row["price"], gpu_h * PRICE, within=0.005)
        seen.same(f"{role}: waiting", row["waiting"], waits(facts, role))
        if facts.lost_s is not None:
            seen.same(f"{role}: lost", row.get("lost") or row["lost to failures"], facts.lost_s / lasted)
    seen.same("price", (re.search(r"([\d.]+) at 2.5 per GPU-hour", shown.text) or [""])[1], whole, within=0.005)


def waits(facts: Facts, role: str) -> float:
    """Return the share of a role's time in which it waited."""
    shares = facts.shares(role, *facts.ends)
    return math.fsum(share for name, share in shares.items() if name in WAITS or name.startswith("edge "))


def on_path(seen: Compared, label: str, share: float) -> None:
    """An operator has the share of the critical path that a walk finds, and no more than the time in which it ran."""
    facts = seen.facts
    if label in facts.labels.values():
        # The path begins at the first operator, so the whole may be shorter than the window.
        since, until = facts.last_steps(60.0)
        walked = facts.walk(since, until) if seen.walks else None
        if walked is not None:
            seen.same(f"critical path: {label}, walked", share, walked.get(label, 0.0), within=0.1)
        begins = [
            span.t for rank in facts.records for span in facts.spans(rank)
            if span.phase in ("computing", "serving") and span.end > since
        ]  # fmt: skip
        seen.most(f"critical path: {label}", share, facts.most_on_path(label, max(since, min(begins)), until))


def flow(seen: Compared) -> None:
    facts, shown = seen.facts, page(seen.address("flow"))
    since, until = facts.last_steps(60.0)
    path = [(each.text.partition(" ")[2].rpartition(" ")[0], number(each.text.partition(" ")[0])[0])
            for each in shown.section("Critical path").all("div", "share-row")]  # fmt: skip
    nodes = [each for each in shown.every() if "node" in each.attributes.get("class", "").split()]
    ops = {*facts.role_of.values()}
    seen.same("nodes", len(nodes), len(facts.labels) + len([role for role in facts.sizes if role not in ops]))
    seen.same("critical path", bool(path), any(map(facts.spans, facts.records)))
    for node in nodes:
        said = node.attributes["aria-label"]
        label, _, rest = said.partition(": ")
        role = next((facts.role_of[op] for op, each in facts.labels.items() if each == label), label)
        parts = rest.split(" · ")
        seen.same(f"{label}: ranks", parts[0].split()[0], str(facts.sizes[role]))
        for each in parts[1:]:
            if each.startswith("critical path"):
                first = label == next(each for op, each in facts.labels.items() if facts.role_of[op] == role)
                own = [part for name, part in path if name == label or (first and name.startswith(f"{role}:"))]
                seen.same(f"{label}: critical path", each.rpartition(" ")[2], math.fsum(own), within=0.005 * len(own))
            elif each.startswith("computes"):
                seen.same(f"{label}: computes", each.split()[-1], facts.shares(role, since, until)["computing"])
    if (speed := re.search(r"Speed: (\S+ \S+ per step|\S+ steps/s)", shown.text)) and facts.seconds_per_step:
        pace = facts.seconds_per_step
        seen.same("speed", speed[1], pace if speed[1].endswith("per step") else 1 / pace)
    edges = shown.table() if facts.flow["edges"] else []
    seen.same("edges", len(edges), len(facts.flow["edges"]))
    for row, edge in zip(edges, facts.flow["edges"], strict=True):
        name = f"{facts.labels[edge['src']]} → {facts.labels[edge['dst']]}"
        seen.same("edge", (row["edge"], row["value"]), (name, edge["param"]))
        waits, blocked = facts.waits(edge, since, until)
        seen.same(f"{name}: waits", row["waits"], waits)
        seen.same(f"{name}: blocked", row["blocked"], blocked)
        sent, values = facts.traffic(edge, *facts.recent)
        seen.same(f"{name}: sent", row["sent"] or "0 B/s", sent)
        seen.same(f"{name}: values/s", row["values/s"] or "0", values)  # an empty cell is no value
    for name, share in path:
        on_path(seen, name, share)
    seen.most("critical path: sum", math.fsum(share for _, share in path), 1.0)
    found, role = shown.section("Where the time of each role goes"), ""
    for each in found.children:
        if isinstance(each, Element) and each.tag == "h3":
            role = each.text
        elif isinstance(each, Element) and role:
            share, _, what = each.text.partition(" ")
            seen.same(f"{role} {what}", share, facts.shares(role, since, until)[use(facts, role, what)])


WORDS = {
    "computes": "computing", "saves snapshots": "saving", "ahead of its consumers": "idle",
    "waits for the master": "idle", "waits for other ranks or the master": "idle",
    "waits for memory": "memory", "waits for its turn": "turn", "loads, or makes room": "loading",
    "waits for its group": "gathering", "waits for an answer": "calling", "serves calls": "serving",
    "waits for callers": "following",
}  # fmt: skip


def advice(seen: Compared) -> None:
    """Each advice has the figures of the files, and those that follow from one figure are there."""
    shown = page(seen.address("advice"))
    told = [[each.all(tag)[0].text for tag in ("h2", "p")] for each in shown.all("article")]
    advised(seen, told)
    facts, (since, until) = seen.facts, seen.facts.last_steps(60.0)
    titles, wanted = [title for title, _ in told], []
    for role in facts.sizes:
        used = {rank: facts.spent(rank, since, until) for rank in facts.records if rank[0] == role}
        if facts.shares(role, since, until).get("saving", 0.0) > 0.0101 and max(u[1] for u in used.values()) >= 2e7:
            wanted.append(f"snapshots of {role} cost time")
        costs = {rank: spent.get("computing", 0.0) / steps for rank, (spent, _, steps) in used.items() if steps}
        middle = sorted(costs.values())[(len(costs) - 1) // 2] if costs else 0.0
        wanted += [f"{role}/{rank} is slower than the others of its role" for (_, rank), each in costs.items()
                   if len(costs) > 1 and each > 1.51 * middle > 0]  # fmt: skip
    restarts = Counter(name for of in facts.recoveries if of.failed for name in of.restarted)
    wanted += [f"{name} was restarted {times} times" for name, times in restarts.items() if times >= 3]
    for title in wanted:
        seen.same(f"advice: {title}", title in titles, True)
    for fault, has in FAULTS.items():
        bad, most = sum(map(has, facts.newest_rows)), {"truncated": 0.2}.get(fault, 0.1) * len(facts.newest_rows)
        if fault not in facts.names:
            seen.same(f"advice: {fault} rows", any(FAULTY[fault] == title for title in titles), bad > most)


FAULTY = {"truncated": "samples are cut off", "failed": "samples or their tools fail", "empty": "completions are empty"}


def advised(seen: Compared, told: list[list[str]]) -> None:
    """Compare the figures of advice: titles and reasons."""
    facts, (since, until) = seen.facts, seen.facts.last_steps(60.0)
    edges = facts.flow["edges"]
    for title, why in told:
        if match := re.match(r"its ranks waited for (?P<credit>credits of )?(?P<param>\S+) for (?P<share>\d+%)", why):
            at = 1 if match["credit"] else 0
            role = title.split(" waits ")[0]
            own = [
                facts.waits(edge, since, until)[at]
                for edge in edges
                if edge["param"] == match["param"] and facts.role_of[edge["src" if at else "dst"]] == role
            ]
            seen.same(title, match["share"], min(own, key=lambda each: abs(each - number(match["share"])[0])))
            seen.same(f"{title}: long", max(own) > 0.5, True)
        elif match := re.match(r"snapshots of (\S+) cost time", title):
            seen.same(title, why.split()[0], facts.shares(match[1], since, until)["saving"])
        elif match := re.match(r"a step costs it (\S+ s), the median rank (\S+ s)", why):
            role, rank = title.split()[0].split("/")
            used = {each: facts.spent(each, since, until) for each in facts.records if each[0] == role}
            costs = {each: spent["computing"] / steps / 1e6 for each, (spent, _, steps) in used.items() if steps}
            seen.same(f"{title}: rank", match[1], costs[role, int(rank)])
            seen.same(f"{title}: median", match[2], sorted(costs.values())[(len(costs) - 1) // 2])
        elif match := re.match(r"(\S+) was restarted (\d+) times", title):
            restarts = Counter(name for of in facts.recoveries if of.failed for name in of.restarted)
            seen.same(title, int(match[2]), restarts[match[1]])
        elif match := re.match(r"(\S+) is (\d+%), the mean of its last (\d+) values", why):
            values = [value for _, _, value in facts.points(match[1])][-20:]
            seen.same(f"{title}: lines", int(match[3]), len(values))
            seen.same(title, match[2], math.fsum(values) / len(values))
        elif match := re.match(r"(\d+) of the newest (\d+) kept rows", why):
            (fault,) = [name for name, each in FAULTY.items() if each == title]
            seen.same(title, int(match[1]), sum(map(FAULTS[fault], facts.newest_rows)))
            seen.same(f"{title}: rows", int(match[2]), len(facts.newest_rows))
        elif match := re.match(r"logprob_diff is (\S+), the mean of its last (\d+) values", why):
            values = [value for _, _, value in facts.points("logprob_diff")][-20:]
            seen.same(f"{title}: lines", int(match[2]), len(values))
            mean = math.fsum(values) / len(values)
            seen.same(title, float(match[1]), float(f"{mean:.2g}"))
        elif match := re.match(r"(\S+) was (\S+) steps old in the last step, of at most (\d+)", why):
            edge = next(each for each in edges if each["param"] == match[1] and f"({match[3]})" in each["lag"])
            said = facts.metrics[-1]["staleness"]
            age = said.get(facts.labels[edge["dst"]], said.get(f"{facts.labels[edge['src']]} → "
                                                               f"{facts.labels[edge['dst']]}"))  # fmt: skip
            seen.same(title, match[2], float(age))
        else:
            seen.same(f"{title}: {why}", "a known kind", "of advice")


def logs(seen: Compared) -> None:
    folder = seen.ended.path / "logs"
    texts = {path.name: path.read_bytes().decode(errors="replace") for path in folder.glob("*.log")}
    shown = page(seen.address("logs"))
    seen.same("files", sorted(each.text for each in shown.all("option")), sorted(texts))
    words = Counter(word.lower() for text in texts.values() for word in re.findall(r"\w{4,}", text))
    for word in [word for word, _ in words.most_common(3)] + sorted(words, key=lambda word: (words[word], word))[:3]:
        hits = [(name, line.translate(PICTURES)) for name, text in texts.items() for line in text.split("\n")
                if word in line.lower()]  # fmt: skip
        found = page(seen.address(f"logs?find={word}"))
        said = next(each.text for each in found.all("p", "quiet"))
        seen.same(f"{word}: lines", said.split()[0], str(min(500, len(hits))))
        if len(hits) < 500 and all(len(line) < 2000 for _, line in hits):
            cells = [[each.label for each in (row.all("a") + row.all("td", "mono"))] for row in found.all("tr")]
            seen.same(f"{word}: texts", sorted(map(tuple, cells)), sorted(hits))
    for name, text in texts.items():
        (box,) = page(seen.address(f"logs?file={name}")).all("pre")
        text = text.translate(PICTURES)
        if text and len(text) < 100_000 and all(ord(each) < 0x2440 for each in text):
            seen.same(f"{name}: text", box.label.strip("\n"), text.strip("\n"))


PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
"""Pages show control characters as their pictures."""


WAITS = ("calling", "following", "gathering", "idle", "memory", "turn")


def use(facts: Facts, role: str, what: str) -> str:
    """Return the name in accounts of a use of time that a view names in words."""
    for edge in facts.flow["edges"]:
        source, target = edge["src"], edge["dst"]
        if what == f"waits for {edge['param']} of {facts.labels[source]}" and facts.role_of[target] == role:
            return f"edge {edge['id']}"
        if what == f"waits until {facts.labels[target]} takes {edge['param']}" and facts.role_of[source] == role:
            return f"edge {edge['id']}"
    return WORDS.get(what, what)


def failures(seen: Compared) -> None:
    facts, text = seen.facts, seen.address("failures")
    rows = page(text).table() if "caught up after" in text else []
    seen.same("recoveries", len(rows), len(facts.recoveries))
    for row, of in zip(rows, facts.recoveries, strict=True):
        seen.same("number", row["recovery"], str(of.number or "last failure"))
        for name, said in list(zip(of.failed, of.messages, strict=True))[:3]:
            seen.same(f"recovery {of.number}: what failed", f"{name}: {said}"[:150] in row["what failed"], True)
        seen.same(f"recovery {of.number}: restarted", row["restarted"], ", ".join(of.restarted) or "none")
        ready(seen, of, row["ready after"])
        if of.regained_s is not None:
            seen.same(f"recovery {of.number}: caught up", row["caught up after"], of.regained_s)
        one = page(seen.address(f"failure?number={of.number}"))
        ready(seen, of, one.pairs()["ready after"])
        if of.resumed:
            resumed = ", ".join(f"{name} from step {step}" for name, step in of.resumed)
            seen.same(f"recovery {of.number}: resumed", one.pairs()["restarted"].partition(" (")[0], resumed)


def events(seen: Compared) -> None:
    facts = seen.facts
    for kind, count in [("", len(facts.events)), *Counter(each["kind"] for each in facts.events).items()]:
        shown = page(seen.address(f"events?kind={kind}"))
        seen.same(f"events {kind}", shown.all("p", "quiet")[0].text.split()[0], str(count))
        seen.same(f"lines {kind}", len(shown.all("tr")), min(count, 500))


def placement(seen: Compared) -> None:
    shown = page(seen.address("placement"))
    boxes = {each.all("h2")[0].text: each.all("span", "rank") for each in shown.all("section", "node-box")}
    seen.same("nodes", sorted(boxes), sorted(seen.facts.placement))
    for node, ranks in seen.facts.placement.items():
        found = {}
        for each in boxes[node]:
            pid, start = re.findall(r"\d+", each.attributes["title"])
            found[each.text.split()[0]] = int(start), int(pid)
        for name, place in ranks.items():
            seen.same(f"{node}: {name}", found.pop(name, None), place)
        seen.same(f"{node}: others", found, {})


def rows(seen: Compared) -> None:
    facts = seen.facts
    if not facts.rows:
        return
    shown = page(seen.address("rows"))
    said = next(each.text for each in shown.all("p", "quiet") if re.match(r"[\d,]+ kept row", each.text))
    seen.same("kept rows", said.split()[0], f"{len(facts.rows):,}")
    table = {each["step"]: each for each in shown.table()}
    for step, kept in list(facts.kept())[:50]:
        row = table[f"step {step}"]
        seen.same(f"step {step}: rows", row["kept rows"], str(len(kept)))
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for each in kept:
            if (group := each["columns"].get("group")) is not None:
                groups[each["op"], str(group)] += [reward(each)] if reward(each) is not None else []
        seen.same(f"step {step}: groups", row["groups"], str(len(groups)))
        judged = [each for each in groups.values() if len(each) > 1]
        equal = sum(min(each) == max(each) for each in judged)
        seen.same(f"step {step}: degenerate", row["degenerate"], f"{equal} of {len(judged)}" if judged else "")
        rewards = [reward(each) for each in kept if reward(each) is not None]
        if rewards:
            seen.same(f"step {step}: mean reward", row["mean reward"], math.fsum(rewards) / len(rewards))
        for fault, has in FAULTS.items():
            seen.same(f"step {step}: {fault}", row.get(fault, "0"), str(sum(map(has, kept))))
        lines = page(seen.address(f"rows?step={step}"))
        table_of = (
            {(each["operator"], each["group"].split(" · ")[0]): each for each in lines.table(0)} if groups else {}
        )
        for (op, group), values in groups.items():
            line = table_of[op, f"group {group}"[:46]]
            for name, value in (("lowest", min(values, default=None)), ("highest", max(values, default=None))):
                if value is not None:
                    seen.same(f"step {step}, group {group}: {name}", line[name], value)


def reward(row: dict[str, Any]) -> Any:
    found = row["columns"].get("reward")
    return float(found) if isinstance(found, int | float) else None


def end(row: dict[str, Any]) -> str:
    columns = row["columns"]
    return str(columns.get("ended") or columns.get("finish_reason") or "")


CUT_OFF, BROKEN = ("truncated", "length", "turns", "tokens", "seconds"), ("error", "failed", "abort")
"""Ends of rows that did not finish, as the jobs write them."""
FAULTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "truncated": lambda row: end(row) in CUT_OFF or bool(row["columns"].get("truncated")),
    "failed": lambda row: end(row) in BROKEN or bool(row["columns"].get("error")),
    "empty": lambda row: any(not row["columns"].get(name, "-") for name in ("completion", "completion_ids")),
}


def metrics(seen: Compared) -> None:
    facts, shown = seen.facts, page(seen.address("metrics"))
    names = [each.attributes["data-name"] for each in shown.all("figure")]
    seen.same("names", sorted(names), facts.names)
    began = facts.events[0]["time"]
    times = {line["step"]: line["time"] - began for line in facts.metrics}
    for name in names:
        points = facts.points(name)
        found = json.loads(seen.address(f"data/metrics?name={name}"))
        seen.same(f"{name}: steps", found["steps"], [step for step, _, _ in points])
        along = json.loads(seen.address(f"data/metrics?name={name}&axis=time"))
        for (step, _, value), drawn in zip(points, found["raw"][0], strict=True):
            seen.same(
                f"{name}: step {step}",
                math.nan if isinstance(drawn, str) else drawn,
                value if math.isfinite(value) else math.nan,
            )
        for (step, _, _), place in zip(points, along["steps"], strict=True):
            seen.same(f"{name}: time of step {step}", place, times[step])
    if "trained_tokens" in names:
        total, wanted = 0.0, []
        for _, steps, value in facts.points("trained_tokens"):
            wanted.append(total := total + steps * value)
        found = json.loads(seen.address("data/metrics?name=trained_tokens&axis=tokens"))
        seen.same("axis of tokens", found["steps"][-1], wanted[-1])


def lanes(seen: Compared) -> None:
    """All of the accounts' time is in the lanes, each part under its own name."""
    facts, found = seen.facts, json.loads(seen.address("data/lanes?columns=3000"))
    begin, end = facts.ends
    seen.same("begin", found["begin"], begin)
    seen.same("length", found["length"], end - begin)
    seen.same("lanes", sorted(name for name, _ in found["lanes"]), sorted(f"{r}/{n}" for r, n in facts.records))
    drawn: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for name, pieces in found["lanes"]:
        role, _, rank = name.rpartition("/")
        shown: Counter[str] = Counter()
        for t, took, phase, op, edge, _, _ in pieces:
            what = f"edge {edge}" if phase in ("waiting", "blocked") and edge >= 0 else phase
            shown[what] += took
            drawn[name, op].append((t + begin, t + begin + took))
        spent, wall, _ = facts.spent((role, int(rank)), begin, end)
        for what, us in spent.items():
            # A process that was killed has spans, but no account, of its last time.
            longest = max(line["d"] for line in facts.accounts((role, int(rank))))
            lost = 1.5 * longest * facts.restarts[name] + 0.02 * wall
            seen.same(f"{name}: {what}", shown[what] / 1e6, us / 1e6, within=(lost + 2000) / 1e6)
    for source, left, target, arrived, edge, step in found["arrows"]:
        one, other = facts.flow["edges"][edge]["src"], facts.flow["edges"][edge]["dst"]
        lag = int(facts.flow["edges"][edge]["lag"])
        seen.same(
            "arrow: begin", made(facts, found["lanes"][source][0], one, step - lag, left + begin, ended=True), True
        )
        seen.same("arrow: end", made(facts, found["lanes"][target][0], other, step, arrived + begin, ended=False), True)
    marks = [each for each in found["marks"] if each[2] != "resize"]
    seen.same("marks", len(marks), len(facts.recoveries))


def loads(seen: Compared) -> None:
    """The loads of nodes and engines on the page Time are those of the nodes' files and of the lines of metrics."""
    facts, found = seen.facts, json.loads(seen.address("data/lanes?columns=3000"))
    (begin, end), shown = facts.ends, {(name, what): each for name, what, *each in found["loads"]}
    for node in sorted(facts.placement):
        lines = [line for line in facts.nodes[node] if line["t"] < end and line["t"] + line["d"] > begin]
        amounts = {"cores": [line["cores"] for line in lines], "memory": [line["memory"] for line in lines]}
        rates = [(line.get("received", 0) + line.get("sent", 0)) * 1e6 / line["d"] for line in lines]
        amounts |= {"network": rates} if any(rates) else {}
        full = {"cores": lines[-1]["cores_total"], "memory": lines[-1]["memory_total"], "network": max(rates)}
        for what, wanted in amounts.items():
            _, _, most, parts = shown.pop((node, what))
            seen.same(f"{node} {what}: full", most, float(full[what]))
            seen.same(f"{node} {what}: times", [part[:2] for part in parts], [[x["t"] - begin, x["d"]] for x in lines])
            for part, amount in zip(parts, wanted, strict=True):
                seen.same(f"{node} {what}", part[2], float(amount))
    first = next(event["time"] for event in facts.events if event["kind"] == "job_running")
    times = [int(first * 1e6), *(int(line["time"] * 1e6) for line in facts.metrics)]
    for reported in ENGINE:
        for name in [each for each in facts.names if each == reported or each.endswith(f"_{reported}")]:
            _, unit, most, parts = shown.pop(("engines", name))
            told = dict(zip((line["step"] for line in facts.metrics), pairwise(times), strict=True))
            points = [(told[step], value) for step, _, value in facts.points(name) if math.isfinite(value)]
            seen.same(f"{name}: full", most, max(value for _, value in points) if unit else 1.0)
            seen.same(f"{name}: parts", len(parts), len(points))
            for (t, d, amount), ((before, now), value) in zip(parts, points, strict=True):
                seen.same(f"{name}: time", (t + begin, t + begin + d), (before, now))
                seen.same(name, amount, value)
    seen.same("others", [what for _, what in shown if not what.startswith("GPU")], [])


ENGINE = ("requests_running", "requests_waiting", "kv_cache_usage", "preemptions", "generated_tokens_per_s")
"""Ends of the names of metrics in which an inference engine reports about itself."""


def made(facts: Facts, name: str, op: int, step: int, at: int, *, ended: bool) -> bool:
    role, _, rank = name.rpartition("/")
    spans = [
        each for each in facts.spans((role, int(rank))) if (each.phase, each.op, each.step) == ("computing", op, step)
    ]
    return any((each.end if ended else each.t) == at for each in spans)


# ------------------------------------------------------------------------------------------------------ verbs


def status(seen: Compared) -> None:
    facts, found = seen.facts, json.loads(seen.verb("status", seen.ended.name, "--json"))
    seen.same("state", found["state"], facts.state)
    seen.same("steps", (found["committed_steps"], found["steps"]), facts.steps)
    # What precedes the first event and follows the last one has no figure of its own.
    seen.same("wall_s", found["wall_s"] >= facts.least_s, True)
    seen.same("wall_s", found["wall_s"], facts.result["wall_s"])
    told = seen.verb("status", seen.ended.name)
    seen.same("text", f"{facts.steps[0]}" in told and facts.state in told, True)


def top(seen: Compared) -> None:
    facts, found = seen.facts, json.loads(seen.verb("top", seen.ended.name, "--json"))
    since, until = facts.last_steps(60.0)
    seen.same("state", found["state"], facts.state)
    seen.same("steps", (found["step"], found["steps"]), facts.steps)
    seen.same("wall_s", found["wall_s"], facts.result["wall_s"])
    seen.same("goodput", found["goodput"], facts.result["goodput"]["share"])
    seen.same("window_s", found["window_s"], (until - since) / 1e6)
    seen.same("ranks", [each["rank"] for each in found["ranks"]], sorted(f"{r}/{n}" for r, n in facts.records))
    for each in found["ranks"]:
        role, _, rank = each["rank"].rpartition("/")
        spent, wall, _ = facts.spent((role, int(rank)), since, until)
        seen.same(f"{each['rank']}: state", each["state"], facts.end(each["rank"]))
        pids = [event["data"]["pid"] for event in facts.of_kind("rank_up") if ref_of(event["data"]) == each["rank"]]
        heads = [line["pid"] for line in facts.records[role, int(rank)] if line["k"] == "head"]
        seen.same(f"{each['rank']}: pid", each["pid"], (heads or pids)[-1])
        seen.same(f"{each['rank']}: restarts", each["restarts"], facts.restarts[each["rank"]])
        if not wall:
            seen.same(f"{each['rank']}: nothing", (each["computing"], each["waiting"], each["rest"]), (0.0, 0.0, 0.0))
            continue
        names = ("computing", "serving")
        working = sum(spent.get(name, 0.0) for name in names) / wall
        waiting = (
            sum(us for name, us in spent.items() if name[:5] == "edge " or name in ("calling", "following")) / wall
        )
        seen.same(f"{each['rank']}: computing", each["computing"], working)
        seen.same(f"{each['rank']}: waiting", each["waiting"], waiting)
        seen.same(f"{each['rank']}: rest", each["rest"], max(0.0, 1 - working - waiting), within=1e-6)
        seen.same(f"{each['rank']}: step", each["step"], facts.accounts((role, int(rank)))[-1]["step"])
    for each, edge in zip(found["edges"], facts.flow["edges"], strict=True):
        waits, blocked = facts.waits(edge, since, until)
        seen.same(f"{each['edge']}: waits", each["waiting"], waits)
        seen.same(f"{each['edge']}: blocked", each["blocked"], blocked)
    for each in found["path"]:
        on_path(seen, each["name"], each["share"])
    for each in found.get("metrics", ()):
        points = facts.points(each["name"])
        seen.same(f"{each['name']}: value", each["value"], points[-1][2])
    frame = seen.verb("top", seen.ended.name, "--once")
    seen.same("text", f"{facts.steps[0]} of" in frame or facts.steps[1] is None, True)


def ref_of(data: dict[str, Any]) -> str:
    return f"{data['role']}/{data['rank']}"


def report(seen: Compared) -> None:
    facts = seen.facts
    seen.verb("report", seen.ended.name, "--gpu-hour-price", str(PRICE))
    shown = page((seen.ended.path / "report.html").read_text())
    (box,) = shown.section("Summary").all("div", "cards")
    cards = {each.all("span")[0].text: each.all("b")[0].text for each in box.all("div")}
    done, wanted = facts.steps
    seen.same("state", cards["state"], facts.state)
    seen.same("steps", cards["steps"], f"{done}" + (f" of {wanted}" if wanted else ""))
    seen.same("time", re.sub(r"(\d+) min (\d+) s", lambda each: f"{60 * int(each[1]) + int(each[2])} s", cards["time"]),
              facts.result["wall_s"], within=0.5)  # fmt: skip
    seen.same("goodput", cards["goodput"], facts.result["goodput"]["share"])
    seen.same("recoveries", cards["recoveries"], str(sum(each.number > 0 for each in facts.recoveries)))
    seen.same("ranks", cards["ranks"], ", ".join(f"{role} {size}" for role, size in facts.sizes.items()))
    cost(seen, shown.section("Cost"))
    notes = [re.match(r"(.*?): (.*?)\.? ?Try: ", each.text) for each in shown.section("Advice").all("div", "note")]
    advised(seen, [[note[1], note[2]] for note in notes if note])
    time = shown.section("Where the time went")
    roles = [each.text for each in time.all("text", "b")]
    for bar in time.all("g"):
        (rect,) = bar.all("rect")
        role = roles[int(rect.attributes["y"]) // 34]
        what, _, share = bar.all("title")[0].label.rpartition(": ")
        seen.same(f"{role} {what}", share, facts.shares(role, *facts.ends)[use(facts, role, what)])
    for row in shown.section("Critical path").table():
        on_path(seen, row["station"], number(row["share"])[0])
    for each in shown.section("Metrics").all("figure") if facts.names else ():
        name, told = each.all("b")[0].text, each.all("span")[0].text
        count, _, value = told.partition(" points, last ")
        points = facts.points(name)
        seen.same(f"{name}: points", count, str(len(points)))
        seen.same(f"{name}: last", value.partition(",")[0], points[-1][2])
    marks = [each for each in shown.section("Lanes").all("path", "mark") if "resize" not in each.attributes["class"]]
    seen.same("marks", len(marks), len(facts.recoveries))
    text = shown.section("Failures and recoveries").text
    for of in facts.recoveries:
        seen.same(f"recovery {of.number}", all(each[:100] in text for each in (*of.failed, *of.restarted)), True)
    times = re.findall(r"ranks ready after\s*([\d.]+ s)", text)
    for shown_s, wanted_s in zip(times, [of.ready_s for of in facts.recoveries if of.ready_s is not None], strict=True):
        seen.same("ready after", shown_s, wanted_s)
    placed = {row["rank"]: row["node"] for row in shown.section("Placement").table()}
    there = {name: node for node, ranks in facts.placement.items() for name in ranks}
    seen.same("placement", placed, there)


def journal(seen: Compared) -> None:
    """The events, as the verb prints them."""
    found = [json.loads(line) for line in seen.verb("events", seen.ended.name, "--json").splitlines()]
    seen.same("numbers", [each["seq"] for each in found], [each["seq"] for each in seen.facts.events])
    for shown, wanted in zip(found, seen.facts.events, strict=False):
        seen.same(f"event {wanted['seq']}", shown, wanted)


def sql(seen: Compared) -> None:
    facts = seen.facts

    def answers(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(seen.verb("sql", seen.ended.name, query, "--format", "json"))
        return found

    found_ranks = answers(
        "select role, rank, sum(computing_s) computing, sum(waiting_s) waiting, sum(saving_s) saving, "
        "sum(idle_s) idle, sum(wall_s) wall, sum(steps) steps, count(*) starts, max(last_step) last "
        "from ranks group by role, rank"
    )
    seen.same("ranks", sorted((row["role"], row["rank"]) for row in found_ranks), sorted(facts.records))
    for row in found_ranks:
        rank = row["role"], row["rank"]
        spent: Counter[str] = Counter()
        for line in facts.accounts(rank):
            spent.update(line.get("spent", {}))
        spent["waiting"] = sum(us for name, us in spent.items() if name == "memory" or name.startswith("edge "))
        for name in ("computing", "waiting", "saving", "idle"):
            seen.same(f"{rank} {name}", row[name], spent[name] / 1e6)
        seen.same(f"{rank} wall", row["wall"], sum(line["d"] for line in facts.accounts(rank)) / 1e6)
        seen.same(f"{rank} steps", row["steps"], sum(line["steps"] for line in facts.accounts(rank)))
        seen.same(f"{rank} last", row["last"], max((line["step"] for line in facts.accounts(rank)), default=None))
        seen.same(f"{rank} starts", row["starts"], facts.starts[f"{rank[0]}/{rank[1]}"])
    (row,) = answers("select count(*) n, sum(seconds) s from spans where operator is not null and phase = 'computing'")
    spans = [span for rank in facts.records for span in facts.spans(rank) if span.phase == "computing"]
    seen.same("spans", row["n"], len(spans))
    seen.same("seconds of spans", row["s"], sum(span.end - span.t for span in spans) / 1e6)
    for row in answers("select edge, consumer_waited_s c, producer_waited_s p from edges"):
        edge = facts.flow["edges"][row["edge"]]
        for side, op in (("c", edge["dst"]), ("p", edge["src"])):
            ranks = [rank for rank in facts.records if rank[0] == facts.role_of[op]]
            waited = [
                line.get("spent", {}).get(f"edge {row['edge']}", 0) for rank in ranks for line in facts.accounts(rank)
            ]
            seen.same(f"edge {row['edge']} {side}", row[side], sum(waited) / 1e6)
    costs = answers("select role, rank_hours, gpu_hours, lost, waiting from costs")
    seen.same("costs", sorted(row["role"] for row in costs), sorted(facts.sizes))
    for row in costs:
        role, lasted = row["role"], facts.result["wall_s"]
        seen.same(f"{role}: rank hours", row["rank_hours"], facts.sizes[role] * lasted / 3600)
        seen.same(f"{role}: GPU hours", row["gpu_hours"], facts.gpus[role] * lasted / 3600)
        seen.same(f"{role}: waiting", row["waiting"], waits(facts, role))
        if facts.lost_s is not None:
            seen.same(f"{role}: lost", row["lost"], facts.lost_s / lasted, within=1e-6)
    kinds = {row["kind"]: row["n"] for row in answers("select kind, count(*) n from events group by kind")}
    seen.same("events", kinds, dict(Counter(each["kind"] for each in facts.events)))
    for row in answers("select name, sum(value * steps) total, sum(steps) steps from metrics where operator is null "
                       "and role is null and name not like 'staleness:%' group by name"):  # fmt: skip
        points = facts.points(row["name"])
        wanted = math.fsum(steps * value for _, steps, value in points)
        total = math.nan if row["total"] is None else float(row["total"])
        seen.same(f"{row['name']}: total", total, wanted)
        seen.same(f"{row['name']}: steps", row["steps"], sum(steps for _, steps, _ in points))
    found = {row["number"]: row for row in answers("select number, ready_s, regained_s, restarted from recoveries")}
    seen.same("recoveries", sorted(found), sorted(each.number for each in facts.recoveries))
    for of in facts.recoveries:
        for name, wanted_s in (("ready_s", of.ready_s), ("regained_s", of.regained_s)):
            seen.same(f"recovery {of.number}: {name}", found[of.number][name], wanted_s)
        seen.same(f"recovery {of.number}: restarted", tuple(found[of.number]["restarted"]), of.restarted)
    (row,) = answers("select count(*) n, count(*) filter (ended = 'truncated') truncated, "
                     "count(*) filter (empty) as empty, count(reward) rewards, coalesce(sum(reward), 0) total "
                     "from rows")  # fmt: skip
    rewards = [reward(each) for each in facts.rows if reward(each) is not None]
    wanted_row = {"n": len(facts.rows), "truncated": sum(map(FAULTS["truncated"], facts.rows))}
    wanted_row |= {"empty": sum(map(FAULTS["empty"], facts.rows)), "rewards": len(rewards)}
    for name, count in wanted_row.items():
        seen.same(f"rows: {name}", row[name], count)
    seen.same("rows: rewards together", float(row["total"]), math.fsum(rewards))


def trace(seen: Compared) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    facts, path = seen.facts, seen.ended.path.parent.parent / f"{seen.ended.name}.perfetto-trace"
    path.unlink(missing_ok=True)
    seen.verb("trace", seen.ended.name, "-o", str(path))
    content, tracks, owners, clocks = Trace.FromString(path.read_bytes()), {}, {}, {}
    names: dict[tuple[int, int], str] = {}
    open_: dict[int, list[tuple[str, int | None, int]]] = defaultdict(list)
    slices: dict[str, list[tuple[str, int | None, int, int]]] = defaultdict(list)
    points, counts = list[str](), defaultdict[str, list[tuple[int, float]]](list)
    for packet in content.packet:
        at = packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            told = packet.track_descriptor
            tracks[told.uuid] = told.process.process_name or told.thread.thread_name or told.name
        for clock in packet.clock_snapshot.clocks:
            clocks[at] = clock.timestamp if clock.is_incremental else clocks.get(at, 0)
        names |= {(at, name.iid): name.name for name in packet.interned_data.event_names}
        if packet.HasField("trace_packet_defaults"):
            owners[at] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("track_event"):
            event, track = packet.track_event, tracks[owners[at]]
            clocks[at] += packet.timestamp
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                step = next((each.int_value for each in event.debug_annotations), None)
                open_[at].append((names[at, event.name_iid], step, clocks[at]))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                slices[track].append((*open_[at].pop(), clocks[at]))
            elif event.type == TrackEvent.TYPE_INSTANT:
                points.append({each.name: each.string_value for each in event.debug_annotations}["number"])
            elif event.type == TrackEvent.TYPE_COUNTER:
                counts[track].append((clocks[at], event.double_counter_value))
    recorded = sorted(f"{role}/{rank}" for (role, rank), lines in facts.records.items() if lines)
    seen.same("ranks", sorted(each for each in slices if "/" in each), recorded)
    for rank in facts.records:
        drawn = Counter(slices[f"{rank[0]}/{rank[1]}"])
        for span in facts.spans(rank):
            if span.phase == "computing":
                found = (facts.labels[span.op], span.step, span.t, span.end)
                seen.same(f"{rank}: {found}", drawn[found] > 0, True)
    seen.same("recoveries", len(slices["recoveries"]), len(facts.recoveries))
    for of, (_, _, begin, end) in zip(
        facts.recoveries, sorted(slices["recoveries"], key=lambda each: each[2]), strict=True
    ):
        if of.ready_s is not None:
            seen.same(f"recovery {of.number}: ready", (end - begin) / 1e6, of.ready_s, within=1e-5)
    for name in facts.names:
        if len({line["time"] for line in facts.metrics}) == len(facts.metrics):
            wanted_points = [value for _, _, value in facts.points(name) if math.isfinite(value)]
            for (_, value), exact in zip(counts.get(f"metric {name}", []), wanted_points, strict=True):
                seen.same(name, value, exact)
    numbers = {str(each["seq"]): each["kind"] for each in facts.events}
    for kind in ("failure", "recovered", "injected"):
        shown = sum(numbers[each] == kind for each in points)
        seen.same(f"events {kind}", shown, len(facts.of_kind(kind)))
    for rank in facts.records:
        rates = counts[f"{rank[0]}/{rank[1]}: steps"]
        steps = sum(value * (after - at) / 1e6 for (at, value), (after, _) in pairwise(rates))
        wanted = sum(line["steps"] for line in facts.accounts(rank))
        gaps = wanted and 1.05 * max(0.1, max(value for _, value in rates)) * (
            1 + facts.restarts[f"{rank[0]}/{rank[1]}"]
        )
        seen.same(f"{rank}: steps", steps, float(wanted), within=2 * gaps)


# --------------------------------------------------------------------------------------------------- trackers


def tracked(facts: Facts) -> dict[str, list[tuple[int, float]]]:
    """Return what a tracker gets: metrics by name, those of operators that share one, times of roles, staleness."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name in facts.names:
        found[name] = [(step, value) for step, _, value in facts.points(name)]
    for line in facts.metrics:
        reporting = Counter(name for values in line["operators"].values() for name in values)
        for label, values in line["operators"].items():
            for name, value in values.items():
                if reporting[name] > 1:
                    found[f"{label}/{name}"].append((line["step"], math.nan if value is None else float(value)))
        for role, times in line["roles"].items():
            for name, seconds in times.items():
                found[f"time/{role}/{name}"].append((line["step"], seconds / line["steps"]))
        for edge, age in line["staleness"].items():
            found[f"staleness/{edge}"].append((line["step"], float(age)))
    return dict(found)


def series(
    seen: Compared, name: str, shown: list[tuple[int, float]], wanted: list[tuple[int, float]], rough: float
) -> None:
    """Compare a series; `rough` is the relative precision of its store."""
    seen.same(f"{name}: steps", [step for step, _ in shown], [step for step, _ in wanted])
    for (step, value), (_, exact) in zip(shown, wanted, strict=False):
        seen.same(
            f"{name}: step {step}", float(value), exact if math.isfinite(exact) else math.nan, within=rough * abs(exact)
        )


def tensorboard(seen: Compared) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = EventAccumulator(str(seen.ended.path / "tensorboard"), size_guidance={"scalars": 0})
    store.Reload()
    wanted = tracked(seen.facts)
    seen.same("names", sorted(store.Tags()["scalars"]), sorted(wanted))
    for name in store.Tags()["scalars"]:
        series(seen, name, [(each.step, each.value) for each in store.Scalars(name)], wanted[name], 1e-6)


def otel(seen: Compared) -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found: dict[str, dict[int, float]] = defaultdict(dict)
    numbers = set()
    for path, body in seen.ended.posted:
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in resource.scope_metrics[0].metrics:
                    for at in metric.gauge.data_points:
                        value = at.as_int if at.WhichOneof("value") == "as_int" else at.as_double
                        found[metric.name][at.time_unix_nano] = value
        else:
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                for record in resource.scope_logs[0].log_records:
                    numbers |= {each.value.int_value for each in record.attributes if each.key == "rolemesh.seq"}
    seconds = {line["step"]: line["time"] for line in seen.facts.metrics}
    for name, wanted in tracked(seen.facts).items():
        start = "rolemesh." + re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
        key = start if start in found else next((each for each in found if each.startswith(start)), start)
        points = found[key]
        seen.same(f"{name}: points", len(points), len({seconds[step] for step, _ in wanted}))
        for step, value in wanted:
            shown = next((each for at, each in points.items() if abs(at / 1e9 - seconds[step]) < 1e-6), None)
            if len({one for one, _ in wanted}) == len({seconds[one] for one, _ in wanted}):
                seen.same(f"{name}: step {step}", shown, value)
    for kind in ("failure", "recovered", "injected"):
        seen.same(f"events {kind}", {each["seq"] for each in seen.facts.of_kind(kind)} <= numbers, True)


def prometheus(seen: Compared) -> None:
    """The last scrape has the values of the newest line before it."""
    from prometheus_client.parser import text_string_to_metric_families

    assert seen.ended.scraped
    values, step, kinds = dict[str, float](), -1, dict[str, float]()
    for family in text_string_to_metric_families(seen.ended.scraped[-1]):
        for each in family.samples:
            values |= {each.labels["metric"]: each.value} if each.name == "rolemesh_metric" else {}
            kinds |= {each.labels["kind"]: each.value} if each.name == "rolemesh_events_total" else {}
            step = int(each.value) if each.name == "rolemesh_step" and each.value else step
            if each.name == "rolemesh_ranks_wanted":
                seen.same(f"{each.labels['role']}: ranks", int(each.value), seen.facts.sizes[each.labels["role"]])
    for name, wanted in tracked(seen.facts).items():
        past = [value for at, value in wanted if at <= step]
        if past:
            seen.same(name, values.get(name), past[-1])
    for kind, count in kinds.items():
        seen.most(f"events {kind}", count, len(seen.facts.of_kind(kind)))


def mlflow(seen: Compared) -> None:
    store = seen.ended.path.parent.parent / "mlflow.db"
    if not store.exists():
        return
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    seen.same("status", run.info.status, {"done": "FINISHED", "failed": "FAILED"}[seen.facts.state])
    for name, wanted in tracked(seen.facts).items():
        start = re.sub(r"[^\w. /-]", "_", name)
        key = (
            name
            if name in run.data.metrics
            else next((each for each in run.data.metrics if each.startswith(start)), "")
        )
        found = (
            sorted((each.step, each.value) for each in client.get_metric_history(run.info.run_id, key)) if key else []
        )
        series(seen, name, found, wanted, 1e-9)


def wandb(seen: Compared) -> None:
    """The messages of the client, in the format of LevelDB's logs: blocks, and records with headers of seven bytes."""
    files = sorted(seen.ended.path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime)
    if not files:
        return
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    exits = []
    for file in files:
        data, parts, at = file.read_bytes(), b"", 7
        while at + 7 <= len(data):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
            parts += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind not in (1, 4):
                continue
            record, parts = Record.FromString(parts), b""
            exits += [record.exit.exit_code] if record.HasField("exit") else []
            for item in record.history.item if record.HasField("history") else ():
                found[item.key or item.nested_key[0]].append((record.history.step.num, json.loads(item.value_json)))
    seen.same("exit", exits[-1], {"done": 0}.get(seen.facts.state, 1))
    for name, wanted in tracked(seen.facts).items():
        series(seen, name, found.get(name, []), wanted, 1e-12)
    for kind in ("failure", "recovered", "injected"):
        counts = [value for _, value in found.get(f"events/{kind}", [])]
        seen.most(f"events {kind}", max(counts, default=0), len(seen.facts.of_kind(kind)))


def trackio(seen: Compared) -> None:
    """The tables of its database."""
    files = [path for path in seen.ended.path.glob("trackio/*.db") if path.stat().st_size]
    if not files:
        return
    (file,) = files
    with contextlib.closing(sqlite3.connect(file)) as store:
        lines = store.execute("select step, metrics from metrics order by step, id").fetchall()
        kinds = Counter(kind for (kind,) in store.execute("select title from alerts"))
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step, text in lines:
        for name, value in json.loads(text).items():
            found[name].append((step, float(value)))
    for name, wanted in tracked(seen.facts).items():
        series(seen, name, found.get(name, []), wanted, 1e-12)
    for kind in ("failure", "recovered", "injected"):
        seen.same(f"events {kind}", kinds[kind], len(seen.facts.of_kind(kind)))


def plot(seen: Compared) -> None:
    """The plot's points, made of the lines of metrics."""
    from rolemesh.api.observer import RunInfo
    from rolemesh.runs.jsonl import read_metrics
    from rolemesh_plot import PlotObserver, PlotOptions

    names = [name for name in seen.facts.names if all(math.isfinite(value) for *_, value in seen.facts.points(name))]
    observer = PlotObserver(PlotOptions(metrics=names))
    observer.job_started(RunInfo(seen.ended.name, str(seen.ended.path), seen.facts.steps[1], {}, ()))
    observer.steps_finished(tuple(read_metrics(seen.ended.path / "metrics.jsonl")))
    for name in names:
        shown = [value for value, _ in observer.series[name].values()]
        wanted = [value for _, _, value in seen.facts.points(name)]
        if len(wanted) < 500:
            seen.same(f"{name}: points", len(shown), len(wanted))
            for value, exact in zip(shown, wanted, strict=False):
                seen.same(name, float(value), exact)


def console(seen: Compared) -> None:
    facts, text = seen.facts, seen.ended.printed
    done, wanted = facts.steps
    head = re.search(rf"^. {seen.ended.name} (\w+) · (\d+) (?:of (\d+) )?steps · (.*)$", text, re.MULTILINE)
    assert head, text
    seen.same("state", head[1], facts.state)
    seen.same("steps", (int(head[2]), int(head[3]) if head[3] else None), (done, wanted))
    seen.same("time", seconds(head[4]), facts.result["wall_s"], within=0.051 if "." in head[4] else 0.51)
    text = text[head.start() :]
    for name in facts.names:
        line = re.search(rf"^{re.escape(name)} +(\S.*)$", text, re.MULTILINE)
        points = [each for each in facts.points(name) if math.isfinite(each[2])]
        if line is None or not points or "/s (" in line[1]:
            continue
        shown = line[1].split()
        seen.same(f"{name}: first", shown[0], points[0][2])
        if len(shown) > 1:
            seen.same(f"{name}: last", shown[1], points[-1][2])
        if len(shown) > 3:
            for which, each, mean in zip(("first", "last"), shown[2:], thirds(facts, name), strict=True):
                seen.same(f"{name}: {which} third", each, mean)
    for name, rate, total in re.findall(r"(\w+tokens) (\S+)/s \(([\d.e+]+)\)", text):
        seen.same(f"{name}: total", total, facts.total(name))
        lasted = facts.metrics[-1]["time"] - facts.of_kind("job_running")[0]["time"]
        seen.same(f"{name}: rate", rate, facts.total(name) / lasted)
    times = re.search(r"^role +computing.*\n((?:.+\n)+)", text, re.MULTILINE)
    lasted = facts.metrics[-1]["time"] - facts.of_kind("job_running")[0]["time"]
    for line in times[1].splitlines() if times else ():
        role, *shares = re.split(r"  +", line.strip())
        own = [each["roles"][role] for each in facts.metrics if role in each["roles"]]
        sums = [math.fsum(each[name] for each in own) for name in ("computing_s", "waiting_s", "blocked_s")]
        whole = max(lasted, sum(sums))
        for name, shown_, amount in zip(("computing", "waiting", "blocked"), shares, sums, strict=False):
            seen.same(f"{role}: {name}", shown_.replace(" %", "%"), amount / whole)
    lines = re.findall(r"^  (\w+) +[\w+]+ +recovered +([\d.]+) s.*restarted (.*)$", text, re.MULTILINE)
    ready_ones = [of for of in facts.recoveries if of.ready_s is not None]
    for (level, ready_s, names), of in zip(lines, ready_ones, strict=bool(lines)):
        seen.same(f"recovery {of.number}", (level, names), (of.level, ", ".join(of.restarted)))
        seen.same(f"recovery {of.number}: ready", f"{ready_s} s", of.ready_s, within=0.001)  # rounded twice


def seconds(text: str) -> float:
    """Return the seconds of ``6.9 s``, ``1:23`` or ``1:02:03``."""
    if ":" in text:
        found = 0.0
        for each in text.split(":"):
            found = 60 * found + float(each)
        return found
    return number(text)[0]


def result(seen: Compared) -> None:
    """The result that the master wrote, by the events before it."""
    facts, said = seen.facts, seen.facts.result
    seen.same("status", said["status"], facts.state)
    seen.same("committed_steps", said["committed_steps"], facts.steps[0])
    seen.same("wall_s", said["wall_s"] >= facts.least_s, True)
    planned = [of for of in facts.recoveries if of.number]
    seen.same("recoveries", [each["number"] for each in said["recoveries"]], [of.number for of in planned])
    for each, of in zip(said["recoveries"], planned, strict=True):
        for name, wanted in (("seconds", of.ready_s), ("regained_s", of.regained_s)):
            seen.same(f"recovery {of.number}: {name}", each[name], wanted, within=0.001)
        seen.same(f"recovery {of.number}: resumed", each["resumed"], dict(of.resumed))
    account = said["goodput"]
    lost = math.fsum(account["lost_s"].values())
    seen.same("goodput: all", account["productive_s"] + lost, said["wall_s"], within=0.005)
    rounding = 0.001 / said["wall_s"] + 0.0001  # both times are rounded to a thousandth, the share to a ten-thousandth
    seen.same("goodput: share", account["share"], account["productive_s"] / said["wall_s"], within=rounding)
    running, started = facts.of_kind("job_running"), facts.of_kind("job_started")
    if running and len(started) == 1:
        begin = running[0]["data"]["at"] - started[0]["data"]["at"]
        seen.same("goodput: start", account["lost_s"]["start"], begin, within=0.001)


def job(seen: Compared) -> None:
    shown = page(seen.address("job"))
    texts = [each.label for each in shown.all("pre")]
    wanted = {key: value for key, value in seen.facts.result.items() if key != "plugins"}
    seen.same("result", any(_json(each) == wanted for each in texts), True)


def _json(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return None


VIEWS: dict[str, Callable[[Compared], None]] = {
    each.__name__: each
    for each in (
        result, jobs, overview, flow, failures, events, placement, rows, metrics, lanes, loads, job, advice, logs,
        status, top, report, journal, sql, trace, console, tensorboard, prometheus, otel, mlflow, wandb, trackio, plot,
    )
}  # fmt: skip
"""The comparison of each page of the viewer, verb and tracker, by its name."""


def compared(ended: Ended, *, walks: bool) -> Iterator[Compared]:
    """Compare the figures of each view of a run. The present folder is the one that has ``runs``."""
    seen = Compared(ended, walks=walks)
    for name, view in VIEWS.items():
        seen.view = name
        view(seen)
        yield seen
