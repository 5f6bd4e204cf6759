// SPDX-License-Identifier: Apache-2.0
//
// MemoryChart: the memory of one device over the step, by category, with its peak and, dashed, the
// other runs. All have the time axis of the selected run: the end of a longer one is cut off, and
// after the end of a shorter one its line is faint.

const OUTLINES = ['1.5 2.5', '6 3', '10 3 2 3', '3 5', '14 4', '6 3 1.5 3', '2 6', '18 3'];
const outlineDashes = (run) => `stroke-dasharray:${OUTLINES[runs.indexOf(run) % OUTLINES.length]}`;

class MemoryChart {
  constructor(root) {
    const pick = () => {
      store.rank = Number(this.picker.value);
      this.draw();
    };
    this.picker = el('select', {class: 'button', 'aria-label': 'Device', onchange: pick});
    this.outlines = el('input', {type: 'checkbox', onchange: () => this.draw()});
    this.chart = el('div', {class: 'chart', tabindex: 0, role: 'img'});
    this.legend = el('div', {class: 'legend'});
    this.alive = el('div', {class: 'alive'});
    this.others = el('div', {class: 'legend'});
    root.append(this.chart, this.legend, this.others, this.alive);
    const others = runs.filter((run) => run.step);
    const choice = el('label', {class: 'check'}, this.outlines, 'outline the other runs');
    show('time-tools', others.length > 1 && choice, this.picker);
    // Off where the other runs would squeeze the one in colour flat.
    const peaks = others.map((run) => total(atPeak(run)));
    this.outlines.checked = peaks.length > 1 && Math.min(...peaks) > 0.35 * Math.max(...peaks);
    linkTime(this.chart, () => store.step ? this.scale : null);
    store.on(
        {run: () => this.draw(), time: () => this.moveCursor(), pace: () => this.moveCursor()});
    onWidth(this.chart, () => this.draw());
  }

  draw() {
    const {step, run, rank} = store;
    this.scale = null;
    byId('time').hidden = !step;
    const width = this.chart.clientWidth;
    if (!step || !width) return;
    const height = this.height = width < 560 ? 220 : 280;
    const scale = this.scale = timeScale(width, step.duration);
    const curve = step.curves[rank];
    const others = this.outlines.checked ? this.otherCurves(run, rank) : [];
    const most = Math.max(...[{curve}, ...others].map((one) => one.curve.peak.total)) * 1.1;
    const capacity = run.device_memory_bytes;
    const showCapacity = capacity < most * 1.35;
    const top = showCapacity ? Math.max(most, capacity * 1.02) : most;
    const y = (value) => height - value / top * (height - 22);

    const plot = new Plot(width, height + 20);
    this.drawAxes(plot, step, scale, y, top, width);
    this.drawAreas(plot, step, curve, scale, y);
    for (const other of others) {
      const dashes = outlineDashes(other.run);
      const end = Math.min(step.duration, other.duration);
      plot.path(
          stepLine(other.curve, end, scale.x, y), stroke('ink', 'stroke-opacity:.6;' + dashes));
      const rest = y(valueAt(other.curve, end - 1));
      plot.line(scale.x(end), rest, scale.right, rest, stroke('ink', 'stroke-opacity:.15'));
    }
    if (others.length && width >= 560)
      this.nameCurves(plot, [{run, curve, duration: step.duration}, ...others], scale, y);
    if (showCapacity) {
      plot.line(
          scale.left, y(capacity), scale.right, y(capacity),
          stroke('ink', 'stroke-width:1.5;stroke-dasharray:5 4'));
      plot.text(
          scale.right, y(capacity) - 5, `capacity ${bytes(capacity, 0)}`, 'end', 'strong halo');
    }
    this.drawPeak(plot, curve.peak, scale, y);
    this.cursor = el('div', {class: 'cursor', style: `top:15px;height:${height - 15}px`});
    this.chart.replaceChildren(plot.node, this.cursor, this.peakLabel(curve.peak, scale, y, width));
    this.describe(step, run, rank, curve.peak, others);
    this.moveCursor();
  }

  otherCurves(run, rank) {
    return runs.filter((other) => other.step && other !== run).map((other) => {
      const {curves, duration} = stepOf(other);
      return {run: other, curve: curves[Math.min(rank, other.world - 1)], duration};
    });
  }

  drawAxes(plot, step, scale, y, top, width) {
    for (const {begin} of step.phases) {
      const x = scale.x(begin);
      plot.line(x, 0, x, this.height);
    }
    for (const {words, x, align} of phaseNames(step, scale, width)) {
      plot.text(x, 10, words, align === 'right' ? 'end' : 'start');
    }
    for (const value of ticks(top, 4)) {
      plot.line(scale.left, y(value), scale.right, y(value));
      plot.text(scale.left - 8, y(value) + 4, value ? bytes(value, 0) : '0', 'end');
    }
    for (const [t, label] of timeTicks(step.duration, width)) {
      plot.text(scale.x(t), this.height + 15, label, 'middle');
    }
  }

  drawAreas(plot, step, curve, scale, y) {
    const floor = curve.values.map(() => 0);
    for (const name of report.categories) {
      if (!curve.values.some((value) => value[name])) continue;
      let upper = '';
      let lower = '';
      curve.times.forEach((time, i) => {
        if (time >= step.duration) return;
        const from = scale.x(time).toFixed(1);
        const to = scale.x(Math.min(curve.times[i + 1] ?? step.duration, step.duration)).toFixed(1);
        const low = y(floor[i]).toFixed(1);
        floor[i] += curve.values[i][name];
        const high = y(floor[i]).toFixed(1);
        upper += `${i ? 'L' : 'M'}${from} ${high}L${to} ${high}`;
        lower = `L${to} ${low}L${from} ${low}` + lower;
      });
      plot.path(upper + lower + 'Z', fill(name, `stroke:${color('surface')};stroke-width:.75`));
    }
  }

  // At the right end, as far apart as text needs.
  nameCurves(plot, curves, scale, y) {
    let above = this.height + 16;
    const here = store.step.duration;
    const ends = curves.map(({run, curve, duration}) => {
      return {run, at: y(valueAt(curve, Math.min(here, duration) - 1))};
    });
    for (const {run, at} of ends.sort((a, b) => b.at - a.at)) {
      above = Math.min(at + 4, above - 13);
      plot.line(scale.right, at, scale.right + 5, above - 4, stroke('muted'));
      const label = run.label.length > 9 ? `Stage ${run.stage}…` : run.label;
      plot.text(scale.right + 7, above, label, 'start', run === store.run ? 'strong' : '');
    }
  }

  drawPeak(plot, peak, scale, y) {
    const x = scale.x(peak.t);
    const top = y(peak.total);
    plot.line(x, top, x, top - 14, stroke('ink'));
    plot.circle(x, top, 3.5, fill('ink', `stroke:${color('surface')};stroke-width:1.5`));
  }

  // Above the cursor, which would run through it.
  peakLabel(peak, scale, y, width) {
    const x = scale.x(peak.t);
    const side = x > width * 0.6 ? `right:${width - x + 5}px` : `left:${x + 5}px`;
    return el(
        'b', {class: 'peak-label', style: `${side};top:${y(peak.total) - 21}px`},
        `peak ${bytes(peak.total)}`);
  }

  describe(step, run, rank, peak, outlined) {
    this.picker.replaceChildren(...step.ranks.map(
        (r) => el('option', {value: r, selected: r === rank ? '' : null}, `Device ${r}`)));
    this.chart.setAttribute(
        'aria-label',
        `Memory of device ${rank} over the step, ${run.label}. Peak ${bytes(peak.total)} ` +
            `at ${milliseconds(peak.t)} of ${milliseconds(step.duration)}.`);
    byId('time-note').textContent =
        (outlined.length ?
             `${run.label} in colour; outlines are the other runs, in the same time. ` :
             '') +
        longerRuns(step, outlined) +
        'Hover to look at a moment everywhere on this page; click or tap to keep it.';
    this.values = Object.fromEntries(usedCategories.map((name) => [name, el('b', {})]));
    this.legend.replaceChildren(...usedCategories.map(
        (name) => el('span', {}, chip(name), categoryName(name), this.values[name])));
    this.others.replaceChildren(...outlined.map((other) => {
      const style = stroke('ink', 'stroke-width:1.25;' + outlineDashes(other.run));
      const line = svg('line', {x2: 26, y1: 5, y2: 5, style});
      const picture = svg('svg', {width: 26, height: 10, 'aria-hidden': 'true'}, line);
      return el('span', {}, picture, other.run.label);
    }));
    showPeak(this.alive, step, rank);
  }

  moveCursor() {
    const {step, t, rank} = store;
    if (!step || !this.scale) return;
    this.cursor.style.transform = `translateX(${this.scale.x(t)}px)`;
    const memory = step.memory(rank, t);
    for (const name in this.values) write(this.values[name], bytes(memory[name] ?? 0));
  }
}

const valueAt = ({times, values}, t) => values[lastNotAfter(times, t)].total;

function longerRuns(step, others) {
  const longer = others.filter(({duration}) => duration > step.duration);
  if (!longer.length) return '';
  const names = longer.map(({run, duration}) => `${run.label} (${milliseconds(duration)})`);
  return `Longer than this step, and cut at its end: ${names.join(', ')}. `;
}

// The total of a curve, cut at `duration`.
function stepLine(curve, duration, x, y) {
  let path = '';
  curve.times.forEach((time, i) => {
    if (time >= duration) return;
    const height = y(curve.values[i].total).toFixed(1);
    const to = Math.min(curve.times[i + 1] ?? duration, duration);
    path += `${path ? 'L' : 'M'}${x(time).toFixed(1)} ${height}L${x(to).toFixed(1)} ${height}`;
  });
  return path;
}
