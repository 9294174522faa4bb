"""Plot one metric. Importing this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

__all__ = ["centred_average", "draw"]


def centred_average(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of each value and of equally many values before and after it: `window` values in all, fewer near
    the ends. The shape is that of `values`.

    A mean of earlier values only would lag behind a curve that falls, and would show a fall as slower than it is.
    """
    place = np.arange(values.size)
    reach = np.minimum(window // 2, np.minimum(place, place[::-1]))
    sums = np.concatenate([np.zeros(1), np.cumsum(values)])
    means: NDArray[np.float64] = (sums[place + reach + 1] - sums[place - reach]) / (2 * reach + 1)
    return means


def draw(path: Path, *, title: str, label: str, points: Sequence[tuple[int, float]], window: int) -> None:
    """Write a PNG of `points` (step, value; steps ascending) to `path`, completely or not at all."""
    steps, values = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, values, marker="o", markersize=4, linewidth=1, alpha=0.45, color="tab:blue", label="each step")
    average, around = centred_average(values, window), 2 * (window // 2) + 1
    axes.plot(steps, average, linewidth=2.5, color="tab:blue", label=f"mean of the {around} steps around")
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    partial = path.with_name(f".{path.name}.partial")
    FigureCanvasAgg(figure).print_png(str(partial))
    partial.replace(path)
