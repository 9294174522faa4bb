"""The questions of a file: prompts, order, held-out part, errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import pyarrow.parquet
import pytest

from rolemesh.api.batch import concat
from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError
from rolemesh_rewards.prompts import make_prompt, question_of, text_of
from rolemesh_rewards.questions import Questions, QuestionsOptions
from rolemesh_rewards.table import read_rows

ROWS = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(10)]


def written(folder: Path, rows: list[Any] = ROWS, name: str = "q.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def data(path: Path, *, rank: int = 0, world_size: int = 1, seed: int = 0, **options: Any) -> Questions:
    given = QuestionsOptions(**{"data": str(path), "prompts_per_step": 4, **options})
    workload = Questions(given)
    workload.setup(RankContext(rank=rank, world_size=world_size, seed=seed))
    return workload


def test_a_row_is_a_chat_with_the_rows_own_columns(tmp_path: Path) -> None:
    batch = data(written(tmp_path), system="Be brief.", shuffle=False, held_out=0).next()
    assert batch["messages"][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 0 + 1?"},
    ]
    assert list(batch["row"]) == ROWS[:4]
    assert list(batch["question"]) == [row["question"] for row in ROWS[:4]]


def test_without_chat_a_row_is_a_text(tmp_path: Path) -> None:
    assert data(written(tmp_path), chat=False, shuffle=False, held_out=0).next()["prompt"][0] == "What is 0 + 1?"


def test_each_question_comes_once_per_epoch_in_another_order(tmp_path: Path) -> None:
    role = data(written(tmp_path), prompts_per_step=8, held_out=2)
    epochs = [list(role.next()["question"]) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({frozenset(epoch) for epoch in epochs}) == 1
    held = set(role.held_out()["question"])
    assert len(held) == 2
    assert not held & set(epochs[0])


def test_the_index_is_unique_in_the_job_though_questions_repeat(tmp_path: Path) -> None:
    role = data(written(tmp_path, ROWS[:3]), prompts_per_step=8, held_out=0)
    numbers = np.concatenate([role.next()["index"] for _ in range(3)])
    assert numbers.tolist() == list(range(24))


@pytest.mark.parametrize(("rows", "share", "kept"), [(3, 0.1, 1), (1, 0.1, 0), (10, 0.25, 2), (3, 0, 0)])
def test_a_share_of_few_questions_holds_one_out(tmp_path: Path, rows: int, share: float, kept: int) -> None:
    assert data(written(tmp_path, ROWS[:rows]), held_out=share).held_out().rows == kept


def test_conversations_that_end_alike_are_different_questions(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"Explain {n}."}, SAID, {"role": "user", "content": "Go on."}] for n in range(10)
    ]
    role = data(written(tmp_path, [{"messages": chat} for chat in chats]), held_out=2)
    assert (len(role.held), len(role.train)) == (2, 8)


def test_a_text_that_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    role = data(written(tmp_path, ROWS * 2), held_out=0.2, prompts_per_step=40)
    assert not set(role.held_out()["question"]) & set(role.next()["question"])


def test_ranks_together_return_the_rows_of_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = data(path, seed=3).next()
    parts = concat([data(path, rank=rank, world_size=3, seed=3).next() for rank in range(3)])
    assert list(parts["question"]) == list(whole["question"])
    assert parts["index"].tolist() == whole["index"].tolist()


def test_a_restored_role_goes_on_with_the_next_question(tmp_path: Path) -> None:
    path = written(tmp_path)
    first, second = data(path), data(path)
    first.next()
    second.restore(first.snapshot())
    assert list(first.next()["question"]) == list(second.next()["question"])


def test_a_changed_file_is_told_after_a_restore(tmp_path: Path) -> None:
    path = written(tmp_path)
    state = data(path).snapshot()
    written(tmp_path, ROWS[:9])
    role = data(path)
    role.restore(state)
    role.next()
    assert "has changed" in str(role.ctx.port.records)


def test_the_job_finishes_after_its_epochs(tmp_path: Path) -> None:
    role = data(written(tmp_path), epochs=2, held_out=0)
    for step in range(5):
        assert not role.ctx.port.finishing, step
        role.next()
    assert "2 epochs" in role.ctx.port.finishing


@pytest.mark.parametrize("ranks", [1, 3])
def test_no_question_comes_behind_the_last_epoch(tmp_path: Path, ranks: int) -> None:
    roles = [data(written(tmp_path), rank=rank, world_size=ranks, epochs=1, held_out=0) for rank in range(ranks)]
    steps = [concat([role.next() for role in roles]) for _ in range(5)]
    assert [step.rows for step in steps] == [4, 4, 2, 0, 0]
    assert sorted(row["answer"] for step in steps for row in step["row"]) == sorted(row["answer"] for row in ROWS)
    assert list(steps[-1]) == list(steps[0])
    assert roles[0].snapshot()["asked"] == 10


def test_a_role_that_was_restored_behind_the_last_epoch_asks_nothing(tmp_path: Path) -> None:
    role = data(written(tmp_path), epochs=1, held_out=0)
    role.restore({**role.snapshot(), "asked": 16})  # as a version without this limit has left it
    assert role.next().rows == 0
    assert "1 epochs" in role.ctx.port.finishing


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("problem", "1+1"),
        ("{problem} = ? {{}} {", "1+1 = ? {{}} {"),
        ([{"role": "system", "content": "Add."}, {"role": "user", "content": "{problem}?"}], "1+1?"),
        (None, "1+1"),
        (r"{problem} in \boxed{{problem}}", r"1+1 in \boxed{problem}"),
        (r"\boxed{{{problem}}}", r"\boxed{1+1}"),
        (r"{problem}, as \frac{1}{2} or {'a': {'b': 1}}", r"1+1, as \frac{1}{2} or {'a': {'b': 1}}"),
    ],
)
def test_a_prompt_is_a_column_a_template_or_a_chat(option: Any, content: str) -> None:
    assert make_prompt({"problem": "1+1"}, option, None)[-1] == {"role": "user", "content": content}


@pytest.mark.parametrize("text", [r"in \boxed{problem}", r"in \frac{1}{problem}", r"\text*{problem}"])
def test_a_column_in_braces_of_latex_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=r"and the rows have a column 'problem'") as refused:
        make_prompt({"problem": "1+1"}, f"{{problem}} {text}", None)
    assert "{{problem}}" in refused.value.remedy


USER, SAID = {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, SAID], "problem": "1+1", "answer": "2"},
        {"prompt": None, "question": "1+1"},
        {"chosen": [USER, SAID], "rejected": [USER, {**SAID, "content": "3"}]},
        {"chosen": [USER, SAID], "rejected": [USER, SAID], "messages": [USER, SAID]},
        {"chosen": [SAID], "rejected": [SAID], "prompt": [USER]},
    ],
)
def test_a_row_asks_without_its_answer(row: dict[str, Any]) -> None:
    assert make_prompt(row, None, None) == [USER]


def test_a_chat_with_an_answer_is_continued_if_there_is_nothing_else() -> None:
    assert make_prompt({"messages": [USER, SAID]}, None, None) == [USER, SAID]
    assert make_prompt({"messages": [USER, SAID], "problem": "1+1"}, "messages", None) == [USER, SAID]


def test_a_column_may_have_the_chat_itself() -> None:
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1", "name": None}]
    assert make_prompt({"prompt": chat}, None, "Other.") == [chat[0], {"role": "user", "content": "1+1"}]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "has no rows"),
        ([{"a": 1}], {}, "row 1 .* none of the columns prompt, messages"),
        ([ROWS[0], {"answer": "1"}], {"prompt": "question"}, "row 2 .* no column 'question'"),
        ([{"question": 7}], {}, "neither a text nor the messages"),
        (ROWS, {"held_out": 10}, "all 10 questions .* held out"),
    ],
)
def test_a_row_without_a_prompt_is_an_error_with_its_number(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionsError, match=words):
        data(written(tmp_path, rows), **options)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("q.jsonl", b'{"a": 1}\n{"a": }\n', "line 2 is no JSON object"),
        ("q.jsonl", b'{"a": 1}\n[1]\n', "line 2 is no JSON object"),
        ("q.json", b"[1]", "no list of JSON objects"),
        ("q.csv", b"a,b\n1\n", "line 2 has 1 values for 2 columns"),
        ("q.csv", b"a\n\xff\n", "not UTF-8"),
        ("q.csv", b"question,answer,answer\na,1,2\n", "two columns have the name 'answer'"),
        ("q.txt", b"1", "unknown format"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_line(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionsError, match=words):
        read_rows(tmp_path / name)


def test_a_missing_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="No such file"):
        read_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.jsonl", b'\xef\xbb\xbf{"a": "1", "b": "x, y"}\r\n\r\n{"a": "2", "b": ""}'),
        ("q.json", b' [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]'),
        ("Q.CSV", b'\xef\xbb\xbfa,b\r\n1,"x, y"\r\n2,\r\n'),
    ],
)
def test_files_of_all_kinds_have_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_rows(tmp_path / name) == [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]


def test_parquet_and_saved_datasets_have_the_same_rows(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, tmp_path / "q.parquet")
    train = tmp_path / "saved" / "train"  # as datasets' save_to_disk, against which tests/judges compares
    train.mkdir(parents=True)
    with pyarrow.ipc.new_stream(str(train / "data-0.arrow"), table.schema) as stream:
        stream.write_table(table)
    (train / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert read_rows(tmp_path / "q.parquet") == read_rows(tmp_path / "saved") == ROWS


def test_times_of_pandas_are_read_in_microseconds_and_impossible_ones_refused(tmp_path: Path) -> None:
    path, nanoseconds = tmp_path / "q.parquet", 1_700_000_000_123_456_789
    kinds = pyarrow.timestamp("ns", "UTC"), pyarrow.timestamp("ns"), pyarrow.duration("ns")
    columns = {str(kind): pyarrow.array([nanoseconds, None], kind) for kind in kinds}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    passed = timedelta(microseconds=nanoseconds // 1000)
    zoned, plain = datetime(1970, 1, 1, tzinfo=UTC) + passed, datetime(1970, 1, 1) + passed
    assert [list(row.values()) for row in read_rows(path)] == [[zoned, plain, passed], [None] * 3]
    nested = pyarrow.array([[nanoseconds]], pyarrow.list_(kinds[0]))
    pyarrow.parquet.write_table(pyarrow.table({"seen": nested}), path)
    assert read_rows(path) == [{"seen": [zoned]}]
    nowhere = pyarrow.array([0], pyarrow.timestamp("us", "Nowhere/Land"))
    pyarrow.parquet.write_table(pyarrow.table({"t": nowhere}), path)
    with pytest.raises(OptionsError, match="a value is none of Python"):
        read_rows(path)
    pyarrow.parquet.write_table(pyarrow.table({"t": pyarrow.array([1 << 60], pyarrow.timestamp("us"))}), path)
    with pytest.raises(OptionsError, match="a value is none of Python"):
        read_rows(path)


def test_json_columns_of_datasets_have_their_values(tmp_path: Path) -> None:
    def coded(*texts: str | None) -> Any:
        return pyarrow.ExtensionArray.from_storage(pyarrow.json_(), pyarrow.array(texts, pyarrow.string()))

    columns = {
        "answer": coded('{"x":1}', '"text"', None),
        "tools": pyarrow.ListArray.from_arrays([0, 2, 2, 2], coded('{"n":1}', '"s"')),
        "row": pyarrow.StructArray.from_arrays([coded(*["[1]"] * 3), pyarrow.array(["[1]"] * 3)], ["a", "b"]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "q.parquet")
    assert [(each["answer"], each["tools"], each["row"]) for each in read_rows(tmp_path / "q.parquet")] == [
        ({"x": 1}, [{"n": 1}, "s"], {"a": [1], "b": "[1]"}),
        ("text", [], {"a": [1], "b": "[1]"}),
        (None, [], {"a": [1], "b": "[1]"}),
    ]


def test_a_field_of_csv_may_be_a_document(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(f"question\n{'word ' * 50_000}\n")
    assert read_rows(tmp_path / "q.csv") == [{"question": "word " * 50_000}]


def test_a_saved_dataset_needs_one_of_its_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(OptionsError, match="several splits: train, test"):
        read_rows(tmp_path)
    with pytest.raises(OptionsError, match="no split 'tests'"):
        read_rows(tmp_path, "tests")
    with pytest.raises(OptionsError, match="no saved dataset"):
        read_rows(tmp_path, "test")


def test_times_of_spark_are_those_that_were_written(tmp_path: Path) -> None:
    times = [datetime(1500, 1, 1), datetime(9999, 12, 23, 23, 59, 59)]
    table = pyarrow.table({"t": pyarrow.array(times, pyarrow.timestamp("us"))})
    pyarrow.parquet.write_table(table, tmp_path / "q.parquet", use_deprecated_int96_timestamps=True)
    assert [row["t"] for row in read_rows(tmp_path / "q.parquet")] == times


def test_a_list_may_follow_many_blanks(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(" " * 1000 + '[{"n": 1}]')
    assert read_rows(tmp_path / "q.json") == [{"n": 1}]


def test_damaged_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "q.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(OptionsError, match="cannot be read"):
        read_rows(tmp_path / "q.parquet")


def test_a_question_of_parts_is_their_text() -> None:
    parts = [{"type": "text", "text": "1 + 1"}, {"type": "text", "text": "= ?"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    chat = [{"role": "user", "content": parts}, call, {"role": "tool", "content": "2"}]
    assert question_of(chat) == "1 + 1\n= ?"
    assert [text_of(each) for each in make_prompt({"messages": chat}, None, None)] == ["1 + 1\n= ?", "", "2"]
