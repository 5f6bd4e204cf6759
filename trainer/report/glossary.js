// SPDX-License-Identifier: Apache-2.0
//
// The words of this page, for someone who meets them here.

const GLOSSARY = [
  [
    'device, N',
    'A GPU, or a part of one machine that plays its role; a run has N of them. Each ' +
        'works on sequences of its own.'
  ],
  ['Ψ', 'The number of the model’s parameters.'],
  [
    'unit',
    'What is gathered, reduced and freed together: a block of the transformer, or “the ' +
        'ends”: token and position embedding and final norm.'
  ],
  [
    'slice (shard)',
    'An N-th of a unit. Device k owns slice k of every unit. To shard is to keep ' +
        'one’s own slices only.'
  ],
  ['all-gather', 'Each device gives its own slice to all others; then all have the whole.'],
  ['reduce-scatter', 'Slices of all devices are summed; device k gets slice k of the sum.'],
  [
    'all-reduce',
    'Values of all devices are summed and every device gets the whole sum: a ' +
        'reduce-scatter and then an all-gather, so it sends as much as both.'
  ],
  ['collective', 'Any of these: all devices take part, so it waits for the last to come.'],
  ['bucket', 'A buffer of constant size for gradients on their way to a reduce-scatter.'],
  ['lookup', 'The first layer: it reads the row of the embedding that belongs to each token.'],
  [
    'head',
    'The last layer: it makes a prediction of the next token. Its weights are the token ' +
        'embedding’s, used a second time.'
  ],
  [
    'optimizer states',
    'What AdamW keeps for each parameter: two moving averages, m and v, and ' +
        'with bf16 the master weights, an fp32 copy of the parameters that is updated.'
  ],
  [
    'micro-batch',
    'A part of a device’s batch. The gradients of all micro-batches of a step are ' +
        'added up before the update.'
  ],
  ['activations', 'Results of forward that backward needs. ZeRO does not shard them.'],
];

const glossary = () =>
    el('details', {}, el('summary', {}, 'Words of this page'),
       el('dl', {class: 'stages'},
          ...GLOSSARY.map(
              ([word, meaning]) =>
                  el('div', {class: 'stage-row'}, el('dt', {}, el('b', {}, word)),
                     el('dd', {}, meaning)))));
