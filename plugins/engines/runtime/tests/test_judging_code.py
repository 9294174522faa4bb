"""Code that only computes, and code that may change something."""

from __future__ import annotations

import re

import pytest

from rolemesh_processes.judging_code import NO_NAMES, first_other_name, only_computes

NAMES = re.compile("[a-z]|sin|Symbol")


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 * 3 ** -4",
        "~5 & 6 | 7 ^ 8 << 2",
        "1 < 2",
        "'a' in ['a', 'b', 'c', 'd']",
        "[[0, 1], [1, 0]]",
        "{1, 2, 3, 4}",
        "{'a': 1, 'b': (2, 3)}",
        "not None",
        "'no code'",
        "x * sin(2 * x) + Symbol('unknown')",
        "sin(x)(y)",
    ],
)
def test_values_and_operators_compute_only(text: str) -> None:
    assert only_computes(compile(text, "", "eval"), NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "sin.C",
        "(1).real",
        "x[0]",
        "unknown",
        "open('x')",
        "[n for n in x]",
        "lambda: 1",
        "(x := 1)",
        "sin(x=1)",
        "sin(*x)",
        "f'{x}'",
        "x if y else z",
        "x and y",
    ],
)
def test_an_expression_that_may_do_more_is_told_apart(text: str) -> None:
    assert not only_computes(compile(text, "", "eval"), NAMES)


@pytest.mark.parametrize(
    "text", ["x = 1", "x += 1", "del x", "import x", "def f(): pass", "class C: pass", "global x; x = 1"]
)
def test_a_statement_that_changes_something_is_told_apart(text: str) -> None:
    assert not only_computes(compile(text, "", "exec"), NAMES)


def test_a_number_of_many_constants_is_no_other_instruction() -> None:
    text = f"[{', '.join(f'[{n}]' for n in range(1000))}]"
    assert only_computes(compile(text, "", "eval"), NO_NAMES)
    assert not only_computes(compile(text.replace("[7]", "[x]"), "", "eval"), NO_NAMES)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("unknown", "unknown"),
        ("x + unknown(sin)", "unknown"),
        ("unknown.x", "unknown"),
        ("unknown[other]", "unknown"),
        ("sin(unknown if x else y)", None),
        ("sin.x + unknown", None),
        ("lambda: unknown", None),
        ("(x := unknown)", "unknown"),
        ("(x := 1) + unknown", None),
        ("x[0] + unknown", None),
        (f"[{', '.join(f'[{n}.5]' for n in range(300))}, unknown]", "unknown"),
    ],
)
def test_the_first_other_name_is_one_before_which_code_only_computes(text: str, name: str | None) -> None:
    assert first_other_name(compile(text, "", "eval"), NAMES) == name


def test_code_that_catches_exceptions_does_not_end_at_an_unknown_name() -> None:
    assert first_other_name(compile("unknown\nother()", "", "exec"), NAMES) == "unknown"
    for text in ("try:\n unknown\nexcept NameError:\n other()", "try:\n unknown\nfinally:\n other()"):
        assert first_other_name(compile(text, "", "exec"), NAMES) is None
