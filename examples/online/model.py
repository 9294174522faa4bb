"""Wide and deep (Cheng et al., arXiv:1606.07792) in numpy, with a table of embeddings that grows with its keys.

RMSProp for all weights (Adagrad would learn less and less). The same batches give the same weights, bit for bit.
"""

import numpy as np

DIM, HIDDEN, FIELDS = 8, 16, 3
LR, DECAY, EPSILON = 0.01, 0.99, 1e-6
COLUMNS = 2 + 2 * DIM
"""Columns of a row of the table: the wide weight, the embedding, and the means of their gradients' squares."""

OF_ROWS = ("keys", "table", "touched", "used")


class Model:
    """The arrays of a model.

    `keys`: int64, in the order in which they came; `table`: float32 (capacity, COLUMNS), a row for each and room for
    more; `used`: the number of the update that used each key last; `dense`: float32, the weights of the two layers and
    the means of their gradients' squares.
    """

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        sizes = [(FIELDS * DIM, HIDDEN), (HIDDEN,), (HIDDEN,), (1,)]
        weights = [rng.normal(0, 0.3, size) if len(size) > 1 or size == (HIDDEN,) else np.zeros(size) for size in sizes]
        weights[1] = np.zeros(HIDDEN)
        flat = np.concatenate([weight.ravel() for weight in weights]).astype(np.float32)
        self.sizes = sizes
        self.dense = np.stack([flat, np.zeros_like(flat)])
        self.keys, self.table = np.zeros(1024, np.int64), np.zeros((1024, COLUMNS), np.float32)
        self.touched, self.used = np.zeros(1024, np.bool_), np.zeros(1024, np.int64)
        self.rows, self.updates = {}, 0

    # -------------------------------------------------------------------------------------------------- the table

    def _row(self, key):
        row = len(self.rows)
        if row == len(self.keys):  # doubled, so that the state's shapes change seldom
            for name in OF_ROWS:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.rows[key], self.keys[row] = row, key
        # An embedding begins with numbers that only depend on its key.
        self.table[row, 1 : 1 + DIM] = np.random.default_rng(key).normal(0, 0.1, DIM)
        return row

    def find(self, keys, grow):
        """Return rows of the table, of shape `keys`; -1 for an unknown key, unless the table may `grow`."""
        known, rows = self.rows, []
        for key in keys.ravel().tolist():
            row = known.get(key, -1)
            rows.append(self._row(key) if row < 0 and grow else row)
        return np.array(rows, np.int64).reshape(keys.shape)

    def forget(self, most):
        """Keep at most `most` rows: those that were used last."""
        if len(self.rows) <= most:
            return
        kept = np.sort(np.argsort(-self.used[: len(self.rows)], kind="stable")[:most])
        for name in OF_ROWS:
            array = getattr(self, name)
            room = np.zeros((1 << most.bit_length(), *array.shape[1:]), array.dtype)
            room[:most] = array[kept]
            setattr(self, name, room)
        self.rows = {key: row for row, key in enumerate(self.keys[:most].tolist())}

    # ------------------------------------------------------------------------------------------------ the network

    def _parts(self, dense):
        parts, at = [], 0
        for size in self.sizes:
            length = int(np.prod(size))
            parts.append(dense[at : at + length].reshape(size))
            at += length
        return parts

    def _forward(self, rows):
        known = (rows >= 0)[..., None]
        found = np.where(known, self.table[rows], 0)
        first, bias, second, last = self._parts(self.dense[0])
        deep = found[:, :, 1 : 1 + DIM].reshape(len(rows), -1)
        hidden = np.maximum(deep @ first + bias, 0)
        logits = found[:, :, 0].sum(1) + hidden @ second + last[0]
        return deep, hidden, 1 / (1 + np.exp(-np.clip(logits, -30, 30)))

    def predict(self, keys):
        """Return the probability of a click: float32 (rows,)."""
        return self._forward(self.find(keys, grow=False))[2]

    def learn(self, keys, clicked):
        """Learn from the batch, and return the predictions from before."""
        rows = self.find(keys, grow=True)
        deep, hidden, chance = self._forward(rows)
        first, _, second, _ = self._parts(self.dense[0])
        error = (chance - clicked) / np.float32(len(clicked)) ** 0.5
        back = np.outer(error, second) * (hidden > 0)
        grads = [deep.T @ back, back.sum(0), hidden.T @ error, error.sum(keepdims=True)]
        flat = np.concatenate([grad.ravel() for grad in grads])
        self.dense[1] = DECAY * self.dense[1] + (1 - DECAY) * flat**2
        embedded = (back @ first.T).reshape(len(rows), FIELDS, DIM)
        mine, places = np.unique(rows, return_inverse=True)
        grad = np.zeros((len(mine), 1 + DIM), np.float32)
        each = np.concatenate([np.broadcast_to(error[:, None, None], (*rows.shape, 1)), embedded], axis=2)
        np.add.at(grad, places.reshape(rows.shape), each)
        table = self.table[mine]
        table[:, 1 + DIM :] = DECAY * table[:, 1 + DIM :] + (1 - DECAY) * grad**2
        table[:, : 1 + DIM] -= LR * grad / (np.sqrt(table[:, 1 + DIM :]) + EPSILON)
        self.table[mine] = table
        self.dense[0] -= LR * flat / (np.sqrt(self.dense[1]) + EPSILON)
        self.updates += 1
        self.touched[mine], self.used[mine] = True, self.updates
        return chance

    # --------------------------------------------------------------------------------------------------- the state

    def state(self):
        """Return arrays from which `load_state` makes the same model."""
        arrays = {name: getattr(self, name) for name in (*OF_ROWS, "dense")}
        return {**arrays, "count": len(self.rows), "updates": self.updates}

    def load_state(self, state):
        """Restore the arrays of `state`."""
        for name in (*OF_ROWS, "dense"):
            setattr(self, name, np.array(state[name]))
        self.updates = state["updates"]
        self.rows = {key: row for row, key in enumerate(self.keys[: state["count"]].tolist())}

    def export(self, whole):
        """Return the arrays for serving: rows that changed since the last export, or the `whole` table."""
        rows = np.arange(len(self.rows)) if whole else np.flatnonzero(self.touched)
        self.touched[:] = False
        return {"keys": self.keys[rows], "table": self.table[rows, : 1 + DIM], "dense": self.dense[0]}


def auc(chance, clicked):
    """Return the area under the ROC curve, from ranks (Mann and Whitney 1947), with ties counted half; None without
    both classes.
    """
    positive = int(clicked.sum())
    if not 0 < positive < len(clicked):
        return None
    _, inverse, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = ranks[clicked > 0].sum() - positive * (positive + 1) / 2
    return float(total / (positive * (len(clicked) - positive)))
