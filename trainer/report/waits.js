// SPDX-License-Identifier: Apache-2.0
//
// Waits: a collective moves when its last device has come. Until then the others wait for that
// device; only afterwards do slices travel. So a device's communication, and the part of it that is
// exposed, has two kinds of time.

// Whether the device is in the collective, which has not begun to move.
const waitsForOthers = (step, op, t) => op.isCollective && step.world > 1 && t < op.allBegun;

// "device 3", the last to come to a collective.
const lastToCome = (op) => `device ${op.last}`;

// [{op, begin, end, late}]: the exposed times of a device, cut where a collective begins to move.
// `late` is true while the device waits for another one.
function exposedParts(step, rank) {
  return step.exposed(rank).flatMap(([begin, end, op]) => {
    const cut = clamp(op.allBegun, begin, end);
    return [{op, begin, end: cut, late: true}, {op, begin: cut, end, late: false}].filter(
        (part) => part.end > part.begin);
  });
}

const timeOf = (parts) => sum(parts.map(({begin, end}) => end - begin));

// Nanoseconds of a device's communication: waiting for another device, and transfer.
function communicationTimes(step, rank) {
  const pieces = step.lanes[rank].communication;
  const all = timeOf(pieces);
  const late =
      sum(pieces.map(({op, begin, end}) => Math.max(0, Math.min(end, op.allBegun) - begin)));
  const exposed = exposedParts(step, rank);
  const exposedLate = timeOf(exposed.filter((part) => part.late));
  return {
    all,
    late,
    transfer: all - late,
    exposedLate,
    exposedTransfer: timeOf(exposed) - exposedLate
  };
}

// What a collective costs all devices together, for its caption: who waits, and what hides.
function hiding(step, op) {
  if (step.world < 2) return '';
  const parts = step.ranks.flatMap((rank) => exposedParts(step, rank)).filter((p) => p.op === op);
  const transfer =
      sum(op.pieces.flat().map(({begin, end}) => Math.max(0, end - Math.max(begin, op.allBegun))));
  const share = timeOf(parts.filter((part) => !part.late)) / Math.max(1, transfer);
  const words = share < 0.1 ? 'The transfer hides behind compute.' :
      share > 0.9           ? 'Compute waits for the transfer: it is exposed.' :
                              'Part of the transfer hides behind compute; for the rest it waits.';
  const lateness = op.allBegun - op.begin;
  if (lateness < (op.firstEnd - op.allBegun) / 4) return words;
  return `Slices travel only when ${lastToCome(op)}, the last, has come, ` +
      `${milliseconds(lateness)} after the first. ${words}`;
}

// Where an op is at time t: on which devices it runs, or that it is over.
function whereItRuns(step, op, t) {
  if (step.world < 2 || op.kind === 'freed') return '';
  const runs = ({begin, end}) => begin <= t && t < end;
  const at = step.ranks.filter((rank) => op.pieces[rank].some(runs));
  if (waitsForOthers(step, op, t) && at.length) {
    return `${deviceList(at)} ${at.length > 1 ? 'wait' : 'waits'} for ${lastToCome(op)}`;
  }
  if (op.isCollective) return at.length ? 'slices travel' : t >= op.end ? 'over' : '';
  if (at.length === step.world) return 'on all devices';
  return at.length ? 'on ' + deviceList(at) : t >= op.end ? 'over on all devices' : '';
}

// "device 1", "devices 0, 2", "devices 0 to 2"
function deviceList(ranks) {
  if (ranks.length === 1) return `device ${ranks[0]}`;
  const row = ranks.length > 2 && ranks.at(-1) - ranks[0] === ranks.length - 1;
  return 'devices ' + (row ? `${ranks[0]} to ${ranks.at(-1)}` : ranks.join(', '));
}
