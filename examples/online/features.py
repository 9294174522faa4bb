"""The role between the stream and the trainer: events become keys of embedding tables."""

import numpy as np

from rolemesh import Batch, Split, Workload, operator

KINDS = ("user", "item", "cross")


class Features(Workload):
    """A stateless role that maps each row alone, so any number of ranks gives the same result."""

    deterministic = True

    @operator(clicks=Split(), returns=Split())
    def make(self, clicks: Batch) -> Batch:
        """Return `keys`, `clicked`, `n` and `at`; nothing for a batch without rows.

        `keys`: int64 (rows, 3), of the user, the item, and its segment and topic together; `clicked`: float32; `n`:
        int64, the event's number; `at`: float64, the time at which it was sent.
        """
        if not clicks.rows:
            return Batch({}, rows=0)
        user, item, segment, topic, n = (
            np.array(clicks[name], np.int64) for name in ("user", "item", "segment", "topic", "n")
        )
        clicked, at = np.array(clicks["clicked"], np.float32), np.array(clicks["at"], np.float64)
        return Batch({"keys": keys(user, item, segment, topic), "clicked": clicked, "n": n, "at": at})


def keys(user, item, segment, topic):
    """Return ids that differ by kind: the uppermost bits contain the kind."""
    found = np.stack([user, item, segment * 1000 + topic], axis=1)
    return found + (np.arange(len(KINDS)) << 56)
