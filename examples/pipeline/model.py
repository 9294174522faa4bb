"""A small transformer over bytes, cut into stages. Each stage is the module of a role."""

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rolemesh_training import LossOutput

VOCABULARY = 256


class Pace(torch.autograd.Function):
    """Adds `pause_s` seconds to each direction, so that schedules are visible on a machine with few cores."""

    @staticmethod
    def forward(ctx, value, pause_s):
        ctx.pause_s = pause_s
        time.sleep(pause_s)
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.pause_s)
        return gradient, None


class Stage(nn.Module):
    """Some blocks. The first stage embeds before them, and the last one predicts after them."""

    def __init__(self, blocks, width, heads, window, pause_s, first=False, last=False):
        super().__init__()
        self.pause_s = pause_s
        if first:
            self.tokens = nn.Embedding(VOCABULARY, width)
            self.places = nn.Parameter(torch.randn(1, window, width) * 0.02)
        made = {"batch_first": True, "norm_first": True, "dropout": 0.0, "activation": "gelu"}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, **made) for _ in range(blocks))
        if last:
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
        self.register_buffer("mask", torch.full((window, window), -torch.inf).triu(1), persistent=False)

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return {"hidden": Pace.apply(hidden, self.pause_s) if self.pause_s else hidden}


class Front(Stage):
    def forward(self, tokens):
        return super().forward(self.tokens(tokens[:, :-1]) + self.places)


class Back(Stage):
    def forward(self, hidden):
        return {"logits": self.head(super().forward(hidden)["hidden"])}


def front(blocks=1, width=64, heads=4, window=48, pause_s=0.0):
    return Front(blocks, width, heads, window, pause_s, first=True)


def middle(blocks=1, width=64, heads=4, window=48, pause_s=0.0):
    return Stage(blocks, width, heads, window, pause_s)


def back(blocks=1, width=64, heads=4, window=48, pause_s=0.0):
    return Back(blocks, width, heads, window, pause_s, last=True)


def next_byte(model, batch, ctx):
    """Return the cross-entropy of the next byte, a mean over bytes."""
    logits = model(batch["hidden"])["logits"]
    wanted = batch["tokens"][:, 1:]
    total = cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    return LossOutput(total, float(wanted.numel()))
