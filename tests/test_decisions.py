"""The records of decisions have one form, consecutive numbers, and a row in the table."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS = sorted((DOCS / "decisions").glob("*.md"))
SECTIONS = (["Context", "Decision", "Consequences"], ["Context", "Decision", "Alternatives", "Consequences"])


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_date_status_and_its_sections(path: Path) -> None:
    text = path.read_text()
    number, title = re.match(r"# (\d+)\. (.+)\n", text).groups()  # type: ignore[union-attr]
    assert int(number) == int(path.name[:4])
    day = re.search(r"^- Date: (\S+)$", text, re.MULTILINE)
    assert day
    date.fromisoformat(day[1])
    assert re.search(r"^- Status: (accepted|replaced by \d+)$", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) in SECTIONS
    row = f"| [{number}](decisions/{path.name}) | {day[1]} | {title} |"
    assert row in (DOCS / "decisions.md").read_text().splitlines()


def test_records_are_numbered_from_one_without_gaps_and_the_table_has_no_other_rows() -> None:
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))
    rows = re.findall(r"^\| \[(\d+)\]", (DOCS / "decisions.md").read_text(), re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, len(RECORDS) + 1))
