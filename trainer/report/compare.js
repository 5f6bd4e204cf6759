// SPDX-License-Identifier: Apache-2.0
//
// Below the bars: the runs side by side, what each stage adds, and the exact ledger of the selected
// run.

function showCompare() {
  if (runs.length < 2) return byId('compare').remove();
  const base = runs[0];
  const heads = [
    '',
    number('Model states'),
    number('Saves'),
    number('Peak memory'),
    number('Reserved'),
    number('Sent per step'),
    number('Tokens/s'),
    number(`Largest model in ${bytes(base.device_memory_bytes, 0)}`),
    'Same result?',
  ];
  const rows = runs.map((run) => {
    const states = modelStates(atPeak(run));
    const largest = run.largest_model;
    return {
      'data-run': run.id,
      cells: [
        el('b', {}, run.label),
        number(bytes(states)),
        number((modelStates(atPeak(base)) / states).toFixed(2) + '×'),
        number(bytes(total(atPeak(run)))),
        number(run.memory.reserved_bytes ? bytes(run.memory.reserved_bytes) : '–'),
        number(run.communication.length ? movedPsi(run).toFixed(2) + space + 'Ψ' : '–'),
        number(run.metrics ? tokensPerSecond(run) : '–'),
        number(largest ? `${millions(largest.parameters)} (${largest.n_layer} layers)` : '–'),
        equalityCell(run),
      ],
    };
  });
  show(
      'compare', table('The runs side by side', heads, rows),
      ...runs.filter((run) => run.equality?.equal === false).map(differenceNote));
}

function equalityCell(run) {
  if (!ran(run)) return {text: 'does not fit', class: 'failed'};
  if (failed(run)) return {text: 'failed', class: 'failed'};
  if (!run.equality) return run === runs.find(({status}) => status === 'ok') ? 'reference' : '–';
  if (run.equality.equal) return {text: 'bit for bit', class: 'equal'};
  if (run.equality.equal === null) return 'not compared';
  const step = run.equality.first_difference?.step ?? null;
  return {text: step === null ? 'differs' : `differs at step ${step}`, class: 'failed'};
}

// Where a run's numbers begin to differ from the reference's.
function differenceNote(run) {
  const {reference, losses_equal, first_difference: first} = run.equality;
  const other = runs.find(({id}) => id === reference)?.label ?? reference;
  const losses = losses_equal ? 'the losses are equal' : 'the losses differ';
  const step = first?.step ?? null;  // null: not searched for
  const when = step === null ? 'In the trained model' : `After step ${step}`;
  const what = first?.parameter ? `${when} ${first.parameter}, element ${first.element},` :
                                  `The loss at step ${step}`;
  const where = first ? ` ${what} is ${first.value} instead of ${first.reference}.` : '';
  return el('p', {class: 'small failed'}, `${run.label} differs from ${other}: ${losses}.${where}`);
}

// The median over the steps, to three digits.
function tokensPerSecond(run) {
  const values = run.metrics.tokens_per_second.filter((value) => value !== null);
  if (!values.length) return '–';
  const median = values.sort((a, b) => a - b)[values.length >> 1];
  return threeDigits(median);
}

function compareNote(base) {
  const {world} = base;
  const sent = world > 1 ?
      'Sent per step: by one device. 1 Ψ is what it sends in one all-gather or reduce-scatter ' +
          `over all parameters: (N−1)/N of them, here ${world - 1}/${world}; the rest is its own ` +
          'and stays. ' :
      '';
  return `Saves: model states of ${
             base.label} divided by those of the run. Peak memory: all that ` +
      'is in use at the fullest moment. Reserved: what a device takes for it, each region of its ' +
      `memory as large as at its own peak. ${sent}Tokens/s: median over the steps. Largest ` +
      'model: layers are added until the memory is full, everything else unchanged; it grows ' +
      'less than the model states shrink, as activations and buffers are not sharded.';
}

// For someone who meets ZeRO here.
function showStages() {
  const rows = STAGES.map(
      ({name, adds, more}, stage) =>
          el('div', {class: 'stage-row'},
             el('dt', {}, el('b', {}, `Stage ${stage}`), el('span', {}, name)),
             el('dd', {}, adds, more && el('p', {class: 'tiny muted'}, more))));
  show(
      'stages', runs.length > 1 && el('p', {class: 'tiny muted'}, compareNote(runs[0])),
      el('details', {open: ''}, el('summary', {}, 'What each stage adds to the one before'),
         el('dl', {class: 'stages'}, ...rows)),
      glossary());
}

function showLedger() {
  const {run} = store;
  const rank = run.memory.measured.length ? worstRank(run) : -1;
  const measured = rank < 0 ? null : run.memory.measured[rank].at_peak;
  const predicted = run.memory.predicted;
  const wasOpen = byId('ledger').querySelector('details')?.open;
  const row = (name, a, b, strong) => ({
    class: strong ? 'total' : null,
    cells: [
      name, number(integer(a)), number(b === null ? 'did not run' : integer(b)),
      number(b === null ? '' : integer(b - a), b !== null && b !== a ? 'failed' : 'muted')
    ],
  });
  const category = (name) =>
      row(categoryName(name), predicted[name] ?? 0, measured ? measured[name] ?? 0 : null);
  const others = usedCategories.filter((name) => !MODEL_STATES.includes(name));
  const rows = [
    ...MODEL_STATES.map(category),
    row('model states: ' + stateFormula(run, paddedPsi), modelStates(predicted),
        measured && modelStates(measured), true),
    ...others.map(category),
    row('sum', total(predicted), measured && total(measured), true),
  ];
  const heads = [
    'On the device, at its peak', number('Predicted'),
    number(rank < 0 ? 'Measured' : `Measured, device ${rank}`), number('Difference')
  ];
  show(
      'ledger',
      el('details', {open: wasOpen ? '' : null},
         el('summary', {}, `Exact bytes of ${run.label}, predicted and measured`),
         el('div', {class: 'scroll'}, table('Memory at the peak, in bytes', heads, rows)),
         hostLedger(run, rank), el('p', {class: 'small muted'}, ledgerNote(run))));
}

function hostLedger(run, rank) {
  const predicted = run.memory.host_predicted ?? {};
  if (!total(predicted)) return null;
  const measured = (run.memory.host_measured ?? [])[Math.max(rank, 0)];
  const rows = report.categories.filter((name) => predicted[name] > 0).map((name) => {
    const seen = measured?.[name];
    return [
      categoryName(name),
      number(integer(predicted[name])),
      number(measured ? integer(seen) : 'did not run'),
      number(measured ? integer(seen - predicted[name]) : '', 'muted'),
    ];
  });
  const heads =
      ['On the device’s host side', number('Predicted'), number('Measured'), number('Difference')];
  return el('div', {class: 'scroll'}, table('Memory on the host side, in bytes', heads, rows));
}

function ledgerNote(run) {
  const per = run.bytes_per_parameter;
  const padding = report.model.padded_parameters - report.model.parameters;
  const padded =
      padding ? `; with it ${paddedPsi} = ${integer(report.model.padded_parameters)}` : '';
  const reserved = integer(run.memory.reserved_bytes ?? 0);
  return `A parameter takes ${per.parameters} + ${per.gradients} + ${per.optimizer} bytes. Ψ = ` +
      `${integer(report.model.parameters)}, and ${integer(padding)} elements of padding, so that ` +
      `every device owns an equal part${padded}. The run reserves ${
             reserved} bytes: each region of ` +
      'its memory as large as at its own peak.';
}
