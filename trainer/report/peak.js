// SPDX-License-Identifier: Apache-2.0
//
// What was alive when a device's memory was fullest: the list below the memory chart.

function showPeak(node, step, rank) {
  const {peak} = step.curves[rank];
  const groups = groupsAlive(step, rank, peak.t);
  const row = (mark, words, size) =>
      el('div', {}, mark, el('span', {}, words), el('span', {}, bytes(size)));
  const large = groups.filter((group) => group.bytes >= peak.total / 500);
  const small = groups.filter((group) => !large.includes(group));
  const rows = large.map(
      (group) => row(chip(group.regions[0].category), peakLabel(group.regions, step), group.bytes));
  if (small.length) {
    const labels = small.map((group) => group.regions[0].label).join(', ');
    const rest = row(chip('line'), `${small.length} smaller ones`, sum(small.map((g) => g.bytes)));
    rest.title = labels;
    rows.push(rest);
  }
  const size = integer(peak.total);
  const time = milliseconds(peak.t);
  node.replaceChildren(
      el('h3', {}, `Alive at the peak, ${time} into the step: ${size} bytes on device ${rank}`),
      el('p', {class: 'small muted'}, whatRan(step, rank, peak.t)), ...rows);
}

// [{regions, bytes}] of the regions of one label, the largest first.
function groupsAlive(step, rank, t) {
  const alive = step.regions.filter(
      (region) =>
          region.rank === rank && region.begin_ns <= t && (region.end_ns < 0 || t < region.end_ns));
  const groups = new Map();
  for (const region of alive) {
    const key = [region.category, region.label, region.holds, region.begin_ns < 0].join('/');
    if (!groups.has(key)) groups.set(key, {regions: [], bytes: 0});
    const group = groups.get(key);
    group.regions.push(region);
    group.bytes += region.bytes;
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}

function whatRan(step, rank, t) {
  const piece = step.active(rank, 'compute', t);
  return piece ? `The device computes: ${opTitle(piece.op)}.` : 'Compute is idle at this moment.';
}

function peakLabel(regions, step) {
  const [{label, extent, begin_ns}] = regions;
  const where = unitRange(regions.map((region) => region.unit));
  const part = begin_ns < 0 && extent === 'shard' && step.world > 1 ?
      `, 1/${step.world} of each unit` :
      begin_ns < 0 && extent === 'full' ? ', all units in full' :
                                          '';
  return `${label}${part}${where ? ' · ' + where : ''}`;
}

// "ends, b0 to b7"
function unitRange(indices) {
  const some = [...new Set(indices.filter((unit) => unit >= 0))].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < some.length;) {
    let j = i;
    while (j + 1 < some.length && some[j + 1] === some[j] + 1) ++j;
    const from = units[some[i]].short;
    parts.push(
        j - i >= 2 ? `${from} to ${units[some[j]].short}` :
                     some.slice(i, j + 1).map((unit) => units[unit].short).join(', '));
    i = j + 1;
  }
  return parts.join(', ');
}
