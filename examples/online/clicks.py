"""The simulated users and items. Event number n is always the same, and tastes turn with n."""

import numpy as np

USERS, SEGMENTS, TOPICS = 2000, 8, 16
ITEMS = 300
"""Number of items that are shown at a time. Every `ITEM_EVENTS` events a new one comes, and the oldest goes."""
ITEM_EVENTS = 400
BLOCK = 1000
"""Number of events in a block. Events are made in blocks."""


def topic(item):
    """Return the angle of an item, or of an array of items."""
    return item * 7919 % TOPICS


def chance(segment, item, n, period):
    """Return the probability of a click. Each segment likes topics of one side of a circle, which turns once in a
    `period`.
    """
    angle = 2 * np.pi * (segment / SEGMENTS - topic(item) / TOPICS - n / period)
    quality = np.sin(item * 12.9898)
    return 1 / (1 + np.exp(1.0 - 3.0 * np.cos(angle) - 0.7 * quality))


def block(number, seed, period):
    """Return `BLOCK` events from ``number * BLOCK`` on, as columns of integers."""
    rng = np.random.default_rng([seed, number])
    n = number * BLOCK + np.arange(BLOCK)
    user = rng.integers(USERS, size=BLOCK)
    item = n // ITEM_EVENTS + rng.integers(ITEMS, size=BLOCK)
    segment = user % SEGMENTS
    clicked = (rng.random(BLOCK) < chance(segment, item, n, period)).astype(np.int64)
    return {"n": n, "user": user, "item": item, "segment": segment, "topic": topic(item), "clicked": clicked}


def events(first, count, seed=0, period=1_000_000):
    """Yield events from number `first` on, as dictionaries."""
    number, found = first // BLOCK, []
    while len(found) < count:
        columns = block(number, seed, period)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        found += [dict(zip(columns, row, strict=True)) for row in rows][max(first - number * BLOCK, 0) :]
        number += 1
    return found[:count]
