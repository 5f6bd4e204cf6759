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
      el('p', {class: 'small muted'},
         `${whatRan(step, rank, peak.t)} ${whyThen(step, rank, peak)}`),
      ...rows);
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

// Why memory is fullest there: what was added since the step began, and what happens afterwards.
function whyThen(step, rank, peak) {
  const op = step.active(rank, 'compute', peak.t)?.op ??
      step.lanes[rank].compute.findLast((piece) => piece.end <= peak.t)?.op;
  const [first] = step.curves[rank].values;
  const grown = report.categories.map((name) => ({name, bytes: peak[name] - first[name]}))
                    .filter(({bytes: more}) => more > peak.total / 500)
                    .sort((a, b) => b.bytes - a.bytes);
  if (!op || !grown.length) return '';
  const parts = grown.map(({name, bytes: more}) => `${bytes(more)} of ${categoryName(name)}`);
  const list = parts.length > 1 ? `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)}` : parts[0];
  const added = `Since the step began, ${list} were added. `;
  if (op.phase !== 'backward') return added;
  const bucket = sharded(step.run, 'gradients') ? ' and a gradient bucket' : '';
  const freed = step.run.activation_checkpointing === 'none' ?
      'Why here: backward starts with the activations of all blocks still there, and its first ' +
          `blocks add the gradients of their activations${bucket}; from then on each block frees ` +
          'what it has used.' :
      'Why here: to what forward kept of all blocks, backward adds what it computes again for ' +
          'one block, and gradients; then it frees both.';
  return added + (isEarlyBackward(op) ? freed : '');
}

// The first layers that backward visits: the head and the last two blocks.
const isEarlyBackward = (op) => op.layer === 'head' || op.unit >= units.length - 2;

function peakLabel(regions, step) {
  const [{label, extent, begin_ns}] = regions;
  const where = unitRange(regions.map((region) => region.unit));
  const part = begin_ns < 0 && extent === 'shard' && step.world > 1 ?
      `, 1/${step.world} of each unit` :
      begin_ns < 0 && extent === 'full' ? ', all units in full' :
                                          '';
  const {layers} = report.model;
  const many = regions.length === layers && layers > 1 ? `, of ${layers} blocks` :
      regions.length > 1 ? `, ${regions.length} of them` :
                           '';
  return `${label}${part}${where ? ' · ' + where : many}`;
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
