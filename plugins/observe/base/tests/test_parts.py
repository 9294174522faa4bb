"""Parts of a record on disk: their size is bounded, and their sums stay exact."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolemesh_recorder.lines import Account, Head, Life, Stretch, encode
from rolemesh_recorder.node_record import NodeFile
from rolemesh_recorder.parts import PARTS, READ_BYTES, Parts, part_files, read_part
from rolemesh_recorder.rank_record import Writer
from rolemesh_recorder.reading import latest_lines, read_record, recorded_ranks
from rolemesh_recorder.rows import KeptRows, Row, rows_folder
from rolemesh_recorder.usage import Usage, node_file, read_usage

HEAD = Head("trainer", 0, 0, 1, "node0", 0)


def fill(folder: Path, seconds: int, max_bytes: int = 64_000) -> Parts:
    parts = Parts(folder, HEAD, max_bytes)
    parts.append([Life("setup", 0, 10)])
    for at in range(seconds):
        t = at * 1_000_000
        spans = [Stretch("computing", t + n * 1000, 1000 + n, at, 2) for n in range(20)]
        parts.append([*spans, Account(t, 1_000_000, at, 7, {"computing": 600_000 + at, "edge 1": 1})])
        parts.tidy()
    return parts


def test_a_long_record_stays_small_and_its_sums_exact(tmp_path: Path) -> None:
    fill(tmp_path / "record" / "trainer-0", 2000)
    files = part_files(tmp_path / "record" / "trainer-0")
    assert len(files) <= PARTS
    assert sum(path.stat().st_size for path in files) < 1.3 * 64_000
    accounts = [line for line in read_record(tmp_path, "trainer", 0) if isinstance(line, Account)]
    assert sum(line.d for line in accounts) == 2000 * 1_000_000
    assert sum(line.steps for line in accounts) == 14_000
    assert sum(line.spent["computing"] for line in accounts) == sum(600_000 + at for at in range(2000))
    assert [line.t for line in accounts] == sorted(line.t for line in accounts)


def test_a_damaged_line_and_an_incomplete_last_one_are_left_out(tmp_path: Path) -> None:
    path, spans = tmp_path / "000000.jsonl", [Stretch("computing", at, 10, at, 2) for at in range(50_000)]
    lines = [encode(HEAD), *map(encode, spans)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert path.stat().st_size > 2 * READ_BYTES
    assert list(read_part(path)) == [HEAD, *spans]
    lines[7], lines[40_000] = b"\x00\r\xff{", b'{"k":"later"}'
    path.write_bytes(b"\n".join(lines))
    del spans[49_999], spans[39_999], spans[6]
    assert list(read_part(path)) == [HEAD, *spans]


def test_the_oldest_parts_are_the_coarsest_and_keep_the_longest_spans(tmp_path: Path) -> None:
    fill(tmp_path, 2000)
    files = part_files(tmp_path)
    coarse = [next(read_part(path)).coarse for path in files]  # type: ignore[union-attr]
    assert coarse == sorted(coarse, reverse=True)
    assert coarse[0] > 1
    assert coarse[-1] == 0
    oldest = list(read_part(files[0]))
    spans = [line for line in oldest if isinstance(line, Stretch)]
    assert spans
    assert all(account.least >= min(s.d for s in spans) for account in oldest if isinstance(account, Account))


@pytest.mark.parametrize("ago", [0, 1, 30, 300, 3000])
def test_the_latest_lines_are_those_since_the_account_that_covers_a_time(tmp_path: Path, ago: int) -> None:
    fill(tmp_path / "record" / "trainer-0", 2000)
    after = (2000 - ago) * 1_000_000 - 500_000
    found = latest_lines(tmp_path, "trainer", 0, after)
    every = list(read_record(tmp_path, "trainer", 0))
    assert [line for line in every if line in found] == found
    ends = {line.t + getattr(line, "d", 0) for line in every if not isinstance(line, Head)}
    assert {end for end in ends if end > after} <= {line.t + getattr(line, "d", 0) for line in found}
    assert ago > 30 or len(found) <= 21 * (ago + 1) + 2


def test_the_next_process_of_a_rank_begins_a_new_part(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    Parts(tmp_path, Head("trainer", 0, 1, 2, "node0", 9), 64_000)
    heads = [line for path in part_files(tmp_path) for line in read_part(path) if isinstance(line, Head)]
    assert [head.generation for head in heads] == [0, 1]


@pytest.mark.parametrize("damage", [b"\x00\xff{]\n", b'{"k":"unknown"}\n', b"null\n", b'{"k":"span","t":"x"}\n'])
def test_a_damaged_line_is_left_out(tmp_path: Path, damage: bytes) -> None:
    folder = tmp_path / "record" / "a-b-0"
    folder.mkdir(parents=True)
    good = encode(Life("setup", 1, 2)) + b"\n"
    (folder / "000000.jsonl").write_bytes(encode(HEAD) + b"\n" + damage + good + good[:-5])
    assert list(read_record(tmp_path, "a-b", 0)) == [HEAD, Life("setup", 1, 2)]
    assert [str(ref) for ref in recorded_ranks(tmp_path)] == ["a-b/0"]


@contextmanager
def refusing_disk(after: int) -> Iterator[None]:
    """Files grow to `after` bytes inside: a write is taken in part, and the next one is refused, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full", [10, 300, 1000])
def test_a_full_disk_delays_the_lines_and_tears_and_repeats_none(tmp_path: Path, full: int) -> None:
    writer = Writer(lambda: Parts(tmp_path / "record" / "trainer-0", HEAD, 64_000))
    accounts = [Account(t, 1, t, 1, {"computing": t}) for t in range(40)]
    for n, account in enumerate(accounts):
        writer.add(account)
        if 5 <= n < 25:
            with refusing_disk(full):
                writer.write()
        else:
            writer.write()
    writer.close()
    files = part_files(tmp_path / "record" / "trainer-0")
    assert [line for path in files for line in read_part(path)] == [HEAD, *accounts]


@pytest.mark.parametrize("full", [10, 300])
def test_a_full_disk_delays_kept_rows_and_tears_and_repeats_none(tmp_path: Path, full: int) -> None:
    kept = KeptRows(tmp_path, "trainer", 0, 64_000)
    for n in range(40):
        kept.add(Row(n, "a.a", 0, {"text": "x" * 20}))
        if 5 <= n < 25:
            with refusing_disk(full):
                kept.write()
        else:
            kept.write()
    (file,) = rows_folder(tmp_path, "trainer", 0).iterdir()
    assert [json.loads(line)["step"] for line in file.read_bytes().splitlines()] == [*range(40)]


def test_a_full_disk_is_told_once_and_so_is_its_end_with_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the log may be full, too, and lose the first warning."""
    kept = KeptRows(tmp_path, "trainer", 0, 1 << 20)
    writer = Writer(lambda: Parts(tmp_path / "record" / "trainer-0", HEAD, 1 << 20))
    with refusing_disk(10):
        for n in range(1500):
            kept.add(Row(n, "a.a", 0, {"text": "x"}))
            writer.add(Account(n, 1, n, 1))
            if n % 50 == 0:
                kept.write()
                writer.write()
    kept.write()
    writer.write()
    writer.close()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "rows of this rank cannot be kept", "this rank's record cannot be written",
        "rows of this rank are kept again; 500 are missing",
        "this rank's record is written again; 0 lines are missing",
    ]  # fmt: skip
    (file,) = rows_folder(tmp_path, "trainer", 0).iterdir()
    assert [json.loads(line)["step"] for line in file.read_bytes().splitlines()] == [*range(500, 1500)]


def test_a_full_disk_delays_the_loads_of_a_node_and_leaves_no_half_file(tmp_path: Path) -> None:
    path = node_file(tmp_path, "node")
    file = NodeFile(path, 1000)
    lines = [Usage(2 * at, 2, at, 2.0, at, 50, 1, 1) for at in range(40)]
    for at, line in enumerate(lines):
        if 5 <= at < 25:
            with refusing_disk(300), pytest.raises(OSError, match="File too large"):
                file.append(line)
        else:
            file.append(line)
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        if at == 24:
            assert list(read_usage(tmp_path, "node")) == lines[:5]
    found = list(read_usage(tmp_path, "node"))
    assert [line.t + line.d for line in found[:-1]] == [line.t for line in found[1:]]
    assert (found[0].t, sum(line.d for line in found), sum(line.sent for line in found)) == (0, 80, 40)
