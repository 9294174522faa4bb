"""The roles of these tests: exact arithmetic on integers, so that any lost or repeated value shows."""

import time

import numpy as np

P = 1_000_003


def _work(seconds):
    if seconds:
        time.sleep(seconds)


class Source:
    """Keeps where it is: row k of all rows ever made is k. `size` numbers in each row."""

    def __init__(self, ctx, rows=6, size=4, pause=0.0):
        self.ctx, self.rows, self.size, self.pause = ctx, rows, size, pause
        self.at = ctx.rank * rows

    def setup(self, ctx):
        _work(20 * self.pause)

    def next(self):
        _work(self.pause)
        rows = np.arange(self.at, self.at + self.rows)
        self.at += self.rows * self.ctx.world_size
        self.ctx.count(rows=self.rows)
        return np.repeat(rows[:, None], self.size, axis=1)

    def chunks(self):
        _work(self.pause)
        for number in range(3):
            _work(self.pause)
            yield np.full((2, self.size), self.at + number)
        self.at += 10

    def snapshot(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


class Rollout:
    """Keeps nothing but the weights that were loaded last."""

    def __init__(self, ctx, pause=0.0):
        self.ctx, self.pause, self.weights = ctx, pause, np.ones(4, np.int64)

    def setup(self, ctx):
        _work(20 * self.pause)

    def generate(self, x):
        _work(self.pause)
        self.ctx.metric(weight=float(self.weights[0]))
        return (x * self.weights[0] + self.ctx.step) % P

    def load(self, weights) -> None:
        self.weights = np.array(weights)


class Counting(Rollout):
    """A state of its own, in which the weights are not: the last `load` is repeated."""

    calls = 0

    def generate(self, x):
        self.calls += 1
        return (super().generate(x) + self.calls) % P

    def snapshot(self):
        return {"calls": self.calls}

    def restore(self, state):
        self.calls = state["calls"]


class Trainer:
    """Folds everything it gets into its state."""

    def __init__(self, ctx, size=4, pause=0.0):
        self.ctx, self.pause = ctx, pause
        self.state = np.arange(1, size + 1, dtype=np.int64)
        self.seen = 0

    def setup(self, ctx):
        _work(20 * self.pause)

    def train(self, x) -> None:
        _work(self.pause)
        chunks = x if hasattr(x, "__next__") else [x]
        for chunk in chunks:
            self.seen += len(chunk)
            self.state = (self.state * 31 + int(np.asarray(chunk, np.int64).sum()) + self.ctx.step) % P
        self.ctx.metric(loss=float(self.state[0]))

    def note(self, x) -> None:
        self.train(x)

    def weights(self):
        return self.state.copy()

    def snapshot(self):
        return {"state": self.state, "seen": self.seen}

    def restore(self, state):
        self.state, self.seen = np.array(state["state"]), state["seen"]


class Tensors:
    """Numbers that tell their step."""

    def __init__(self, ctx, size):
        self.ctx, self.size, self.numbers = ctx, size, None

    def next(self):
        import torch

        if self.numbers is None:
            self.numbers = torch.empty(self.size, dtype=torch.int64)
        return torch.arange(self.ctx.step, self.ctx.step + self.size, out=self.numbers)


class Writer:
    """Writes into what it gets, in every way that torch knows, and finds each value as it was sent."""

    def __init__(self, ctx, size):
        self.ctx, self.size, self.sum = ctx, size, 0

    def train(self, x) -> None:
        self.look(x)
        part = max(1, self.size // 10)
        x[:part].add_(1)
        x.numpy()[part : 2 * part] = -7
        x[-1] = 3

    def both(self, x, y) -> None:
        self.train(x)
        self.look(y)

    def look(self, x) -> None:
        import torch

        want = torch.arange(self.ctx.step, self.ctx.step + self.size, 512)  # one number of each page
        assert torch.equal(x[::512], want), "this is not what was sent"
        self.sum += int(x[-1])

    def snapshot(self):
        return {"sum": self.sum}

    def restore(self, state):
        self.sum = state["sum"]
