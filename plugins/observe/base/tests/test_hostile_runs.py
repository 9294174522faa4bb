"""Each command that shows a run copes with runs that are damaged, hostile, old, in progress, or not the user's."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.waiting import until

from rolemesh.cli import main
from rolemesh.errors import RolemeshError
from rolemesh_facts.finding import hindrance, readable_run
from rolemesh_view import application
from rolemesh_view.guard import Access
from rolemesh_view.pages import PAGES
from rolemesh_view.viewed import Runs

TABLES = ("ranks", "spans", "edges", "events", "metrics", "rows", "recoveries", "nodes", "gpus")
VERBS = {
    "report": ("-o", "{out}/report"),
    "trace": ("-o", "{out}/trace"),
    "top": ("--once",),
    "sql": (" union all ".join(f"select count(*) from {table}" for table in TABLES),),
    "status": (),
    "events": (),
}
HOSTILE = "<script>alert(1)</script>/../.."


def lines(run: Path, change: Callable[[int, dict[str, Any]], object]) -> None:
    """Change each line of the run's files of lines, given its number."""
    for path in run.rglob("*.jsonl"):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        for number, line in enumerate(found):
            change(number, line)
        path.write_text("".join(json.dumps(line) + "\n" for line in found))


def torn(run: Path) -> None:
    for path in run.rglob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:-9])


def emptied(run: Path) -> None:
    for path in (run / "record").rglob("*.json*"):
        path.write_bytes(b"")


def not_finite(run: Path) -> None:
    values = [float("nan"), float("inf"), 1e308, -1e308, None]
    lines(run, lambda number, line: line.update(reward=values[number % 5]) if "step" in line else None)


def misnamed(run: Path) -> None:
    for path in (*run.rglob("*.json*"), run / "job.yaml"):
        path.write_text(path.read_text().replace('"sink', f'"{HOSTILE}').replace('"seen"', f'"{HOSTILE}"'))


def stepped_back(run: Path) -> None:
    day = {"t": 86_400_000_000, "time": 86_400}
    lines(run, lambda n, line: line.update({k: line[k] - day[k] for k in day if k in line and n > 5}))


def no_times(run: Path) -> None:
    lines(run, lambda n, line: line.update({k: v for k, v in (("t", -5), ("time", 1e300)) if k in line}))


def wild(run: Path) -> None:
    """Numbers beyond 64 bits, times that run backwards, and very long names."""

    def change(number: int, line: dict[str, Any]) -> None:
        if number % 3 == 1:
            line.update({key: 1 << 70 for key in ("step", "seq", "epoch", "row") if key in line})
        elif "d" in line:
            line["d"] = -line["d"]
        if "operators" in line:
            line.update({HOSTILE * 500: 1.0, "operators": {HOSTILE * 500: {"x" * 9000: 1.0}}})

    lines(run, change)


def not_utf8(run: Path) -> None:
    """A byte that is no text, in a value and in names: of roles, operators, metrics and kinds of events."""
    for path in (*run.rglob("*.json*"), run / "job.yaml"):
        path.write_bytes(re.sub(rb'"(sink|seen|reward|job_started)', b'"\\1\xff', path.read_bytes()))


def nested(run: Path) -> None:
    """Lines and files of brackets, deeper than a reader follows."""
    deep = b'{"k": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    for path in run.rglob("*.jsonl"):
        path.write_bytes(deep + path.read_bytes() + deep)
    for name in ("run.json", "plan.json"):
        (run / name).write_bytes(deep)


def aged(run: Path) -> None:
    lines(run, lambda n, line: line.update({k: line[k] / 2 for k in ("time",) if k in line}))
    for path in run.rglob("*"):
        os.utime(path, (1, 1))


def unended(run: Path) -> None:
    (run / "result.json").unlink()


def stepless(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    for path in (run / "record").glob("*/*.jsonl"):
        path.write_text(path.read_text().partition("\n")[0] + "\n")


def moved(run: Path) -> None:
    """Name folders that are not there, as a copy on another machine does."""
    for path in run.rglob("*.json*"):
        path.write_text(re.sub(r'"/[^"]*', '"/nowhere', path.read_text()))


def piped(*patterns: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        for path in [path for pattern in patterns for path in run.glob(pattern)]:
            path.unlink()
            os.mkfifo(path)

    change.__name__ = f"piped {patterns[0]}"
    return change


def linked(run: Path) -> None:
    """Keep the files elsewhere, as git-annex and DVC do."""
    for path in [path for path in run.rglob("*.json*") if path.is_file()]:
        kept = run.parent / f"kept-{'-'.join(path.relative_to(run).parts)}"
        path.rename(kept)
        path.symlink_to(kept)


def removed(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


EMPTY, PIPE = "the record of the run is empty", "it is no regular file, so the run cannot be shown"
READERS = ("report", "trace", "top", "sql", "view")
CASES: dict[Callable[[Path], None], Mapping[str, str]] = {
    torn: {},
    emptied: {"trace": EMPTY},
    not_finite: {},
    misnamed: {},
    stepped_back: {},
    no_times: {"trace": EMPTY},
    wild: {},
    not_utf8: {},
    nested: {},
    aged: {},
    unended: {},
    stepless: {"trace": EMPTY},
    moved: {},
    linked: {},
    piped("record/sink-0/*.jsonl"): dict.fromkeys(READERS, PIPE),
    piped("record/flow.json"): dict.fromkeys(READERS, PIPE),
    piped("metrics.jsonl"): dict.fromkeys(READERS, PIPE),
    piped("run.json", "plan.json"): {},
    removed: dict.fromkeys((*VERBS, "view"), "the folder has no run in it")
    | dict.fromkeys(("status", "events"), "there is no run of a job"),
}


@pytest.fixture
def run(seen: Path, tmp_path: Path) -> Path:
    left = shutil.ignore_patterns("snapshots", "state.sqlite", "logs")
    (tmp_path / "out").mkdir()
    return Path(shutil.copytree(seen, tmp_path / "seen", ignore=left))


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_a_run_is_shown_or_refused_with_cause_place_and_remedy(
    change: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run)
    before, out = content(run), run.parent / "out"
    for verb, rest in VERBS.items():
        code = main([verb, str(run), *(each.format(out=out) for each in rest)])
        said = capsys.readouterr().err
        if verb == "events" and code == 1:  # the copy has no journal
            assert ("no journal" in said, said.count("\n  → ")) == (True, 1), said
        elif refused := CASES[change].get(verb):
            assert (code, said.count("error: "), said.count(" → ")) == (2, 1, 1), said
            assert f"{run}" in said
            assert refused in said
        else:
            assert code == 0, said
    if refused := CASES[change].get("view"):
        assert main(["view", str(run), "--no-open"]) == 2
        assert refused in capsys.readouterr().err
    else:
        client = TestClient(
            application(Runs(run.parent, run), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
        )
        pages = [client.get(f"/run/seen/{page}") for page in PAGES]
        assert {page.status_code for page in pages} == {200}
        assert not any("<script>alert" in page.text for page in pages)
        assert "<script>" not in (out / "report").read_text()
    assert content(run) == before


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process become larger than 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_a_file_that_cannot_be_written_leaves_the_one_that_is_there(
    verb: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run.parent / "out" / verb
    output.write_text("mine")
    with full_disk():
        code = main([verb, str(run), "-o", str(output)])
    assert code == 2
    assert "cannot be written: File too large\n  → choose another place" in capsys.readouterr().err
    assert content(output.parent) == {output: b"mine"}


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_a_pipe_is_not_replaced_by_a_file(verb: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = run.parent / "out" / verb
    os.mkfifo(output)
    assert main([verb, str(run), "-o", str(output)]) == 2
    assert "cannot be written: it is no regular file\n  → choose another place" in capsys.readouterr().err
    assert output.is_fifo()


@pytest.mark.parametrize("closed", ["", "record", "record/sink-0", "events.jsonl"])
def test_a_run_that_this_user_may_not_read_is_refused(closed: str, run: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folder is closed to other users
        os.chmod(folder, 0o755)
        path = Path(shutil.copytree(run, f"{folder}/seen"))
        (path / closed).chmod(0)
        own = os.geteuid()
        try:
            if own == 0:
                os.seteuid(65534)
            with pytest.raises(RolemeshError, match="this user may not read it") as raised:
                readable_run(str(path), Path(folder))
        finally:
            os.seteuid(own)
            (path / closed).chmod(0o755)
    assert raised.value.where == str(path / closed)
    assert "chmod -R a+rX" in raised.value.remedy


@contextmanager
def another_user(run: Path) -> Iterator[Path]:
    """Copy the run to where other users may read, and be one of them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(shutil.copytree(run, f"{folder}/seen"))
        for name in ("result.json", "run.json", "plan.json"):
            (path / name).unlink()
        (path / "control.json").write_text("{}")
        own = os.geteuid()
        try:
            if own == 0:
                os.seteuid(65534)
            yield path
        finally:
            os.seteuid(own)


@pytest.mark.parametrize("closed", ["record/sink-0/000000.jsonl", "job.yaml"])
def test_a_file_that_this_user_may_not_read_is_named_and_the_rest_is_shown(
    closed: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / closed).chmod(0)
    with another_user(run) as path:
        found = [readable_run(str(path), path.parent), *map(hindrance, [path])]
        said = capsys.readouterr().err
        client = TestClient(
            application(Runs(path.parent, path), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
        )
        pages = [client.get(f"/run/seen/{page}") for page in PAGES]
    (run / closed).chmod(0o755)
    assert found[0] == path
    assert said == f"warning: {found[1]}\n"
    assert f"{path}/{closed}: this user may not read it" in said
    assert f"chmod -R a+rX {path}" in said
    assert {page.status_code for page in pages} == {200}
    assert "this user may not read it" in pages[-1].text


def test_the_list_of_jobs_names_the_folders_that_this_user_may_not_read(run: Path) -> None:
    with another_user(run) as path:
        own = os.geteuid()
        os.seteuid(os.getuid())
        (path.parent / "closed").mkdir(mode=0o700)
        (path / "events.jsonl").chmod(0)
        os.seteuid(own)
        client = TestClient(
            application(Runs(path.parent), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
        )
        text = client.get("/").text
    assert "This user may not read closed in" in text
    assert ">unreadable</span>" in text


def test_a_folder_that_is_gone_is_said_to_be_gone(run: Path) -> None:
    runs = Runs(run.parent, run)
    client = TestClient(application(runs, Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"})
    assert "Failures" in client.get("/run/seen/failures").text
    shutil.rmtree(run)
    assert "is no longer there" in hindrance(run)
    client = TestClient(
        application(Runs(run.parent, run), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )
    until(lambda: "has removed or moved it" in client.get("/run/seen/failures").text, what="a page says so")


@pytest.mark.parametrize("verb", ["status", "events"])
def test_a_verb_says_that_this_user_may_not_read_the_folder(
    verb: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([verb, str(run)])  # imports all that the verb needs: Python itself may be closed to the other user
    capsys.readouterr()
    with another_user(run) as path:
        own = os.geteuid()
        os.seteuid(os.getuid())
        path.chmod(0)
        os.seteuid(own)
        code = main([verb, str(path)])
    assert (code, f"error: {path}: this user may not read it\n  → " in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("data", [None, b"", b"\x00" * 100, b"{", b"\xff" * 8], ids=repr)
def test_a_file_that_is_no_saved_call_is_refused(
    data: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "call.safetensors"
    if data is not None:
        path.write_bytes(data)
    assert main(["replay-op", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}: " in said
    assert "\n  → give a file from the folder failures of a run" in said
