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
from rolemesh_recorder.rows import Row, rows_folder
from rolemesh_view import application
from rolemesh_view.groups import groups_of, ratio_of, steps_of
from rolemesh_view.viewed import Runs

REWARDS = {0: (1.0, 1.0, 1.0), 1: (0.0, 1.0, 0.5), 2: (1.0, math.nan, math.inf)}
REF = RankRef("reward", 0)


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
    return TestClient(application(Runs(tmp_path, tmp_path / "run"), "t"), headers={"authorization": "Bearer t"})


def test_a_group_is_degenerate_if_all_its_rewards_are_equal_and_there_are_two() -> None:
    found = groups_of((REF, row) for row in rows(3))
    assert [(each.group, each.rows, each.degenerate, each.truncated) for each in found] == [
        ("0", 3, True, 0),
        ("1", 3, False, 1),
        ("2", 3, False, 0),
    ]
    assert found[1].ratio == pytest.approx(3.0)
    [step] = steps_of((REF, row) for row in rows(3))
    assert (step.groups, step.judged, step.degenerate, step.truncated) == (3, 2, 1, 1)


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
    assert groups.count('<tr class="degenerate">') == 1
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
