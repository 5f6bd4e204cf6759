// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together.

// SVG patterns that several sections use.
function addPatterns() {
  const pattern = (id, name, lineWidth, size) => {
    const attributes = {id, width: size, height: size};
    const turned = {patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'};
    const style = stroke(name, `stroke-width:${lineWidth}`);
    return svg('pattern', {...attributes, ...turned}, svg('line', {y2: size, style}));
  };
  const hidden = {width: 0, height: 0, style: 'position:absolute', 'aria-hidden': 'true'};
  const patterns =
      [pattern('hatch-gradients', 'gradients', 3, 3.6), pattern('hatch-exposed', 'muted', 2, 4.2)];
  document.body.append(svg('svg', hidden, svg('defs', {}, ...patterns)));
}

function showHeader() {
  const {model, machine, program} = report;
  const first = runs[0];
  const per = first.bytes_per_parameter;
  document.title = `${report.title} · zerobox`;
  byId('brand').append(el('b', {}, program.name), ` · ${report.command}`);
  byId('title').textContent = report.title;
  const which = runs.every(ran) ? 'Every run has' : 'The runs that fit have';
  const equal = allEqual() ? ` ${which} the same losses, bit for bit.` : '';
  const sent = first.world > 1 ?
      'What is sent is counted in Ψ, too: one all-gather or reduce-scatter over all parameters ' +
          'is 1 Ψ. ' :
      '';
  const devices = first.world === 1 ? 'devices' : `${first.world} devices`;
  byId('lede').append(
      el('b', {}, `${integer(model.parameters)} parameters`),
      ` (Ψ) in ${units.length} units, ${first.dtype}; the model is “${model.name}”. Each ` +
          `parameter needs ` +
          `${per.parameters} bytes for itself, ` +
          `${per.gradients} for its gradient and ${per.optimizer} for its optimizer states ` +
          `(${optimizerParts(per.optimizer)}, 4 bytes each, in fp32). In ` +
          `data parallelism all ${devices} keep all of that; ZeRO gives each device a slice to ` +
          `keep, 1/N${first.world > 1 ? ` with N = ${first.world}` : ''}, and brings the rest ` +
          `when it is needed. ${sent}Where it ran: ${machine.description}.${equal}`);
  const version = `${program.name} ${program.version} (${program.commit})`;
  byId('foot').textContent = [
    version,
    report.created,
    machine.name,
    `data ${report.schema}, in this file; nothing is loaded from elsewhere. Bytes are decimal ` +
        '(1 MB = 1,000,000 B), as in the paper.',
  ].join(' · ');
}

function main() {
  addPatterns();
  showHeader();
  showTabs();
  showMemoryBars();
  showCompare();
  showStages();
  new Player(byId('player-body'));
  new MemoryChart(byId('time-body'));
  new StreamChart(byId('streams-body'));
  const showTables = () => {
    showLedger();
    showTraffic();
    showTraining();
  };
  showTables();
  showSettings();
  markSelected();
  store.on({run: showTables});
  onWidth(byId('memory-bars'), () => {
    showMemoryBars();
    showTraining();
  });
  store.recall();
  addEventListener('hashchange', () => store.recall());
  window.zerobox = {report, store, stepOf, movedPsi};  // for tests and for the curious
}

main();
