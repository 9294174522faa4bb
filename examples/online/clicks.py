"""The world: who clicks on what. Event number n is the same whenever it is asked for, and tastes turn with n."""

import numpy as np

USERS, SEGMENTS, TOPICS = 2000, 8, 16
ITEMS = 300
"""So many items are shown at a time; a new one comes, and the oldest goes, every `ITEM_EVENTS` events."""
ITEM_EVENTS = 400
BLOCK = 1000
"""Events are made in blocks of so many."""


def topic(item):
    """Of an item, or an array of them."""
    return item * 7919 % TOPICS


def chance(segment, item, n, period):
    """Probability of a click: each segment likes topics of one side of a circle, which turns once in a `period`."""
    angle = 2 * np.pi * (segment / SEGMENTS - topic(item) / TOPICS - n / period)
    quality = np.sin(item * 12.9898)
    return 1 / (1 + np.exp(1.0 - 3.0 * np.cos(angle) - 0.7 * quality))


def block(number, seed, period):
    """Events ``number * BLOCK`` and the next ones, as columns of integers."""
    rng = np.random.default_rng([seed, number])
    n = number * BLOCK + np.arange(BLOCK)
    user = rng.integers(USERS, size=BLOCK)
    item = n // ITEM_EVENTS + rng.integers(ITEMS, size=BLOCK)
    segment = user % SEGMENTS
    clicked = (rng.random(BLOCK) < chance(segment, item, n, period)).astype(np.int64)
    return {"n": n, "user": user, "item": item, "segment": segment, "topic": topic(item), "clicked": clicked}


def events(first, count, seed=0, period=1_000_000):
    """Events from number `first` on, as dictionaries."""
    number, found = first // BLOCK, []
    while len(found) < count:
        columns = block(number, seed, period)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        found += [dict(zip(columns, row, strict=True)) for row in rows][max(first - number * BLOCK, 0) :]
        number += 1
    return found[:count]
