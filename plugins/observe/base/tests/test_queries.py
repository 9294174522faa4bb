"""`rolemesh sql`: the documented queries, what queries cannot reach, and damaged or hostile runs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path

import duckdb
import pytest

from rolemesh.api.observer import StepMetrics
from rolemesh.cli import main
from rolemesh.runs.jsonl import metrics_line
from rolemesh_queries.database import QueryError, answer, opened
from rolemesh_queries.formats import as_csv, as_json, as_table
from rolemesh_queries.tables import TABLES, named

README = Path(__file__).parents[1] / "README.md"
QUERIES = re.findall(r"```sql\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def rows(run_dir: Path, sql: str) -> list[tuple[object, ...]]:
    with opened(run_dir, named(sql)) as database:
        return list(answer(database, sql)[1])


def test_the_ten_documented_queries_have_answers(seen: Path) -> None:
    assert len(QUERIES) == 10
    with opened(seen, TABLES) as database:
        assert [query for query in QUERIES if not list(answer(database, query)[1])] == []


def test_a_copied_run_tells_what_its_ranks_did(seen: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    shutil.copytree(seen, copy)
    (edge,) = rows(copy, "select producer, consumer, param, producer_waited_s + consumer_waited_s > 0 from edges")
    assert edge == ("source.make", "sink.take", "batch", True)
    assert rows(copy, "select level, len(restarted), ready_s > 0 from recoveries") == [("process", 1, True)]
    assert rows(copy, "select count(*) > 0, min(cores_total) >= 1 from nodes join ranks using (node)") == [(True, True)]
    assert rows(copy, "select max(step) from spans where operator = 'sink.take'") == [(19,)]
    assert rows(copy, "select count(*) from metrics where name = 'reward' and operator is null") == [(20,)]
    assert rows(copy, "select distinct columns->>'text' from rows") == [("<b>\x1b[31m",)]


def test_times_of_ranks_add_up(seen: Path) -> None:
    parts = "computing_s + waiting_s + saving_s + idle_s + other_s + engine_s"
    for table, whole in (("ranks", "wall_s"), ("accounts", "seconds")):
        assert rows(seen, f"select * from {table} where abs({parts} - {whole}) > 0.02 * {whole} + 0.01") == []


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/hostname')",
        "select * from '/etc/hostname'",
        "select * from read_json('http://127.0.0.1:9/x')",
        "select * from glob('/*')",
        "copy ranks to 'ranks.csv'",
        "attach 'other.db'",
        "create table other (x int)",
        "set enable_external_access = true",
        "install httpfs",
        "select 1; select 2",
        "select * from run_dir",
        "selec 1",
        "",
    ],
)
def test_a_query_reaches_nothing_but_the_run(seen: Path, sql: str) -> None:
    with opened(seen, ()) as database, pytest.raises(QueryError):
        list(answer(database, sql)[1])


def test_a_damaged_record_is_data(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    folder = tmp_path / "record" / "sink-0"
    folder.mkdir(parents=True)
    (tmp_path / "record" / "flow.json").write_text("[")
    (tmp_path / "events.jsonl").write_bytes(b'{"seq":1,"epoch":1,"time":1e300,"kind":"recovery_planned"}\n\xff\n')
    (tmp_path / "metrics.jsonl").write_bytes(b"\x00\n{}\n")
    span = '{"k":"span","phase":"computing","t":%d,"d":1000,"step":1,"op":7}\n'
    head = '{"k":"head","role":"sink","rank":0,"generation":0,"pid":1,"node":"n","t":-5}\n'
    lines = span % 1, head, span % 2, span % (1 << 62), span % (1 << 63), "x\n", span % 3
    (folder / "000000.jsonl").write_text("".join(lines))
    with opened(tmp_path, TABLES) as database:
        found = list(answer(database, "select operator, epoch_us(began) from spans order by 2")[1])
        assert found == [(None, 2), (None, 3)]
        assert list(answer(database, "select count(*) from events")[1]) == [(1,)]


def test_a_value_that_was_no_number_is_nan(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    lines = [StepMetrics(n, 1, 1.7e9, {"loss": loss}) for n, loss in enumerate([0.5, math.nan, 0.25])]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(metrics_line(line)[1] for line in lines))
    query = "select list(step order by step), list(isnan(value) order by step), isnan(avg(value)) from metrics"
    assert rows(tmp_path, query) == [([0, 1, 2], [False, True, False], True)]


def test_the_command_prints_all_formats(seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select 'text' as name, data from events where kind = 'job_started'"
    shown = {}
    for format in ("csv", "json", "table"):
        assert main(["sql", str(seen), query, "--format", format]) == 0
        shown[format] = capsys.readouterr().out
    (object,) = json.loads(shown["json"])
    (line,) = csv.DictReader(io.StringIO(shown["csv"]))
    assert object == line
    assert json.loads(line["data"])["name"] == "seen"
    assert shown["table"].split()[:3] == ["name", "data", "text"]
    assert main(["sql", str(seen), "--tables"]) == 0
    assert {name for name in TABLES if f"{name}: " in capsys.readouterr().out} <= TABLES.keys()
    assert main(["sql", str(seen), "select nothing"]) == 2
    assert "--tables" in capsys.readouterr().err


def test_an_answer_becomes_a_parquet_file_with_its_types(
    seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "it's.parquet"
    query = "select name, value, time, [step] as steps, 'nan'::double as odd from metrics order by all; -- the end"
    assert main(["sql", str(seen), query, "--format", "parquet", "-o", str(out)]) == 0
    (relation,) = [duckdb.read_parquet(str(out))]
    assert [str(kind) for kind in relation.types] == ["VARCHAR", "DOUBLE", "TIMESTAMP", "BIGINT[]", "DOUBLE"]
    assert repr(relation.fetchall()) == repr(rows(seen, query)), "NaN is not equal to itself"
    before = out.read_bytes()
    for wrong in ("selec 1", "copy ranks to 'x'", "explain select 1", "select 1) to 'x' (format csv) --"):
        assert main(["sql", str(seen), wrong, "--format", "parquet", "-o", str(out)]) == 2
    assert (out.read_bytes(), [*tmp_path.iterdir()]) == (before, [out]), "a failed query changes nothing"
    assert main(["sql", str(seen), query, "--format", "parquet"]) == 2
    assert "--format parquet -o FILE" in capsys.readouterr().err
    assert main(["sql", str(seen), query, "-o", str(tmp_path / "none" / "x")]) == 2
    assert "choose another place" in capsys.readouterr().err
    assert main(["sql", str(seen), "select 1 as one", "--format", "csv", "-o", str(out)]) == 0
    assert out.read_text() == "one\n1\n"


def test_decimals_are_numbers_in_json(seen: Path) -> None:
    with opened(seen, ()) as database:
        text = "".join(as_json(*answer(database, "select 1.50 as a, [0.1::decimal(3,2)] as b")))
    assert json.loads(text) == [{"a": 1.5, "b": [0.1]}]


def test_formats_disarm_what_ranks_wrote() -> None:
    hostile = ("\x1b[31m\u202e" + "x" * 200, float("nan"), 1 << 70, None)
    columns = ["a", "b", "c", "d"]
    assert "\x1b" not in "".join(as_table(columns, [hostile]))
    (object,) = json.loads("".join(as_json(columns, [hostile])))
    assert object == {"a": hostile[0], "b": None, "c": str(1 << 70), "d": None}
    assert next(csv.reader(list(as_csv(columns, [hostile]))[1:])) == [hostile[0], "nan", str(1 << 70), ""]
    assert "".join(as_json(columns, [])) == "[]\n"


def test_csv_is_that_of_duckdb(tmp_path: Path) -> None:
    query = (
        r"select 'x'::blob a, '\xAA\x00'::blob b, true c, interval '3 days' d, interval '1 hour' e, '' f, null g, "
        r"timestamp '2020-01-01 00:00:00' h, date '2020-01-01' i, time '10:00:01' j, 0.1::decimal(4,3) k, 'a,\"b' l"
    )
    duckdb.sql(f"copy ({query}) to '{tmp_path}/right.csv' (header)")
    answer = duckdb.sql(query)
    assert "".join(as_csv(answer.columns, answer.fetchall())) == (tmp_path / "right.csv").read_text()


def test_columns_of_one_name_stay_apart_in_json() -> None:
    assert json.loads("".join(as_json(["a", "a", "a_2", "a"], [(1, 2, 3, 4)]))) == [
        {"a": 1, "a_3": 2, "a_2": 3, "a_4": 4}
    ]
