#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Opens reports in a headless Chromium and checks what they show.

Usage: tests/browser/check.py report.html...
Prints a line for each check, "ok   NAME" or "FAIL NAME: detail", and at the end "N passed, N failed".
"""
import json
import pathlib
import signal
import sys

import report_data
from devtools import Browser, Failure
from report_data import HOLDS, commas

IN_PAGE = (pathlib.Path(__file__).parent / "in_page.js").read_text(encoding="utf-8")
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
LEAST_CONTRAST = 4.5
MOMENTS = 60


class Tally:
    """Counts the checks, and says each. With `only`, makes no check but those whose name ends like that."""

    def __init__(self, only=None):
        self.passed, self.failures, self.only = 0, [], only  # a failure is what it says

    def check(self, name, find, *arguments):
        """find(*arguments) returns what is wrong: a list of sentences, empty when all is well."""
        if self.only and not name.endswith(self.only):
            return
        try:
            bad = find(*arguments)
        except Failure as failure:
            bad = [str(failure).splitlines()[0]]
        except LookupError as error:
            bad = [f"the data is not as docs/report_data.md says: {error!r}"]
        detail = "; ".join(bad[:3]) + (f"; and {len(bad) - 3} more" if len(bad) > 3 else "")
        if bad:
            self.failures.append(detail)
        else:
            self.passed += 1
        if not self.only:
            print(f"FAIL {name}: {detail}" if bad else f"ok   {name}", flush=True)

    def say(self, text):
        if not self.only:
            print(f"     {text}", flush=True)


def check_report(browser, path, tally, widths=WIDTHS, themes=THEMES):
    report = report_data.read(path)
    name = pathlib.Path(path).stem
    url = pathlib.Path(path).resolve().as_uri()
    recorded = [run for run in report["runs"] if run["step"]]
    runs = [report_data.Run(report, run) for run in recorded]

    for what, find in report_data.CHECKS.items():
        tally.check(f"{name}: {what}", lambda: [bad for run in runs for bad in find(run)])
    for width in widths:
        for theme in themes:
            with open_page(browser, url, width=width, theme=theme) as page:
                check_look(page, f"{name} {width} {theme}", tally, report, width)
    with open_page(browser, url) as page:
        tally.check(f"{name}: memory on the page equals the regions", find_memory, page, report, runs)
        tally.check(f"{name}: cells on the page equal the ledger", find_cells, page, runs)
        tally.check(f"{name}: on the page nothing computes without its parameters", find_missing_slices, page, runs)
        tally.check(f"{name}: the page sends as many bytes as were counted", find_sent, page, runs)
        tally.check(f"{name}: ledger bytes are on the page", find_ledger, page, report)
        tally.check(f"{name}: counted bytes are on the page", find_counters, page, recorded)
        tally.check(f"{name}: controls and figures have names", find_nameless, page, report)
        unfit = [run for run in report["runs"] if run["status"] != "ok"]
        if unfit:
            tally.check(f"{name}: what does not fit or failed says why", find_unexplained, page, unfit)
    if recorded:
        check_controls(browser, url, name, tally, report, recorded[-1]["id"])


def open_page(browser, url, **look):
    page = browser.open(url, **look)
    page.evaluate(IN_PAGE)
    page.draw()
    return page


def ask(page, call, *arguments):
    return page.evaluate(f"pageChecks.{call}({', '.join(json.dumps(a) for a in arguments)})")


#---- How it looks: errors, requests, width, contrast


def check_look(page, name, tally, report, width):
    tally.check(f"{name}: no error in the console", find_errors, page)
    tally.check(f"{name}: no request leaves the file", find_requests, page)
    tally.check(f"{name}: nothing to scroll sideways", find_too_wide, page, report, width)
    tally.check(f"{name}: text contrast is at least {LEAST_CONTRAST}", find_low_contrast, page, report)


def find_errors(page):
    ask(page, "playThrough")
    return page.problems


def find_requests(page):
    return sorted({url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))})


def find_too_wide(page, report, width):
    bad = []
    for run in report["runs"]:
        ask(page, "select", run["id"])
        if (more := ask(page, "tooWide", width)) > 0:
            bad.append(f"{run['id']} is {more} pixels too wide")
    return bad


def find_low_contrast(page, report):
    bad = []
    for run in report["runs"]:
        ask(page, "select", run["id"])
        found = ask(page, "lowContrast", LEAST_CONTRAST)
        bad += [f"{run['id']}: {low}" for low in found["low"]]
        if found["looked"] < 50:
            bad.append(f"{run['id']}: only {found['looked']} texts are visible")
    return bad


#---- What it tells: memory, cells, bytes


def find_memory(page, report, runs):
    bad = []
    for run in runs:
        peaks = ask(page, "totals", run.id)["peaks"]
        for rank, measured in enumerate(run.json["memory"]["measured"]):
            if peaks[rank] != measured["peak_bytes"]:
                bad.append(f"{run.id} device {rank}: peak {peaks[rank]}, measured {measured['peak_bytes']}")
            moments = run.moments(rank, MOMENTS)
            for time, shown in zip(moments, ask(page, "memory", run.id, rank, moments)):
                held = run.memory(rank, time)
                if shown != [held.get(category, 0) for category in report["categories"]]:
                    bad.append(f"{run.id} device {rank} at {time}: {shown} bytes, regions {held}")
    return bad


def find_cells(page, runs):
    """A cell is drawn where, and only where, memory holds it; and what is drawn is as many bytes as the ledger has."""
    bad = []
    for run in runs:
        for rank in range(run.world):
            moments = run.moments(rank, MOMENTS)
            for time, drawn in zip(moments, ask(page, "cells", run.id, rank, moments, HOLDS)):
                bad += find_wrong_cells(run, rank, time, drawn)
    return bad


def find_wrong_cells(run, rank, time, drawn):
    bad, at = [], 0
    has = run.cells(rank, time)
    host = run.json["memory"]["host_measured"]
    for holds in HOLDS:
        for unit, slices in enumerate(has[holds]):
            states = drawn[at:at + run.world]
            at += run.world
            where = f"{run.id} device {rank} at {time}: {holds} of {run.units[unit]['name']}"
            if [state not in ".h" for state in states] != slices:
                bad.append(f"{where} drawn {states}, in memory {''.join('x' if k else '.' for k in slices)}")
            if "h" in states and not host[rank].get(holds):
                bad.append(f"{where} drawn on the host, which has none")
    return bad


def find_missing_slices(page, runs):
    bad = []
    for run in runs:
        asked = []
        for number, op in enumerate(run.ops):
            if not run.needs_parameters(op):
                continue
            for rank, spans in run.spans_of[number].items():
                for span in spans:
                    first, last = span["begin_ns"], max(span["begin_ns"], span["end_ns"] - 1)
                    asked += [(rank, op["unit"], first), (rank, op["unit"], last)]
        for (rank, unit, time), states in zip(asked, ask(page, "parameters", run.id, asked)):
            if not set(states) <= {"w", "b"}:  # whole, borrowed
                bad.append(f"{run.id} device {rank} at {time} computes with {run.units[unit]['name']} as {states}")
        if not asked:
            bad.append(f"{run.id}: nothing was computed")
    return bad


def find_sent(page, runs):
    bad = []
    for run in runs:
        counted = sum(row["counted_bytes"][0] for row in run.json["communication"])
        sent = ask(page, "totals", run.id)["sent"]
        if sent != counted:
            bad.append(f"{run.id}: the page sends {sent} bytes, counted {counted}")
    return bad


def find_missing_row(rows, numbers, what):
    """No sentence if one row of a table has all the numbers, whatever their sign."""
    wanted = {commas(abs(number)) for number in numbers}
    found = any(wanted <= {word.lstrip("+−-") for cell in row for word in cell.split()} for row in rows)
    return [] if found else [f"{what}: no row with {', '.join(sorted(wanted))}"]


def find_ledger(page, report):
    bad = []
    for run in report["runs"]:
        ask(page, "select", run["id"])
        rows = ask(page, "rows", "ledger")
        memory = run["memory"]
        worst = max(range(len(memory["measured"])), key=lambda r: memory["measured"][r]["peak_bytes"], default=None)
        seen = [] if worst is None else [memory["measured"][worst]["at_peak"]]
        seen_on_host = [] if worst is None else [memory["host_measured"][worst]]
        for predicted, measured in ((memory["predicted"], seen), (memory["host_predicted"], seen_on_host)):
            for category in report["categories"]:
                numbers = [column.get(category, 0) for column in (predicted, *measured)]
                if any(numbers):
                    bad += find_missing_row(rows, numbers, f"{run['id']} {category}")
        bad += find_missing_row(rows, [sum(c.values()) for c in (memory["predicted"], *seen)], f"{run['id']} total")
    return bad


def find_counters(page, recorded):
    bad = []
    for run in recorded:
        ask(page, "select", run["id"])
        rows = ask(page, "rows", "traffic")
        for row in run["communication"]:
            counted, paper = row["counted_bytes"], [row["paper_bytes"]] if row["paper_bytes"] else []
            numbers = [row["expected_bytes"], min(counted), max(counted), *paper]
            bad += find_missing_row(rows, numbers, f"{run['id']} {row['collective']}")
        for row in run["differences"]:
            if row["bytes"]:
                bad += find_missing_row(rows, [row["bytes"]], f"{run['id']} {row['collective']}, {row['reason']}")
        ways = [run["copies"][stream] for stream in ("to_host", "from_host")]
        copied = [("copies expected", [way["expected_bytes"] for way in ways]),
                  ("copies counted", [end(way["counted_bytes"]) for way in ways for end in (min, max)])]
        copied += [(part["what"], [part["to_host"], part["from_host"]]) for part in run["copies"]["parts"]]
        for what, numbers in copied:
            bad += find_missing_row(rows, [number for number in numbers if number], f"{run['id']} {what}")
    return bad


def find_unexplained(page, unfit):
    bad = []
    for run in unfit:
        ask(page, "select", run["id"])
        text = page.evaluate("document.body.innerText")
        player = page.evaluate("document.querySelector('#player-body').innerText")
        needed = commas(sum(run["memory"]["predicted"].values()))
        if run["failure"].rstrip(".").casefold() not in player.casefold():
            bad.append(f"{run['id']}: in place of the step it does not say: {run['failure']}")
        if needed not in text:
            bad.append(f"{run['id']}: it does not say {needed} bytes")
    return bad


#---- Who cannot see or cannot use a mouse

NAMED_ROLES = {
    "button", "slider", "combobox", "checkbox", "radio", "switch", "tab", "link", "textbox", "searchbox", "spinbutton",
    "listbox", "image", "figure", "Canvas", "SvgRoot", "DisclosureTriangle",
}


def find_nameless(page, report):
    bad, roles = [], set()
    for run in report["runs"]:
        ask(page, "select", run["id"])
        for node in page.accessible_nodes():
            roles.add(node["role"])
            if node["role"] in NAMED_ROLES and not node["name"].strip():
                bad.append(f"{run['id']}: {node['role']} {page.outer_html(node['element'])}")
    recorded = any(run["step"] for run in report["runs"])
    missing = {"button", "image", "slider" if recorded else "button"} - roles
    return bad + [f"the page has no {role}" for role in sorted(missing)]


#---- Keys, mouse, links


def check_controls(browser, url, name, tally, report, run):
    link = f"{url}#run={run}&at=0.1000"
    with open_page(browser, link) as page:
        state = lambda: ask(page, "state")
        tally.check(f"{name}: a link opens its run and moment", find_link, page, state, report, run)
        tally.check(f"{name}: arrow keys step and come back", find_arrows, page, state)
        tally.check(f"{name}: Home and End go to the ends", find_ends, page, state)
        tally.check(f"{name}: space plays and pauses", find_play, page, state)
        tally.check(f"{name}: bracket keys change the run", find_brackets, page, state, report, run)
        tally.check(f"{name}: the slider moves the moment and speaks", find_slider, page, state)
        for figure in ("time", "streams"):
            tally.check(f"{name}: hovering over #{figure} previews, leaving restores, a click keeps", find_hover, page,
                        state, figure)
        tally.check(f"{name}: no error after all this", lambda: page.problems)
        page.evaluate("zerobox.store.play(true)")
        times = ask(page, "frameTimes", 40)
        tally.say(f"{name}: {sum(times) / len(times):.1f} ms a frame without a GPU, {max(times):.0f} ms at most")
    with open_page(browser, link, reduced_motion=True) as page:
        tally.check(f"{name}: with reduced motion nothing glides", find_gliding, page)


def wrong(**truths):
    return [name.replace("_", " ") for name, true in truths.items() if not true]


def find_link(page, state, report, run):
    at_first = state()
    page.evaluate("location.hash = 'run=" + run + "&at=0.4100'")
    followed = page.wait_for("Math.abs(zerobox.store.s - 0.41) < 1e-6")
    page.evaluate("location.hash = 'run=" + run + "&at=0.1000'")
    back = page.wait_for("Math.abs(zerobox.store.s - 0.1) < 1e-6")
    return wrong(run_not_opened=at_first["run"] == run, moment_not_opened=abs(at_first["s"] - 0.1) < 1e-6,
                 later_link_not_followed=followed and back)


def find_arrows(page, state):
    seen = [state()]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.key(key)
        seen.append(state())
    start, one, two, back = seen
    return wrong(right_did_not_go_on=start["s"] < one["s"] < two["s"] and one["now"] != two["now"],
                 left_did_not_come_back=back["now"] == one["now"] and back["s"] == one["s"])


def find_ends(page, state):
    page.evaluate("document.querySelector('#player-body [tabindex=\"0\"]').focus()")
    page.key("End")
    end = state()
    page.key("Home")
    return wrong(End_is_not_the_end=end["s"] == 1, Home_is_not_the_begin=state()["s"] == 0)


def find_play(page, state):
    page.key(" ")
    started = page.wait_for("zerobox.store.playing && zerobox.store.s > 0")
    page.key(" ")
    paused = page.wait_for("!zerobox.store.playing")
    before = state()
    page.draw(5)
    return wrong(space_did_not_play=started, space_did_not_pause=paused,
                 it_moves_while_paused=state()["s"] == before["s"])


def find_brackets(page, state, report, run):
    ids = [r["id"] for r in report["runs"]]
    here = ids.index(run)
    page.key("[")
    left = state()["run"]
    page.evaluate(f"zerobox.store.select({run!r})")
    page.key("]")
    right = state()["run"]
    page.evaluate(f"zerobox.store.select({run!r})")
    for other in ids:  # there and back before anything is drawn; what comes next sees whether all of the page is back
        page.evaluate(f"zerobox.store.select({other!r}), zerobox.store.select({run!r})")
    return wrong(left_bracket_did_not=left == ids[max(0, here - 1)],
                 right_bracket_did_not=right == ids[min(len(ids) - 1, here + 1)])


def find_slider(page, state):
    page.evaluate("document.querySelector('input[type=range]').scrollIntoView({block: 'center'})")
    page.draw()
    box = page.box("input[type=range]")
    seen = []
    for part in (0.25, 0.75):
        page.click(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
        seen.append(state())
    right = all(abs(s["s"] - part) < 0.05 for s, part in zip(seen, (0.25, 0.75)))
    time, _, op = (seen[1]["slider"] or "").partition(", ")
    return wrong(it_does_not_move=right, it_does_not_say_the_time=time[:1].isdigit() and time.endswith("s"),
                 it_does_not_say_the_op=len(op) > 3)


def find_hover(page, state, figure):
    page.evaluate(f"document.querySelector('#{figure}').scrollIntoView()")
    page.draw()
    box = page.box(f"#{figure} .chart")
    x, y = lambda part: box["x"] + box["width"] * part, box["y"] + min(box["height"], 200) / 2
    page.move(5, 5)
    page.evaluate("zerobox.store.seek(0.05)")
    before = state()
    page.move(x(0.3), y)
    page.move(x(0.31), y)
    one = state()
    page.move(x(0.6), y)
    two = state()
    page.move(5, 5)
    left = state()
    page.click(x(0.5), y)
    clicked = state()
    page.move(5, 5)
    kept = state()
    return wrong(hover_does_not_preview=len({before["s"], one["s"], two["s"]}) == 3 and one["s"] < two["s"],
                 leaving_does_not_restore=left["s"] == before["s"],
                 a_click_is_not_kept=kept["s"] == clicked["s"] != before["s"],
                 a_click_is_not_in_the_link=f"at={kept['s']:.4f}" in kept["hash"])


def find_gliding(page):
    rests = page.evaluate("pageChecks.restingPlaces()")
    start = page.evaluate("zerobox.store.s")
    page.key(" ")
    seen = ask(page, "positions", 3, 20_000)
    gliding = [s for s in seen if s != start and min(abs(s - rest) for rest in rests) > 1e-9]
    return wrong(it_does_not_play=len(seen) == 3) + [f"it stands at {s}, between two moments" for s in gliding]


def main(paths):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the browser ends, too
    if not paths:
        sys.exit(__doc__.split("\n\n")[1])
    tally = Tally()
    with Browser() as browser:
        for path in paths:
            try:
                check_report(browser, path, tally)
            except (Failure, OSError, ValueError, LookupError) as error:
                tally.check(f"{pathlib.Path(path).stem}: can be checked", lambda: [repr(error)])
    print(f"{tally.passed} passed, {len(tally.failures)} failed")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        sys.exit(f"check.py: {failure}")
