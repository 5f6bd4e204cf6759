// SPDX-License-Identifier: Apache-2.0
#include "zero/formulas.h"

namespace zerobox {

StateWidths WidthsOf(DType dtype) {
  if (dtype == DType::kBFloat16) return {.parameters = 2, .gradients = 2, .optimizer_states = 12};
  return {.parameters = 4, .gradients = 4, .optimizer_states = 8};
}

ModelStateBytes ModelStates(int stage, int64_t elements, int64_t ranks, const StateWidths& widths) {
  const auto kept = [&](int64_t width, int sharded_from_stage) {
    return width * (stage >= sharded_from_stage ? elements / ranks : elements);
  };
  return {.parameters = kept(widths.parameters, 3),
          .gradients = kept(widths.gradients, 2),
          .optimizer_states = kept(widths.optimizer_states, 1)};
}

std::array<int64_t, kCollectives> StepTraffic(int stage, int64_t elements, int64_t ranks,
                                              int64_t micro_batches, const StateWidths& widths) {
  // elements need not be divisible by N: multiply first.
  const auto sent = [&](int64_t times, int64_t width) {
    return static_cast<int64_t>(static_cast<__int128_t>(times) * width * elements * (ranks - 1) /
                                ranks);
  };
  std::array<int64_t, kCollectives> bytes{};
  int64_t& all_gather = bytes[static_cast<int>(Collective::kAllGather)];
  int64_t& reduce_scatter = bytes[static_cast<int>(Collective::kReduceScatter)];
  int64_t& all_reduce = bytes[static_cast<int>(Collective::kAllReduce)];
  switch (stage) {
    case 0:
      all_reduce = sent(2, widths.gradients);
      break;
    case 1:
      reduce_scatter = sent(1, widths.gradients);
      all_gather = sent(1, widths.parameters);
      break;
    case 2:
      reduce_scatter = sent(micro_batches, widths.gradients);
      all_gather = sent(1, widths.parameters);
      break;
    default:
      reduce_scatter = sent(micro_batches, widths.gradients);
      all_gather = sent(2 * micro_batches, widths.parameters);
      break;
  }
  return bytes;
}

}  // namespace zerobox
