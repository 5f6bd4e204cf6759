// SPDX-License-Identifier: Apache-2.0
//
// The words of the chart of streams: how much communication is exposed and why, what is below the
// pointer, the legend.

function lanesNote(step, streams) {
  const clock = step.run.step.clock ? ` Times are from the ${step.run.step.clock}.` : '';
  const lanes = streams.map((stream) => LANE_NAMES[stream]).join(', ');
  return `For each device, from above: ${lanes}. Blank is idle: the device runs nothing.${clock}`;
}

const LANE_NAMES = {
  compute: 'compute',
  communication: 'communication',
  to_host: 'copies to the host',
  from_host: 'copies from the host'
};

function exposureText(step) {
  if (step.world < 2) return 'One device has nobody to send to: nothing is communicated.';
  const times = step.ranks.map((rank) => communicationTimes(step, rank));
  const exposed = times.map((time) => time.exposedLate + time.exposedTransfer);
  const worst = exposed.indexOf(Math.max(...exposed));
  const {all, late, transfer, exposedLate, exposedTransfer} = times[worst];
  const shared = report.machine.device === 'host' ?
      ` Why they come late: this run is ${report.machine.description}, so devices have to wait ` +
          'for a processor; that says nothing about ZeRO.' :
      '';
  return `Of the ${milliseconds(step.duration)} of this step, device ${worst} is in collectives ` +
      `for ${milliseconds(all)}: ${milliseconds(transfer)} are transfers, ${milliseconds(late)} ` +
      'are waits for a device that comes late (pale). Exposed, where compute has to wait ' +
      `(hatched), are ${milliseconds(exposed[worst])} (${percent(exposed[worst], step.duration)} ` +
      `of the step): ${milliseconds(exposedTransfer)} of transfers, ${milliseconds(exposedLate)} ` +
      `of waits for late devices. No device has more of it.${late > transfer / 2 ? shared : ''}`;
}

// What `stream` of a device does at t. `slack` is how far the pointer may miss a thin bar.
function pointedAt(step, rank, stream, t, slack) {
  const lane = step.lanes[rank][stream];
  const near = ({begin, end}) => begin - slack <= t && t < end + slack;
  const piece = step.active(rank, stream, t) ?? lane.find(near);
  if (piece) return pieceText(piece);
  if (stream === 'compute') {
    const part = exposedParts(step, rank).find(({begin, end}) => begin <= t && t < end);
    if (part) {
      const what = part.late ? lastToCome(part.op) : `the transfer of ${shortTitle(part.op)}`;
      return `compute waits for ${what} · ${milliseconds(part.end - part.begin)}`;
    }
  }
  return `${LANE_NAMES[stream]}: idle`;
}

function pieceText({op, begin, end}) {
  const late = op.isCollective ? clamp(op.allBegun, begin, end) - begin : 0;
  const waits = late > 0 ? `, of these ${milliseconds(late)} waiting for ${lastToCome(op)}` : '';
  return `${opTitle(op)} · ${milliseconds(end - begin)}${waits} · from ${milliseconds(begin)}`;
}

function showStreamsLegend(streams) {
  const swatch = (name, hatch, style) =>
      svg('svg', {width: 15, height: 11, 'aria-hidden': 'true'},
          svg('rect', {x: 0.5, y: 0.5, width: 14, height: 10, rx: 2, style: fill(name, style)}),
          svg('rect', {width: 15, height: 11, style: `fill:${hatch}`}));
  const entry = (words, name, hatch = 'none', style = '') =>
      el('span', {}, swatch(name, hatch, style), words);
  const communicates = streams.includes('communication');
  const dashes = 'fill-opacity:.22;stroke-dasharray:2 2;stroke:' + color('gradients');
  show(
      'streams-legend', entry('forward', 'forward'), entry('backward', 'backward'),
      entry('optimizer', 'optimizer_states'), communicates && entry('gather', 'parameters'),
      communicates && entry('reduce', 'gradients'), entry('norm, scalars', 'norm'),
      communicates && entry('waits for a late device', 'gradients', 'none', dashes),
      communicates && entry('exposed: compute waits', 'surface', 'url(#hatch-exposed)'),
      streams.includes('to_host') && entry('copy', 'copy'));
}
