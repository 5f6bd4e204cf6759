// SPDX-License-Identifier: Apache-2.0
//
// RecordedStep: the tables of one step (ops, spans, regions), made askable: what runs on a stream
// at a time, what memory holds, what has been sent, when compute waits. Times are nanoseconds since
// the step began. Who holds which slice is in slices.js, what travels in transfers.js.

const STREAMS = ['compute', 'communication', 'to_host', 'from_host'];
const COLLECTIVES = ['all_gather', 'reduce_scatter', 'all_reduce', 'broadcast'];

class RecordedStep {
  constructor(run) {
    const table = (fields, rows) =>
        rows.map((row) => Object.fromEntries(fields.map((field, i) => [field, row[i]])));
    this.run = run;
    this.world = run.world;
    this.stage = run.stage;
    this.duration = run.step.duration_ns;
    this.ops = table(run.step.op_fields, run.step.ops)
                   .map((op, id) => ({...op, id, isCollective: COLLECTIVES.includes(op.kind)}));
    this.regions = table(run.step.region_fields, run.step.regions);
    this.ranks = Array.from({length: this.world}, (_, rank) => rank);
    this.placeSpans(
        table(run.step.span_fields ?? ['op', 'rank', 'begin_ns', 'end_ns'], run.step.spans));
    this.curves = this.ranks.map((rank) => this.memoryCurve(rank));
    this.frees = this.findFrees();
    this.moments = this.findMoments();
    this.phases = this.findPhases();
    this.slices = new Slices(this);
    this.story = new StoryClock(this);
  }

  // Gives each op its pieces by rank, and each rank and stream its lane. A piece is {op, begin,
  // end}; an op has several on a rank where the stream waited in between.
  placeSpans(spans) {
    for (const op of this.ops) op.pieces = this.ranks.map(() => []);
    this.lanes = this.ranks.map(() => Object.fromEntries(STREAMS.map((stream) => [stream, []])));
    for (const span of spans) {
      const op = this.ops[span.op];
      const piece = {op, begin: span.begin_ns, end: span.end_ns};
      op.pieces[span.rank].push(piece);
      this.lanes[span.rank][op.stream].push(piece);
    }
    const inOrder = (a, b) => a.begin - b.begin;
    for (const lane of this.lanes) {
      for (const stream of STREAMS) lane[stream].sort(inOrder);
    }
    for (const op of this.ops) {
      for (const pieces of op.pieces) pieces.sort(inOrder);
      const present = op.pieces.filter((pieces) => pieces.length);
      const begins = present.map((pieces) => pieces[0].begin);
      const ends = present.map((pieces) => pieces.at(-1).end);
      op.begin = Math.min(...begins);
      op.allBegun = Math.max(...begins);  // a collective moves when the last rank has come
      op.last = op.pieces.findIndex((pieces) => pieces[0]?.begin === op.allBegun);
      op.firstEnd = Math.min(...ends);
      op.end = Math.max(...ends);
    }
    this.recorded = this.ops.filter((op) => op.end >= 0);
    this.collectives = this.recorded.filter((op) => op.isCollective);
  }

  // Bytes by category and in total, as a step function of time.
  memoryCurve(rank) {
    const mine = this.regions.filter((region) => region.rank === rank);
    const changes = new Map([[0, {}]]);
    const change = (time, category, amount) => {
      if (!changes.has(time)) changes.set(time, {});
      const at = changes.get(time);
      at[category] = (at[category] ?? 0) + amount;
    };
    for (const region of mine) {
      change(Math.max(0, region.begin_ns), region.category, region.bytes);
      if (region.end_ns >= 0) change(region.end_ns, region.category, -region.bytes);
    }
    const times = [...changes.keys()].sort((a, b) => a - b);
    const now = Object.fromEntries(report.categories.map((category) => [category, 0]));
    let held = 0;
    const values = times.map((time) => {
      const at = changes.get(time);
      for (const category in at) {
        now[category] += at[category];
        held += at[category];
      }
      return {...now, total: held};
    });
    let highest = 0;
    values.forEach((value, i) => {
      if (value.total > values[highest].total) highest = i;
    });
    return {times, values, peak: {t: times[highest], ...values[highest]}};
  }

  memory(rank, t) {
    const {times, values} = this.curves[rank];
    return values[lastNotAfter(times, t)];
  }

  // The piece that runs on a stream of a rank; undefined where it is idle.
  active(rank, stream, t) {
    const lane = this.lanes[rank][stream];
    let low = 0;
    let high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane[middle].end <= t) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < lane.length && lane[low].begin <= t ? lane[low] : undefined;
  }

  // [begin, end, op] of the times when compute stands still, has work left, and `stream` is busy.
  exposed(rank, stream = 'communication') {
    const found = [];
    const compute = this.lanes[rank].compute;
    let next = 0;
    for (const busy of this.lanes[rank][stream]) {
      let at = busy.begin;
      while (next < compute.length && compute[next].end <= at) ++next;
      for (let i = next; i < compute.length && at < busy.end; ++i) {
        if (compute[i].begin > at) {
          found.push([at, Math.min(compute[i].begin, busy.end), busy.op]);
        }
        at = Math.max(at, compute[i].end);
      }
    }
    return found;
  }

  // Share of a collective that has been moved.
  progress(op, t) {
    if (op.firstEnd <= op.allBegun) return t >= op.end ? 1 : 0;
    return clamp((t - op.allBegun) / (op.firstEnd - op.allBegun), 0, 1);
  }

  // Bytes that one device has sent.
  sent(t) {
    return sum(this.collectives.map((op) => op.bytes * this.progress(op, t)));
  }

  // Memory of a unit given back: [{kind: 'freed', holds, unit, bytes, ...}], shaped like an op.
  findFrees() {
    const groups = new Map();
    const counts = new Map();
    for (const region of this.regions) {
      if (region.begin_ns < 0 || region.end_ns < 0 || region.unit < 0 || !region.holds) continue;
      const place = [region.holds, region.unit].join();
      const nth = (counts.get(place + region.rank) ?? 0) + 1;
      counts.set(place + region.rank, nth);
      const key = place + '/' + nth;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(region);
    }
    return [...groups.values()].map((group) => {
      const time = Math.max(...group.map((region) => region.end_ns));
      const {holds, unit} = group[0];
      return {
        kind: 'freed',
        stream: 'compute',
        layer: '',
        purpose: '',
        elements: 0,
        micro_batch: -1,
        holds,
        unit,
        bytes: group[0].bytes,
        begin: time,
        allBegun: time,
        firstEnd: time,
        end: time,
      };
    });
  }

  // Where the arrow keys stop: the middle of each op, and each return of memory.
  findMoments() {
    const middle = (op) => {
      if (op.isCollective) {
        return (Math.min(op.allBegun, op.firstEnd) + op.firstEnd) / 2;
      }
      const pieces = op.pieces.find((some) => some.length);
      const longest = pieces.reduce((a, b) => b.end - b.begin > a.end - a.begin ? b : a);
      return (longest.begin + longest.end) / 2;
    };
    return [
      ...this.recorded.map((op) => ({op, t: middle(op)})),
      ...this.frees.map((op) => ({op, t: Math.min(op.end + 1, this.duration - 1)})),
    ].sort((a, b) => a.t - b.t);
  }

  // [{name, begin, end}], from 0 to the end without holes: forward, backward, ..., step.
  findPhases() {
    const found = [];
    const work =
        this.recorded
            .filter((op) => op.kind === 'update' || (op.stream === 'compute' && op.kind !== 'copy'))
            .sort((a, b) => a.begin - b.begin);
    for (const op of work) {
      if (found.at(-1)?.name !== op.phase) found.push({name: op.phase, begin: op.begin});
    }
    if (!found.length) found.push({name: 'step', begin: 0});
    found[0].begin = 0;
    found.forEach((phase, i) => {
      phase.end = found[i + 1]?.begin ?? this.duration;
    });
    return found;
  }

  // What the page's tests and the cards ask about slices: see slices.js.
  slice(kind, rank, unit, slice, t) {
    return this.slices.state(kind, rank, unit, slice, t);
  }
}

// Steps are built when they are first looked at.
const recordedSteps = new Map();
function stepOf(run) {
  if (!run?.step) return null;
  if (!recordedSteps.has(run.id)) recordedSteps.set(run.id, new RecordedStep(run));
  return recordedSteps.get(run.id);
}
