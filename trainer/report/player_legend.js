// SPDX-License-Identifier: Apache-2.0
//
// Above the player: how to read a card, the legend of slice states, and the switch between all
// devices of a run and one device of all runs.

function showPlayerLegend(rebuild) {
  const swatch = (...shapes) =>
      svg('svg', {width: 15, height: 11, 'aria-hidden': 'true'}, ...shapes);
  const box = (style) => svg('rect', {x: 0.5, y: 0.5, width: 14, height: 10, rx: 2, style});
  const way = (more) => svg(
      'line', {x1: 0, x2: 15, y1: 6, y2: 6, style: stroke('parameters', 'stroke-width:2;' + more)});
  const communicates = runs.some((run) => run.world > 1);
  const parameters = 'fill:var(--parameters)';
  const entries = [
    ['held', swatch(box(parameters))],
    [
      'borrowed', swatch(box(parameters + ';fill-opacity:.5;stroke:var(--parameters)')),
      runs.some((run) => sharded(run, 'parameters'))
    ],
    [
      'out of date',
      swatch(
          box(parameters + ';fill-opacity:var(--stale)'),
          svg('line', {x1: 1, y1: 10, x2: 14, y2: 1, style: stroke('parameters')})),
      runs.some((run) => sharded(run, 'optimizer_states') && !sharded(run, 'parameters'))
    ],
    ['local, not yet summed', swatch(box('fill:url(#hatch-gradients);stroke:var(--gradients)'))],
    [
      'memory without a value yet',
      [
        swatch(box('fill:none;stroke:var(--parameters)')),
        swatch(box('fill:none;stroke:var(--gradients)'))
      ]
    ],
    ['way done', swatch(way('')), communicates],
    ['way to go', swatch(way('stroke-dasharray:2 3')), communicates],
    ['no memory', swatch(box('fill:var(--faint)'))],
    [
      'on the host side',
      swatch(
          box('fill:var(--faint)'),
          svg('rect',
              {x: 0.5, y: 8, width: 14, height: 2.5, style: 'fill:var(--optimizer_states)'})),
      runs.some((run) => offloads(run, 'optimizer'))
    ],
  ];
  const shown = entries.filter(([, , when]) => when !== false);
  show(
      'player-legend',
      ...shown.map(([words, picture]) => el('span', {}, ...[picture].flat(), words)));
  byId('player-note').textContent = playerNote();
  showModes(rebuild);
}

// How to read a card.
function playerNote() {
  const {run, step, rank, acrossRuns} = store;
  const {world} = run;
  const last = run.metrics?.step.at(-1);
  const which = step ? `This is step ${run.step.index}${last ? ` of ${last}` : ''}. ` : '';
  const card =
      acrossRuns ? `A card is one device, device ${rank}, of each run. ` : 'A card is a device. ';
  const rows = 'Its rows are units: the ends (token and position embedding, final norm; the head ' +
      'uses the same weights) and the blocks. ';
  const columns = world === 1 ?
      'With one device there is nothing to share. ' :
      `Each unit is cut into ${world} slices, the columns: column k belongs to device k ` +
          '(▾ marks a device’s own). In a collective each slice is drawn going straight to ' +
          'the device that needs it. ';
  const stripes = run.bytes_per_parameter.optimizer === 12 ? 'master weights, m and v' : 'm and v';
  const ends = sharded(run, 'gradients') ?
      'The gradient of the ends stays whole from the head’s backward to the lookup’s, as both ' +
          'add to it. ' :
      '';
  return `${which}${card}${rows}${columns}${ends}Stripes in a green cell: ${stripes}. ${
      paddedNote}`;
}

function showModes(rebuild) {
  if (runs.filter((run) => run.step).length < 2) return;
  const mode = (acrossRuns, label) => {
    const attributes = {
      type: 'button',
      class: 'button',
      'aria-pressed': store.acrossRuns === acrossRuns,
      onclick: () => {
        store.acrossRuns = acrossRuns;
        rebuild();
      },
    };
    return el('button', attributes, label);
  };
  const stagesDiffer = new Set(runs.map((run) => run.stage)).size === runs.length;
  show(
      'player-mode', mode(false, 'all devices'),
      mode(true, stagesDiffer ? 'all stages' : 'all runs'));
}
