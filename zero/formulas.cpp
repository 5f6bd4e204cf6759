// SPDX-License-Identifier: Apache-2.0
#include "zero/formulas.h"

namespace zerobox {

namespace {

constexpr int64_t kMasterAndMoments = 12;  // fp32: master weights, m and v

}  // namespace

StateWidths WidthsOf(StateTypes types) {
  return {.parameters = SizeOf(types.parameters),
          .gradients = SizeOf(types.gradients),
          .optimizer_states = types.mixed() ? kMasterAndMoments : 8};
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

OffloadBytes OptimizerOffload(int stage, int64_t elements, int64_t ranks, int64_t micro_batches,
                              const StateWidths& widths) {
  if (ranks == 1) stage = 0;
  const int64_t owned = stage >= 1 ? elements / ranks : elements;
  const bool shards_gradients = stage >= 2;
  OffloadBytes bytes;
  bytes.device = ModelStates(stage, elements, ranks, widths);
  bytes.device.optimizer_states = 0;
  if (shards_gradients) bytes.device.gradients = 0;
  bytes.host = {.gradients = widths.gradients * owned,
                .optimizer_states = kMasterAndMoments * owned};
  bytes.to_host = widths.gradients * owned * (shards_gradients ? micro_batches : 1);
  bytes.from_host = widths.parameters * owned;
  return bytes;
}

}  // namespace zerobox
