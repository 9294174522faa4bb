"""The workload `embeddings`: operators for flows with a fixed lag, services for callers that do not wait for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Broadcast, Split
from rolemesh.api.service import service
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh.errors import OptionsError, RolemeshError
from rolemesh_embeddings.exports import clean, write
from rolemesh_embeddings.hashing import BUCKETS, Keys, bucket_of, flat, mix, unique
from rolemesh_embeddings.hottest import Hottest
from rolemesh_embeddings.options import EmbeddingsOptions
from rolemesh_embeddings.owners import claim
from rolemesh_embeddings.part import Part
from rolemesh_embeddings.table import Table, looked_up, summed

__all__ = ["Embeddings"]

SHOWN = 100
"""Number of updates between two records of the hottest keys."""
ENDS = ("_keys", "_values", "_grads")
"""Ends of the names of columns for a table, behind the table's name."""
AT_ONCE = 256
"""Maximum number of calls of a service that a rank answers together."""


class Embeddings(Workload):
    """Holds tables whose rows come into being when their key is first updated. Each rank has some buckets of keys."""

    Options = EmbeddingsOptions
    options: EmbeddingsOptions
    deterministic = True
    preload: ClassVar[Sequence[str]] = ("rolemesh_embeddings.workload", "numpy.ma")  # np.unique imports it, in 0.01 s

    @classmethod
    def check(cls, options: EmbeddingsOptions, world_size: int) -> None:
        """See `Workload.check`."""
        for name, table in options.tables.items():
            if not name.isidentifier():
                raise OptionsError(
                    f"the table {name!r} is no column of a batch",
                    where=f"tables.{name}",
                    remedy="use letters, digits and _",
                )
            for other in options.tables:
                if name in (columns := [other + end for end in ENDS]):
                    raise OptionsError(
                        f"the table {name!r} has the name of a column for the table {other!r}",
                        where=f"tables.{name}",
                        remedy=f"use another name than {', '.join(columns)}",
                    )
            if table.dtype == "bfloat16" and table.optimizer.use == "ftrl":
                raise OptionsError(
                    "FTRL's weights do not fit bfloat16: the next update would see another weight than it has set",
                    where=f"tables.{name}.dtype",
                    remedy="use float32",
                )
            if table.dense_rows and (table.evict_after or table.admit_after > 1):
                raise OptionsError(
                    "rows that each lookup returns are neither admitted later nor evicted",
                    where=f"tables.{name}.dense_rows",
                    remedy="leave admit_after and evict_after out",
                )
        if world_size > BUCKETS // 2:
            raise OptionsError(
                f"keys are divided into {BUCKETS} buckets, too few for {world_size} ranks",
                where="tables",
                remedy=f"use at most {BUCKETS // 2} ranks",
            )

    def setup(self, ctx: RankContext) -> None:
        """Make empty tables."""
        self.ctx = ctx
        tables = {name: Table(name, options, ctx.seed) for name, options in self.options.tables.items()}
        folder = Path(ctx.run_dir, self.options.folder, ctx.role)
        self._origins = _resumed(ctx.run_dir)
        earlier = [origin / self.options.folder / ctx.role for origin in self._origins]
        self.part = Part(tables, ctx.rank, ctx.world_size, folder, self.options.file_mb, earlier)
        claim(folder, ctx.role, ctx.run_dir, self._origins)
        self._exports, self._exporting = Path(ctx.run_dir, self.options.export), False
        if self._exports.is_dir():
            self._claim_exports()
        self._dense = {
            name: keys[self._is_mine(keys)]
            for name, table in self.options.tables.items()
            for keys in [np.arange(table.dense_rows)]
        }
        self._hottest = {name: Hottest(self.options.hottest) for name in tables}
        self._asked: list[tuple[dict[str, Any], dict[str, Any], int, asyncio.Future[Any]]] = []
        self._pushed: list[tuple[str, int, dict[str, Any], asyncio.Future[Any]]] = []
        self._unwritten = False
        self._warned = set[str]()

    def teardown(self) -> None:
        """See `Workload.teardown`."""
        self.part.close()

    # ------------------------------------------------------------------------------------------- operators of a flow

    @operator(keys=Broadcast(), returns=Split())
    def lookup(self, keys: Batch) -> Batch:
        """Return one row per rank: for each table `T` the columns `T_keys` (int64) and `T_values` (float32, dim), both
        `Ragged`, and `updates`.

        `keys` has a column of keys for tables: int64 arrays of any shape, or `Ragged`. Other columns are ignored. Keys
        may be repeated.
        """
        found: dict[str, Any] = {}
        for name in self.part.tables:
            wanted = _joined([self._dense[name], *([self._mine(keys[name])] if name in keys else [])])
            found[name] = wanted, self._looked_up(name, wanted)
        return looked_up([self.part.updates], [found])

    @operator(grads=Broadcast())
    def update(self, grads: Batch) -> None:
        """Add up the gradients of each key, and apply them once.

        `grads` has for tables `T` the columns `T_keys` and `T_grads`, `Ragged` with one gradient (float32, dim) for
        each key, as `EmbeddingClient.gradients` returns them; `updates`, if there is one, is that of the lookup.
        """
        given = self._checked(
            {
                name: (grads[f"{name}_keys"].values, grads[f"{name}_grads"].values)
                for name in self.part.tables
                if f"{name}_keys" in grads
            }
        )
        if "updates" in grads and grads.rows:
            self.ctx.metric(row_staleness=self.part.updates - int(np.min(grads["updates"])))
        if given:
            self._apply({name: pair for name, pair in given.items() if len(pair[0])})

    @operator(returns=Split())
    def publish(self) -> Batch:
        """Write an export of the tables, and return one row per rank: its `folder`, relative to the run's.

        When all ranks have done so, `rolemesh_embeddings.Export.read` returns it. While there is no room on the disk,
        readers keep the export before: the rank warns once, and goes on.
        """
        try:
            self._claim_exports()
            write(self.part, self._exports, self.ctx.step, self.options.deltas, self.ctx.seed)
            self._unwritten = False
        except OSError as error:
            if not self._unwritten:
                self.ctx.warn(f"step {self.ctx.step} is not exported to {self._exports}, which stays as it is: {error}")
            self._unwritten = True
        return Batch({"folder": [self.options.export]})

    def _claim_exports(self) -> None:
        claim(self._exports, self.ctx.role, self.ctx.run_dir, self._origins)
        self._exporting = True

    # -------------------------------------------------------------------------------------------------------- services

    @service(concurrency=AT_ONCE)
    async def fetch(self, keys: dict[str, Any], held: dict[str, Any] | None = None, max_age: int = 0) -> dict[str, Any]:
        """Return `updates`, and this rank's ``[keys, values]`` for the tables in `keys` and those with `dense_rows`.

        `held` has for tables ``[keys, updates]`` of rows that the caller has, each as it was after that update: the
        answer has those of them, too, that are more than `max_age` updates old and may have changed since.
        """
        answer = asyncio.get_running_loop().create_future()
        self._known(keys)
        self._asked.append(({name: flat(each) for name, each in keys.items()}, held or {}, max_age, answer))
        await asyncio.sleep(0)  # others that wait, too, come first
        if not answer.done():
            self._answer()
        return dict(await answer)

    @service(concurrency=AT_ONCE)
    async def push(self, number: int, grads: dict[str, Any]) -> int:
        """Apply the caller's update `number`, unless it has been applied. Return the number of updates of this rank.

        `grads` has for tables ``[keys, gradients]``. Keys of other ranks are ignored.
        """
        by = self.ctx.called_by
        caller = f"{by.role}/{by.rank}" if by is not None else "?"
        answer = asyncio.get_running_loop().create_future()
        self._pushed.append((caller, number, self._checked(grads), answer))
        await asyncio.sleep(0)
        if not answer.done():
            self._take()
        return int(await answer)

    @service
    def applied(self) -> list[int]:
        """Return the rank, the number of ranks, and the caller's last update that has been applied, -1 for none."""
        by = self.ctx.called_by
        last = self.part.callers.get(f"{by.role}/{by.rank}", -1) if by is not None else -1
        return [self.ctx.rank, self.ctx.world_size, last]

    def _answer(self) -> None:
        """Answer all calls of `fetch` that wait, with one lookup for each table."""
        asked, self._asked = self._asked, []
        wanted = [
            {
                name: _joined([dense, *self._missing(name, keys, held, max_age)])
                for name, dense in self._dense.items()
                if name in keys or len(dense)
            }
            for keys, held, max_age, _ in asked
        ]
        found: dict[str, Any] = {}
        for name, dense in self._dense.items():
            keys = _joined([dense, *(each[name] for each in wanted if name in each)])
            found[name] = keys, self._looked_up(name, keys)
        for own, (*_, answer) in zip(wanted, asked, strict=True):
            told: dict[str, Any] = {"updates": self.part.updates}
            for name, keys in own.items():
                every, values = found[name]
                whole = len(keys) == len(every)
                told[name] = [keys, values if whole else values.take(np.searchsorted(every, keys), 0)]
            if not answer.done():
                answer.set_result(told)

    def _missing(self, name: str, keys: Mapping[str, Any], held: Mapping[str, Any], max_age: int) -> Iterator[Keys]:
        """Yield the keys of a call: those without a row at the caller, and those whose row there is too old."""
        if name in keys:
            yield self._mine(keys[name])
        if name in held:
            known, updates = (np.asarray(each) for each in held[name])
            old = updates < self.part.updates - max_age
            yield known[old][self.part.tables[name].changed(known[old], updates[old])]

    def _take(self) -> None:
        """Apply all updates that wait, as one."""
        pushed, self._pushed = self._pushed, []
        given: dict[str, list[Any]] = {}
        for caller, number, grads, _ in pushed:
            if number > self.part.callers.get(caller, -1):
                self.part.callers[caller] = number
                for name, pair in grads.items():
                    given.setdefault(name, []).append(pair)
        failed: Exception | None = None
        try:
            if given:
                self._apply(
                    {
                        name: pairs[0]
                        if len(pairs) == 1
                        else [np.concatenate(each) for each in zip(*pairs, strict=True)]
                        for name, pairs in given.items()
                    }
                )
        except Exception as error:  # it concerns all of them
            failed = error
        for *_, answer in pushed:
            if answer.done():
                continue
            if failed is None:
                answer.set_result(self.part.updates)
            else:
                answer.set_exception(failed)

    # ----------------------------------------------------------------------------------------------------------- both

    def _is_mine(self, keys: Keys) -> NDArray[np.bool_]:
        mine: NDArray[np.bool_] = self.part.mine[bucket_of(mix(keys))]
        return mine

    def _mine(self, keys: Any) -> Keys:
        every = flat(keys)
        return every[self._is_mine(every)]

    def _looked_up(self, name: str, keys: Keys) -> NDArray[np.float32]:
        values, known = self.part.tables[name].lookup(keys)
        self.ctx.count(keys_looked_up=len(keys))
        if len(keys):
            self.ctx.metric(hit_rate=known / len(keys))
        return values

    def _known(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self.part.tables:
                raise RolemeshError(
                    f"there is no table {name!r}", remedy=f"the tables are {', '.join(self.part.tables)}"
                )

    def _checked(self, given: Mapping[str, Any]) -> dict[str, tuple[Keys, NDArray[np.float32]]]:
        """Return keys and gradients by table as arrays. Raises `RolemeshError` if they do not fit the tables.

        A service checks them before it joins those of several callers, none of whom is to suffer for another one.
        """
        self._known(given)
        found = {name: (flat(keys), np.asarray(grads, np.float32)) for name, (keys, grads) in given.items()}
        for name, (keys, grads) in found.items():
            wanted = (len(keys), self.part.tables[name].options.dim)
            if grads.shape != wanted:
                raise RolemeshError(
                    f"gradients for {len(keys)} keys of the table {name!r} have the shape {grads.shape}",
                    remedy=f"give it gradients of shape {wanted}, a row for each key",
                )
        return found

    def _apply(self, given: Mapping[str, Any]) -> None:
        part = self.part
        part.updates += 1
        for name, (keys, grads) in given.items():
            table = part.tables[name]
            different, sums = self._finite(name, *summed(keys, grads, np.flatnonzero(self._is_mine(keys))))
            refused = table.update(different, sums, part.updates)
            self._hottest[name].add(different)
            self.ctx.count(keys_updated=len(different), keys_not_admitted=refused)
        for name, table in part.tables.items():
            self.ctx.count(rows_evicted=table.evict(part.updates))
            self.ctx.count(**{f"rows_{name}": len(table.store), f"bytes_{name}": table.store.nbytes})
            if self.options.hottest and part.updates % SHOWN == 0:
                self.ctx.record(**{f"hottest {name} {self.ctx.role}/{self.ctx.rank}": self._hottest[name].top()})
        if self.ctx.memory_gb:
            self.ctx.metric(memory=part.memory / (self.ctx.memory_gb * 1e9))
        if problem := part.finished():
            self.ctx.warn(problem)

    def _finite(self, name: str, keys: Keys, sums: NDArray[np.float32]) -> tuple[Keys, NDArray[np.float32]]:
        """Return keys and sums without those that are NaN or infinite: their rows would never be numbers again."""
        every = sums.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            quick = every @ every
        if np.isfinite(quick):
            return keys, sums
        good = np.isfinite(sums).all(1)
        if good.all():
            return keys, sums
        self.ctx.count(keys_not_finite=int((~good).sum()))
        if name not in self._warned:
            self._warned.add(name)
            self.ctx.warn(
                f"gradients for the table {name!r} are not finite, first for key {keys[~good][0]} at step "
                f"{self.ctx.step}: their rows stay as they are, and keys_not_finite counts them"
            )
        return keys[good], sums[good]

    # ---------------------------------------------------------------------------------------------------------- state

    def snapshot(self) -> State:
        """See `Workload.snapshot`."""
        return self.part.state(self.ctx.step)

    def restore(self, state: State) -> None:
        """See `Workload.restore`."""
        self.part.restore(state)

    def persisted(self, step: int) -> None:
        """See `Workload.persisted`. Remove files that no checkpoint from now on needs."""
        self.part.persisted(step)
        if self._exporting:
            clean(self.part, self._exports, step)


def _joined(parts: list[Keys]) -> Keys:
    """Return the different keys of all parts, ascending."""
    some = [each for each in parts if len(each)] or parts[:1]
    return unique(some[0] if len(some) == 1 else np.concatenate(some))


def _resumed(run_dir: Path) -> list[Path]:
    """Return the folder of the run that this one resumes, if any."""
    try:
        origin = json.loads((run_dir / "run.json").read_text()).get("origin")
    except (OSError, ValueError):
        return []
    return [Path(origin).parents[1]] if origin else []
