"""Groups of trainer ranks for the tests: a server process that has torch imported forks them, as the zygote does.

Importable by the server's children because `plugins/workloads/conftest.py` puts this folder on the path.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from tests.waiting import HANG_S
from torch.profiler import profile

from rolemesh.api.batch import Batch, Ragged, Shard
from rolemesh.api.workload import RankContext, Rendezvous
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_runtime.digest import digest
from rolemesh_training.workload import TrainerWorkload

Scenario = Callable[..., Any]


def served(target: str) -> Iterator[Callable[..., list[Any]]]:
    """For a fixture: ``group(scenario, world_size, options, *args)`` gives what `scenario` returns on each rank.

    `target` is the workload, ``module:name``. A rank's exception fails the test.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs, target))
    server.start()
    theirs.close()

    def run(scenario: Any, world_size: int, options: dict[str, Any], *args: Any) -> list[Any]:
        ours.send((scenario, world_size, options, args))
        results: list[Any] = ours.recv()
        errors = [str(result) for result in results if isinstance(result, BaseException)]
        assert not errors, "\n".join(errors)
        return results

    yield run
    ours.close()
    server.join(HANG_S)
    server.kill()


def serve(requests: Connection, target: str) -> None:
    """Answer (scenario, world_size, options, args) with each rank's result, until the other side closes."""
    module, _, name = target.partition(":")
    workload = getattr(import_module(module), name)
    os.environ.update(workload.env)
    for preload in workload.preload:
        import_module(preload)
    while True:
        try:
            scenario, world_size, options, args = requests.recv()
        except EOFError:
            return
        requests.send(_group(workload, scenario, world_size, options, args))


def _group(
    workload: type[TrainerWorkload], scenario: Scenario, world_size: int, options: dict[str, Any], args: tuple[Any, ...]
) -> list[Any]:
    fork = multiprocessing.get_context("fork")
    listener = socket.create_server(("127.0.0.1", 0))
    ready = fork.Barrier(world_size)
    pipes, ranks = [], []
    for rank in range(world_size):
        meeting = Rendezvous("127.0.0.1", listener.getsockname()[1], 3, listener.fileno() if rank == 0 else None)
        ours, theirs = fork.Pipe()
        process = fork.Process(
            target=_rank, args=(theirs, workload, scenario, rank, world_size, options, args, meeting, ready)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    listener.close()
    results = []
    for pipe in pipes:
        try:
            results.append(pipe.recv())
        except EOFError:
            results.append(RuntimeError("the rank died without a result"))
    for process in ranks:
        process.join(HANG_S)
        process.kill()
        process.join()
    return results


def _rank(
    results: Connection,
    workload: type[TrainerWorkload],
    scenario: Scenario,
    rank: int,
    world_size: int,
    options: dict[str, Any],
    args: tuple[Any, ...],
    meeting: Rendezvous,
    ready: Barrier,
) -> None:
    try:
        met = meeting if world_size > 1 else None
        results.send(on_rank(workload, scenario, rank, world_size, options, args, met, ready))
    except BaseException:
        ready.abort()
        results.send(RuntimeError(traceback.format_exc()))
        os._exit(1)


def on_rank(
    cls: type[TrainerWorkload],
    scenario: Scenario,
    rank: int,
    world_size: int,
    options: dict[str, Any],
    args: tuple[Any, ...],
    meeting: Rendezvous | None,
    ready: Barrier,
) -> Any:
    """Set a workload up, run the scenario on it when all ranks are ready (as the master does), tear it down.

    A rank that leaves earlier cuts gloo's connections of the ranks that are still joining.
    """
    parsed = cls.Options.model_validate(options)
    context = RankContext(rank=rank, world_size=world_size, rendezvous=meeting, seed=7)
    workload = cls(parsed)
    with profile(profile_memory=True) if scenario is growth else nullcontext() as allocated:
        workload.setup(context)
    workload.allocated = allocated  # type: ignore[attr-defined]
    ready.wait()
    try:
        return scenario(workload, context, *args)
    finally:
        workload.teardown()


def growth(workload: TrainerWorkload, ctx: RankContext) -> int:
    """Return the most bytes of tensors that `setup` held at once."""
    events = workload.allocated.profiler.kineto_results.events()  # type: ignore[attr-defined]
    found = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in found))


def share(batch: Batch, shares: list[int], rank: int) -> Batch:
    """The rank's contiguous part when rank r gets ``shares[r]`` rows."""
    start = sum(shares[:rank])
    return batch[start : start + shares[rank]]


def copied(value: Any) -> Any:
    """A snapshot of its own, which pickles without torch's shared memory: numpy copies instead of tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone().numpy()
    if isinstance(value, Shard):
        return Shard(copied(value.data), value.shape, value.offsets)
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def as_tensors(value: Any) -> Any:
    """The inverse of `copied`."""
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Shard):
        return Shard(as_tensors(value.data), value.shape, value.offsets)
    return {key: as_tensors(item) for key, item in value.items()} if isinstance(value, dict) else value


def train(workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], shares: list[int]) -> dict[str, Any]:
    """Train on each batch; return snapshot, whole weights of this rank's blocks, and the last step's metrics but
    speed."""
    for step, batch in enumerate(batches):
        ctx.step = step
        ctx.port.means.clear()
        workload.train(share(batch, shares, ctx.rank))
    return {
        "state": copied(workload.snapshot()),
        "weights": {name: _block(shard) for name, shard in workload.weights().items()},
        "metrics": {n: total / count for n, (total, count) in ctx.port.means.items() if not n.endswith("_per_s")},
        "counts": dict(ctx.port.sums),
    }


def assert_no_rows_change_nothing(group: Any, given: dict[str, Any], batches: list[Batch]) -> None:
    """Two ranks that get a batch without rows between these two of five rows end as those that do not get it."""
    first, second = batches
    with_it = group(train, 2, given, [first, first[:0], second], [3, 2])
    without = group(train, 2, given, [first, second], [3, 2])
    for one, other in zip(with_it, without, strict=True):
        assert digest(one["state"]["model"]) == digest(other["state"]["model"])
        assert digest(one["state"]["optimizer"]) == digest(other["state"]["optimizer"])
        assert one["state"]["updates"] == 2


def gathered(workload: TrainerWorkload, ctx: RankContext, lengths: list[int]) -> list[int]:
    """Gather a text of each rank, of these lengths; return the lengths. Each text has its rank's letter."""
    found = workload.engine.group.gather({"text": chr(97 + ctx.rank) * lengths[ctx.rank]})
    assert [set(each["text"]) <= {chr(97 + rank)} for rank, each in enumerate(found)] == [True] * ctx.world_size
    return [len(each["text"]) for each in found]


def train_with_pauses(
    workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], shares: list[int]
) -> dict[str, Any]:
    """As `train`, but between any two things all parameters and moments are without memory for a while."""
    parking = workload.engine.parking
    for batch in batches:
        workload.train(share(batch, shares, ctx.rank))
        assert parking.park() > 0
        assert not any(data.untyped_storage().nbytes() for data in workload.engine.blocks.data.values() if data.numel())
        assert parking.park() == 0, "what is away already stays as it is"
        parking.unpark()
        parking.unpark()
    return {"state": copied(workload.snapshot())}


def _block(shard: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    import torch

    data = shard.data
    return (data.float().numpy().copy() if isinstance(data, torch.Tensor) else data, shard.shape, shard.offsets)


def assembled(results: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The whole tensors from every rank's blocks; fails if an element is held by no rank or by two."""
    whole: dict[str, np.ndarray] = {}
    held: dict[str, np.ndarray] = {}
    for result in results:
        for name, (data, shape, offsets) in result["weights"].items():
            place = tuple(slice(o, o + n) for o, n in zip(offsets, data.shape, strict=True))
            whole.setdefault(name, np.zeros(shape, data.dtype))[place] = data
            held.setdefault(name, np.zeros(shape, int))[place] += 1
    assert all((count == 1).all() for count in held.values())
    return whole


def train_and_return_to(
    workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], shares: list[int], at: int
) -> dict[str, Any]:
    """Train on all batches, having kept the snapshot taken before batch `at`."""
    first = train(workload, ctx, batches[:at], shares)["state"]
    return {"early": first, **train(workload, ctx, batches[at:], shares)}


def continue_from(
    workload: TrainerWorkload, ctx: RankContext, states: list[Any], batches: list[Batch], shares: list[int]
) -> dict[str, Any]:
    """Restore this rank's snapshot in the new process, then train."""
    workload.restore(as_tensors(states[ctx.rank]))
    return train(workload, ctx, batches, shares)


def logprobs(workload: TrainerWorkload, ctx: RankContext, batch: Batch, shares: list[int]) -> Ragged:
    return workload.logprobs(share(batch, shares, ctx.rank))["ref_logprobs"]


def logprobs_after(
    workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], batch: Batch, shares: list[int]
) -> Ragged:
    """`logprobs` before, between and after updates: what a forward pass gathers must not outlive an update."""
    for step in batches:
        logprobs(workload, ctx, batch, shares)
        workload.train(share(step, shares, ctx.rank))
    return logprobs(workload, ctx, batch, shares)


def state_of(workload: TrainerWorkload, ctx: RankContext) -> Any:
    """A snapshot, right after setup."""
    return copied(workload.snapshot())


def losses(workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], shares: list[int]) -> list[float]:
    """The loss of each step."""
    return [train(workload, ctx, [batch], shares)["metrics"]["loss"] for batch in batches]


def persist(workload: TrainerWorkload, ctx: RankContext, batches: list[Batch], shares: list[int], shm: str) -> Any:
    """Train, then leave a snapshot in shared memory; the weights."""
    result = train(workload, ctx, batches, shares)
    MemorySnapshots(shm, "trainer", ctx.rank).write(0, workload.snapshot(), log=0, persist=True)
    return result


def resume(workload: TrainerWorkload, ctx: RankContext, origin: str, batches: list[Batch], shares: list[int]) -> Any:
    """Load a persisted snapshot at this world size; the weights at once, and those after training on."""
    workload.restore(disk.load(origin, "trainer", ctx.rank, ctx.world_size, workload.snapshot).state)
    return [train(workload, ctx, [], shares), train(workload, ctx, batches, shares)]
