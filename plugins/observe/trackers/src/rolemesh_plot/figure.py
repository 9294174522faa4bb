"""Plot one metric. Importing this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

__all__ = ["centred_average", "draw", "whole"]


def centred_average(
    values: NDArray[np.float64], window: int, lengths: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the mean of the `window` steps around each value, fewer near the ends. The shape is that of `values`.

    `lengths` are the numbers of steps that the values stand for; 1 by default. An even `window` has one step more, so
    that equally many are before and after a step. A mean of earlier values only would lag behind a curve that falls,
    and would show a fall as slower than it is.
    """
    lengths = np.ones(values.size) if lengths is None else lengths
    ends = np.concatenate([np.zeros(1), np.cumsum(lengths)])
    sums = np.concatenate([np.zeros(1), np.cumsum(values * lengths)])
    middle = (ends[:-1] + ends[1:]) / 2
    reach = np.minimum(window // 2 + 0.5, np.minimum(middle, ends[-1] - middle))
    means: NDArray[np.float64] = np.interp(middle + reach, ends, sums) - np.interp(middle - reach, ends, sums)
    return means / (2 * reach)


def whole(lengths: NDArray[np.float64], around: int) -> NDArray[np.bool_]:
    """Return which values have `around` steps around them. Near the ends a mean of fewer follows the last values."""
    middle = np.cumsum(lengths) - lengths / 2
    found: NDArray[np.bool_] = np.minimum(middle, lengths.sum() - middle) >= around / 2
    return found


def draw(path: Path, *, title: str, label: str, points: Sequence[tuple[int, float, int]], window: int) -> None:
    """Write a PNG of `points` to `path`, completely or not at all. A point is the last of the steps of a line, with
    their mean value and their number; steps ascend."""
    steps, values, lengths = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, values, marker="o", markersize=4, linewidth=1, alpha=0.45, color="tab:blue", label="each step")
    average, around = centred_average(values, window, lengths), 2 * (window // 2) + 1
    shown = whole(lengths, around)
    if shown.any():
        mean = f"mean of the {around} steps around"
        axes.plot(steps[shown], average[shown], linewidth=2.5, color="tab:blue", label=mean)
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    partial = path.with_name(f".{path.name}.partial")
    FigureCanvasAgg(figure).print_png(str(partial))
    partial.replace(path)
