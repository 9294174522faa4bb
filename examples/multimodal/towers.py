"""The two towers: one sees, one reads and answers; each is a module of a role of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rolemesh_training import LossOutput

WORDS, LENGTH, ANSWERS = 16, 5, 10
"""Enough word numbers for the questions of shapes.py, a question's words, different answers."""


class Vision(nn.Module):
    """A picture as features of its four quadrants."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width // 2, 3, padding=1, stride=2), nn.GELU(),
            nn.Conv2d(width // 2, width, 3, padding=1, stride=2), nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
            nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)

    def forward(self, image):
        return {"features": self.norm(self.layers(image).flatten(2).transpose(1, 2))}


class Text(nn.Module):
    """Reads a question, looks at the quadrant that it is about, answers."""

    def __init__(self, width, hidden):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.read = nn.Sequential(nn.Linear(LENGTH * width, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.places = nn.Parameter(torch.randn(4, width))
        self.key = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.value = nn.Linear(2 * width, hidden)
        self.answer = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Linear(hidden, ANSWERS))

    def forward(self, features, question):
        asked = self.read(self.words(question).flatten(1))
        look = (self.key(features) @ asked.unsqueeze(-1) / asked.shape[-1] ** 0.5).softmax(1)
        seen = self.value(torch.cat([features, self.places.expand(len(features), -1, -1)], -1))
        return {"scores": self.answer(torch.cat([(look * seen).sum(1), asked], -1))}


def vision(width=48):
    return Vision(width)


def text(width=48, hidden=128):
    return Text(width, hidden)


def answered(model, batch, ctx):
    """The cross-entropy of the answers, a mean over questions, and how many are right."""
    scores = model(batch["features"], batch["question"])["scores"]
    rows = float(batch.rows)
    right = (scores.detach().argmax(-1) == batch["answer"]).float().sum()
    return LossOutput(cross_entropy(scores, batch["answer"], reduction="sum"), rows, {"answered": (right, rows)})
