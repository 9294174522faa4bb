"""Draw the passes of each stage in a step: ``python examples/pipeline/draw.py runs/pipeline [runs/other …] out.png``.

The job must have run with ``trace_passes: true``, as this example does.
"""

import json
import sys
from pathlib import Path

STAGES = ("front", "middle", "back")
COLOURS = {"forward": "#4361ee", "backward": "#e07a1f"}


def main(*args: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    *runs, out = map(Path, args)
    figure, panels = plt.subplots(len(runs), 1, figsize=(8, 1.7 * len(runs)), sharex=True, squeeze=False)
    for panel, run in zip(panels[:, 0], runs, strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        # The step of median length: the first ones begin while ranks are still starting.
        steps = sorted((line["records"] for line in lines[1:]), key=length)
        passes = steps[len(steps) // 2]
        begin = min(p[2] for stage in STAGES for p in passes[f"passes_{stage}"])
        for row, stage in enumerate(STAGES):
            for kind, micro, start, end in passes[f"passes_{stage}"]:
                panel.barh(row, end - start, left=start - begin, color=COLOURS[kind], edgecolor="white", height=0.8)
                panel.text(
                    (start + end) / 2 - begin, row, str(micro), ha="center", va="center", color="white", fontsize=8
                )
        panel.set_title(f"{run.name}: {length(passes):.2f} s", fontsize=9, loc="left")
        panel.set_yticks(range(len(STAGES)), STAGES)
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("seconds of one step (blue: forward, orange: backward, the number: the micro-batch)")
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    print(out)


def length(passes: dict) -> float:
    """Return the seconds from the start of a step's first pass to the end of its last one."""
    every = [p for stage in STAGES for p in passes[f"passes_{stage}"]]
    return max(p[3] for p in every) - min(p[2] for p in every)


if __name__ == "__main__":
    main(*sys.argv[1:])
