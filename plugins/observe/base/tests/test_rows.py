"""The pages of rows: degenerate groups, the largest ratio, and the tokens of one row."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from rolemesh.api.rank_ref import RankRef
from rolemesh_recorder.reading import kept_rows
from rolemesh_recorder.rows import Row, rows_folder
from rolemesh_view import application, row_index
from rolemesh_view.choosing import Choice, choose
from rolemesh_view.entries import Entry, entry_of, missing_policy, ratio_of
from rolemesh_view.groups import groups_of, steps_of, why_reward
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs

REWARDS = {0: (1.0, 1.0, 1.0), 1: (0.0, 1.0, 0.5), 2: (1.0, math.nan, math.inf)}
REF = RankRef("reward", 0)
NOWHERE = Path("nowhere"), 0


def rows(step: int) -> list[Row]:
    """Three groups: one degenerate, one informative, one with one finite reward. Row 4 is furthest off-policy."""
    found = []
    for group, rewards in REWARDS.items():
        for reward in rewards:
            number = len(found)
            old = [-1.0, -2.0 + (math.log(3.0) if number == 4 else 0.01 * number)]
            columns = {
                "group": group, "reward": reward if math.isfinite(reward) else str(reward), "old_logprobs": old,
                "logprobs": [-1.0, -2.0], "completion_ids": [7, 8],
                "finish_reason": "length" if number == 5 else "stop",
            }  # fmt: skip
            found.append(Row(step, "reward.advantages", number, columns))
    return found


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    folder = rows_folder(tmp_path / "run", "reward", 0)
    folder.mkdir(parents=True)
    (tmp_path / "run/run.json").write_text("{}")
    lines = [msgspec.json.encode(row) for step in (3, 4) for row in rows(step)]
    (folder / "000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return TestClient(
        application(Runs(tmp_path, tmp_path / "run"), Access("t")),
        "http://127.0.0.1",
        headers={"authorization": "Bearer t"},
    )


def test_the_page_of_a_step_says_how_its_rewards_differ_from_those_of_the_step_before() -> None:
    def entries(step: int, *rewards: float) -> list[Entry]:
        found = (Row(step, "a", at, {"group": 0, "reward": reward}) for at, reward in enumerate(rewards))
        return [entry_of(REF, row, NOWHERE) for row in found]

    kept = [*entries(1, 1.0, 0.5, 0.0), *entries(4, 0.0, 0.0, 0.0), *entries(5, 1.0)]
    of_kept = (
        "The mean reward of the kept rows fell from 0.5 to 0, from step 1 (3 rows) to step 4 (3 rows). "
        "With so few rows that may be chance."
    )
    assert why_reward(kept, 4, {}) == of_kept
    assert why_reward(kept, 1, {}) is None, "there is no step before"
    assert why_reward(kept, 3, {}) is None, "the step has no rows"
    of_all = "The metric reward fell from 0.75 to 0.25, from step 3 to step 4."
    assert why_reward(kept, 4, {0: 0.5, 3: 0.75, 4: 0.25, 5: 1.0}) == f"{of_all} {of_kept}"
    assert why_reward([], 4, {3: 0.75, 4: 0.25}) == of_all, "whatever is kept"
    assert why_reward([], 3, {3: 0.75, 4: 0.25}) is None


def test_a_group_is_degenerate_if_all_its_rewards_are_equal_and_there_are_two() -> None:
    found = groups_of(entry_of(REF, row, NOWHERE) for row in rows(3))
    assert [(each.group, each.rows, each.degenerate, each.faults["truncated"]) for each in found] == [
        ("0", 3, True, 0),
        ("1", 3, False, 1),
        ("2", 3, False, 0),
    ]
    assert found[1].ratio == pytest.approx(3.0)
    [step] = steps_of((entry_of(REF, row, NOWHERE) for row in rows(3)), 1)
    assert (step.groups, step.judged, step.degenerate) == (3, 2, 1)
    assert step.faults == {"truncated": 1, "failed": 0, "empty": 0, "no number": 2}


def test_the_ratio_counts_in_both_directions_and_needs_both_policies() -> None:
    assert ratio_of({"old_logprobs": [-3.0, "nan"], "logprobs": [-1.0, -1.0]}) == pytest.approx(math.e**2)
    assert ratio_of({"ref_logprobs": [-3.0], "logprobs": [-1.0]}) is None
    assert ratio_of({"old_logprobs": ["-inf"], "logprobs": [-1.0]}) is None


def test_the_pages_lead_from_steps_to_groups_to_rows_to_tokens(client: TestClient) -> None:
    def follow(page: str, text: str) -> str:
        found = re.search(f'href="([^"]*)">{text}', page)
        assert found, page
        return client.get(f"/run/run/rows{html.unescape(found[1])}").text

    steps = client.get("/run/run/rows").text
    assert steps.index(">step 4</a>") < steps.index(">step 3</a>")
    assert "1 of 2" in steps
    groups = follow(steps, "step 4")
    assert groups.count('class="degenerate"') == 1
    group = follow(groups, "group 1")
    assert group.count("<article>") == 3
    row = follow(group, "step 4 · reward.advantages · row 4")
    assert row.count("<article>") == 1
    assert "coloured by old_logprobs − logprobs" in row
    assert '<td class="number">1.099</td><td class="number">3</td>' in row
    assert 'id="groups"' in follow(row, "step 4")
    ordered = client.get("/run/run/rows?step=4&group=1&sort=-ratio").text
    assert ordered.index("row 4<") < ordered.index("row 5<") < ordered.index("row 3<")
    assert "<article>" not in client.get("/run/run/rows?step=4&row=4&rank=other/0").text


def test_a_row_is_decoded_once_also_if_it_is_added_later_or_its_file_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, decoded = rows_folder(tmp_path, "reward", 0), list[int]()
    folder.mkdir(parents=True)
    noted = row_index.entry_of
    monkeypatch.setattr(row_index, "entry_of", lambda ref, row, at: decoded.append(row.row) or noted(ref, row, at))
    lines = [msgspec.json.encode(row) + b"\n" for row in rows(3)]
    index, path = row_index.RowIndex(tmp_path), folder / "000000.jsonl"

    def same() -> bool:
        return [(e.ref, row) for e, row in index.read(index.entries())] == list(kept_rows(tmp_path))

    path.write_bytes(lines[0] + b"damaged\n" + lines[1] + lines[2][:30])
    assert (same(), same(), decoded) == (True, True, [0, 1])
    path.write_bytes(lines[0] + b"damaged\n" + b"".join(lines[1:]))
    (folder / "000001.jsonl").write_bytes(lines[8])
    assert (same(), decoded) == (True, [*range(9), 8])
    path.unlink()
    (folder / "000001.jsonl").write_bytes(lines[7])
    assert (same(), decoded[-1]) == (True, 7)


def test_the_newest_rows_of_each_rank_are_there_if_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks have two files of 50 rows each, and a third one has two rows."""
    monkeypatch.setattr(row_index, "CHUNK_BYTES", 100)

    def line(at: int) -> bytes:
        return msgspec.json.encode(Row(at, "a.b", 0, {"text": "x" * (at % 7) * 50, "n": at})) + b"\n"

    for rank, files in ((0, 2), (1, 2), (2, 1)):
        folder = rows_folder(tmp_path, "a", rank)
        folder.mkdir(parents=True)
        for number in range(files):
            lines = range(50 * number, 50 * number + 50) if files > 1 else (98, 99)
            (folder / f"{number:06}.jsonl").write_bytes(b"".join(map(line, lines)))

    def steps(index: row_index.RowIndex, most: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for entry, row in index.read(index.entries(most)):
            assert row.step == entry.step
            found[entry.ref.rank].append(row.step)
        return found

    for most in (0, 1, 2, 30, 75, 150, 202, 300):
        index = row_index.RowIndex(tmp_path)
        found = steps(index, most)
        assert all(each == [*range(100 - len(each), 100)] for each in found.values()), most
        assert min(most, 202) <= sum(map(len, found.values())) < most + 10, "up to a part of one rank's rows"
        assert index.partial == (sum(map(len, found.values())) < 202)
    index = row_index.RowIndex(tmp_path)
    before = steps(index, 30)
    with (rows_folder(tmp_path, "a", 1) / "000001.jsonl").open("ab") as file:
        file.write(b"".join(map(line, range(100, 120))))
    assert steps(index, 30) == before | {1: [*before[1], *range(100, 120)]}
    with (rows_folder(tmp_path, "a", 1) / "000001.jsonl").open("ab") as file:
        file.write(b"".join(map(line, range(120, 160))))
    assert len(steps(index, 30)[1]) < 30, "it forgets the older ones"


def test_the_page_says_whose_log_probabilities_the_rows_lack(tmp_path: Path) -> None:
    def entries(**columns: object) -> list[Entry]:
        return [entry_of(REF, Row(0, "a.b", 0, columns), NOWHERE)]

    assert missing_policy(entries(text="a")) == missing_policy(entries(old_logprobs=[-1.0], logprobs=[-1.0])) == ""
    alone = (
        "The rows have those of the sampler (logprobs), but not those of the trainer (old_logprobs or trainer_logprobs)"
    )
    assert missing_policy(entries(logprobs=[-1.0])) == alone
    apart = entries(logprobs=[-1.0]) + entries(old_logprobs=[-1.0])
    assert missing_policy(apart) == "No row has those of trainer and sampler for the same tokens"


TURNS = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "<think>hm</think>In the box."}]


def test_a_conversation_has_cards_and_its_place_in_the_group_and_ids_only_on_demand(tmp_path: Path) -> None:
    folder = rows_folder(tmp_path / "run", "agent", 0)
    folder.mkdir(parents=True)
    (tmp_path / "run/run.json").write_text("{}")
    kept = [
        Row(1, "agent.converse", at, {
            "messages": TURNS, "group": 0, "reward": at / 2, "turns": 1, "ended": "truncated" if at else "finished",
            "completion_ids": [71234, 8, 9], "completion_mask": [1, 0, 1], "logprobs": [-1.0, -9.0, -2.0], "others": [],
        })
        for at in range(3)
    ]  # fmt: skip
    (folder / "000000.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    runs = Runs(tmp_path, tmp_path / "run")
    client = TestClient(application(runs, Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"})
    group = client.get("/run/run/rows?step=1&group=0").text
    assert group.count("<circle") == 3
    assert group.count('class="truncated"') == 2
    assert group.index("row 2<") < group.index("row 1<") or "sort=-reward" in group
    page = client.get("/run/run/rows?step=1&row=1").text
    assert page.count('class="card card-') == 2
    assert "In the box." in page
    assert "thinking, 2 characters" in page
    assert "2 of 3" in page
    assert 'rel="prev"' in page
    assert 'rel="next"' in page
    assert "71234" not in page.partition("columns</summary>")[2]
    assert page.count('class="token env"') == 2, "the token of the environment, and the legend"
    assert "71234" in client.get("/run/run/rows?step=1&row=1&ids=1").text.partition("columns</summary>")[2]
    ordered = client.get("/run/run/rows?step=1&sort=-tokens").text
    assert ordered.count("<article>") == 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('said "no" to\n', [0]), ("näher", [0]), ("neue", [0, 1]), ("nneue", []), ("\\neue", [1]), ("0.25", [0]),
        ("completion", [2]), ("a.b", []), ("[7,8]", [1]), ("\ud800", []), ("?", [2]), ("ids", []),
    ],
)  # fmt: skip
def test_a_search_finds_rows_by_texts_and_numbers_in_columns_and_by_nothing_else(
    text: str, found: list[int], tmp_path: Path
) -> None:
    folder = rows_folder(tmp_path, "a", 0)
    folder.mkdir(parents=True)
    columns: list[dict[str, object]] = [
        {"completion": 'it said "no" to\nneue Zeile, näher', "reward": 0.25},
        {"completion": "C:\\neue", "ids": [7, 8]},
        {"messages": [{"role": "user", "content": "which completion?"}]},
    ]
    kept = [Row(1, "a.b", at, each, ("ids", "answers")) for at, each in enumerate(columns)]
    (folder / "000000.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    index = row_index.RowIndex(tmp_path)
    assert [each.row for each in index.find(index.entries(), text, 10)[0]] == found


@pytest.mark.parametrize("sort", ["reward", "-reward"])
def test_the_newest_of_equal_rows_comes_first(sort: str) -> None:
    rows = [entry_of(RankRef("a", 0), Row(step, "a.b", 0, {"reward": 0.0}), (Path(), 0)) for step in (2, 1, 0)]
    found = choose(rows, Choice(sort=sort), lambda each, text, most: (each[:most], False))
    assert [each.step for each in found.rows] == [2, 1, 0]
    assert [each.step for each in choose(rows, Choice(sort=sort, find="x"), lambda each, *_: (each, False)).rows] == [
        2,
        1,
        0,
    ]


def test_a_search_ends_when_it_has_found_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files have 60 rows; each row has "all", and rows 7 and 50 have "rare"."""
    monkeypatch.setattr(row_index, "FIRST_ROWS", 4)
    for rank in (0, 1):
        folder = rows_folder(tmp_path, "a", rank)
        folder.mkdir(parents=True)
        texts = {at: f"all {'rare' if at in (7, 50) else ''}" for at in range(rank, 60, 2)}
        kept = [Row(at // 10, "a.b", at, {"text": text, "n": -at}) for at, text in texts.items()]
        (folder / "000000.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    index, read = row_index.RowIndex(tmp_path), list[int]()
    index.entries()
    newest = index.newest()
    assert [(each.step, each.row) for each in newest] == sorted(
        ((at // 10, at) for at in range(60)), key=lambda each: (-each[0], each[1])
    )
    having = row_index._having
    monkeypatch.setattr(row_index, "_having", lambda rows, wanted: read.append(len(rows)) or having(rows, wanted))
    found, more = index.find(newest, "all", 10)
    assert ([each.row for each in found], more, read) == ([*range(50, 60)], True, [4, 16])
    assert [each.row for each in index.find(newest, "rare", 10)[0]] == [50, 7]
    assert index.find(newest, "rare", 1) == ([newest[0]], True)
    assert index.find(newest, "none", 1) == ([], False)
    shown = choose(newest, Choice(find="rare", sort="n", size=1), index.find)
    assert ([each.row for each in shown.rows], len(shown.passing), shown.more) == ([50], 2, False)
