// SPDX-License-Identifier: Apache-2.0
//
// StreamChart: what ran when, a lane for each stream of each device. Hatched are the times when
// compute waits for communication: exposed communication.

const STREAM_NAMES = {
  compute: 'compute',
  communication: 'comm.',
  to_host: 'to host',
  from_host: 'from host'
};

// [colour, colour of the text on it]
function pieceColors(op) {
  if (op.purpose === 'scalars') return ['workspace', 'on-gather'];
  switch (op.kind) {
    case 'forward':
    case 'recompute':
      return ['forward', 'on-forward'];
    case 'backward':
      return ['backward', 'on-backward'];
    case 'all_gather':
    case 'broadcast':
      return ['parameters', 'on-gather'];
    case 'reduce_scatter':
    case 'all_reduce':
      return ['gradients', 'on-reduce'];
    case 'update':
      return ['optimizer_states', 'on-update'];
    case 'copy':
      return ['copy', 'on-copy'];
  }
  return ['workspace', 'on-gather'];
}

class StreamChart {
  constructor(root) {
    this.canvas = el('canvas', {'aria-hidden': 'true'});
    this.cursor = el('div', {class: 'cursor'});
    this.chart = el('div', {class: 'chart', tabindex: 0, role: 'img'}, this.canvas, this.cursor);
    root.append(this.chart);
    linkTime(this.chart, () => store.step ? this.scale : null);
    store.on(
        {run: () => this.draw(), time: () => this.moveCursor(), pace: () => this.moveCursor()});
    darkTheme.addEventListener('change', () => this.draw());
    onWidth(this.chart, () => this.draw());
  }

  draw() {
    const {step} = store;
    this.scale = null;
    byId('streams').hidden = !step;
    const width = this.chart.clientWidth;
    if (!step || !width) return;
    const scale = this.scale = timeScale(width, step.duration);
    const streams = STREAMS.filter((stream) => step.lanes.some((lane) => lane[stream].length));
    const laneHeight = step.world > 4 ? 11 : 15;
    const space = step.world > 4 ? 7 : 11;
    const rowHeight = streams.length * (laneHeight + 2) + space;
    const height = step.world * rowHeight;
    const context = this.context = prepareCanvas(this.canvas, width, height + 18);
    this.canvas.style.width = width + 'px';
    this.canvas.style.height = height + 18 + 'px';
    this.colors = {};
    this.patterns = {};
    this.sans = colorValue('sans');
    this.drawPhases(step, scale, height - space / 2);
    for (const rank of step.ranks) {
      const top = rank * rowHeight;
      this.text(width < 560 ? String(rank) : `Device ${rank}`, 0, top + laneHeight - 3, 'ink', 600);
      streams.forEach((stream, i) => {
        const y = top + i * (laneHeight + 2);
        if (i > 0 && width >= 560 && laneHeight > 12) {
          this.text(STREAM_NAMES[stream], 0, y + laneHeight - 3, 'muted', 400, 10);
        }
        this.fill('line', scale.left, y + laneHeight / 2, scale.right - scale.left, 1);
        for (const piece of step.lanes[rank][stream]) this.drawPiece(piece, scale, y, laneHeight);
      });
      const wire = top + streams.indexOf('communication') * (laneHeight + 2);
      for (const [begin, end] of step.exposed(rank)) {
        this.hatch('surface', 2.2, scale, begin, end, wire, laneHeight);
        this.hatch('muted', 1.2, scale, begin, end, top, laneHeight);
      }
      streams.forEach((stream, i) => {
        if (laneHeight <= 12) return;
        for (const piece of step.lanes[rank][stream]) {
          this.labelPiece(piece, scale, top + i * (laneHeight + 2) + laneHeight - 4);
        }
      });
    }
    for (const [t, label] of timeTicks(step.duration, width)) {
      this.text(label, scale.x(t), height + 10, 'muted', 400, 11, 'center');
    }
    context.textAlign = 'left';
    this.cursor.style.height = height + 'px';
    this.describe(step);
    this.showLegend(streams);
    this.moveCursor();
  }

  ink(name) {
    return this.colors[name] ??= colorValue(name);
  }
  fill(name, x, y, width, height) {
    this.context.fillStyle = this.ink(name);
    this.context.fillRect(x, y, width, height);
  }
  text(words, x, y, name, weight = 400, size = 11, align = 'left') {
    this.context.fillStyle = this.ink(name);
    this.context.font = `${weight} ${size}px ${this.sans}`;
    this.context.textAlign = align;
    this.context.fillText(words, x, y);
  }

  drawPhases(step, scale, height) {
    for (const phase of step.phases.slice(1)) this.fill('line', scale.x(phase.begin), 0, 1, height);
  }

  drawPiece({op, begin, end}, scale, y, laneHeight) {
    const [fill] = pieceColors(op);
    const x = scale.x(begin);
    const width = Math.max(0.6, scale.x(end) - x - 0.6);
    this.fill(fill, x, y, width, laneHeight);
  }

  // With a halo, to be read on hatching.
  labelPiece({op, begin, end}, scale, y) {
    const [fill, ink] = pieceColors(op);
    const width = scale.x(end) - scale.x(begin);
    const isEnd = op.stream === 'compute' && (op.layer === 'head' || op.layer === 'lookup');
    const label = isEnd ? op.layer : units[op.unit]?.short ?? '';
    if (!label || width < label.length * 6 + 6) return;
    const {context} = this;
    context.font = `400 10px ${this.sans}`;
    context.textAlign = 'center';
    context.lineWidth = 3.5;
    context.lineJoin = 'round';
    context.strokeStyle = this.ink(fill);
    context.strokeText(label, scale.x(begin) + width / 2, y);
    this.text(label, scale.x(begin) + width / 2, y, ink, 400, 10, 'center');
    context.textAlign = 'left';
  }

  hatch(name, lineWidth, scale, begin, end, y, height) {
    this.patterns[name] ??= hatchPattern(this.context, this.ink(name), 6, lineWidth);
    this.context.fillStyle = this.patterns[name];
    this.context.fillRect(scale.x(begin), y, Math.max(0.6, scale.x(end) - scale.x(begin)), height);
  }

  describe(step) {
    const time = (pairs) => sum(pairs.map(([begin, end]) => end - begin));
    const exposed = step.ranks.map((rank) => time(step.exposed(rank)));
    const worst = exposed.indexOf(Math.max(...exposed));
    const busy = time(step.lanes[worst].communication.map(({begin, end}) => [begin, end]));
    let words = 'One device has nobody to send to: nothing is communicated.';
    if (step.world > 1) {
      const hidden = percent(busy - exposed[worst], busy);
      const share = percent(exposed[worst], step.duration);
      words = `Of the ${milliseconds(step.duration)} of this step, communication takes ` +
          `${milliseconds(busy)}; ${hidden} of that hides behind compute. ` +
          `${milliseconds(exposed[worst])} (${share} of the step) is exposed: compute waits for ` +
          `it, hatched below (device ${worst}, where it is the most).`;
    }
    const clock = step.run.step.clock ? ` Times are from the ${step.run.step.clock}.` : '';
    byId('streams-note').textContent = words + clock;
    this.chart.setAttribute('aria-label', `Streams of each device, ${step.run.label}. ${words}`);
  }

  showLegend(streams) {
    const swatch = (name, hatch) =>
        svg('svg', {width: 15, height: 11, 'aria-hidden': 'true'},
            svg('rect', {width: 15, height: 11, rx: 2, style: fill(name)}),
            svg('rect', {width: 15, height: 11, style: `fill:${hatch}`}));
    const entry = (words, name, hatch = 'none') => el('span', {}, swatch(name, hatch), words);
    const communicates = streams.includes('communication');
    show(
        'streams-legend', entry('forward', 'forward'), entry('backward', 'backward'),
        entry('optimizer', 'optimizer_states'), communicates && entry('gather', 'parameters'),
        communicates && entry('reduce', 'gradients'),
        communicates && entry('exposed: compute waits', 'workspace', 'url(#hatch-exposed)'),
        streams.includes('to_host') && entry('copy', 'copy'), entry('norm, scalars', 'workspace'));
  }

  moveCursor() {
    if (!store.step || !this.scale) return;
    this.cursor.style.transform = `translateX(${this.scale.x(store.t)}px)`;
  }
}
