"""The checks of `tests.texts` find mistakes in small samples. `make lint` runs them on our texts."""

from __future__ import annotations

from pathlib import Path

from tests import texts


def test_a_link_that_leads_nowhere_is_found_outside_code_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#part) [there](other.md) [web](https://a.b)\n\n```\n[code](none.md)\n```\n")
    assert texts.missing_links(page) == ["other.md"]


def test_a_difference_of_two_lists_names_each_item_and_where_it_is() -> None:
    assert [*texts.differ("the page", "ab", "bc")] == [
        "the page: 'a' does not exist",
        "the page: 'c' is there and is not said",
    ]


def test_each_check_prints_its_problems_and_make_lint_fails(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(texts, "CHECKS", [lambda: iter(["one"]), lambda: iter(()), lambda: iter(["two"])])
    assert (texts.main(), capsys.readouterr().out) == (1, "one\ntwo\n")
