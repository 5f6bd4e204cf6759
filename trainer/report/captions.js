// SPDX-License-Identifier: Apache-2.0
//
// What the step player says about an op: a title and one or two sentences.

const unitName = (op) => units[op.unit]?.name ?? '';
const withThe = (name) => name === 'ends' ? 'the ends' : name;

const COLLECTIVE_TITLES = {
  all_gather: 'All-gather',
  reduce_scatter: 'Reduce-scatter',
  all_reduce: 'All-reduce',
  broadcast: 'Broadcast',
};
const COPY_TITLES = {
  to_host: 'Copy to the host',
  from_host: 'Copy from the host'
};
const LAYER_TITLES = {
  forward: 'Forward',
  backward: 'Backward',
  recompute: 'Recompute'
};

function opTitle(op) {
  const unit = unitName(op);
  const join = (...words) => words.filter(Boolean).join(' · ');
  if (LAYER_TITLES[op.kind]) return join(LAYER_TITLES[op.kind], op.layer || unit);
  if (COLLECTIVE_TITLES[op.kind]) {
    return join(COLLECTIVE_TITLES[op.kind], op.purpose === 'scalars' ? 'scalars' : unit);
  }
  switch (op.kind) {
    case 'norm':
      return 'Gradient norm';
    case 'update':
      return join('AdamW', unit);
    case 'copy':
      return join(COPY_TITLES[op.stream] ?? 'Copy', op.purpose, unit);
    case 'freed':
      return join('Freed', (op.holds === 'gradients' ? 'bucket of ' : 'gathered ') + unit);
  }
  return join(op.kind, unit);
}

// How slices get from one device to another, for the machine of this report.
const MEANS = {
  'shared memory': {
    gather: 'each device copies its own slice into the memory of all the others',
    sum: 'each device reads its own slice from the memory of all the others and adds up, in ' +
        'rank order; what is read from a device counts as sent by it',
  },
  'one GPU': {
    gather: 'the ranks share one GPU, so the slices are copied within its memory',
    sum: 'the ranks share one GPU, which adds up their slices within its memory',
  },
  NCCL: {
    gather: 'NCCL moves the slices, by ways of its own choice',
    sum: 'NCCL moves and adds the slices, by ways of its own choice',
  },
};
const means = MEANS[report.machine.collectives] ?? {
  gather: 'each device gives its own slice to the others',
  sum: 'each device gets its own slice from all, added up',
};

// `step` is the RecordedStep that the op is of.
function opText(op, step) {
  const say = CAPTIONS[op.kind];
  return say ? say(op, step, withThe(unitName(op))) : '';
}

// Stage 3: whether the gathered copy that a forward has used stays for the backward.
function keepsCopy(step, op) {
  const {borrowed} = step.slices.history(0, op.unit);
  const copy = borrowed.find(({begin, end}) => begin <= op.begin && op.begin < end);
  return copy !== undefined &&
      step.slices.opsOf[op.unit].some(
          (later) => later.kind === 'backward' && later.begin > op.begin && later.begin < copy.end);
}

const CAPTIONS = {
  forward(op, step, unit) {
    if (op.layer === 'lookup') {
      return 'Each token is looked up in the embedding table, each position in the position ' +
          'embedding; their sum is the input of the first block.';
    }
    if (op.layer === 'head') {
      return 'Of the head only the final norm is computed now. Logits and losses come in its ' +
          'backward, a few rows at a time, so that they never take much memory.';
    }
    const kept = {
      none: 'The activations stay in memory, for backward.',
      selective: 'Of its activations the results of matrix products and of attention are kept.',
      full: 'Of its activations only the block’s input is kept, its checkpoint.',
    }[step.run.activation_checkpointing];
    if (!sharded(step.run, 'parameters')) {
      return `Every device runs its own sequences through ${unit}, with its own copy of all the ` +
          `parameters. ${kept}`;
    }
    return `Every device runs its own sequences through ${unit}, with its own slice and the ` +
        `${step.world - 1} gathered ones. ` +
        (keepsCopy(step, op) ? 'The gathered copy stays, for its backward.' :
                               'Then the gathered copy is freed.') +
        ` ${kept}`;
  },
  backward(op, step, unit) {
    const buckets = sharded(step.run, 'gradients');
    if (op.layer === 'head') {
      return 'Backward begins: logits, losses and their gradients, a few rows at a time. The ' +
          'head’s weight is the token embedding, so this begins the gradient of the ends; the ' +
          'lookup adds the rest at the very end' +
          (buckets ? '. Until then it stays whole: the exception to the two buckets.' : '.');
    }
    if (op.layer === 'lookup') {
      return 'The lookup adds its part to the gradient of the embedding, which the head began. ' +
          'It needs no parameters. When it is over, the gradient of the ends is complete' +
          (step.world > 1 ? ' on this device; summed over the devices it is once all are there.' :
                            '.');
    }
    if (step.world === 1)
      return `Backward through ${unit} adds to the gradient that the device keeps.`;
    return `Backward through ${unit}. Its gradient is local (hatched): each device knows its own ` +
        'sequences only. ' +
        (buckets ? 'It is written into a bucket, which is freed once it has been summed.' :
                   'It is added to the whole gradient that every device keeps.');
  },
  recompute(op, step, unit) {
    return step.run.activation_checkpointing === 'selective' ?
        `The norms and the GELU of ${unit} are computed again; the rest was kept.` :
        `Only the input of ${unit} was kept. Its forward runs again, so that backward has the ` +
            'activations it needs.';
  },
  all_gather(op, step, unit) {
    if (op.purpose === 'scalars') return CAPTIONS.scalars(op, step);
    if (sharded(step.run, 'parameters')) {
      return `Each device keeps one slice of ${unit} and needs all ${step.world} for its ` +
          `${op.phase}: ${means.gather}. ${hiding(step, op)}`;
    }
    return `In the step before, each device updated its own slice of ${unit} only; its other ` +
        `slices are out of date (pale). Now ${means.gather}. ${hiding(step, op)}`;
  },
  reduce_scatter(op, step, unit) {
    if (op.purpose === 'scalars') return CAPTIONS.scalars(op, step);
    const after = sharded(step.run, 'gradients') ?
        'The bucket can be freed then: the rest of it is of no use here.' :
        'The rest of its buffer is set to zero, but stays allocated.';
    return `Local gradients of ${unit} are summed over the devices, and device k gets slice k of ` +
        `the sum only: ${means.sum}. ${after}`;
  },
  all_reduce(op, step, unit) {
    if (op.purpose === 'scalars') return CAPTIONS.scalars(op, step);
    return `Local gradients of ${unit} are summed over the devices, and every device gets the ` +
        'whole sum. Drawn in two halves: the sums are made, each slice at one device, then ' +
        'copied to all.';
  },
  broadcast(op, step, unit) {
    return `Device 0 gives ${unit || 'its value'} to all others.`;
  },
  scalars(op, step) {
    return op.kind === 'all_reduce' && op.elements === 1 ?
        'One number from each device, summed, so that all know the same: no slices travel.' :
        'A few numbers, no slices: each device’s sum of squared gradients. Together they are ' +
            'the gradient norm, so that all devices clip alike.';
  },
  norm(op, step) {
    const host =
        onHost(step.run, 'optimizer_states') ? ' (with offload, where the gradients are)' : '';
    return step.run.world > 1 && step.stage > 0 ?
        `Clipping needs the norm of the whole gradient. Each device sums the squares of its own ` +
            `slices${host}; the sums are then shared.` :
        `Clipping needs the norm of the gradient: its squares are summed${host}.`;
  },
  update(op, step, unit) {
    const where = onHost(step.run, 'optimizer_states') ?
        ' This runs on the host’s threads; the new parameters are copied up to the device.' :
        '';
    const states =
        step.run.bytes_per_parameter.optimizer === 12 ? 'master weights, m and v' : 'm and v';
    if (!sharded(step.run, 'optimizer_states')) {
      return `AdamW updates ${unit}` +
          (step.world > 1 ? `: the same work, ${step.world} times, once on every device.` : '.') +
          where;
    }
    const after = sharded(step.run, 'parameters') ?
        'No collective follows: the next forward gathers what it needs.' :
        'Its other slices are out of date from now on (pale), until the next forward gathers them.';
    return `AdamW updates ${unit}: every device its own slice only, for which alone it keeps ` +
        `${states}. ${after}${where}`;
  },
  copy(op, step, unit) {
    const texts = {
      batch: 'The tokens of this micro-batch come from the host.',
      results: 'The loss and the state of the step go to the host, to be shown.',
      gradients: `Each device’s own part of the summed gradient of ${
                     unit} goes down to its host side, where ` +
          'the optimizer is. Backward goes on meanwhile.',
      parameters: `Updated parameters of ${unit} come up from the host side, while the host’s ` +
          'threads update the next bucket.',
      checkpoint: op.stream === 'to_host' ?
          `The checkpoint of ${unit} goes down to the host side: its slot on the device is free ` +
              'for a later block.' :
          `The checkpoint of ${unit} comes back, one block ahead of its backward.`,
      squares: 'Sums of squared gradients come up, for the gradient norm.',
      state: 'The state of the step (norm, clipping) goes down, for the update on the host.',
    };
    return texts[op.purpose] ?? '';
  },
  freed(op, step, unit) {
    return op.holds === 'gradients' ?
        `The bucket of ${unit} goes back to the pool. The device keeps its own slice of the sum, ` +
            (onHost(step.run, 'gradients') ? 'on the host side.' : 'in its gradient shard.') :
        `The gathered copy of ${unit} goes back to the pool. The device’s own slice stays.`;
  },
};
