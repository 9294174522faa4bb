"""Draws the AUC during the drift: ``python picture.py runs/online [--out auc.png]``; and prints the measurements.

Predictions are made before the model learns the answer. A second curve is that of a model that stopped learning.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import yaml
from clicks import BLOCK, block
from features import GIVEN, keys
from trainer import network

from rolemesh import Batch, RankContext
from rolemesh_embeddings import Embeddings
from rolemesh_embeddings.deepfm import auc

mpl.use("agg")
from matplotlib import pyplot as plt

SMOOTH = 20_000
"""Number of events over which a point averages the AUC."""


def lines(path):
    """Return the JSON lines of a file, without an incomplete last one."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def smoothed(at, values):
    """Return means over `SMOOTH` events, and their positions."""
    bins = np.asarray(at) // SMOOTH
    return [(number + 0.5) * SMOOTH for number in np.unique(bins)], [
        float(np.mean(np.asarray(values)[bins == number])) for number in np.unique(bins)
    ]


def stopped(events, after, seed, period):
    """Return the AUC, block by block, of a model that learns from the first `after` events only."""
    (rows, model), found = network(seed), []
    job = yaml.safe_load(Path(__file__).with_name("job.yaml").read_text())
    servers = Embeddings(Embeddings.Options(**job["roles"]["ps"]["options"]))
    servers.setup(RankContext(seed=seed))
    for number in range(events // BLOCK):
        columns = block(number, seed, period)
        batch, clicked = Batch(keys(*(columns[name] for name in GIVEN))), columns["clicked"].astype(np.float32)
        rows.load(servers.lookup(batch))
        logits = model(batch)
        if number * BLOCK < after:
            torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(clicked)).backward()
            servers.update(rows.gradients())
        found.append(auc(logits.detach().numpy(), clicked))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="runs/online")
    parser.add_argument("--out", type=Path, default=Path("auc.png"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--period", type=int, default=1_000_000)
    given = parser.parse_args()
    steps = lines(given.run / "metrics.jsonl")
    learned = [(step["records"]["seen"], step["auc"]) for step in steps if "auc" in step]
    events = steps[-1]["records"]["seen"]
    began = steps[0]["time"]
    for name, what in (("export_lag_s", "from learning to answering"), ("fresh_s", "from the click to answering")):
        found = np.array([step[name] for step in steps if name in step and step["time"] > began + 10])
        if len(found):
            print(f"{what}: {np.median(found):.2f} s, p95 {np.percentile(found, 95):.2f} s ({len(found)} exports)")
    died = [
        each["time"] for each in lines(given.run / "events.jsonl") if each["kind"] in ("recovered", "master_recovered")
    ]
    times, seen = [step["time"] for step in steps], [step["records"]["seen"] for step in steps]
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.plot(*smoothed(*zip(*learned, strict=True)), label="learning from the stream")
    after = events // 10
    still = stopped(events, after, given.seed, given.period)
    axes.plot(*smoothed(np.arange(len(still)) * BLOCK, still), label=f"stopped after {after:,} events")
    for number, each in enumerate(died):
        label = "a rank or the master came back" if number == 0 else None
        axes.axvline(np.interp(each, times, seen), color="0.8", linewidth=0.8, zorder=0, label=label)
    axes.axhline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="events", ylabel="AUC before learning", xlim=(0, events))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="lower left", framealpha=1)
    figure.savefig(given.out, dpi=110)


if __name__ == "__main__":
    main()
