"""Draws the AUC during the run, and the best possible one: ``python picture.py runs/recommend [--out auc.png]``."""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
from matplotlib import pyplot as plt

SMOOTH = 20
"""Number of lines of metrics over which a point averages."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="runs/recommend")
    parser.add_argument("--out", type=Path, default=Path("auc.png"))
    given = parser.parse_args()
    steps = [json.loads(line) for line in (given.run / "metrics.jsonl").read_text().splitlines()]
    seconds = np.array([step["time"] for step in steps]) - steps[0]["time"]
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for name, label in (("auc_best", "of the true probabilities"), ("auc", "of the model, before it learns")):
        values = np.array([step[name] for step in steps])
        count = len(values) // SMOOTH * SMOOTH
        axes.plot(*(each[:count].reshape(-1, SMOOTH).mean(1) for each in (seconds, values)), label=label)
    axes.set(xlabel="seconds", ylabel="AUC")
    axes.legend(frameon=False)
    figure.savefig(given.out, dpi=150)


if __name__ == "__main__":
    main()
