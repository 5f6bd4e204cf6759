// SPDX-License-Identifier: Apache-2.0
//
// The curves of training: loss (with validation and reference lines), gradient norm, learning rate,
// tokens per second. The selected run in ink, the others in grey.

const CURVES = [
  {key: 'loss', name: 'Loss', format: (v) => v.toFixed(3)},
  {key: 'grad_norm', name: 'Gradient norm', format: (v) => v.toFixed(3)},
  {key: 'learning_rate', name: 'Learning rate', format: (v) => v.toExponential(1), fromZero: true},
  {key: 'tokens_per_second', name: 'Tokens/s', format: integer, fromZero: true},
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
    plot.line(0, y(value), width, y(value));
    plot.text(0, y(value) - 3, value ? format(value) : '0', 'start', 'halo');
  }
  for (const {loss} of references) {
    plot.line(0, y(loss), width, y(loss), stroke('muted', 'stroke-dasharray:2 3'));
  }
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
  nameReferences(plot, references, scale, format);
  plot.text(0, CURVE_HEIGHT + 13, `step ${scale.first}`);
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
      el('figcaption', {}, el('b', {}, name), el('span', {}, value + heldOut)), plot.node);
}

// [[step, loss]]
function validationPoints(run) {
  const {step, loss} = run.metrics.validation ?? {step: [], loss: []};
  return step.map((at, i) => [at, loss[i]]).filter(([, value]) => isNumber(value));
}

function curveScale(width, {key, fromZero}, trained, references, validation) {
  const values = [
    ...trained.flatMap((run) => run.metrics[key]).filter(isNumber),
    ...references.map((line) => line.loss),
    ...validation.map(([, loss]) => loss),
  ];
  const high = Math.max(...values);
  const low = fromZero ? 0 : Math.min(...values);
  const steps = trained.flatMap((run) => [run.metrics.step[0], run.metrics.step.at(-1)]);
  const first = Math.min(...steps);
  const last = Math.max(...steps);
  return {
    width,
    high,
    low,
    first,
    last,
    x: (step) => (step - first) / (last - first || 1) * (width - 4) + 2,
    y: (value) => CURVE_HEIGHT - 2 - (value - low) / (high - low || 1) * (CURVE_HEIGHT - 18),
  };
}

// Above their lines, as far apart as text needs.
function nameReferences(plot, references, {width, y}, format) {
  let last = -Infinity;
  for (const {name, loss} of [...references].sort((a, b) => b.loss - a.loss)) {
    last = Math.max(y(loss) - 4, last + 13);
    plot.text(width, last, `${name} ${format(loss)}`, 'end', 'halo');
  }
}

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
  if (shown.metrics.references?.length) parts.push('Dotted lines are models that only count.');
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
