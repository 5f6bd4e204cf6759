// SPDX-License-Identifier: Apache-2.0
//
// The curves of training: loss (with validation and reference lines), gradient norm, learning rate,
// tokens per second. The selected run in ink, the others in grey.

const CURVES = [
  {key: 'loss', name: 'Loss', format: (v) => v.toFixed(3)},
  {key: 'grad_norm', name: 'Gradient norm', format: (v) => v.toFixed(3)},
  {key: 'learning_rate', name: 'Learning rate', format: (v) => v.toExponential(1), fromZero: true},
  {key: 'tokens_per_second', name: 'Tokens/s', format: threeDigits, fromZero: true},
];
const CURVE_HEIGHT = 150;

function showTraining() {
  const box = byId('training-body');
  const trained = runs.filter((run) => run.metrics?.step.length);
  byId('training').hidden = !trained.length;
  if (!trained.length || box.clientWidth < 120) return;
  const shown = trained.includes(store.run) ? store.run : trained[0];
  box.replaceChildren(...CURVES.map((curve) => el('figure', {role: 'img'})));
  CURVES.forEach((curve, i) => drawCurve(box.children[i], curve, trained, shown));
  byId('training-note').textContent = trainingNote(trained, shown);
}

const isNumber = (value) => value !== null && value !== undefined;

function drawCurve(figure, curve, trained, shown) {
  const {key, name, format} = curve;
  const isLoss = key === 'loss';
  const references = isLoss ? shown.metrics.references ?? [] : [];
  const validation = isLoss ? validationPoints(shown) : [];
  const scale = curveScale(figure.clientWidth, curve, trained, references, validation);
  const {width, x, y} = scale;
  const plot = new Plot(width, CURVE_HEIGHT + 16);
  for (const value of [scale.low, scale.high]) {
    plot.line(scale.left, y(value), width, y(value));
    plot.text(scale.left - 6, y(value) + 4, value ? format(value) : '0', 'end');
  }
  references.forEach(
      ({loss}, i) => plot.line(scale.left, y(loss), width, y(loss), referenceStroke(i)));
  for (const run of [...trained.filter((other) => other !== shown), shown]) {
    plot.path(
        curvePath(run.metrics.step, run.metrics[key], x, y),
        run === shown ? stroke('ink', 'stroke-width:1.6;stroke-linejoin:round') :
                        stroke('muted', 'stroke-opacity:.45'));
  }
  for (const [step, loss] of validation) {
    plot.circle(
        x(step), y(loss), 3.2, fill('surface', `stroke:${color('activations')};stroke-width:1.8`));
  }
  plot.text(scale.left, CURVE_HEIGHT + 13, `step ${scale.first}`);
  plot.text(width, CURVE_HEIGHT + 13, String(scale.last), 'end');

  const values = shown.metrics[key].filter(isNumber);
  const value = values.length ? format(values.at(-1)) : 'none';
  const way = values.length ?
      `from ${format(values[0])} to ${value}, steps ${scale.first} to ${scale.last}` :
      'no values';
  const others = references.map((line) => `. ${line.name}: ${format(line.loss)}`).join('');
  figure.setAttribute('aria-label', `${name} of ${shown.label}: ${way}${others}`);
  const heldOut = validation.length ? `, validation ${format(validation.at(-1)[1])}` : '';
  figure.replaceChildren(
      el('figcaption', {}, el('b', {}, name), el('span', {}, value + heldOut)), plot.node,
      references.length ? referenceLegend(references, format) : '');
}

// [[step, loss]]
function validationPoints(run) {
  const {step, loss} = run.metrics.validation ?? {step: [], loss: []};
  return step.map((at, i) => [at, loss[i]]).filter(([, value]) => isNumber(value));
}

function curveScale(width, {key, format, fromZero}, trained, references, validation) {
  const values = [
    ...trained.flatMap((run) => run.metrics[key]).filter(isNumber),
    ...references.map((line) => line.loss),
    ...validation.map(([, loss]) => loss),
  ];
  const high = Math.max(...values);
  const low = fromZero ? 0 : Math.min(...values);
  // Room for the numbers of the axis, so that they cover no curve.
  const left = 6.6 * Math.max(...[low, high].map((value) => format(value).length)) + 8;
  const steps = trained.flatMap((run) => [run.metrics.step[0], run.metrics.step.at(-1)]);
  const first = Math.min(...steps);
  const last = Math.max(...steps);
  return {
    width,
    left,
    high,
    low,
    first,
    last,
    x: (step) => left + 4 + (step - first) / (last - first || 1) * (width - left - 8),
    y: (value) => CURVE_HEIGHT - 2 - (value - low) / (high - low || 1) * (CURVE_HEIGHT - 18),
  };
}

// Below the curve: the names of the dashed lines, which would cover it.
const REFERENCE_DASHES = ['2 3', '6 3', '10 3 2 3'];
function referenceLegend(references, format) {
  const swatch = (i) => {
    const line = svg('line', {x1: 0, x2: 22, y1: 5, y2: 5, style: referenceStroke(i)});
    return svg('svg', {width: 22, height: 10, 'aria-hidden': 'true'}, line);
  };
  return el(
      'div', {class: 'legend references'},
      ...references.map(({name, loss}, i) => el('span', {}, swatch(i), `${name} ${format(loss)}`)));
}
const referenceStroke = (i) =>
    stroke('muted', `stroke-dasharray:${REFERENCE_DASHES[i % REFERENCE_DASHES.length]}`);

// A line with holes where there is no finite value.
function curvePath(steps, values, x, y) {
  let path = '';
  let pen = 'M';
  values.forEach((value, i) => {
    if (value === null) {
      pen = 'M';
      return;
    }
    path += `${pen}${x(steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  });
  return path;
}

function trainingNote(trained, shown) {
  const skipped = shown.metrics.skipped ?? [];
  const parts = [];
  if (trained.length > 1) parts.push(`${shown.label} in ink, the other runs in grey.`);
  if (trained.length > 1 && allEqual()) {
    parts.push('All runs have the same losses, bit for bit: their lines coincide, speed differs.');
  }
  if (shown.metrics.validation?.step.length) parts.push('Circles are the loss on validation data.');
  if (shown.metrics.references?.length) {
    parts.push(
        'Dashed lines are for comparison: the loss of predicting the next token only from how ' +
        'often it followed the last 0, 1 or 2 tokens.');
  }
  parts.push(
      skipped.length ? `Skipped for a gradient that is not finite: ${skippedText(shown.metrics)}.` :
                       'No step was skipped.');
  return parts.join(' ');
}

// "step 3, 7", of very many the first.
function skippedText({skipped, skipped_steps: all = skipped.length}) {
  const first = skipped.slice(0, 20);
  const more = all - first.length;
  return `step ${first.join(', ')}` + (more > 0 ? ` and ${integer(more)} more` : '');
}

// Every run that ran has the bits of the first.
function allEqual() {
  const done = runs.filter(ran);
  return done.length > 1 && done.every((run) => run === done[0] || run.equality?.equal === true);
}
