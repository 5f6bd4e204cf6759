// SPDX-License-Identifier: Apache-2.0
//
// Slices: the state of every slice of every unit on every device, at any time. It follows from the
// lives of memory (regions), from what computed when, and from the collectives. States:
//   absent    no memory
//   reserved  memory without a value of use
//   local     a gradient that knows only this device's sequences
//   whole     the parameters, the summed gradient, the optimizer states
//   borrowed  in the gathered copy of a unit whose owner is another device
//   stale     parameters that their owner has updated since

class Slices {
  constructor(step) {
    this.step = step;
    this.keeps =
        step.ranks.map(() => ({parameters: 'none', gradients: 'none', optimizer_states: 'none'}));
    this.transient = step.ranks.map(() => units.map(() => []));
    for (const region of step.regions) {
      if (!region.holds) continue;
      if (region.unit < 0) {
        this.keeps[region.rank][region.holds] = region.extent;
      } else {
        this.transient[region.rank][region.unit].push(region);
      }
    }
    this.opsOf = units.map(() => []);
    for (const op of step.recorded) {
      if (op.unit >= 0) this.opsOf[op.unit].push(op);
    }
    this.histories = step.ranks.map(() => units.map(() => null));
    this.changeTimes = step.ranks.map(() => null);
  }

  history(rank, unit) {
    return this.histories[rank][unit] ??= this.makeHistory(rank, unit);
  }

  makeHistory(rank, unit) {
    const ops = this.opsOf[unit].filter((op) => op.pieces[rank].length);
    const pieces = (kind) => ops.filter((op) => op.kind === kind).flatMap((op) => op.pieces[rank]);
    const collectives = ops.filter((op) => op.isCollective);
    const gathers = collectives.filter((op) => op.purpose === 'parameters');
    const lives = (holds) =>
        this.transient[rank][unit]
            .filter((region) => region.holds === holds)
            .map(({begin_ns, end_ns}) => ({begin: begin_ns, end: end_ns < 0 ? Infinity : end_ns}));
    const isIn = ({begin, end}, op) =>
        begin <= op.pieces[rank][0].begin && op.pieces[rank][0].begin < end;
    const backward = pieces('backward');
    return {
      gathers,
      borrowed: lives('parameters').map((life) => {
        return {...life, gathers: gathers.filter((op) => isIn(life, op))};
      }),
      buckets: lives('gradients'),
      rounds: [...new Set(backward.map((piece) => piece.op.micro_batch))].map((micro) => {
        const work = backward.filter((piece) => piece.op.micro_batch === micro);
        return {
          work,
          begin: work[0].begin,
          end: work.at(-1).end,
          duration: sum(work.map((piece) => piece.end - piece.begin)),
          reductions:
              collectives.filter((op) => op.purpose === 'gradients' && op.micro_batch === micro),
        };
      }),
      updated: pieces('update').at(-1)?.end ?? Infinity,
    };
  }

  state(kind, rank, unit, slice, t) {
    const keeps = this.keeps[rank];
    if (kind === 'parameters') return this.parameterState(keeps, rank, unit, slice, t);
    if (kind === 'gradients') return this.gradientState(keeps, rank, unit, slice, t);
    const kept = keeps.optimizer_states;
    return kept === 'full' || (kept === 'shard' && slice === rank) ? 'whole' : 'absent';
  }

  parameterState({parameters: kept}, rank, unit, slice, t) {
    const {step} = this;
    if (slice === rank) return kept === 'none' ? 'absent' : 'whole';
    const history = this.history(rank, unit);
    const arrived = (gathers) => gathers.every((op) => hasArrived(step, op, rank, slice, t));
    if (kept === 'full') {
      if (step.stage === 0) return 'whole';
      return t >= history.updated || !arrived(history.gathers) ? 'stale' : 'whole';
    }
    const copy = history.borrowed.find(({begin, end}) => begin <= t && t < end);
    if (!copy) return 'absent';
    return arrived(copy.gathers) ? 'borrowed' : 'reserved';
  }

  gradientState({gradients: kept}, rank, unit, slice, t) {
    const {step} = this;
    const own = slice === rank;
    const history = this.history(rank, unit);
    const inBucket = history.buckets.some(({begin, end}) => begin <= t && t < end);
    if (kept !== 'full' && !inBucket && !(own && kept === 'shard')) return 'absent';
    const current = history.rounds.findLastIndex((round) => round.begin <= t);
    if (current < 0 || t >= history.updated) return 'reserved';
    const addsUp = current > 0;  // to earlier micro-batches
    if (addsUp && own && kept === 'shard') return 'whole';

    const round = history.rounds[current];
    const filled =
        (addsUp && kept === 'full') || this.filled(round, slice, t) ? 'local' : 'reserved';
    if (step.world === 1) return t >= round.end ? 'whole' : filled;
    const begun = round.reductions.length > 0 && t >= round.reductions[0].allBegun;
    if (!begun) return filled;
    const all = (test) => round.reductions.every((op) => test(op));
    if (own) return all((op) => sumIsComplete(step, op, t)) ? 'whole' : filled;
    if (step.stage === 0 && all((op) => hasArrived(step, op, rank, slice, t))) return 'whole';
    return all((op) => hasLeft(step, op, rank, slice, t)) ? 'reserved' : filled;
  }

  // Backward goes from the last layer to the first, so slices are drawn to fill from the end.
  filled(round, slice, t) {
    if (t >= round.end) return true;
    const computed = sum(round.work.map((piece) => clamp(t, piece.begin, piece.end) - piece.begin));
    return computed / Math.max(1, round.duration) >= (this.step.world - slice) / this.step.world;
  }

  // Sorted times at which a slice of `rank`, or what the rank works on, may change. Between two of
  // them its card need not be drawn again.
  changes(rank) {
    if (this.changeTimes[rank]) return this.changeTimes[rank];
    const {step} = this;
    const times = new Set([0]);
    for (const region of step.regions) {
      if (region.rank === rank) times.add(Math.max(0, region.begin_ns)).add(region.end_ns);
    }
    for (const stream of STREAMS) {
      for (const piece of step.lanes[rank][stream]) times.add(piece.begin).add(piece.end);
    }
    for (const op of step.collectives) {
      times.add(op.allBegun);
      if (op.unit < 0) continue;
      for (const time of roundEnds(step, op)) times.add(time);
    }
    units.forEach((_, unit) => {
      for (const round of this.history(rank, unit).rounds) {
        for (const time of this.fillTimes(round)) times.add(time);
      }
    });
    return this.changeTimes[rank] = [...times].filter((t) => t >= 0).sort((a, b) => a - b);
  }

  // When the 1st, 2nd, ... N-th part of a round's backward has been computed.
  fillTimes(round) {
    const times = [];
    let computed = 0;
    for (const {begin, end} of round.work) {
      for (let i = 1; i <= this.step.world; ++i) {
        const at = begin + round.duration * i / this.step.world - computed;
        if (at > begin && at <= end) times.push(at);
      }
      computed += end - begin;
    }
    return times;
  }
}
