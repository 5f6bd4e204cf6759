// SPDX-License-Identifier: Apache-2.0
//
// StreamChart: what ran when, a lane for each stream of each device. A collective is pale while the
// device waits in it for another one, and full while slices travel. Hatched are the times when
// compute waits for communication: exposed communication. Above the chart stands what is pointed
// at.

const STREAM_NAMES = {
  compute: 'compute',
  communication: 'comm.',
  to_host: 'to host',
  from_host: 'from host'
};
const SHORT_STREAM_NAMES = {
  compute: 'comp',
  communication: 'com',
  to_host: 'down',
  from_host: 'up'
};
const STREAMS_HEAD = 16;  // pixels above the lanes, for the names of the phases

// [colour, colour of the text on it]
function pieceColors(op) {
  if (op.purpose === 'scalars' || op.kind === 'norm') return ['norm', 'on-norm'];
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
    this.pointed = el('p', {class: 'pointed small'});
    this.lanesNote = el('p', {class: 'tiny muted lanes'});
    root.append(this.pointed, this.chart, this.lanesNote);
    for (const type of ['pointermove', 'pointerdown']) {
      this.chart.addEventListener(type, (event) => this.point(event));
    }
    this.chart.addEventListener('pointerleave', () => this.point(null));
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
    const streams = this.streams =
        STREAMS.filter((stream) => step.lanes.some((lane) => lane[stream].length));
    const laneHeight = this.laneHeight = step.world > 4 ? 11 : 15;
    const space = step.world > 4 ? 7 : 11;
    const rowHeight = this.rowHeight = streams.length * (laneHeight + 2) + space;
    const height = STREAMS_HEAD + step.world * rowHeight;
    const context = this.context = prepareCanvas(this.canvas, width, height + 18);
    this.canvas.style.width = width + 'px';
    this.canvas.style.height = height + 18 + 'px';
    this.colors = {};
    this.patterns = {};
    this.sans = colorValue('sans');
    this.drawPhases(step, scale, height - space / 2, width);
    for (const rank of step.ranks) {
      const top = STREAMS_HEAD + rank * rowHeight;
      this.text(width < 560 ? String(rank) : `Device ${rank}`, 0, top + laneHeight - 3, 'ink', 600);
      streams.forEach((stream, i) => {
        const y = top + i * (laneHeight + 2);
        this.nameLane(stream, i, y + laneHeight - 3, width, laneHeight);
        this.fill('line', scale.left, y + laneHeight / 2, scale.right - scale.left, 1);
        for (const piece of step.lanes[rank][stream]) this.drawPiece(piece, scale, y, laneHeight);
      });
      for (const {begin, end} of exposedParts(step, rank)) {
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
    showStreamsLegend(streams);
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

  drawPhases(step, scale, height, width) {
    for (const {begin} of step.phases) this.fill('line', scale.x(begin), 0, 1, height);
    for (const {words, x, align} of phaseNames(step, scale, width)) {
      this.text(words, x, 10, 'muted', 400, 11, align);
    }
  }

  // The first lane has the device's name; there is room for both on neither a phone nor a desk.
  nameLane(stream, i, y, width, laneHeight) {
    const narrow = width < 560;
    if (narrow) {
      this.text(SHORT_STREAM_NAMES[stream], 13, y, 'muted', 400, 9);
    } else if (i > 0 && laneHeight > 10) {
      this.text(STREAM_NAMES[stream], 0, y, 'muted', 400, 10);
    }
  }

  drawPiece({op, begin, end}, scale, y, laneHeight) {
    const [fill] = pieceColors(op);
    const x = scale.x(begin);
    const least = op.kind === 'copy' ? 2 : 0.8;
    const width = Math.max(least, scale.x(end) - x - 0.6);
    const moves = scale.x(clamp(op.isCollective ? op.allBegun : begin, begin, end));
    const {context} = this;
    const late = moves - x;
    if (late > 1) {
      context.globalAlpha = 0.22;
      this.fill(fill, x, y, late, laneHeight);
      context.globalAlpha = 1;
      context.strokeStyle = this.ink(fill);
      context.lineWidth = 1;
      context.setLineDash([2, 2]);
      context.strokeRect(x + 0.5, y + 0.5, Math.max(0.5, late - 1), laneHeight - 1);
      context.setLineDash([]);
    }
    const from = late > 1 ? moves : x;
    this.fill(fill, from, y, Math.max(least, x + width - from), laneHeight);
  }

  // On the part that has the full colour.
  labelPiece({op, begin: first, end}, scale, y) {
    const [, ink] = pieceColors(op);
    const begin = op.isCollective ? clamp(op.allBegun, first, end) : first;
    const width = scale.x(end) - scale.x(begin);
    const isEnd = op.stream === 'compute' && (op.layer === 'head' || op.layer === 'lookup');
    const label = isEnd ? op.layer : units[op.unit]?.short ?? '';
    if (!label || width < label.length * 6 + 6) return;
    this.text(label, scale.x(begin) + width / 2, y, ink, 400, 10, 'center');
    this.context.textAlign = 'left';
  }

  hatch(name, lineWidth, scale, begin, end, y, height) {
    this.patterns[name] ??= hatchPattern(this.context, this.ink(name), 6, lineWidth);
    this.context.fillStyle = this.patterns[name];
    this.context.fillRect(scale.x(begin), y, Math.max(0.6, scale.x(end) - scale.x(begin)), height);
  }

  describe(step) {
    const words = exposureText(step);
    write(this.lanesNote, lanesNote(step, this.streams));
    byId('streams-note').textContent = words;
    this.chart.setAttribute('aria-label', `Streams of each device, ${step.run.label}. ${words}`);
    this.point(null);
  }

  // Says what is below the pointer.
  point(event) {
    const {step} = store;
    if (!step || !this.scale) return;
    const idle = 'Point at a bar, or tap it: its name and its time stand here.';
    if (!event) return write(this.pointed, idle);
    const box = this.chart.getBoundingClientRect();
    const y = event.clientY - box.top - STREAMS_HEAD;
    const rank = Math.floor(y / this.rowHeight);
    const stream = this.streams[Math.floor((y - rank * this.rowHeight) / (this.laneHeight + 2))];
    if (!step.lanes[rank] || !stream) return write(this.pointed, idle);
    const x = event.clientX - box.left;
    const slack = this.scale.t(x + 1.5) - this.scale.t(x);
    write(
        this.pointed, `Device ${rank} · ${pointedAt(step, rank, stream, this.scale.t(x), slack)}`);
  }

  moveCursor() {
    if (!store.step || !this.scale) return;
    this.cursor.style.transform = `translateX(${this.scale.x(store.t)}px)`;
  }
}
