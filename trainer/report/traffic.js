// SPDX-License-Identifier: Apache-2.0
//
// Communication of a step: paper | expected | counted, why expected differs from the paper, and the
// copies of offload. Bytes are those that one device sends.

const COLLECTIVE_NAMES = {
  all_gather: 'all-gather',
  reduce_scatter: 'reduce-scatter',
  all_reduce: 'all-reduce',
  broadcast: 'broadcast',
  scalars: 'scalars (norm)',
};

function showTraffic() {
  const {run} = store;
  byId('traffic').hidden = !ran(run);
  if (!ran(run)) return;
  const copied =
      run.copies && run.copies.to_host.expected_bytes + run.copies.from_host.expected_bytes > 0;
  byId('traffic-note').textContent = trafficNote(run);
  if (run.communication.length) {
    show('traffic-body', collectiveTable(run), reasonTable(run), copied && copyTable(run.copies));
  } else {
    show(
        'traffic-body', el('p', {class: 'small'}, 'One device has nobody to send to.'),
        copied && copyTable(run.copies));
  }
}

function trafficNote(run) {
  const psi = integer(report.model.parameters);
  if (run.world < 2) return `${run.label}.`;
  return `${run.label}: bytes that one device sends in a step. Paper: the ZeRO paper’s formula, ` +
      `from Ψ = ${psi} alone. Expected: what the plan of this run says beforehand. ` +
      'Counted: what was sent. 1 Ψ stands for a collective over all parameters, in which a ' +
      `device sends (N−1)/N of them, here ${run.world - 1}/${run.world}. ${paddedNote}`;
}

function collectiveTable(run) {
  const psi = (row, value) => row.collective === 'scalars' ?
      '' :
      psiOf(run, row.element_bytes, value).toFixed(2) + space + 'Ψ';
  const largest = (row) => Math.max(...row.counted_bytes);
  const heads = [
    'Collective', number('calls', 'wide'), number('bytes an element', 'wide'), number('paper'),
    number('expected'), number('counted'), number('in Ψ'), number('counted − expected')
  ];
  const rows = run.communication.map((row) => {
    const paper = row.collective === 'scalars' ? '' : integer(row.paper_bytes);
    return [
      COLLECTIVE_NAMES[row.collective] ?? row.collective,
      number(integer(row.calls), 'wide'),
      number(String(row.element_bytes), 'muted wide'),
      number(paper),
      number(integer(row.expected_bytes)),
      number(countedText(row)),
      number(psi(row, largest(row))),
      differenceCell(row.expected_bytes, row.counted_bytes),
    ];
  });
  const all = (field) => sum(run.communication.map((row) => row[field]));
  const counted = run.communication[0].counted_bytes.map(
      (_, rank) => sum(run.communication.map((row) => row.counted_bytes[rank])));
  const foot = [
    'Sum', number(integer(all('calls')), 'wide'), number('', 'wide'),
    number(integer(all('paper_bytes'))), number(integer(all('expected_bytes'))),
    number(countedText({counted_bytes: counted})), number(movedPsi(run).toFixed(2) + space + 'Ψ'),
    differenceCell(all('expected_bytes'), counted)
  ];
  return table(`Communication of ${run.label}`, heads, rows, [foot]);
}

// One number where all devices have counted alike.
function countedText({counted_bytes: counted}) {
  const least = Math.min(...counted);
  const most = Math.max(...counted);
  return least === most ? integer(most) : `${integer(least)} to ${integer(most)}`;
}

function differenceCell(expected, counted) {
  const furthest = counted.reduce(
      (worst, value) => Math.abs(value - expected) > Math.abs(worst) ? value - expected : worst, 0);
  return number(signed(furthest), furthest ? 'failed' : 'muted');
}

const signed = (n) => n > 0 ? '+' + integer(n) : n < 0 ? '−' + integer(-n) : '0';

// From the paper to what was expected. What no reason covers is said in red.
function reasonTable(run) {
  const rows = [];
  for (const row of run.communication.filter((some) => some.collective !== 'scalars')) {
    let unexplained = row.expected_bytes - row.paper_bytes;
    for (const difference of run.differences ?? []) {
      if (difference.collective !== row.collective) continue;
      unexplained -= difference.bytes;
      if (difference.bytes === 0) continue;
      rows.push(
          [COLLECTIVE_NAMES[row.collective], number(signed(difference.bytes)), difference.reason]);
    }
    if (unexplained !== 0) {
      rows.push([
        COLLECTIVE_NAMES[row.collective], number(signed(unexplained)),
        {text: 'unexplained', class: 'failed'}
      ]);
    }
  }
  if (!rows.length)
    return el('p', {class: 'small muted reasons'}, 'Expected is what the paper says.');
  return el(
      'div', {class: 'reasons'},
      table(
          'Why expected differs from the paper',
          ['Expected differs from the paper', number('bytes'), 'because of'], rows));
}

function copyTable({to_host: down, from_host: up, parts}) {
  const cell = (value) => number(value ? integer(value) : '');
  const rows = (parts ?? [])
                   .filter((part) => part.to_host || part.from_host)
                   .map((part) => [part.what, cell(part.to_host), cell(part.from_host)]);
  const counted = (way) => number(
      countedText(way), way.counted_bytes.some((n) => n !== way.expected_bytes) ? 'failed' : '');
  return el(
      'div', {class: 'reasons'},
      table(
          'Copies between a device and its host side',
          ['Copied between a device and its host', number('to the host'), number('from the host')],
          rows, [
            ['Expected', number(integer(down.expected_bytes)), number(integer(up.expected_bytes))],
            ['Counted', counted(down), counted(up)],
          ]));
}
