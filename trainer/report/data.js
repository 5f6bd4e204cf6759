// SPDX-License-Identifier: Apache-2.0
//
// The data of the page (docs/report_data.md) and what the sections ask about a run.

const report = JSON.parse(byId('report-data').textContent);
const runs = report.runs;
const units = report.units;

const CATEGORY_NAMES = {
  parameters: 'parameters',
  gradients: 'gradients',
  optimizer_states: 'optimizer states',
  workspace: 'workspace',
  activation_checkpoints: 'activation checkpoints',
  activations: 'activations',
  communication_buffers: 'communication buffers',
};
const categoryName = (name) => CATEGORY_NAMES[name] ?? name;
const MODEL_STATES = ['parameters', 'gradients', 'optimizer_states'];
const FIRST_STAGE_SHARDING = {
  parameters: 3,
  gradients: 2,
  optimizer_states: 1
};

const bytesPerParameter = (run, name) =>
    run.bytes_per_parameter[name === 'optimizer_states' ? 'optimizer' : name];
const total = (byCategory) => sum(Object.values(byCategory ?? {}));
const modelStates = (byCategory) => sum(MODEL_STATES.map((name) => byCategory[name] ?? 0));
const ran = (run) => run.status !== 'out_of_memory';
const failed = (run) => run.status === 'failed';
const offloads = (run, what) => run.offload.split(',').includes(what);
const sharded = (run, what) => run.world > 1 && run.stage >= FIRST_STAGE_SHARDING[what];

const usedCategories = report.categories.filter(
    (name) => runs.some(
        (run) => run.memory.predicted[name] > 0 ||
            run.memory.measured.some((rank) => rank.at_peak[name] > 0)));

// The rank whose peak is the highest.
function worstRank(run) {
  const peaks = run.memory.measured.map((rank) => rank.peak_bytes);
  return peaks.indexOf(Math.max(...peaks));
}

// What a device holds at its peak: measured, or predicted where the run did not fit.
const atPeak = (run) => ran(run) && run.memory.measured.length ?
    run.memory.measured[worstRank(run)].at_peak :
    run.memory.predicted;

const highestPeak =
    Math.max(...runs.map((run) => Math.max(total(run.memory.predicted), total(atPeak(run)))));
const highestCapacity = Math.max(...runs.map((run) => run.device_memory_bytes));
// A capacity far above all that is held would make it too small to see.
const capacityInSight = highestCapacity < 3 * highestPeak;

const hostBytes = (run) => total((run.memory.host_measured ?? [])[0] ?? run.memory.host_predicted);

// Elements that a collective over all units moves, as multiples of the padded model: what one
// device sends is (N-1)/N of a multiple.
function psiOf(run, elementBytes, counted) {
  if (run.world < 2) return 0;
  return counted * run.world / (elementBytes * report.model.padded_parameters * (run.world - 1));
}

// Elements that a device sends in a step, in multiples of Psi.
function movedPsi(run) {
  return sum(run.communication.filter((row) => row.collective !== 'scalars')
                 .map((row) => psiOf(run, row.element_bytes, row.counted_bytes[0])));
}

const optimizerParts = (bytesEach) => bytesEach === 12 ? 'master weights, m and v' : 'm and v';

// Psi with padding, where there is any.
const paddedPsi = report.model.padded_parameters === report.model.parameters ? 'Ψ' : 'Ψ′';
const paddedNote = paddedPsi === 'Ψ' ?
    '' :
    `${paddedPsi} = ${integer(report.model.padded_parameters)} is Ψ with padding, so that every ` +
        'unit cuts into N equal slices.';

// "2 Psi + 14 Psi/4": bytes of model states by the paper's formula.
function stateFormula(run, psi = 'Ψ') {
  let whole = 0;
  let part = 0;
  for (const name of MODEL_STATES) {
    if (onHost(run, name)) continue;
    if (sharded(run, name)) {
      part += bytesPerParameter(run, name);
    } else {
      whole += bytesPerParameter(run, name);
    }
  }
  return [whole && `${whole}${space}${psi}`, part && `${part}${space}${psi}/${run.world}`]
             .filter(Boolean)
             .join(' + ') ||
      '0';
}

// Whether the run keeps these model states on the host side instead of the device.
function onHost(run, name) {
  if (!offloads(run, 'optimizer')) return false;
  return name === 'optimizer_states' || (name === 'gradients' && run.stage >= 2);
}

// What each stage is, for someone who meets ZeRO here.
const STAGES = [
  {
    name: 'data parallelism',
    short: 'Nothing is sharded: every device keeps everything, N equal copies.',
    adds: 'Every device keeps all parameters, all gradients and all optimizer states, and works ' +
        'on its own part of the batch. The gradients are summed by an all-reduce, then every ' +
        'device makes the same update.',
  },
  {
    name: 'optimizer states sharded',
    short: 'Adds: a device keeps the optimizer states of its own slice only, and updates only ' +
        'that. The parameters that others updated come by all-gather.',
    adds: 'Optimizer states are sharded: each device keeps them for its own slice (1/N of the ' +
        'parameters) and updates only that slice. It needs the summed gradient of this slice ' +
        'only, so a reduce-scatter replaces the all-reduce; the slices that others updated come ' +
        'by all-gather, at the beginning of the next forward pass. ',
    more: 'What is sent stays the same, 2 Ψ: an all-reduce is a reduce-scatter and then an ' +
        'all-gather, and both are still there, at other times and for other values.',
  },
  {
    name: 'and gradients sharded',
    short: 'Adds: a device keeps the summed gradient of its own slice only. The bucket that held ' +
        'the whole gradient of a unit is freed after its reduce-scatter.',
    adds: 'Gradients are sharded, too: each device keeps the summed gradient of its own slice ' +
        'only. Backward writes a unit’s gradient into a bucket, a buffer of constant size; a ' +
        'reduce-scatter sums it over the devices, each device keeps its own slice of the sum, ' +
        'and the bucket is freed.',
    more: 'Two buckets serve all blocks. The exception is the ends: head and lookup share the ' +
        'token embedding, so its gradient stays whole from the head’s backward to the ' +
        'lookup’s. With one micro-batch 2 Ψ are sent, as before; with m of them (m + 1) Ψ, as ' +
        'the gradients of each must be reduced.',
  },
  {
    name: 'and parameters sharded',
    short: 'Adds: a device keeps its own slice of the parameters only. A unit is gathered while ' +
        'it computes, then freed.',
    adds: 'Parameters are sharded, too: each device keeps its own slice only. Before a unit is ' +
        'used its slices are gathered, one unit ahead; after its use the gathered copy is freed, ' +
        'and it is gathered again for backward. So about 3 Ψ are sent instead of 2 Ψ: two ' +
        'all-gathers and a reduce-scatter.',
    more: 'It is a little less than 3 Ψ: the last block is the first that backward needs, so its ' +
        'copy is kept instead of being gathered twice. With m micro-batches it is m times that.',
  },
];
