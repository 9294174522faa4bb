"""The first look at a run's folder ends in time."""

from __future__ import annotations

import threading

import pytest

from rolemesh.errors import RolemeshError
from rolemesh_runtime import first_look


def test_a_store_that_does_not_answer_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_look, "LIMIT_S", 0.05)
    over = threading.Event()
    with pytest.raises(RolemeshError, match=r"has not answered for 0\.05 s") as raised:
        first_look.first_look("runs/a", over.wait)
    over.set()
    assert raised.value.where == "runs/a"
    assert "mounted" in str(raised.value.remedy)


def test_a_look_returns_and_raises_what_its_function_does() -> None:
    assert first_look.first_look("runs/a", lambda: 3) == 3
    with pytest.raises(KeyError):
        first_look.first_look("runs/a", lambda: {}["no"])
