// SPDX-License-Identifier: Apache-2.0
//
// CardGrid: a card for each device of a run, or for one device of every run. A card has a memory
// gauge, what the device does, and a canvas of slices (card_canvas.js); with offload also the gauge
// of its host side. Cards touch the page only where something has changed.

const KINDS = ['parameters', 'gradients', 'optimizer_states'];
const OP_MARKS = {
  forward: '▸',
  backward: '◂',
  recompute: '↻',
  update: '✓',
  norm: 'Σ'
};

class CardGrid {
  constructor() {
    this.grid = el('div', {class: 'cards'});
    this.flights = new FlightLayer();
    this.element = el('div', {class: 'stagearea'}, this.grid, this.flights.canvas);
    this.painter = new CardPainter();
    this.cards = [];
  }

  // subjects: [{step, rank, name}]
  build(subjects) {
    this.cards = subjects.map((subject) => makeCard(subject));
    this.grid.replaceChildren(...this.cards.map((card) => card.element));
    this.hostMost = Math.max(0, ...subjects.map(({step}) => hostBytes(step.run)));
    for (const card of this.cards) showHostGauge(card, this.hostMost);
  }

  recolor() {
    this.painter.readColors();
    for (const card of this.cards) card.drawnUntil = -1;
  }

  layout() {
    if (!this.cards.length || !this.element.clientWidth) return;
    const width = this.element.clientWidth;
    const n = this.cards.length;
    const columns = Math.min(n, width < 960 ? 2 : 4);
    this.grid.style.setProperty('--columns', columns);
    const inner = this.cards[0].canvas.clientWidth;
    const geometry = this.geometry = cardGeometry(inner);
    for (const card of this.cards) {
      card.drawnUntil = -1;
      card.canvas.style.height = geometry.height + 'px';
    }
    this.flights.resize(this.element);
    const origin = this.element.getBoundingClientRect();
    const place = (node) => {
      const box = node.getBoundingClientRect();
      return {
        left: box.left - origin.left,
        right: box.right - origin.left,
        top: box.top - origin.top
      };
    };
    for (const card of this.cards) {
      card.place = place(card.element);
      card.canvasPlace = place(card.canvas);
      card.gaugePlace = place(card.gauge);
      card.hostPlace = card.hostGauge ? place(card.hostGauge) : null;
    }
  }

  draw() {
    if (!this.geometry) return;
    for (const card of this.cards) {
      const t = samePoint(store.step, store.t, card.step);
      this.drawCard(card, t);
      card.element.classList.toggle('current', store.acrossRuns && card.step === store.step);
    }
    this.flights.draw(this.cards, this.geometry, this.painter);
  }

  drawCard(card, t) {
    const {step, rank} = card;
    if (card.drawnFrom <= t && t < card.drawnUntil && card.wasPlaying === store.playing) return;
    const times = step.slices.changes(rank);
    const i = lastNotAfter(times, t);
    card.drawnFrom = times[i];
    card.drawnUntil = times[i + 1] ?? Infinity;
    card.wasPlaying = store.playing;

    const compute = step.active(rank, 'compute', t) ?? this.hostUpdate(step, rank, t);
    const wire = step.active(rank, 'communication', t);
    const copy = ['to_host', 'from_host']
                     .map((stream) => step.active(rank, stream, t))
                     .find((piece) => piece?.op.kind === 'copy' && piece.op.unit >= 0);
    const memory = step.memory(rank, t);
    const used = bytes(memory.total);
    write(
        card.used,
        this.geometry.narrow || !capacityInSight ?
            used :
            `${used} of ${bytes(step.run.device_memory_bytes)}`);
    const late = wire && waitsForOthers(step, wire.op, t);
    write(
        card.compute,
        compute ? `${OP_MARKS[compute.op.kind] ?? '·'} ${shortTitle(compute.op)}` :
            late ? `waits for ${lastToCome(wire.op)}` :
            wire ? 'waits for the transfer' :
                   'idle');
    card.compute.classList.toggle('on', compute !== undefined);
    const travels = wire ? `⇄ ${late ? 'to come: ' : ''}${shortTitle(wire.op)}` :
        copy ? `⇅ ${copy.op.purpose} of ${unitName(copy.op)}` :
               '⇄ nothing travels';
    write(card.wire, travels);
    if (card.shown !== memory) {
      card.shown = memory;
      showGauge(card.bars, memory, gaugeLength(step.run));
    }
    this.painter.draw(card, this.geometry, t, compute?.op);
    if (!store.playing) {
      card.canvas.setAttribute('aria-label', describeCard(step, rank, t, memory));
    }
  }

  // With offload AdamW runs on the host's threads, in the to_host stream.
  hostUpdate(step, rank, t) {
    const piece = step.active(rank, 'to_host', t);
    return piece?.op.kind === 'update' ? piece : undefined;
  }
}

const shortTitle = (op) => opTitle(op).replace(' · ', ' ');

function makeCard({step, rank, name}) {
  const card = {
    step,
    rank,
    name,
    used: el('span', {}),
    gauge: svg('svg', {class: 'gauge', width: '100%', height: 8, 'aria-hidden': 'true'}),
    compute: el('div', {class: 'doing'}),
    wire: el('div', {class: 'doing'}),
    canvas: el('canvas', {role: 'img'}),
    drawnFrom: 0,
    drawnUntil: -1,
  };
  card.bars = gaugeBars(card.gauge);
  const peak = step.curves[rank].peak.total / gaugeLength(step.run);
  card.gauge.append(svg(
      'rect', {x: peak * 100 + '%', y: -2, width: 1.5, height: 12, style: `fill:${color('ink')}`}));
  card.element =
      el('div', {class: 'card', role: 'group', 'aria-label': name},
         el('div', {class: 'title'}, el('b', {}, name), card.used), card.gauge, card.compute,
         card.wire, card.canvas);
  if (store.acrossRuns) card.element.addEventListener('click', () => store.select(step.run.id));
  return card;
}

// Bytes at the right end of a gauge.
const gaugeLength = (run) => capacityInSight ? run.device_memory_bytes : highestPeak * 1.05;

function gaugeBars(gauge) {
  const bars = Object.fromEntries(report.categories.map(
      (name) => [name, svg('rect', {y: 0, height: 8, style: `fill:${color(name)}`})]));
  gauge.append(
      svg('rect', {width: '100%', height: 8, rx: 2, style: `fill:${color('faint')}`}),
      ...Object.values(bars));
  return bars;
}

function showGauge(bars, values, all) {
  let x = 0;
  for (const name of report.categories) {
    const width = (values[name] ?? 0) / all * 100;
    bars[name].setAttribute('x', x + '%');
    bars[name].setAttribute('width', Math.max(0, width - 0.25) + '%');
    x += width;
  }
}

// The host side has no life of its own in the data: what it holds, it holds from set-up to the end.
function showHostGauge(card, most) {
  if (!most) return;
  const {run} = card.step;
  const held = (run.memory.host_measured ?? [])[card.rank] ?? run.memory.host_predicted;
  card.hostGauge = svg('svg', {
    class: 'gauge',
    width: '100%',
    height: 8,
    role: 'img',
    'aria-label': `Host side: ${bytes(total(held))}`
  });
  const bars = gaugeBars(card.hostGauge);
  showGauge(bars, held, most);
  card.element.append(el(
      'div', {class: 'hostside'},
      el('div', {class: 'title'}, el('span', {}, 'host side'), el('span', {}, bytes(total(held)))),
      card.hostGauge));
}

// For screen readers: what the canvas shows.
function describeCard(step, rank, t, memory) {
  const complete = (kind, states) => {
    const found = units.filter(
        (_, unit) =>
            step.ranks.every((slice) => states.includes(step.slice(kind, rank, unit, slice, t))));
    return found.length === units.length ? 'all units' :
                                           found.map((unit) => unit.name).join(', ') || 'none';
  };
  const optimizer = onHost(step.run, 'optimizer_states') ? 'on the host side' :
      sharded(step.run, 'optimizer_states')              ? `slice ${rank} of ${step.world}` :
                                                           'all';
  return `Device ${rank}, ${bytes(memory.total)} in use. Units with complete parameters: ` +
      `${complete('parameters', ['whole', 'borrowed'])}. Units with a complete gradient: ` +
      `${complete('gradients', ['local', 'whole'])}. Optimizer states: ${optimizer}.`;
}
