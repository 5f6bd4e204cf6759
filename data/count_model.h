// SPDX-License-Identifier: Apache-2.0
//
// Count models: what counting the tokens that follow each context of 0, 1 or 2 tokens reaches on
// the held-out sequences of a dataset. The yardstick beside a trained model's loss.
#ifndef ZEROBOX_DATA_COUNT_MODEL_H_
#define ZEROBOX_DATA_COUNT_MODEL_H_

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace zerobox {

// Mean loss in nats a token of a count model with `context` (0..2) preceding tokens, fitted on the
// training sequences (of a large corpus, on a random part: 2^17 sequences and about 2^24 tokens at
// most, so that it takes a second or two) and interpolated with the shorter contexts (Witten-Bell),
// on the targets of the given held-out sequences. A target sees only the inputs of its own
// sequence. InvalidArgument when vocabulary^(context + 1), the number of counts kept, is above
// 2^24: at most 256 tokens for context 2 and 4096 for context 1.
absl::StatusOr<double> CountModelLoss(const Dataset& dataset, int64_t sequence_length,
                                      int64_t vocabulary, int context,
                                      std::span<const int64_t> validation_sequences);

}  // namespace zerobox

#endif  // ZEROBOX_DATA_COUNT_MODEL_H_
