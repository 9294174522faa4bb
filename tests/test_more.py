"""The list of what `make test` leaves to `make test-all` names files, classes, tests, and cases but the first."""

from __future__ import annotations

from pathlib import Path

from tests.more import is_more, unknown

LISTED = frozenset({"test_all.py", "test_some.py::TestOne", "test_some.py::test_two", "test_some.py::test_three[1:]"})


def test_a_line_stands_for_a_file_a_class_a_test_or_its_cases_but_the_first() -> None:
    assert is_more("tests/test_all.py::test_any[a/b]", True, LISTED)
    assert is_more("plugins/a/b/tests/test_some.py::TestOne::test_inherited", True, LISTED)
    assert is_more("tests/test_some.py::test_two[x::y]", True, LISTED)
    assert [is_more("tests/test_some.py::test_three[a]", first, LISTED) for first in (True, False)] == [False, True]
    assert not is_more("tests/test_some.py::test_two_others", True, LISTED)


def test_a_line_that_names_no_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert "test_errors.py::test_odd_values_arrive" in set(unknown(tmp_path))
