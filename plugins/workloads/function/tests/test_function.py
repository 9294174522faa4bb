"""Plain functions and classes as roles."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh import Broadcast, OptionsError, Partial, RankContext, Sharded, Split
from rolemesh_function import FunctionOptions, FunctionWorkload, parse_partition

CODE = '''\
from rolemesh import Broadcast, Split, operator

def plain(rows, scale=2):
    """Multiplies."""
    return [scale * row for row in rows]

def with_ctx(rows, ctx):
    return [ctx.rank + row for row in rows]

def chunks(ctx):
    yield ctx.rank
    yield ctx.rank + 1

def nothing(rows) -> None: ...

def star(*rows): ...

class Counter:
    def __init__(self, ctx, start=0):
        self.rank, self.total, self.ready, self.closed = ctx.rank, start, False, False

    def setup(self):
        self.ready = True

    def add(self, rows):
        self.total += sum(rows)
        return self.total

    @operator(weights=Broadcast(), returns=Split(1))
    def load(self, weights):
        return weights

    def where(self, ctx) -> "None":
        self.step = ctx.step

    def _hidden(self): ...

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]

    def teardown(self):
        self.closed = True

class Stateless:
    def run(self): return 1

class Clash:
    def check(self): ...

class Empty: ...

number = 3
'''


@pytest.fixture
def options(tmp_path: Path) -> Any:
    """Options for a name in the code above."""
    (tmp_path / "user_code.py").write_text(CODE)

    def make(name: str, **more: Any) -> FunctionOptions:
        values = {"target": f"user_code.py:{name}", **more}
        return FunctionOptions.model_validate(values, context={"base": str(tmp_path)})

    return make


def running(options: FunctionOptions, rank: int = 0) -> FunctionWorkload:
    workload = FunctionWorkload(options)
    workload.setup(RankContext(rank=rank))
    return workload


def call(workload: FunctionWorkload, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(workload, name)(*args, **kwargs)


def test_a_function_is_one_operator_of_its_name(options: Any) -> None:
    [(name, spec)] = FunctionWorkload.operators(options("plain")).items()
    assert (name, spec.name, spec.doc) == ("plain", "plain", "Multiplies.")
    assert spec.inputs == {"rows": Split(), "scale": Split()}
    assert spec.required == ("rows",)
    assert spec.returns == Split()
    assert call(running(options("plain")), "plain", rows=[1, 2]) == [2, 4]


def test_kwargs_fix_arguments_of_a_function(options: Any) -> None:
    fixed = options("plain", kwargs={"scale": 10})
    assert FunctionWorkload.operators(fixed)["plain"].inputs == {"rows": Split()}
    assert call(running(fixed), "plain", rows=[1]) == [10]


def test_a_parameter_ctx_is_the_rank_context_and_no_edge(options: Any) -> None:
    assert FunctionWorkload.operators(options("with_ctx"))["with_ctx"].inputs == {"rows": Split()}
    assert call(running(options("with_ctx"), rank=5), "with_ctx", rows=[1]) == [6]


def test_a_generator_yields_chunks(options: Any) -> None:
    result = call(running(options("chunks"), rank=3), "chunks")
    assert isinstance(result, Iterator)
    assert list(result) == [3, 4]
    assert inspect.isgenerator(call(running(options("chunks")), "chunks"))


def test_an_annotation_none_returns_nothing_unless_the_options_say_otherwise(options: Any) -> None:
    assert FunctionWorkload.operators(options("nothing"))["nothing"].returns is None
    assert FunctionWorkload.operators(options("nothing", returns="broadcast"))["nothing"].returns == Broadcast()


def test_partitions_come_from_the_options(options: Any) -> None:
    spec = FunctionWorkload.operators(options("plain", inputs={"rows": "broadcast"}, returns="partial(mean)"))["plain"]
    assert (spec.inputs["rows"], spec.returns) == (Broadcast(), Partial("mean"))


def test_a_class_gives_its_public_methods(options: Any) -> None:
    specs = FunctionWorkload.operators(options("Counter"))
    assert list(specs) == ["add", "load", "where"]
    assert specs["load"].inputs == {"weights": Broadcast()}
    assert specs["load"].returns == Split(1)
    assert (specs["where"].inputs, specs["where"].returns) == ({}, None)


def test_a_class_is_made_once_per_rank_with_kwargs_and_lives_as_a_workload_does(options: Any) -> None:
    workload = running(options("Counter", kwargs={"start": 100}), rank=2)
    assert call(workload, "add", rows=[1, 2]) == 103
    assert (workload._instance.rank, workload._instance.ready) == (2, True)
    assert workload.snapshot() == {"total": 103}
    again = running(options("Counter"))
    again.restore({"total": 103})
    assert call(again, "add", rows=[1]) == 104
    again.teardown()
    assert again._instance.closed


def test_a_function_without_state_has_no_snapshot(options: Any) -> None:
    for name in ("plain", "Stateless"):
        workload = running(options(name))
        assert workload.snapshot() is None
        workload.teardown()
        with pytest.raises(NotImplementedError):
            workload.restore({})


@pytest.mark.parametrize(
    ("name", "more", "where", "what"),
    [
        ("number", {}, "target", "is a int"),
        ("star", {}, "target", "*rows cannot be an edge"),
        ("Clash", {}, "target", "cannot be called 'check'"),
        ("Empty", {}, "target", "no public method"),
        ("plain", {"inputs": {"rws": "split"}}, "inputs.rws", "no parameter 'rws'"),
        ("plain", {"kwargs": {"scael": 1}}, "kwargs", "unexpected keyword argument 'scael'"),
        ("Counter", {"kwargs": {"begin": 1}}, "kwargs", "unexpected keyword argument 'begin'"),
    ],
)
def test_an_object_that_cannot_be_a_role_is_refused_in_the_driver(
    options: Any, name: str, more: dict[str, Any], where: str, what: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        FunctionWorkload.check(options(name, **more), 1)
    assert caught.value.where == where
    assert what in caught.value.what
    assert caught.value.remedy


def test_partitions_are_written_as_words() -> None:
    assert [parse_partition(text) for text in ("split", "Split(2)", "partial", "sharded(1)", " broadcast ")] == [
        Split(), Split(2), Partial("sum"), Sharded(1), Broadcast(),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["splt", "split(x)", "broadcast(1)", "partial(max)", ""])
def test_a_wrong_partition_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match="is no partition"):
        parse_partition(text)
    with pytest.raises(ValidationError, match="is no partition"):
        options("plain", inputs={"rows": text})
