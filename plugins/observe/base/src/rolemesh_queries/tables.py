"""The tables that queries see, with the meaning of their columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["RECORDED", "TABLES", "Column", "Table", "created", "named"]


class Column(NamedTuple):
    """A column: its type in DuckDB and its meaning."""

    type: str
    meaning: str


class Table(NamedTuple):
    """A table: what a row is, and its columns in order."""

    row: str
    columns: Mapping[str, Column]


_PROCESS: Final = {
    "role": Column("VARCHAR", "role of the rank"),
    "rank": Column("BIGINT", "number of the rank in its role"),
    "generation": Column("BIGINT", "number of starts before this one"),
}
_BEGAN: Final = {"began": Column("TIMESTAMP", "begin, UTC")}
_NODE: Final = {"node": Column("VARCHAR", "name of the node"), **_BEGAN, "seconds": Column("DOUBLE", "duration")}

TABLES: Final[Mapping[str, Table]] = {
    "ranks": Table(
        "a process of a rank: one row per start",
        _PROCESS
        | {
            "node": Column("VARCHAR", "node on which it ran"),
            "pid": Column("BIGINT", "number of the process on its node"),
            "began": Column("TIMESTAMP", "start of the process, UTC"),
            "ended": Column("TIMESTAMP", "end of its record, UTC"),
            "setup_s": Column("DOUBLE", "seconds before its first step: start, setup, restoring"),
            "wall_s": Column("DOUBLE", "seconds from then on; the sum of the columns below that end in _s"),
            "computing_s": Column("DOUBLE", "seconds in operators"),
            "waiting_s": Column("DOUBLE", "seconds of waits for edges and memory"),
            "saving_s": Column("DOUBLE", "seconds in snapshots"),
            "idle_s": Column("DOUBLE", "seconds until the master let it run further"),
            "other_s": Column("DOUBLE", "seconds in calls and loads, and of waits for a turn or a group"),
            "engine_s": Column("DOUBLE", "the rest: seconds in the engine itself"),
            "steps": Column("BIGINT", "number of steps that it finished"),
            "last_step": Column("BIGINT", "the last of them"),
        },
    ),
    "spans": Table(
        "an operator, wait, call or snapshot of at least 1 ms, or a phase before the first step",
        _PROCESS
        | {
            "phase": Column("VARCHAR", "computing, waiting, blocked, calling, saving, idle, setup and others"),
            "operator": Column("VARCHAR", "the operator that ran or needs the value, as role.method"),
            "edge": Column("BIGINT", "the edge that the rank waited for"),
            "called": Column("VARCHAR", "the role or rank that it called"),
            "step": Column("BIGINT", "step of the rank"),
        }
        | _BEGAN
        | {"seconds": Column("DOUBLE", "duration")},
    ),
    "accounts": Table(
        "where all of the time of half a second went; longer in an old part of a full record",
        _PROCESS
        | _BEGAN
        | {
            "seconds": Column("DOUBLE", "duration; the sum of the columns below that end in _s"),
            "computing_s": Column("DOUBLE", "seconds in operators"),
            "waiting_s": Column("DOUBLE", "seconds of waits for edges and memory"),
            "saving_s": Column("DOUBLE", "seconds in snapshots"),
            "idle_s": Column("DOUBLE", "seconds until the master let it run further"),
            "other_s": Column("DOUBLE", "seconds in calls and loads, and of waits for a turn or a group"),
            "engine_s": Column("DOUBLE", "the rest: seconds in the engine itself"),
            "steps": Column("BIGINT", "number of steps that ended in this time"),
            "step": Column("BIGINT", "the last finished step"),
        },
    ),
    "waits": Table(
        "a rank's wait for one edge within an account",
        _PROCESS
        | _BEGAN
        | {
            "edge": Column("BIGINT", "number of the edge"),
            "waited_s": Column("DOUBLE", "seconds of waits for a value, or for a consumer that takes one"),
        },
    ),
    "edges": Table(
        "a value of the flow, on its way from an operator call to a parameter of another one",
        {
            "edge": Column("BIGINT", "number of the edge"),
            "producer": Column("VARCHAR", "operator that makes the value, as role.method"),
            "consumer": Column("VARCHAR", "operator that takes it"),
            "param": Column("VARCHAR", "parameter that it becomes"),
            "partition": Column("VARCHAR", "how producers and consumers divide it"),
            "lag": Column("VARCHAR", "steps between the two, such as 1 or AtMost(2)"),
            "credits": Column("BIGINT", "number of values ahead; NULL for the engine's default"),
            "consumer_waited_s": Column("DOUBLE", "seconds that ranks of the consumer waited for values"),
            "producer_waited_s": Column("DOUBLE", "seconds that ranks of the producer waited for a consumer"),
            "value_bytes": Column("BIGINT", "bytes of its values, once for each consumer; NULL if no transport counts"),
            "travelled_bytes": Column("BIGINT", "bytes that ranks sent for them: fewer with delta"),
        },
    ),
    "events": Table(
        "a transition in the job's journal",
        {
            "seq": Column("BIGINT", "number, from 1"),
            "epoch": Column("BIGINT", "number of the master's start, from 1"),
            "time": Column("TIMESTAMP", "time, UTC"),
            "kind": Column("VARCHAR", "failure, recovered, committed and others"),
            "data": Column("JSON", "content, by kind"),
        },
    ),
    "metrics": Table(
        "one value of a line of metrics, which covers one step or several",
        {
            "step": Column("BIGINT", "the step, or the last of the steps that the line covers"),
            "steps": Column("BIGINT", "number of steps that the line covers: the weight of its value in a mean"),
            "time": Column("TIMESTAMP", "time, UTC"),
            "name": Column("VARCHAR", "name, such as reward"),
            "value": Column("DOUBLE", "value per step; NaN if it was no number"),
            "operator": Column("VARCHAR", "operator that reported it; NULL for the value over all operators"),
            "role": Column(
                "VARCHAR", "role, for computing_s, waiting_s and blocked_s (means over its ranks, per step)"
            ),
        },
    ),
    "rows": Table(
        "a row that the recorder kept (its option rows)",
        {
            "role": _PROCESS["role"],
            "rank": _PROCESS["rank"],
            "step": Column("BIGINT", "step"),
            "operator": Column("VARCHAR", "operator that returned or took it"),
            "row": Column("BIGINT", "number in the rank's batch"),
            "columns": Column("JSON", "values by column"),
            "cut": Column("VARCHAR[]", "columns of which only the beginning is here"),
            "ended": Column("VARCHAR", "finished, truncated, failed, or the row's own word"),
            "error": Column("VARCHAR", "what went wrong: in the sample, in its judgement, or in a tool"),
            "empty": Column("BOOLEAN", "whether its completion has no tokens or no text"),
            "tokens": Column("BIGINT", "number of its sampled tokens"),
            "reward": Column("DOUBLE", "reward; NULL for none and for NaN"),
            "not_finite": Column("VARCHAR", "column that has NaN, infinity or nothing in place of a number"),
            "group_id": Column("VARCHAR", "group of samples"),
            "task": Column("VARCHAR", "task, prompt or source of data"),
            "weight_version": Column("BIGINT", "version of the oldest weights that sampled one of its tokens"),
        },
    ),
    "nodes": Table(
        "the load of a node for 2 s; longer in an old part of a full record",
        _NODE
        | {
            "cores": Column("DOUBLE", "mean number of busy cores"),
            "cores_total": Column("DOUBLE", "cores that the job may use there"),
            "memory": Column("BIGINT", "largest number of bytes in use"),
            "memory_total": Column("BIGINT", "bytes that the job may use there"),
            "received": Column("BIGINT", "bytes received over the network in this time"),
            "sent": Column("BIGINT", "bytes sent"),
        },
    ),
    "gpus": Table(
        "the load of a GPU of a node, in the time of a row of nodes",
        _NODE
        | {
            "gpu": Column("BIGINT", "number of the GPU on its node, by NVML"),
            "name": Column("VARCHAR", "name, such as NVIDIA H200"),
            "busy": Column("DOUBLE", "share of the time in which a kernel ran; NULL if the GPU does not tell"),
            "memory": Column("BIGINT", "largest number of bytes in use"),
            "memory_total": Column("BIGINT", "bytes of its memory"),
            "celsius": Column("DOUBLE", "temperature"),
        },
    ),
    "costs": Table(
        "the cost of a role, from the begin of the job to its end",
        {
            "role": Column("VARCHAR", "the role"),
            "rank_hours": Column("DOUBLE", "hours of its ranks together"),
            "gpu_hours": Column("DOUBLE", "hours of their GPUs; ranks on one GPU share it evenly"),
            "lost": Column("DOUBLE", "share of the time from failures until the ranks had caught up, 0 to 1"),
            "waiting": Column("DOUBLE", "share of the time of waits, 0 to 1; NULL without a record"),
        },
    ),
    "recoveries": Table(
        "a recovery of the job; number 0 has the failures without one",
        {
            "number": Column("BIGINT", "number, from 1"),
            "level": Column("VARCHAR", "failover level"),
            "began": Column("TIMESTAMP", "first symptom, UTC"),
            "ready_s": Column("DOUBLE", "seconds until the ranks were ready; NULL if they never were"),
            "regained_s": Column("DOUBLE", "seconds until they were at the step that they had reached before"),
            "restarted": Column("VARCHAR[]", "ranks that started again, as role/rank"),
            "source": Column("VARCHAR", "where their state came from, such as memory"),
            "reason": Column("VARCHAR", "why the level proposed it"),
            "failures": Column("VARCHAR[]", "what had happened"),
            "trail": Column("VARCHAR[]", "what each level proposed, and why it passed"),
        },
    ),
}

RECORDED: Final = ("ranks", "spans", "accounts", "waits", "edges")
"""The tables that are made of the ranks' records."""


def created(name: str) -> str:
    """Return the statement that creates a table."""
    columns = (f'"{column}" {each.type}' for column, each in TABLES[name].columns.items())
    return f"CREATE TABLE {name} ({', '.join(columns)})"


def named(sql: str) -> set[str]:
    """Return the tables that a query may use: those whose names are words of it."""
    words = set(re.findall(r"\w+", sql.lower()))
    return words & TABLES.keys()
