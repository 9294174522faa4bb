"""Pictures of shapes, and questions about them, drawn from the job's seed: no data set, no hub."""

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Batch, Broadcast, OptionsError, Split, Workload, operator

SHAPES = ("ring", "square", "cross")
COLOURS = ("red", "green", "blue")
PLACES = ("top left", "top right", "bottom left", "bottom right")
ANSWERS = (*COLOURS, *SHAPES, *PLACES)
QUESTIONS = (
    *(f"what colour is the {shape}" for shape in SHAPES),
    *(f"which shape is {colour}" for colour in COLOURS),
    *(f"where is the {shape}" for shape in SHAPES),
)
WORDS = sorted({word for question in QUESTIONS for word in question.split()})
LENGTH = max(len(question.split()) for question in QUESTIONS)
"""Number of words in a question. Shorter questions are padded with 0; word numbers start at 1."""
SIDE = 24
"""Pixels of a picture's side; a quadrant is half of it."""


class ShapesOptions(BaseModel, extra="forbid"):
    """Options of the role `data`."""

    rows: int = Field(64, gt=0, description="questions of a step, over all micro-batches")
    micro_batches: int = Field(1, gt=0, description="into how many micro-batches a step's questions are cut")
    held_out: int = Field(256, gt=0, description="questions that are never learned from")


class Shapes(Workload):
    """Question *i* is the same on every rank and at any time, so there is no state."""

    Options = ShapesOptions
    deterministic = True

    @classmethod
    def check(cls, options, world_size):
        if options.rows % options.micro_batches:
            what = f"{options.rows} rows cannot be cut into {options.micro_batches} equal micro-batches"
            raise OptionsError(what, where="rows", remedy="choose a multiple")

    def setup(self, ctx):
        self.ctx = ctx

    @operator(micro=Broadcast(), returns=Split())
    def images(self, micro=0):
        """Return the pictures of a micro-batch: `image`, float32 of shape (rows, 3, SIDE, SIDE)."""
        return Batch({"image": np.stack([picture(*scene) for scene, _, _ in self._mine(micro)])})

    @operator(micro=Broadcast(), returns=Split())
    def questions(self, micro=0):
        """Return the questions of the same rows: `question`, int64 of shape (rows, LENGTH), and `answer`, int64
        (rows,).
        """
        return self._asked(self._mine(micro))

    @operator(returns=Split())
    def held_out_images(self):
        return Batch({"image": np.stack([picture(*scene) for scene, _, _ in self._held_out()])})

    @operator(returns=Split())
    def held_out_questions(self):
        return self._asked(self._held_out())

    @operator(answers=Split(), asked=Split())
    def judge(self, answers, asked):
        """Report `accuracy`: the share of held-out questions with a right answer."""
        right = np.asarray(answers["scores"]).argmax(-1) == np.asarray(asked["answer"])
        for each in right:
            self.ctx.metric(accuracy=float(each))

    def _mine(self, micro):
        options, ctx = self.options, self.ctx
        size = options.rows // options.micro_batches
        first = options.held_out + ctx.step * options.rows + micro * size
        return [self._row(first + row) for row in ctx.mine(size)]

    def _held_out(self):
        return [self._row(number) for number in self.ctx.mine(self.options.held_out)]

    def _row(self, number):
        """Return a scene, a question and its answer."""
        rng = np.random.default_rng((self.ctx.seed, number))
        # Up to three shapes in quadrants and colours of their own; one of them is asked about.
        shapes, colours, places = rng.permutation(3)[: rng.integers(1, 4)], rng.permutation(3), rng.permutation(4)
        shape, colour, place = int(shapes[0]), int(colours[0]), int(places[0])
        kind = int(rng.integers(3))
        question = 3 * kind + (colour if kind == 1 else shape)
        answer = (colour, 3 + shape, 6 + place)[kind]
        return (shapes, colours, places, rng), question, answer

    def _asked(self, rows):
        ids = np.zeros((len(rows), LENGTH), dtype=np.int64)
        for i, (_, question, _) in enumerate(rows):
            words = QUESTIONS[question].split()
            ids[i, : len(words)] = [WORDS.index(word) + 1 for word in words]
        return Batch({"question": ids, "answer": np.array([answer for *_, answer in rows], dtype=np.int64)})


def picture(shapes, colours, places, rng):
    """Return shapes, shifted by a pixel at most, with noise: float32 of shape (3, SIDE, SIDE)."""
    found = 0.05 * rng.standard_normal((3, SIDE, SIDE), dtype=np.float32)
    shifts = rng.integers(-1, 2, size=(3, 2))
    half = SIDE // 2
    for shape, colour, place, shift in zip(shapes, colours, places, shifts, strict=False):
        down, right = divmod(int(place), 2)
        centre = np.array([down, right]) * half + half / 2 + shift
        y, x = np.mgrid[:SIDE, :SIDE] - centre.reshape(2, 1, 1)
        inside = [
            abs(np.hypot(x, y) - 3.5) <= 0.8,
            np.maximum(abs(x), abs(y)) <= 3,
            (abs(abs(x) - abs(y)) <= 0.5) & (abs(x) <= 4),
        ][shape]
        found[colour][inside] += 1.0
    return found
