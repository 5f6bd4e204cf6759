// SPDX-License-Identifier: Apache-2.0
#include "zero/formulas.h"

namespace zerobox {

namespace {

constexpr int64_t kMasterAndMoments = 12;  // fp32: master weights, m and v

// bytes x elements x numerator / denominator. The denominator need not divide the elements, so it
// is multiplied first, in 128 bits.
int64_t Part(int64_t bytes, int64_t elements, int64_t numerator, int64_t denominator) {
  return static_cast<int64_t>(static_cast<__int128_t>(bytes) * elements * numerator / denominator);
}

}  // namespace

StateWidths WidthsOf(StateTypes types) {
  return {.parameters = SizeOf(types.parameters),
          .gradients = SizeOf(types.gradients),
          .optimizer_states = types.mixed() ? kMasterAndMoments : 8};
}

ModelStateBytes ModelStates(int stage, int64_t elements, int64_t ranks, const StateWidths& widths) {
  const auto kept = [&](int64_t width, int sharded_from_stage) {
    return Part(width, elements, 1, stage >= sharded_from_stage ? ranks : 1);
  };
  return {.parameters = kept(widths.parameters, 3),
          .gradients = kept(widths.gradients, 2),
          .optimizer_states = kept(widths.optimizer_states, 1)};
}

std::array<int64_t, kCollectives> StepTraffic(int stage, int64_t elements, int64_t ranks,
                                              int64_t micro_batches, const StateWidths& widths) {
  const auto sent = [&](int64_t times, int64_t width) {
    return Part(times * width, elements, ranks - 1, ranks);
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

OffloadBytes OptimizerOffload(int stage, int64_t elements, int64_t ranks, int64_t micro_batches,
                              const StateWidths& widths) {
  if (ranks == 1) stage = 0;
  const int64_t owners = stage >= 1 ? ranks : 1;
  const auto owned = [&](int64_t width) { return Part(width, elements, 1, owners); };
  const bool shards_gradients = stage >= 2;
  OffloadBytes bytes;
  bytes.device = ModelStates(stage, elements, ranks, widths);
  bytes.device.optimizer_states = 0;
  if (shards_gradients) bytes.device.gradients = 0;
  bytes.host = {.gradients = owned(widths.gradients), .optimizer_states = owned(kMasterAndMoments)};
  bytes.to_host = owned(widths.gradients * (shards_gradients ? micro_batches : 1));
  bytes.from_host = owned(widths.parameters);
  return bytes;
}

}  // namespace zerobox
