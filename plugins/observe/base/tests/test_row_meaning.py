"""The meaning of kept rows for their samples, and which difference explains a change of their rewards."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from rolemesh.api.rank_ref import RankRef
from rolemesh_agents.conversations.results import Failed, Held, failed_row, group_rows
from rolemesh_agents.conversations.transcript import Transcript
from rolemesh_agents.environment import Reward
from rolemesh_facts.row_meaning import FAULTS, Meaning, meaning
from rolemesh_queries.database import answer, opened
from rolemesh_recorder.rows import Row, Sampling, rows_folder
from rolemesh_view import application
from rolemesh_view.entries import Entry, entry_of
from rolemesh_view.explaining import explanation
from rolemesh_view.groups import why_reward
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs
from rolemesh_vllm.rows import Completion, join

REF, NOWHERE = RankRef("rollout", 0), (Path("nowhere"), 0)


def kept(batch: Any) -> list[Mapping[str, Any]]:
    """Return the columns of all rows of a batch as the recorder keeps them."""
    found: list[Row] = []

    class Call:
        label, returns = "a.b", "rows"

    run = Sampling("1").around(Call, lambda: batch, lambda: 0, found.append)  # type: ignore[arg-type]
    run()
    return [row.columns for row in found]


def test_rows_of_agents_say_how_they_ended() -> None:
    said = Transcript([1, 2], [])
    said.add_sampled([3, 4, 5], [-0.1] * 3, [7, 7, 8])
    held = [Held([said], Reward(1.0), end, "", 2) for end in ("finished", "truncated")]
    first, second = map(meaning, kept(group_rows(held, 5, 9, "none")))
    assert first == Meaning("finished", None, False, 3, 1.0, None, "9", "5", 7)
    assert second == first._replace(end="truncated")
    (nothing,) = map(meaning, kept(failed_row(Failed("no room", 3), 5, 9)))
    assert nothing == Meaning("failed", None, True, 0, None, "reward", "9", "5", None)


def test_rows_of_engines_say_how_they_ended() -> None:
    made = [Completion([1, 2], [-0.1, -0.2], "ab", "stop"), Completion([1, 2, 3], [-0.1] * 3, "abc", "length")]
    made.append(Completion([], [], "", "abort"))
    batch = join({}, [[5]], np.array([4]), made, samples=3, version=6, sampling={})
    stop, length, abort = map(meaning, kept(batch))
    assert stop == Meaning("finished", None, False, 2, None, None, "4", None, 6)
    assert length == stop._replace(end="truncated", tokens=3)
    assert abort == stop._replace(end="failed", tokens=0, empty=True)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"finish_reason": "None"}, {}),
        ({"finish_reason": {"type": "length", "length": 64}}, {"end": "truncated"}),  # SGLang
        ({"finish_reason": "MAX_TOKENS"}, {"end": "truncated"}),
        ({"finish_reason": "repetition"}, {"end": "repetition"}),
        ({"is_truncated": False, "stop_condition": "max_turns_reached"}, {"end": "truncated"}),  # verifiers
        ({"is_truncated": True, "is_completed": True, "example_id": 3}, {"end": "truncated", "task": "3"}),
        ({"terminated": False, "truncated": False}, {"end": "finished"}),  # Gymnasium
        ({"truncated": [False, True]}, {"end": "truncated"}),
        ({"truncated": "False", "status": "aborted"}, {"end": "failed"}),  # slime
        ({"response_length": 12, "uid": "x", "data_source": "math"}, {"tokens": 12, "group": "x", "task": "math"}),
        ({"responses": [5, 6, 0, 0], "response_mask": [1, 1, 0, 0]}, {"tokens": 2}),  # verl
        ({"completion": [{"role": "assistant", "content": " "}]}, {"empty": True}),
        ({"completion": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, {}),
        ({"others": [], "tools": [], "note": ""}, {}),
        ({"completion_ids": [1], "others": [{"completion_ids": [1, 2]}]}, {"tokens": 3}),
        ({"error": "", "errors": 0, "value_error": 0.25, "failed": False}, {}),
        ({"errors": 2}, {"end": "failed", "error": "errors: 2"}),
        ({"judge_error": "TimeoutError", "finish_reason": "stop"}, {"end": "finished", "error": "TimeoutError"}),
        ({"messages": [{"role": "tool", "content": "error: refused"}]}, {"error": "error: refused"}),
        ({"messages": [{"role": "user", "content": "error: refused"}]}, {}),
        ({"reward": True}, {"reward": 1.0}),
        ({"reward": "nan", "score": 0.5}, {"reward": 0.5, "odd": "reward"}),
        ({"reward": None}, {"odd": "reward"}),
        ({"logprobs": [-1.0, "nan"]}, {"odd": "logprobs"}),
        ({"sampler_logprobs": [-1.0, "-inf"], "answer": "nan"}, {}),
        ({"weight_versions": [-1, 5, 4]}, {"version": 4}),
    ],
)  # fmt: skip
def test_columns_are_read_by_their_meaning(columns: dict[str, Any], said: dict[str, Any]) -> None:
    nothing = Meaning(None, None, False, None, None, None, None, None, None)
    assert meaning(columns) == nothing._replace(**said)


def test_each_fault_has_rows_without_it() -> None:
    assert [name for name, has in FAULTS.items() if has(meaning({"others": [], "reward": 1.0}))] == []


Change = Callable[[int, dict[str, Any]], None]


def rows_of(number: int, change: Change | None = None, seed: int = 0) -> list[Row]:
    """Return eight groups of eight rows, of four tasks. About three rows of four have reward 1."""
    chance = random.Random(1000 * seed + number)
    found = []
    for at in range(64):
        columns: dict[str, Any] = {
            "group": at // 8, "task": f"task {at // 8 % 4}", "reward": float(chance.random() < 0.75),
            "ended": "finished", "completion_mask": [1] * chance.randrange(50, 200),
            "weight_versions": [number - 1, number],
            "messages": [{"role": "tool", "content": "42"}], "logprobs": [-0.5],
        }  # fmt: skip
        if change is not None:
            change(at, columns)
        found.append(Row(number, "agent.converse", at, columns))
    return found


def step(number: int, change: Change | None = None, seed: int = 0) -> list[Entry]:
    return [entry_of(REF, row, NOWHERE) for row in rows_of(number, change, seed)]


def truncation(at: int, row: dict[str, Any]) -> None:
    if at % 3 == 0:
        row |= {"ended": "truncated", "reward": 0.0, "completion_mask": [1] * 200}


def hard_task(at: int, row: dict[str, Any]) -> None:
    if row["task"] == "task 2":
        row |= {"reward": 0.0, "completion_mask": [1] * 180}


def broken_tool(at: int, row: dict[str, Any]) -> None:
    if at % 2:
        row |= {"reward": 0.0, "messages": [{"role": "tool", "content": "error: connection refused"}]}


def nan(at: int, row: dict[str, Any]) -> None:
    if at % 3 == 1:
        row |= {"reward": 0.0, "logprobs": ["nan"]}


def stale_weights(at: int, row: dict[str, Any]) -> None:
    if at % 8 < 4:
        row |= {"reward": 0.0, "weight_versions": [3, 3]}


CASES: dict[str, tuple[Change, str, str]] = {
    "truncation": (truncation, "end", "22 of 64 rows were truncated, before 0 of 64; their mean reward is 0 now."),
    "a hard task": (
        hard_task,
        "task",
        '16 of 64 rows had the task "task 2", before 16 of 64; their mean reward is 0 now',
    ),
    "a broken tool": (
        broken_tool,
        "error",
        '32 of 64 rows had an error (such as "error: connection refused"), before 0',
    ),
    "NaN": (nan, "odd", "21 of 64 rows had no number in logprobs, before 0 of 64"),
    "stale weights": (stale_weights, "age", "32 of 64 rows had weights that were first used 5 steps before, before 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_names_the_difference_that_explains_a_fall(case: str) -> None:
    change, attribute, sentence = CASES[case]
    for seed in range(8):
        rows = [row for number in range(3, 9) for row in step(number, seed=seed)] + step(9, change, seed)
        said = why_reward(rows, 9, {})
        assert said is not None
        assert f"of it: {sentence}" in said
        ages = {number: max(3, number) for number in range(2, 10)}
        again = explanation(step(9, change, seed), [row._replace(step=10) for row in step(10, seed=seed)], ages)
        assert again is not None, "the same explains the rise after it"
        assert again.attribute == attribute


def test_page_and_queries_count_the_same(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", rows_folder(tmp_path / "run", "agent", 0)
    folder.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    lines = [msgspec.json.encode(row) + b"\n" for row in (*rows_of(8), *rows_of(9, truncation))]
    (folder / "000000.jsonl").write_bytes(b"".join(lines))
    client = TestClient(
        application(Runs(tmp_path, run), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )
    assert CASES["truncation"][2] in client.get("/run/run/rows?step=9").text
    for fault, count in (("truncated", 22), ("failed", 0), ("empty", 0), ("no number", 0)):
        assert f"{count} of 128 kept rows pass" in client.get("/run/run/rows", params={"only": fault}).text
    query = (
        "select ended, count(*), min(tokens) > 0, avg(reward) from rows where step = 9 group by ended order by ended"
    )
    with opened(run, ["rows"]) as database:
        finished, cut = answer(database, query)[1]
    assert (finished[:3], cut) == (("finished", 42, True), ("truncated", 22, True, 0.0))


def test_chance_gets_no_explanation() -> None:
    ages = {number: number for number in range(11)}
    found = [explanation(step(8, seed=seed), step(9, seed=seed), ages) for seed in range(40)]
    assert [each for each in found if each is not None] == []


def test_all_rows_may_differ_from_those_before() -> None:
    def said(change: Change) -> str | None:
        rows = [row for number in range(3, 9) for row in step(number)]
        return why_reward(rows + step(9, change), 9, {8: 0.75, 9: math.nan})

    def all_truncated(at: int, row: dict[str, Any]) -> None:
        row |= {"ended": "truncated", "reward": 0.0}

    def all_stale(at: int, row: dict[str, Any]) -> None:
        row |= {"weight_versions": [4], "reward": 0.0}

    def no_number(at: int, row: dict[str, Any]) -> None:
        row["reward"] = "nan"

    assert "64 of 64 rows were truncated, before 0 of 64" in str(said(all_truncated))
    assert "64 of 64 rows had weights that were first used 4 steps before, before 0 of 64" in str(said(all_stale))
    assert said(no_number) == (
        "The metric reward went from 0.75 to nan, from step 8 to step 9. "
        "64 of 64 kept rows of step 9 have no number as reward, before 0 of 64."
    )
