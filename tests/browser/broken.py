#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks copies of a report, each in one way, and shows that check.py sees it and says so.

Usage: tests/browser/broken.py report.html
The report must have a run of stage 3 on several devices, which is the one that is broken.
Prints "ok   HOW" where the check that should fail did fail, for the right reason, and "FAIL HOW: detail" where not; at
the end "N passed, N failed".
"""
import pathlib
import re
import signal
import sys
import tempfile

import check
import report_data
from devtools import Browser, Failure


class Breaker:
    """Functions that break the data (a dict, in place) or the page (HTML, returned)."""

    def __init__(self, report):
        fits = [i for i, run in enumerate(report["runs"]) if run["step"] and run["stage"] == 3 and run["world"] > 1]
        if not fits:
            raise ValueError("wanted a report with a run of stage 3 on several devices, found none")
        self.number = fits[-1]
        self.run = report_data.Run(report, report["runs"][self.number])

    def step(self, data):
        return data["runs"][self.number]["step"]

    def set(self, data, table, row, field, value):
        step = self.step(data)
        step[table][row][step[table[:-1] + "_fields"].index(field)] = value

    def find(self, table, **wanted):
        """The number of the first row of a table with these values; a function as a value says yes or no."""
        fits = lambda row: all(v(row[k]) if callable(v) else row[k] == v for k, v in wanted.items())
        return next(i for i, row in enumerate(getattr(self.run, table)) if fits(row))

    # The data.

    def shortened_region(self, data):
        """A gathered unit is freed before it is used."""
        row = self.find("regions", holds="parameters", unit=lambda u: u >= 0)
        self.set(data, "regions", row, "end_ns", self.run.regions[row]["begin_ns"] + 1)

    def shortened_bucket(self, data):
        """A gradient bucket is given back while it is reduced."""
        op = self.find("ops", kind="reduce_scatter")
        begin, end = self.run.times_of(op, 0)
        row = self.find("regions", rank=0, holds="gradients", unit=self.run.ops[op]["unit"],
                        begin_ns=lambda t: t <= begin, end_ns=lambda t: t >= end)
        self.set(data, "regions", row, "end_ns", end - 1)

    def resized_region(self, data):
        row = self.find("regions", holds="parameters")
        self.set(data, "regions", row, "bytes", self.run.regions[row]["bytes"] + 128)

    def another_peak(self, data):
        data["runs"][self.number]["memory"]["measured"][-1]["at_peak"]["workspace"] += 128

    def wrong_counter(self, data):
        data["runs"][self.number]["communication"][0]["counted_bytes"][-1] += 2

    def wrong_micro_batches(self, data):
        data["runs"][self.number]["micro_batches"] += 1

    def wrong_stage(self, data):
        data["runs"][self.number]["stage"] = 2

    def wrong_copies(self, data):
        data["runs"][self.number]["copies"]["from_host"]["counted_bytes"][0] += 1

    def wrong_op_bytes(self, data):
        row = self.find("ops", stream="communication")
        self.set(data, "ops", row, "bytes", self.run.ops[row]["bytes"] - 2)

    def compute_too_early(self, data):
        """The last forward on device 0 ends where it ended, but begins before its gather is over."""
        row = self.find("ops", kind="all_gather", purpose="parameters")
        end = self.run.times_of(row, 0)[1]
        op = next(i for i, o in enumerate(self.run.ops) if i > row and o["unit"] == self.run.ops[row]["unit"] and
                  self.run.needs_parameters(o))
        span = self.find("spans", op=op, rank=0)
        self.set(data, "spans", span, "begin_ns", end - 1)

    def overlap(self, data):
        spans = sorted((s["begin_ns"], i) for i, s in enumerate(self.run.spans)
                       if s["rank"] == 0 and self.run.ops[s["op"]]["stream"] == "compute")
        (_, first), (_, second) = spans[0], spans[1]
        self.set(data, "spans", first, "end_ns", self.run.spans[second]["begin_ns"] + 1)

    def outside(self, data):
        last = max(range(len(self.run.spans)), key=lambda i: self.run.spans[i]["end_ns"])
        self.set(data, "spans", last, "end_ns", self.run.duration + 1)

    # The page.

    def script_error(self, html):
        return before_end(html, "<script>null.nothing</script>")

    def console_error(self, html):
        return before_end(html, "<script>console.error('no')</script>")

    def remote_image(self, html):
        return before_end(html, '<img alt="" width="1" height="1" src="http://example.invalid/x.png">')

    def remote_request(self, html):
        return before_end(html, "<script>fetch('http://example.invalid/').catch(() => {})</script>")

    def too_wide(self, html):
        return before_end(html, '<div style="width:3000px;height:1px"></div>')

    def invisible_text(self, html):
        return before_end(html, "<style>#traffic td { color: var(--surface) }</style>")

    def faint_label(self, html):
        return before_end(html, "<style>svg text { fill: var(--line) }</style>")

    def nameless_button(self, html):
        return before_end(html, '<button type="button"><svg width="9" height="9" aria-hidden="true"></svg></button>')

    def nameless_figure(self, html):
        return before_end(html, '<div role="img" style="width:9px;height:9px"></div>')

    def lost_cell(self, html):
        """One cell of the last device is not drawn."""
        return with_patch(html, "slice", "(kind, rank, ...rest) => kind === 'optimizer_states' && rank === 0 && "
                          "rest[0] === 0 ? 'absent' : was(kind, rank, ...rest)")

    def lost_parameters(self, html):
        return with_patch(html, "slice", "(kind, rank, unit, k, t) => kind === 'parameters' && unit === 1 ? 'reserved' "
                          ": was(kind, rank, unit, k, t)")

    def wrong_memory(self, html):
        return with_patch(html, "memory", "(rank, t) => ({...was(rank, t), workspace: 1})")

    def wrong_sent(self, html):
        return with_patch(html, "sent", "(t) => was(t) / 2")

    def wrong_ledger(self, html):
        return with_changed_digits(html, "ledger")

    def wrong_table(self, html):
        return with_changed_digits(html, "traffic")

    def dead_keys(self, html):
        return before_end(html, without_events("keydown"))

    def dead_link(self, html):
        return before_end(html, "<script>zerobox.store.seek(0.7)</script>")

    def silent_misfit(self, html):
        """A run does not fit, and nothing stands in place of its step."""
        data = report_data.read_text(html)
        other = data["runs"][0]
        other.update(status="out_of_memory", failure="needs more than there is", step=None, metrics=None, equality=None,
                     communication=[])
        other["memory"].update(measured=[], host_measured=[])
        return before_end(report_data.with_data(html, data), "<style>#player-body > * { display: none }</style>")

    def dead_mouse(self, html):
        return before_end(html, without_events("pointermove", "mousemove", "pointerenter", "pointerover"))

    def silent_slider(self, html):
        return before_end(html, "<script>{ const hush = () => document.querySelector('input[type=range]')"
                          "?.removeAttribute('aria-valuetext'); hush(); "
                          "new MutationObserver(hush).observe(document.body, "
                          "{ attributes: true, childList: true, subtree: true }); }</script>")

    def gliding(self, html):
        return before_end(html, "<script>const { store } = zerobox, glide = () => { if (store.playing) "
                          "store.seek(store.s + 1e-4); requestAnimationFrame(glide); }; glide();</script>")


# (what is broken, the check that must fail, a pattern of what it must say)
DATA = [
    ("shortened_region", ": nothing computes without its parameters", "not all in memory"),
    ("shortened_bucket", "nothing is reduced without its gradient", "not all in memory"),
    ("resized_region", "regions are as large as what they hold", "parameters keep"),
    ("another_peak", "regions add up to the measured peak", "workspace at its peak"),
    ("wrong_counter", "op bytes equal the counters", "ops send .* counted"),
    ("wrong_micro_batches", "collectives move as many elements as the paper says", "sends .* wanted"),
    ("wrong_stage", "regions are as large as what they hold", "parameters are not to be sharded at stage 2"),
    ("wrong_copies", "copied bytes equal the counters", "ops copy .* counted"),
    ("wrong_op_bytes", "op bytes equal the counters", "ops send .* counted"),
    ("compute_too_early", ": nothing computes without its parameters", "before its gather ends"),
    ("overlap", "spans are in order and within the step", "overlap"),
    ("outside", "spans are in order and within the step", "not within the step"),
]
PAGE = [
    ("script_error", "no error in the console", "TypeError"),
    ("console_error", "no error in the console", "console: no"),
    ("remote_image", "no request leaves the file", "example.invalid/x.png"),
    ("remote_request", "no request leaves the file", "example.invalid"),
    ("too_wide", "nothing to scroll sideways", "pixels too wide"),
    ("invisible_text", "text contrast is at least 4.5", "1.00 .*traffic"),
    ("faint_label", "text contrast is at least 4.5", "1[.]"),
    ("nameless_button", "controls and figures have names", "button <button"),
    ("nameless_figure", "controls and figures have names", "image <div"),
    ("lost_cell", "cells on the page equal the ledger", "optimizer_states of .* in memory"),
    ("lost_parameters", "on the page nothing computes without its parameters", "computes with"),
    ("wrong_memory", "memory on the page equals the regions", "bytes, regions"),
    ("wrong_sent", "the page sends as many bytes as were counted", "counted"),
    ("wrong_ledger", "ledger bytes are on the page", "no row with"),
    ("wrong_table", "counted bytes are on the page", "no row with"),
    ("dead_keys", "arrow keys step and come back", "right did not go on"),
    ("dead_keys", "Home and End go to the ends", "End is not the end"),
    ("dead_keys", "space plays and pauses", "space did not play"),
    ("dead_keys", "bracket keys change the run", "bracket did not"),
    ("dead_link", "a link opens its run and moment", "moment not opened"),
    ("silent_misfit", "what does not fit or failed says why", "does not say: needs more"),
    ("dead_mouse", "hovering over #streams previews, leaving restores, a click keeps", "hover does not preview"),
    ("dead_mouse", "hovering over #time previews, leaving restores, a click keeps", "hover does not preview"),
    ("silent_slider", "the slider moves the moment and speaks", "does not say the time"),
    ("gliding", "with reduced motion nothing glides", "between two moments"),
]


def before_end(html, text):
    head, end, tail = html.rpartition("</body>")
    return head + text + end + tail if end else html + text


def without_events(*kinds):
    """A script that swallows these events."""
    return (f"<script>for (const kind of {list(kinds)}) "
            "addEventListener(kind, (e) => e.stopImmediatePropagation(), true)</script>")


def with_patch(html, method, function):
    """Another method for the steps of all runs."""
    return before_end(html, "<script>for (const run of zerobox.report.runs) { const step = zerobox.stepOf(run); "
                      f"if (step) {{ const was = step.{method}.bind(step); step.{method} = {function}; }} }}</script>")


def with_changed_digits(html, section):
    """The first digit of every exact number in a section is another one."""
    return before_end(html, f"<script>{{ const node = document.getElementById('{section}'); const change = () => {{ "
                      "for (const cell of node.querySelectorAll('td')) "
                      "if (/^[1-8][0-9]*,[0-9,]+$/.test(cell.textContent)) "
                      "cell.textContent = '9' + cell.textContent.slice(1) }; change(); "
                      "new MutationObserver(change).observe(node, { childList: true, subtree: true }); }</script>")


def find_unseen(browser, path, named, says):
    tally = check.Tally(only=named)
    check.check_report(browser, path, tally, widths=(1280,), themes=("light",))
    detail = "; ".join(tally.failures)
    return [] if re.search(says, detail) else [f"wanted '{named}' to fail and say '{says}', found '{detail}'"]


def main(path):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    html = pathlib.Path(path).read_text(encoding="utf-8")
    breaker, tally = Breaker(report_data.read_text(html)), check.Tally()
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        copy = pathlib.Path(folder) / "broken.html"

        def look(how, text, named, says):
            copy.write_text(text, encoding="utf-8")
            tally.check(f"broken, {how.replace('_', ' ')}: seen by '{named.strip(': ')}'", find_unseen, browser, copy,
                        named, says)

        for how, named, says in DATA:
            data = report_data.read_text(html)
            getattr(breaker, how)(data)
            look(how, report_data.with_data(html, data), named, says)
        for how, named, says in PAGE:
            look(how, getattr(breaker, how)(html), named, says)
    print(f"{tally.passed} passed, {len(tally.failures)} failed")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    try:
        sys.exit(main(sys.argv[1]))
    except (Failure, OSError, ValueError, StopIteration) as error:
        sys.exit(f"broken.py: {error!r}")
