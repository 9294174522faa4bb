"""Output to streams whose encoding lacks some characters."""

from __future__ import annotations

import json
import sys
from io import BytesIO, TextIOWrapper

import pytest

from rolemesh.cli.output import prepare_streams, print_json

TEXT = "größer ✓ 😀 \udcff"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_json_says_the_same_in_each_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str) -> None:
    stream = TextIOWrapper(BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", stream)
    prepare_streams()
    print_json({"a": TEXT})
    stream.flush()

    assert json.loads(stream.buffer.getvalue().decode(encoding)) == {"a": TEXT}


def test_an_error_handler_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TextIOWrapper(BytesIO(), "ascii", "xmlcharrefreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    prepare_streams()

    assert stream.errors == "xmlcharrefreplace"
