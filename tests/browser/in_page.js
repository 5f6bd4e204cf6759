// SPDX-License-Identifier: Apache-2.0
// What the checks ask a report's page. Put into the page once it is loaded; `zerobox` is what the
// page offers.
'use strict';
window.pageChecks = (() => {
  const drawn = () =>
      new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const runOf = (id) => zerobox.report.runs.find((run) => run.id === id);

  // A letter for a slice: "." no memory, "h" memory of the host, else the first one of its state.
  const letter = (state) => (state === 'absent' ? '.' : state.startsWith('host') ? 'h' : state[0]);

  // The N slices of one unit on one device, a letter for each.
  function slices(step, kind, rank, unit, t) {
    const ranks = [...Array(step.run.world).keys()];
    return ranks.map((slice) => letter(step.slice(kind, rank, unit, slice, t))).join('');
  }

  // All slices of a device, kind by kind and unit by unit: a string for each moment.
  function cells(id, rank, moments, kinds) {
    const step = zerobox.stepOf(runOf(id)), units = [...zerobox.report.units.keys()];
    const at = (t, kind) => units.map((unit) => slices(step, kind, rank, unit, t)).join('');
    return moments.map((t) => kinds.map((kind) => at(t, kind)).join(''));
  }

  // The parameters of single units, asked for as [[rank, unit, time], ...].
  function parameters(id, asked) {
    const step = zerobox.stepOf(runOf(id));
    return asked.map(([rank, unit, t]) => slices(step, 'parameters', rank, unit, t));
  }

  function memory(id, rank, moments) {
    const step = zerobox.stepOf(runOf(id)), categories = zerobox.report.categories;
    return moments.map((t) => {
      const held = step.memory(rank, t);
      return categories.map((c) => held[c] || 0);
    });
  }

  function totals(id) {
    const step = zerobox.stepOf(runOf(id));
    return {sent: step.sent(step.duration), peaks: step.curves.map((curve) => curve.peak.total)};
  }

  // Every run, every 40th of its step, drawn.
  async function playThrough() {
    for (const run of zerobox.report.runs) {
      zerobox.store.select(run.id);
      for (let i = 0; i <= 40; i++) {
        zerobox.store.seek(i / 40);
        if (i % 10 === 0) await drawn();
      }
    }
  }

  async function select(id) {
    zerobox.store.select(id);
    for (const d of document.querySelectorAll('details')) d.open = true;
    await drawn();
  }

  // The rows of all tables within an element, each a list of its cells' words.
  const rows = (id) => [...document.getElementById(id).querySelectorAll('tr')].map(
      (row) => [...row.cells].map((cell) => cell.textContent.trim()));

  // A phone's window grows with its content, so the width is told.
  const tooWide = (width) => document.documentElement.scrollWidth - width;
  const state = () => ({
    s: zerobox.store.s,
    playing: zerobox.store.playing,
    run: zerobox.store.run.id,
    now: document.querySelector('.now')?.textContent,
    hash: location.hash,
    slider: slider()?.getAttribute('aria-valuetext')  // a run that does not fit has none
  });
  const slider = () => document.querySelector('input[type=range]');

  // The positions at which the player stands, frame by frame, until it has stood at `count`
  // different ones.
  function positions(count, limit) {
    return new Promise((done) => {
      const seen = [], end = performance.now() + limit;
      const look = () => {
        const s = zerobox.store.s;
        if (seen.at(-1) !== s) seen.push(s);
        if (seen.length < count && performance.now() < end)
          requestAnimationFrame(look);
        else
          done(seen);
      };
      look();
    });
  }
  const restingPlaces = () => {
    const {step} = zerobox.store;
    return step.moments.map((m) => zerobox.store.positionOf(m.t));
  };

  async function frameTimes(count) {
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    while (times.length < count) {
      const now = await new Promise(requestAnimationFrame);
      times.push(now - last);
      last = now;
    }
    return times;
  }

  //---- Contrast of text with what is behind it (WCAG 2)

  // [red, green, blue, alpha], the first three to 255; null where nothing plain is painted.
  function parse(css) {
    if (css === 'none' || css.startsWith('url(')) return null;
    const [, kind, list] = /^(rgba?|color)\((?:srgb )?([^)]*)\)$/.exec(css) ?? [];
    if (!kind) throw Error(`cannot read the colour ${css}`);
    const [r, g, b, a = 1] = list.split(/[\s,/]+/).filter(Boolean).map(Number);
    return kind === 'color' ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  }
  const over =
      (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (c) => {
    const [r, g, b] =
        c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const faded = (color, opacity) => color && [...color.slice(0, 3), color[3] * opacity];

  // The colour that an element paints behind text, or null: a box's background, a shape's fill.
  function paint(element) {
    const style = getComputedStyle(element);
    const shape = element instanceof SVGGeometryElement;
    return shape ? faded(parse(style.fill), style.fillOpacity * style.opacity) :
                   parse(style.backgroundColor);
  }

  // The shapes of a drawing and where they stand, so that not every text asks again.
  const shapesOf = new Map();
  function shapes(svg) {
    if (!shapesOf.has(svg)) {
      const all = [...svg.querySelectorAll('rect,path,circle,polygon,ellipse')].filter(
          (shape) => !shape.closest('defs'));
      shapesOf.set(svg, all.map((shape) => ({shape, box: shape.getBoundingClientRect()})));
    }
    return shapesOf.get(svg);
  }

  // The colour behind a text at (x, y): everything that is painted there before it, the lowest
  // first.
  function behind(element, x, y) {
    const layers = [];
    for (let up = element; up; up = up.parentElement)
      if (!(up instanceof SVGElement)) layers.unshift(up);
    if (element instanceof SVGElement) {
      const style = getComputedStyle(element),
            halo = style.paintOrder.startsWith('stroke') && parse(style.stroke);
      if (halo && halo[3] === 1) return halo;  // painted below the glyphs, and around them
      let svg = element.ownerSVGElement;
      while (svg.ownerSVGElement) svg = svg.ownerSVGElement;
      const before = (shape) =>
          shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
      const at = ({shape, box}) => box.left <= x && x <= box.right && box.top <= y &&
          y <= box.bottom && before(shape) && inside(shape, x, y);
      layers.push(...shapes(svg).filter(at).map(({shape}) => shape));
    }
    return layers.map(paint).filter(Boolean).reduce(
        (below, top) => over(top, below), [255, 255, 255, 1]);
  }
  function inside(shape, x, y) {
    const matrix = shape.getScreenCTM();
    return !matrix || shape.isPointInFill(new DOMPoint(x, y).matrixTransform(matrix.inverse()));
  }

  // Texts with less than `least`: ["4.1 words", ...]. Counts what it looked at, too.
  function lowContrast(least) {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), low = [];
    let looked = 0;
    shapesOf.clear();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const words = node.data.trim(), element = node.parentElement;
      if (!words || element.closest('script,style,option,defs')) continue;
      if (!element.checkVisibility({visibilityProperty: true})) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = [...range.getClientRects()].find((b) => b.width > 1 && b.height > 1);
      if (!box || hiddenFromSight(element)) continue;
      const style = getComputedStyle(element), svg = element instanceof SVGElement;
      let opacity = 1;
      for (let up = element; up; up = up.parentElement) opacity *= getComputedStyle(up).opacity;
      const text =
          faded(parse(svg ? style.fill : style.color), opacity * (svg ? style.fillOpacity : 1));
      if (!text) {
        low.push(`no colour: ${words.slice(0, 40)}`);
        continue;
      }
      const back = behind(element, box.left + box.width / 2, box.top + box.height / 2);
      const ratio = contrast(over(text, back), back);
      looked++;
      if (ratio < least - 0.005)
        low.push(`${ratio.toFixed(2)} ${words.slice(0, 40)} (${
            (element.closest('[id]') ?? document.body).id})`);
    }
    // What is written into a canvas is in these colours.
    for (const canvas of document.querySelectorAll('canvas[role=img]')) {
      const back = behind(canvas, 0, 0);
      for (const name of ['ink', 'muted']) {
        const ratio = contrast(named(name), back);
        if (ratio < least) low.push(`${ratio.toFixed(2)} --${name} in a canvas`);
      }
    }
    return {looked, low: [...new Set(low)]};
  }
  function named(name) {
    const probe = document.createElement('i');
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const color = parse(getComputedStyle(probe).color);
    probe.remove();
    return color;
  }
  // For screen readers only: cut down to a pixel.
  function hiddenFromSight(element) {
    for (let up = element; up && up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up), box = up.getBoundingClientRect();
      if (style.position === 'absolute' && box.width <= 1 && box.height <= 1) return true;
    }
    return false;
  }

  return {
    drawn,
    cells,
    parameters,
    memory,
    totals,
    playThrough,
    select,
    rows,
    tooWide,
    state,
    positions,
    restingPlaces,
    frameTimes,
    lowContrast
  };
})();
