// SPDX-License-Identifier: Apache-2.0
//
// The paper's Figure 1 of these runs: for each device two bars, predicted (outlined) and measured
// at its peak (solid), against the capacity.

const BARS_HEIGHT = 236;

function showMemoryBars() {
  const box = byId('memory-bars');
  const width = box.clientWidth;
  if (width < 120) return;
  const columns = Math.min(runs.length, width < 640 ? 2 : 4);
  const single = runs.length === 1 && width >= 640;  // its text stands beside the bars
  const panelWidth = Math.floor(single ? width * 0.6 : width / columns);
  const showCapacity = capacityInSight;
  const top = Math.max(highestPeak, showCapacity ? highestCapacity : 0) * 1.08;
  box.style.setProperty('--columns', columns);
  box.classList.toggle('single', single);
  const scale = {
    width: panelWidth,
    top,
    showCapacity,
    y: (value) => BARS_HEIGHT - value / top * (BARS_HEIGHT - 8),
  };
  const panels = runs.map((run, i) => {
    const first = i % columns === 0;
    const last = i % columns === columns - 1 || i === runs.length - 1;
    return memoryPanel(run, barPlot(run, {...scale, first, last}));
  });
  box.replaceChildren(...panels);
  show(
      'memory-legend',
      ...usedCategories.map((name) => el('span', {}, chip(name), categoryName(name))));
  byId('memory-note').textContent = memoryNote(showCapacity);
  markSelected();
}

function memoryNote(showCapacity) {
  const figure = 'Figure 1 of the ZeRO paper (Rajbhandari et al., arXiv:1910.02054), ' +
      `from ${runs.length > 1 ? 'these runs' : 'this run'}. Two bars for each device: predicted ` +
      'before the run (outlined), and measured when its memory was fullest (solid).';
  const factor = runs.length > 1 ?
      ' The factor compares the model states: parameters, gradients and optimizer states; it ' +
          'says nothing of the rest of a bar.' :
      '';
  const formula = runs.some((run) => run.world > 1) ?
      ' In a formula what stands over N is sliced, the rest is kept whole by every device.' :
      '';
  const capacity =
      showCapacity ? '' : ` A device has ${bytes(highestCapacity)}, far above this picture.`;
  return figure + factor + formula + capacity;
}

// `run` at its peak: title, bars, and what it saves.
function memoryPanel(run, plot) {
  const fits = ran(run);
  const peak = bytes(total(atPeak(run)));
  const states = modelStates(atPeak(run));
  const predicted = integer(modelStates(run.memory.predicted));
  const label = fits ?
      `${run.label}: model states ${integer(states)} bytes on a device, predicted ${predicted}; ` +
          `at the peak ${peak} of ${bytes(run.device_memory_bytes)}` :
      `${run.label} does not fit: ${run.failure}`;
  const attributes = {
    class: 'bar-panel',
    type: 'button',
    'data-run': run.id,
    'aria-label': label,
    onclick: () => store.select(run.id),
  };
  const host = hostBytes(run);
  const words = fits ? stageText(run) + offloadText(run) : sentence(run.failure);
  const failure = failed(run) && `It failed. ${sentence(run.failure)}`;
  return el(
      'button', attributes,
      el('span', {class: 'bar-title'}, el('b', {}, run.label),
         el('span', {class: 'tiny muted'}, `${fits ? 'peak' : 'needs'} ${peak}`)),
      plot,
      el('span', {class: 'bar-text'}, savings(run, states),
         el('span', {class: 'small'}, `${stateFormula(run)} = `, el('b', {}, bytes(states)),
            host > 0 && ` + ${bytes(host)} on the host side`),
         el('span', {class: 'tiny muted'}, words),
         failure && el('span', {class: 'tiny failed'}, failure)));
}

// The large number of a panel.
function savings(run, states) {
  const line = (look, text, small) => el('span', {class: look}, text, el('small', {}, small));
  if (!ran(run)) return line('factor failed', 'does not fit', '');
  if (runs.length === 1) return line('factor', bytes(states), ' model states');
  const factor = modelStates(atPeak(runs[0])) / states;
  return line(
      'factor', factor.toFixed(2) + '×',
      run === runs[0]    ? ' model states, baseline' :
          factor < 1.005 ? ' model states' :
                           ' less model states');
}

function stageText(run) {
  return run.world > 1 ? STAGES[run.stage].short :
                         'One device keeps everything: there is nothing to shard.';
}

function offloadText(run) {
  if (run.offload === 'none') return '';
  const what = [
    offloads(run, 'optimizer') ? 'the optimizer' : '',
    offloads(run, 'activations') ? 'activation checkpoints' : '',
  ];
  return ` On the host side: ${what.filter(Boolean).join(' and ')}.`;
}

function barPlot(run, {width, y, top, showCapacity, first, last}) {
  const plot = new Plot('100%', BARS_HEIGHT + 20);
  const capacityY = y(run.device_memory_bytes);
  for (const value of ticks(top, 4)) {
    if (showCapacity && Math.abs(y(value) - capacityY) < 14) continue;
    plot.line(0, y(value) - 0.5, '100%', y(value) - 0.5);
    if (first) plot.text(6, y(value) - 4, value ? bytes(value, 0) : '0');
  }
  const left = width > 220 ? 54 : 46;
  const slot = (width - left - 12) / run.world;
  const bar = Math.min(slot * 0.44, runs.length === 1 ? 40 : 22);
  for (let rank = 0; rank < run.world; ++rank) {
    const x = left + rank * slot + (slot - 2 * bar) / 2;
    const measured = run.memory.measured[rank];
    stackBar(
        plot, x + 0.5, bar - 2, run.memory.predicted, y,
        (name) => fill(name, `fill-opacity:.22;stroke:${color(name)};stroke-opacity:.75`));
    if (measured) stackBar(plot, x + bar, bar, measured.at_peak, y, fill);
    plot.text(x + bar, BARS_HEIGHT + 15, String(rank), 'middle');
  }
  if (showCapacity) {
    plot.line(
        0, capacityY, '100%', capacityY, stroke('ink', 'stroke-width:1.5;stroke-dasharray:5 4'));
    const words = `capacity ${bytes(run.device_memory_bytes, 0)}`;
    if (last) plot.text(width - 8, capacityY - 6, words, 'end', 'strong halo');
  }
  return plot.node;
}

function stackBar(plot, x, width, values, y, style) {
  let below = 0;
  for (const name of report.categories) {
    if (!values[name]) continue;
    const top = y(below + values[name]);
    const height = Math.max(0.75, y(below) - top - 1);
    plot.rect(x, top, Math.max(1, width), height, style(name));
    below += values[name];
  }
}
