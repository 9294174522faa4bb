"""The kept part of an output."""

from __future__ import annotations

import pytest

from rolemesh_sandbox_process.guard.output import Output


@pytest.mark.parametrize("chunk", [1, 7, 1000, 100_000])
def test_a_long_output_keeps_its_two_ends_however_it_comes(chunk: int) -> None:
    data = b"".join(b"%d\n" % number for number in range(10_000))
    kept = Output(1000)
    for start in range(0, len(data), chunk):
        kept.add(data[start : start + chunk])
    text = kept.text()
    assert len(text) <= 1000
    assert text.startswith("0\n1\n2\n")
    assert text.endswith("9998\n9999\n")
    assert f"[{kept.cut} bytes are missing here]" in text
    assert len(data) - kept.cut == len(text) - len(f"\n[{kept.cut} bytes are missing here]\n")


@pytest.mark.parametrize("size", [0, 999, 1000])
def test_a_short_output_is_whole(size: int) -> None:
    kept = Output(1000)
    kept.add(b"x" * size)
    assert (kept.text(), kept.cut) == ("x" * size, 0)


def test_bytes_that_are_no_text_do_not_make_it_longer() -> None:
    kept = Output(1000)
    kept.add(bytes(range(128, 256)) * 100)
    assert len(kept.text().encode()) <= 1000
