// SPDX-License-Identifier: Apache-2.0
//
// The bar of runs on top, and the mark of the selected run wherever runs are listed: any element
// with data-run.

function showTabs() {
  show('tabs', ...runs.map(makeTab));
  store.on({run: markSelected});
}

function makeTab(run) {
  const moveOn = (event) => {
    const next = runs[runs.indexOf(run) + ({ArrowRight: 1, ArrowLeft: -1}[event.key] ?? 0)];
    if (!next || next === run) return;
    store.select(next.id);
    byId('tab-' + next.id).focus();
    event.stopPropagation();
    event.preventDefault();
  };
  const attributes = {
    class: 'tab',
    role: 'tab',
    type: 'button',
    id: 'tab-' + run.id,
    'data-run': run.id,
    'aria-controls': 'player-body',
    onclick: () => store.select(run.id),
    onkeydown: moveOn,
  };
  const sent = run.communication.length ? `${movedPsi(run).toFixed(1)}${space}Ψ sent` : '';
  const end = failed(run) ? 'failed' : '';
  const facts = ran(run) ?
      [bytes(modelStates(atPeak(run))), ...[sent, end].filter(Boolean).map((text) => el('em', {}, text))] :
      ['does not fit'];
  return el('button', attributes, el('b', {}, run.label), el('span', {}, ...facts));
}

function markSelected() {
  for (const node of document.querySelectorAll('[data-run]')) {
    const selected = node.dataset.run === store.run.id;
    if (node.getAttribute('role') === 'tab') {
      node.setAttribute('aria-selected', selected);
      node.tabIndex = selected ? 0 : -1;
    } else if (node.tagName === 'TR') {
      node.classList.toggle('current', selected);
    } else {
      node.setAttribute('aria-pressed', selected);
    }
  }
}
