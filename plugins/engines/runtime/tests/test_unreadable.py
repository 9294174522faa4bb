"""Files that cannot be read: the error says why, and a caller that can wait goes on once they can be read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh.errors import RolemeshError
from rolemesh_runtime import unreadable
from rolemesh_runtime.looking import Looking


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EACCES, "permissions"), (errno.EIO, "mounted"), (errno.ESTALE, "mounted"), (errno.ENAMETOOLONG, "shorter")],
)
def test_the_remedy_fits_the_error(code: int, remedy: str) -> None:
    error = unreadable.unreadable(Path("runs/a"), OSError(code, "no"))
    assert remedy in str(error.remedy)


def test_a_look_is_repeated_until_the_file_can_be_read(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(unreadable, "PAUSE_S", 0.0)
    left = [OSError(errno.EIO, "broken")] * 3

    def look() -> int:
        if left:
            raise unreadable.unreadable(Path("runs/a"), left.pop())
        return 5

    assert unreadable.when_readable(look) == 5
    assert len(caplog.records) == 1


def test_looking_holds_the_error_of_the_last_look_until_something_is_found() -> None:
    outcomes: list[Any] = [RolemeshError("broken"), None, 7]

    def look() -> Any:
        found = outcomes.pop(0)
        if isinstance(found, RolemeshError):
            raise found
        return found

    looking = Looking(look, 0.2)
    looking.look_again(0.1)
    assert (looking.found, str(looking.error)) == (None, "broken")
    looking.wait(HANG_S)
    assert (looking.found, looking.error) == (7, None)
