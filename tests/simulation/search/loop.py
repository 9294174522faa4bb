"""``python -m tests.simulation --hours N``: searches for schedules that break."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from tests.simulation.search import player
from tests.simulation.search.corpus import Corpus

__all__ = ["search"]

TOLD_S = 60.0


def search(families: Sequence[str], folder: Path, *, seconds: float, first: int, processes: int) -> int:
    """Play schedules of `families` for `seconds`; print what breaks, small and as a story. Returns how many broke."""
    corpus = Corpus(families, folder, first, random.Random(first))
    began = told = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=player.begin) as pool:
        waiting: set[Future[player.Played]] = set()
        while waiting or time.monotonic() < began + seconds:
            while len(waiting) < 2 * processes and time.monotonic() < began + seconds:
                waiting.add(pool.submit(player.play, corpus.next()))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for each in done:
                played = each.result()
                if corpus.add(played):
                    print(f"BROKEN {played.schedule}: {played.broken.strip().splitlines()[-1][:300]}", flush=True)
            if time.monotonic() > told + TOLD_S:
                told = time.monotonic()
                print(_state(corpus, told - began), flush=True)
        print(_state(corpus, time.monotonic() - began))
        print(f"families: {dict(corpus.played.most_common())}")
        for what, share in sorted(pool.submit(_executed, frozenset(corpus.known)).result().items()):
            print(f"  {what:<40} {share}")
    for what, schedule in corpus.broken.items():
        print(f"\n── {what}")
        if schedule.family in player.DISKS:
            print(f"python -m tests.simulation.{schedule.family} {schedule.seed}")
            continue
        from tests.simulation.search.shrink import shrunk
        from tests.simulation.search.story import story

        print(story(shrunk(schedule)), flush=True)
    return len(corpus.broken)


def _state(corpus: Corpus, seconds: float) -> str:
    return (
        f"{seconds:.0f} s: {corpus.played.total()} schedules, {len(corpus.known)} features, {len(corpus.broken)} broken"
    )


def _executed(known: frozenset[player.Feature]) -> dict[str, str]:
    """Return how much of each package was executed, in a process that has it."""
    from tests.simulation.search.blocks import BLOCKS

    blocks, statements, all_blocks, all_statements = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    there = {(module, line) for module, line, _ in known}
    for block in BLOCKS:
        package = ".".join(block.module.removeprefix("rolemesh_").split(".")[:3])
        for name in (package, "all"):
            all_blocks[name] += 1
            all_statements[name] += block.statements
            if (block.module, block.line) in there:
                blocks[name] += 1
                statements[name] += block.statements
    return {
        name: f"{blocks[name]} of {all_blocks[name]} blocks, {statements[name]} of {all_statements[name]} statements"
        for name in all_blocks
    }
