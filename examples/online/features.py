"""The role between the stream and the trainer: events become keys of embedding tables."""

import numpy as np

from rolemesh import Batch, Split, Workload, operator

FIELDS = ("user", "item", "cross")
GIVEN = ("user", "item", "segment", "topic")


class Features(Workload):
    """A stateless role that maps each row alone, so any number of ranks gives the same result."""

    deterministic = True

    @operator(clicks=Split(), returns=Split())
    def make(self, clicks: Batch) -> Batch:
        """Return `FIELDS`, `clicked`, `n` and `at`; nothing for a batch without rows.

        `clicked`: float32; `n`: int64, the event's number; `at`: float64, the time at which it was sent.
        """
        if not clicks.rows:
            return Batch({}, rows=0)
        clicked, at = np.array(clicks["clicked"], np.float32), np.array(clicks["at"], np.float64)
        made = keys(*(np.array(clicks[name], np.int64) for name in GIVEN))
        return Batch({**made, "clicked": clicked, "n": np.array(clicks["n"], np.int64), "at": at})


def keys(user, item, segment, topic):
    """Return the keys of each field: of the user, the item, and its segment and topic together."""
    return dict(zip(FIELDS, (user, item, segment * 1000 + topic), strict=True))
