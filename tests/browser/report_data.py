# SPDX-License-Identifier: Apache-2.0
"""What the data inside a report.html says by itself: memory, cells and traffic, worked out without the page.

docs/report_data.md describes the data. Functions named find_* return a list of sentences, one for each thing that is
wrong; an empty list is good.
"""
import bisect
import functools
import json
import pathlib
import re

ALIGNMENT = 128  # bytes that an allocation is rounded up to
HOLDS = ("parameters", "gradients", "optimizer_states")
SHARDING_STAGE = {"optimizer_states": 1, "gradients": 2, "parameters": 3}  # the first that cuts them
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
DATA = re.compile(r'(<script[^>]*id="report-data"[^>]*>)(.*?)(</script>)', re.DOTALL)


def read(path):
    try:
        return read_text(pathlib.Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_text(html):
    found = DATA.search(html)
    if not found:
        raise ValueError('wanted <script type="application/json" id="report-data">, found none')
    return json.loads(found.group(2))


def with_data(html, data):
    """The same page with other data."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return DATA.sub(lambda m: m.group(1) + text + m.group(3), html, count=1)


def commas(number):
    return f"{number:,}"


class Run:
    """One run that was recorded. Times are ns, memory is bytes."""

    def __init__(self, report, run):
        self.json, self.id, self.world = run, run["id"], run["world"]
        self.units = report["units"]
        self.padded = sum(unit["padded_elements"] for unit in self.units)
        size = run["bytes_per_parameter"]
        self.bytes_each = dict(zip(HOLDS, (size["parameters"], size["gradients"], size["optimizer"])))
        step = run["step"]
        self.duration = step["duration_ns"]
        table = lambda name: [dict(zip(step[name[:-1] + "_fields"], row)) for row in step[name]]
        self.ops, self.spans, self.regions = table("ops"), table("spans"), table("regions")
        self.spans_of = [{} for _ in self.ops]  # by op: rank -> its spans, in time
        for span in sorted(self.spans, key=lambda s: s["begin_ns"]):
            self.spans_of[span["op"]].setdefault(span["rank"], []).append(span)

    def offloads(self, what):
        return what in self.json["offload"].split(",")

    def times_of(self, op, rank):
        """(begin, end) of an op on a rank, or None."""
        spans = self.spans_of[op].get(rank)
        return (spans[0]["begin_ns"], spans[-1]["end_ns"]) if spans else None

    @functools.cached_property
    def regions_of(self):
        return [[g for g in self.regions if g["rank"] == rank] for rank in range(self.world)]

    def living(self, rank, time):
        return [g for g in self.regions_of[rank]
                if g["begin_ns"] <= time and (g["end_ns"] < 0 or time < g["end_ns"])]

    @functools.cached_property
    def curves(self):
        """For every rank (times, memory): from times[i] on, memory[i] = {category: bytes} is what lives."""
        curves = []
        for regions in self.regions_of:
            change = {0: {}}  # time: {category: bytes more}
            for region in regions:
                for time, sign in ((max(0, region["begin_ns"]), 1), (region["end_ns"], -1)):
                    if 0 <= time < self.duration:
                        more = change.setdefault(time, {})
                        more[region["category"]] = more.get(region["category"], 0) + sign * region["bytes"]
            held, memory, times = {}, [], sorted(change)
            for time in times:
                for category, more in change[time].items():
                    held[category] = held.get(category, 0) + more
                memory.append(dict(held))
            curves.append((times, memory))
        return curves

    def memory(self, rank, time):
        times, memory = self.curves[rank]
        return memory[bisect.bisect_right(times, time) - 1]

    def moments(self, rank, count=60):
        """Half of them even in time, half between two changes of the memory: also what is short is seen."""
        half = count // 2
        even = [self.duration * i // half for i in range(half)]
        marks = self.curves[rank][0] + [self.duration]
        stretches = [(a + b) // 2 for a, b in zip(marks, marks[1:])]
        return even + [stretches[i * len(stretches) // half] for i in range(count - half)]

    def cells(self, rank, time):
        """Which cells have memory on this device: {holds: [of each unit [of each slice bool]]}."""
        has = {holds: [[False] * self.world for _ in self.units] for holds in HOLDS}
        for region in self.living(rank, time):
            if region["holds"] not in has:
                continue
            units = range(len(self.units)) if region["unit"] < 0 else [region["unit"]]
            slices = range(self.world) if region["extent"] == "full" else [rank]
            for unit in units:
                for k in slices:
                    has[region["holds"]][unit][k] = True
        return has

    def holds_all(self, rank, holds, unit, times):
        """Whether a device has all slices of a unit in one piece of memory for all of (begin, end)."""
        begin, end = times
        fits = lambda g: (g["holds"] == holds and g["unit"] in (-1, unit) and
                          (g["extent"] == "full" or self.world == 1) and
                          g["begin_ns"] <= begin and (g["end_ns"] < 0 or end <= g["end_ns"]))
        return any(fits(g) for g in self.regions_of[rank])

    def needs_parameters(self, op):
        return (op["stream"] == "compute" and op["unit"] >= 0 and op["kind"] in ("forward", "recompute", "backward") and
                not (op["kind"] == "backward" and op["layer"] == "lookup"))


def find_peak(run):
    """The regions add up to the measured peak, and so does each category at that moment."""
    bad = []
    for rank, measured in enumerate(run.json["memory"]["measured"]):
        where = f"{run.id} device {rank}"
        highest = max(sum(held.values()) for held in run.curves[rank][1])
        if highest != measured["peak_bytes"]:
            bad.append(f"{where}: regions add up to {highest} at most, measured {measured['peak_bytes']}")
        held = run.memory(rank, measured["peak_ns"])
        for category, size in measured["at_peak"].items():
            if held.get(category, 0) != size:
                bad.append(f"{where}: {category} at its peak: regions {held.get(category, 0)}, measured {size}")
        if sum(measured["at_peak"].values()) != measured["peak_bytes"]:
            bad.append(f"{where}: the categories at the peak are not its sum")
    return bad


def find_region_sizes(run):
    """What stays, and what is gathered, is as large as the elements and bytes a parameter say."""
    bad, counts = [], {}
    for op in run.ops:
        if op["kind"] == "reduce_scatter" and op["purpose"] == "gradients":
            counts.setdefault((op["unit"], op["micro_batch"]), []).append(op["elements"])
    buckets = {}  # unit: elements of its buckets
    for (unit, _), elements in counts.items():
        buckets[unit] = sorted(elements)
        if sum(elements) != run.units[unit]["padded_elements"]:
            bad.append(f"{run.id} unit {unit}: a micro-batch reduces {sum(elements)} of its elements")
    gradient = run.bytes_each["gradients"]
    # A bucket's buffer is as large as the bucket, as the largest one, or as all of its unit.
    bucket_sizes = {rounded_up(gradient * e) for elements in buckets.values() for e in [*elements, sum(elements)]}
    for rank in range(run.world):
        where = f"{run.id} device {rank}"
        stays = {holds: [] for holds in HOLDS}
        for region in run.regions_of[rank]:
            holds, size, unit = region["holds"], region["bytes"], region["unit"]
            if holds in stays and unit < 0:
                stays[holds].append(region)
            elif holds == "parameters":
                if size != rounded_up(run.bytes_each[holds] * run.units[unit]["padded_elements"]):
                    bad.append(f"{where}: a gathered unit {unit} of {size} bytes")
            elif holds == "gradients":
                if size not in bucket_sizes or size < rounded_up(gradient * buckets[unit][0]):
                    bad.append(f"{where}: a gradient bucket of unit {unit} of {size} bytes")
        for holds, regions in stays.items():
            bad += find_wrong_stay(run, where, holds, regions)
    return bad


def find_wrong_stay(run, where, holds, regions):
    """What stays on a device for all units. An offloaded optimizer keeps its states, maybe the gradients, elsewhere."""
    if not regions:
        return [] if run.offloads("optimizer") and holds != "parameters" else [f"{where}: no memory for {holds}"]
    sharded = run.json["stage"] >= SHARDING_STAGE[holds] and run.world > 1
    if any((region["extent"] == "shard") != sharded for region in regions) and run.world > 1:
        return [f"{where}: {holds} are {'' if sharded else 'not '}to be sharded at stage {run.json['stage']}"]
    parts = run.world if sharded else 1
    want, have = run.bytes_each[holds] * run.padded // parts, sum(region["bytes"] for region in regions)
    right = want <= have < want + ALIGNMENT * len(regions)
    return [] if right else [f"{where}: {holds} keep {have} bytes, wanted {want}"]


def rounded_up(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def find_counted_ops(run):
    """The ops of every collective add up to its counter, on every rank."""
    bad = []
    rows = {row["collective"]: row for row in run.json["communication"]}
    row_of = lambda op: "scalars" if op["purpose"] == "scalars" else op["kind"]
    used = {row_of(op) for op in run.ops if op["kind"] in COLLECTIVES}
    for name in sorted(used - rows.keys()):
        bad.append(f"{run.id}: {name} ran, and has no row")
    for name, row in rows.items():
        ops = [i for i, op in enumerate(run.ops) if op["kind"] in COLLECTIVES and row_of(op) == name]
        for rank, counted in enumerate(row["counted_bytes"]):
            sent = sum(run.ops[i]["bytes"] for i in ops if rank in run.spans_of[i])
            if sent != counted:
                bad.append(f"{run.id} {name} device {rank}: ops send {sent} bytes, counted {counted}")
        if len(ops) != row["calls"]:
            bad.append(f"{run.id} {name}: {len(ops)} ops, {row['calls']} calls counted")
    return bad


def find_elements_sent(run):
    """Without scalars every device sends (N-1)/N of 2 Psi, 2 Psi, (m + 1) Psi or m (3 Psi - the last block)."""
    psi, last, m = run.padded, run.units[-1]["padded_elements"], run.json["micro_batches"]
    want = (2 * psi, 2 * psi, (m + 1) * psi, m * (3 * psi - last))[run.json["stage"]] * (run.world - 1) // run.world
    rows = [row for row in run.json["communication"] if row["collective"] != "scalars"]
    bad = []
    for rank in range(run.world):
        have = sum(row["counted_bytes"][rank] // row["element_bytes"] for row in rows)
        if have != want:
            bad.append(f"{run.id} device {rank}: sends {have} elements, wanted {want}")
    return bad


def find_counted_copies(run):
    bad = []
    for stream in ("to_host", "from_host"):
        row = run.json["copies"][stream]
        ops = [i for i, op in enumerate(run.ops) if op["kind"] == "copy" and op["stream"] == stream]
        for rank, counted in enumerate(row["counted_bytes"]):
            copied = sum(run.ops[i]["bytes"] for i in ops if rank in run.spans_of[i])
            if copied != counted:
                bad.append(f"{run.id} {stream} device {rank}: ops copy {copied} bytes, counted {counted}")
    return bad


def find_compute_without_parameters(run):
    """While a device computes with a unit all of it is in its memory, and every gather issued before is over."""
    bad = []
    for rank in range(run.world):
        gathered = {}  # unit: the end of its last gather issued so far
        for number, op in enumerate(run.ops):
            times = run.times_of(number, rank)
            if not times:
                continue
            if op["kind"] == "all_gather" and op["purpose"] == "parameters":
                gathered[op["unit"]] = max(times[1], gathered.get(op["unit"], 0))
            if not run.needs_parameters(op):
                continue
            what = f"{run.id} device {rank} {op['kind']} {op['layer']} (op {number})"
            if not run.holds_all(rank, "parameters", op["unit"], times):
                bad.append(f"{what}: its parameters are not all in memory from {times[0]} to {times[1]}")
            if gathered.get(op["unit"], 0) > times[0]:
                bad.append(f"{what}: begins at {times[0]}, before its gather ends at {gathered[op['unit']]}")
    return bad


def find_reductions_without_gradients(run):
    """While a unit's gradient is reduced, the device holds it whole."""
    bad = []
    for number, op in enumerate(run.ops):
        if op["kind"] not in ("reduce_scatter", "all_reduce") or op["purpose"] != "gradients":
            continue
        for rank in run.spans_of[number]:
            times = run.times_of(number, rank)
            if not run.holds_all(rank, "gradients", op["unit"], times):
                what = f"{run.id} device {rank} {op['kind']} {op['layer']} (op {number})"
                bad.append(f"{what}: its gradient is not all in memory from {times[0]} to {times[1]}")
    return bad


def find_spans(run):
    """Spans of one rank and stream do not overlap, and lie within the step."""
    bad = []
    lanes = {}
    for span in run.spans:
        lanes.setdefault((span["rank"], run.ops[span["op"]]["stream"]), []).append(span)
    for (rank, stream), spans in lanes.items():
        spans.sort(key=lambda s: (s["begin_ns"], s["end_ns"]))
        for span in spans:
            if not 0 <= span["begin_ns"] <= span["end_ns"] <= run.duration:
                bad.append(f"{run.id} device {rank} {stream}: a span of op {span['op']} is not within the step")
        for before, after in zip(spans, spans[1:]):
            if after["begin_ns"] < before["end_ns"]:
                bad.append(f"{run.id} device {rank} {stream}: spans of ops {before['op']} and {after['op']} overlap")
    return bad


CHECKS = {
    "regions add up to the measured peak": find_peak,
    "regions are as large as what they hold": find_region_sizes,
    "op bytes equal the counters": find_counted_ops,
    "collectives move as many elements as the paper says": find_elements_sent,
    "copied bytes equal the counters": find_counted_copies,
    "nothing computes without its parameters": find_compute_without_parameters,
    "nothing is reduced without its gradient": find_reductions_without_gradients,
    "spans are in order and within the step": find_spans,
}
