#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: tests/browser/pictures.py REPORT FOLDER

Takes the pictures of docs/report.md from the page of a comparison of stages 0 to 3: report_memory.png and so on.
"""
import pathlib
import sys

from devtools import Browser

# name: (section, run, op at whose middle the player stands)
PICTURES = {
    "memory": ("#memory", "zero2", None),
    "stage1": ("#player", "zero1", "reduce_scatter"),
    "stage2": ("#player", "zero2", "reduce_scatter"),
    "stage3": ("#player", "zero3", "all_gather"),
    "peak": ("#time", "zero2", None),
    "streams": ("#streams", "zero3", None),
    "traffic": ("#traffic", "zero3", None),
}


def main(report, folder):
    with Browser() as browser, browser.open(pathlib.Path(report).resolve().as_uri()) as page:
        for name, (section, run, op) in PICTURES.items():
            page.evaluate(f"zerobox.store.select({run!r})")
            if op:  # of the second block, in the transfer
                page.evaluate(f"""(() => {{
                  const step = zerobox.store.step;
                  const moment = step.moments.find((m) => m.op.kind === {op!r} && m.op.unit === 2);
                  zerobox.store.seek(zerobox.store.positionOf(moment.t));
                }})()""")
            page.draw(5)
            page.picture(pathlib.Path(folder) / f"report_{name}.png", section)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
