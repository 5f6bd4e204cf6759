// SPDX-License-Identifier: Apache-2.0
//
// In place of the player where there is no step to play, and what stands above it.

const unrecorded = (run) =>
    el('div', {class: 'panel', role: 'status'},
       `No step of ${run.label} was recorded, so there is none to play.`);

// Of a run that ended with an error after some steps.
const failureNote = (run) => failed(run) &&
    el('p', {class: 'panel', role: 'status'}, el('b', {class: 'failed'}, `${run.label} failed. `),
       sentence(run.failure));

// The run did not fit: what it needs, and what for.
function misfit(run) {
  const need = run.memory.predicted;
  const peak = total(need);
  const needed = Math.max(peak, run.memory.reserved_bytes ?? 0);
  const capacity = run.device_memory_bytes;
  const most = Math.max(needed, capacity);
  const bar = (value, name) => {
    const style = `width:${value / most * 100}%;background:${color(name)}`;
    return el('i', {style, 'aria-hidden': 'true'});
  };
  const row = (words, value, name) =>
      el('div', {class: 'need'}, el('span', {}, words), el('span', {}, bytes(value)),
         bar(value, name));
  const excess = needed > capacity ? ` That is ${bytes(needed - capacity)} too much.` : '';
  const fitting = runs.filter(ran).map((other) => other.label);
  return el(
      'div', {class: 'panel misfit', role: 'status'},
      el('p', {}, el('b', {class: 'failed'}, `${run.label} does not fit. `),
         `${sentence(run.failure)}${excess} So there is no step to play.`,
         fitting.length > 0 && ` What fits: ${fitting.join(', ')}.`),
      ...report.categories.filter((name) => need[name] > 0)
          .map((name) => row(categoryName(name), need[name], name)),
      row('at the peak', peak, 'ink'),
      needed > peak && row('reserved: each region at its own peak', needed, 'ink'),
      row('the device has', capacity, 'ink'),
      el('p', {class: 'small muted'}, STAGES[run.stage].short));
}
