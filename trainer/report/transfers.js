// SPDX-License-Identifier: Apache-2.0
//
// What travels, as the page draws it. A collective has N - 1 rounds; in round j device d hands one
// slice straight to device (d + j) mod N. So N slices travel at a time, each between its owner and
// the device that needs it:
//   all-gather      d sends its own slice d; after round j, d + j holds it
//   reduce-scatter  d sends what it has of slice d + j; its owner adds it up
//   all-reduce      the first half is a reduce-scatter, the second an all-gather
// The data say when a collective ran and how much it sent, not in which order, so the rounds share
// its time evenly.

const roundFor = (world, from, to) => (to - from + world) % world;

// How many rounds of summing and of copying are over; fractions are slices under way.
function roundsDone(step, op, t) {
  const progress = step.progress(op, t);
  const rounds = step.world - 1;
  if (op.kind === 'reduce_scatter') return {summed: progress * rounds, copied: 0};
  if (op.kind === 'all_reduce') {
    return {
      summed: Math.min(1, 2 * progress) * rounds,
      copied: Math.max(0, 2 * progress - 1) * rounds
    };
  }
  return {summed: rounds, copied: progress * rounds};
}

const nearly = 1e-9;
const sumIsComplete = (step, op, t) => roundsDone(step, op, t).summed >= step.world - 1 - nearly;
// `rank` has sent its part of a slice that another device sums.
const hasLeft = (step, op, rank, slice, t) =>
    roundsDone(step, op, t).summed > roundFor(step.world, rank, slice) - 1;
// `rank` has got a slice of another device.
const hasArrived = (step, op, rank, slice, t) =>
    roundsDone(step, op, t).copied >= roundFor(step.world, slice, rank) - nearly;

// When the rounds of a collective end.
function roundEnds(step, op) {
  const rounds = (step.world - 1) * (op.kind === 'all_reduce' ? 2 : 1);
  return Array.from(
      {length: rounds + 1}, (_, i) => op.allBegun + (op.firstEnd - op.allBegun) * i / rounds);
}

// Slices on their way: [{op, kind, unit, slice, from, to, share, summed}]. `share` of the way is
// done; `summed` is the share of devices whose part is in the sum at `to`, null for copies.
function flightsAt(step, t) {
  const found = [];
  const world = step.world;
  if (world < 2) return found;
  for (const op of step.collectives) {
    if (t < op.allBegun || t >= op.firstEnd) continue;
    const {summed, copied} = roundsDone(step, op, t);
    const sums = summed < world - 1;
    const done = sums ? summed : copied;
    const round = Math.min(world - 2, Math.floor(done)) + 1;
    const senders = op.kind === 'broadcast' ? [0] : step.ranks;
    for (const from of senders) {
      const to = (from + round) % world;
      found.push({
        op,
        from,
        to,
        kind: op.unit < 0 || op.purpose === 'scalars' ? 'scalars' : op.purpose,
        unit: op.unit,
        slice: sums ? to : from,
        share: done - (round - 1),
        summed: sums ? round / world : null,
      });
    }
  }
  return found;
}

// Copies between a device and its host side: [{op, rank, down, purpose, unit, share}].
function copiesAt(step, t) {
  return step.ranks.flatMap((rank) => ['to_host', 'from_host'].flatMap((stream) => {
    const piece = step.active(rank, stream, t);
    if (piece?.op.kind !== 'copy' || piece.op.unit < 0) return [];
    const share = clamp((t - piece.begin) / (piece.end - piece.begin || 1), 0, 1);
    const {op} = piece;
    return [{op, rank, down: stream === 'to_host', purpose: op.purpose, unit: op.unit, share}];
  }));
}
