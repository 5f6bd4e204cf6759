// SPDX-License-Identifier: Apache-2.0
//
// Making elements. All scripts of this folder are pasted into one function, in the order of
// template.html, and share their top-level names.

const byId = (id) => document.getElementById(id);

// el('button', {class: 'x', onclick: f}, 'text', child). Attributes that are null are left out, and
// so are children that are null or false.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) {
      node.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  node.append(...present(children));
  return node;
}

const present = (children) =>
    children.filter((child) => child !== null && child !== undefined && child !== false);

// Fills the element of the template that has this id.
function show(id, ...children) {
  byId(id).replaceChildren(...present(children));
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}

// Writing the same text again would make the browser lay the page out again.
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A choice among [value, label] pairs.
function select(name, options, chosen, choose) {
  const onchange = (event) => choose(event.target.value);
  return el(
      'select', {class: 'button', 'aria-label': name, onchange},
      ...options.map(
          ([value, label]) =>
              el('option', {value, selected: value === chosen ? '' : null}, label)));
}

// A table from arrays of cells. A cell is a text, a node, or {text, class}.
function table(caption, heads, rows, foot = []) {
  const cell = (tag, value) => {
    const plain = value === null || typeof value !== 'object' || value instanceof Node;
    const {text, ...attributes} = plain ? {text: value ?? ''} : value;
    return el(tag, {...attributes, scope: tag === 'th' ? 'col' : null}, text);
  };
  const line = (tag, row) => {
    const {cells, ...attributes} = Array.isArray(row) ? {cells: row} : row;
    return el('tr', attributes, ...cells.map((value) => cell(tag, value)));
  };
  return el(
      'table', {}, el('caption', {class: 'visually-hidden'}, caption),
      el('thead', {}, line('th', heads)), el('tbody', {}, ...rows.map((row) => line('td', row))),
      foot.length ? el('tfoot', {}, ...foot.map((row) => line('td', row))) : null);
}

const number = (text, more = '') => ({text, class: 'n ' + more});

const color = (name) => `var(--${name})`;
const colorValue = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
const chip = (name) =>
    el('i', {class: 'chip', style: `background:${color(name)}`, 'aria-hidden': 'true'});

const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');
const darkTheme = matchMedia('(prefers-color-scheme: dark)');

// Calls `draw` when the width of `node` has changed.
function onWidth(node, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (node.clientWidth === width) return;
    width = node.clientWidth;
    draw();
  }).observe(node);
}

// A canvas of `width` x `height` CSS pixels, sharp on this screen. Returns its context, cleared.
function prepareCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const w = Math.round(width * ratio);
  const h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Diagonal lines, for canvases.
function hatchPattern(context, stroke, spacing, lineWidth) {
  const ratio = devicePixelRatio || 1;
  const n = Math.round(spacing * ratio);
  const tile = el('canvas', {width: n, height: n});
  const pen = tile.getContext('2d');
  pen.strokeStyle = stroke;
  pen.lineWidth = lineWidth * ratio;
  pen.beginPath();
  for (const offset of [-n, 0, n]) {
    pen.moveTo(offset - 1, n + 1);
    pen.lineTo(offset + n + 1, -1);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
