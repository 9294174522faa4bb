"""The two towers: one sees, the other reads and answers. Each is the module of a role of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rolemesh_training import LossOutput

WORDS, LENGTH, ANSWERS = 16, 5, 10
"""Upper bounds for the questions of shapes.py: number of words, words per question, different answers."""


class Vision(nn.Module):
    """Turns a picture into features of its four quadrants."""

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
    """Reads a question, looks at its quadrant, and answers."""

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
    """Return the cross-entropy of the answers, a mean over questions, and the number of right ones."""
    scores = model(batch["features"], batch["question"])["scores"]
    rows = float(batch.rows)
    right = (scores.detach().argmax(-1) == batch["answer"]).float().sum()
    return LossOutput(cross_entropy(scores, batch["answer"], reduction="sum"), rows, {"answered": (right, rows)})
