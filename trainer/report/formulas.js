// SPDX-License-Identifier: Apache-2.0
//
// The formula under a caption: [symbols, the same with numbers, result].

function opFormula(op, step) {
  const {world, run, stage} = step;
  const per = run.bytes_per_parameter;
  const psi = report.model.padded_parameters;
  const unit = units[op.unit];
  const size = unit?.padded_elements ?? 0;
  const share = sharded(run, 'optimizer_states') ? world : 1;
  const overShare =
      share > 1 ? [`${paddedPsi}/N`, `${integer(psi)} / ${world}`] : [paddedPsi, integer(psi)];
  switch (op.kind) {
    case 'all_gather':
    case 'reduce_scatter':
    case 'all_reduce':
    case 'broadcast':
      return collectiveFormula(op, step);
    case 'copy':
    case 'freed':
      return [
        op.kind === 'copy' ? 'copied by each device' : 'freed on each device', null,
        `${integer(op.bytes)} B`
      ];
    case 'norm':
      return [
        `Σ g² over ${overShare[0]}`, overShare[1], `${integer(psi / share)} elements a device`
      ];
    case 'update': {
      const bytesEach = per.optimizer;
      return [
        `${bytesEach} B · ${overShare[0]}`, `${bytesEach} · ${overShare[1]}`,
        `${integer(bytesEach * psi / share)} B of optimizer states on every ` +
            (onHost(run, 'optimizer_states') ? 'host side' : 'device')
      ];
    }
    case 'backward':
      if (!sharded(run, 'gradients')) {
        return [
          `${per.gradients} B · ${paddedPsi}`, `${per.gradients} · ${integer(psi)}`,
          `${integer(per.gradients * psi)} B of gradients on every device`
        ];
      }
      return [
        `${per.gradients} B · ${paddedPsi}(${unit.short})`, `${per.gradients} · ${integer(size)}`,
        `${integer(per.gradients * size)} B for a while; kept are ${per.gradients} B · ${
            paddedPsi}/N = ` +
            `${integer(per.gradients * psi / world)} B`
      ];
  }
  if (stage === 3 && world > 1) {
    return [
      `${per.parameters} B · (${paddedPsi}/N + ${paddedPsi}(${unit?.short ?? ''}))`,
      `${per.parameters} · (${integer(psi)} / ${world} + ${integer(size)})`,
      `${integer(per.parameters * (psi / world + size))} B: its slices and the gathered unit`
    ];
  }
  return [
    `${per.parameters} B · ${paddedPsi}`, `${per.parameters} · ${integer(psi)}`,
    `${integer(per.parameters * psi)} B of parameters on every device`
  ];
}

// (N-1)/N of the elements, twice for an all-reduce. Shown as a product only where it is one.
function collectiveFormula(op, step) {
  const {world} = step;
  const result = `${integer(op.bytes)} B sent by each device`;
  const rounds = op.kind === 'all_reduce' ? 2 : 1;
  const elementBytes = op.bytes * world / (rounds * (world - 1) * op.elements);
  if (!Number.isInteger(elementBytes)) return ['sent', null, result];
  const twice = rounds === 2 ? '2 · ' : '';
  const unit = units[op.unit];
  const partial = unit && op.elements < unit.padded_elements;
  const symbol = !unit ? 'numbers' :
      partial          ? 'a bucket of ' + unit.short :
                         `${paddedPsi}(${unit.short})`;
  return [
    `${twice}(N−1)/N · ${elementBytes} B · ${symbol}`,
    `${twice}${world - 1}/${world} · ${elementBytes} · ${integer(op.elements)}`, result
  ];
}
