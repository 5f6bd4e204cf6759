// SPDX-License-Identifier: Apache-2.0
//
// What ZeRO promises, as formulas of Psi (parameters), N (data-parallel ranks) and m (micro-batches
// per step): arXiv:1910.02054, sections 5 (memory) and 7 (communication), and ZeRO-Offload,
// arXiv:2101.06840, section 4.1. They know nothing of the layout; a run is held against them.
#ifndef ZEROBOX_ZERO_FORMULAS_H_
#define ZEROBOX_ZERO_FORMULAS_H_

#include <array>
#include <cstdint>

#include "ops/collectives/communicator.h"
#include "zero/state_types.h"

namespace zerobox {

// Bytes a parameter of each kind of model state.
struct StateWidths {
  int64_t parameters = 4;
  int64_t gradients = 4;
  int64_t optimizer_states = 8;  // fp32: m and v; mixed precision: master, m and v, K = 12
};
// fp32: 4 + 4 + 8; bf16: 2 + 2 + 12, or 2 + 4 + 12 with gradients in fp32.
StateWidths WidthsOf(StateTypes types);

struct ModelStateBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_states = 0;
  int64_t total() const { return parameters + gradients + optimizer_states; }
};

// Model states that one rank keeps (section 5.4, figure 1): whole or 1/N of each kind.
//   stage 0: everything whole             stage 1 (P_os): optimizer states 1/N
//   stage 2 (P_os+g): and gradients 1/N   stage 3 (P_os+g+p): and parameters 1/N
// `elements` is Psi, or Psi + padding, which N divides. With one rank every stage is stage 0.
ModelStateBytes ModelStates(int stage, int64_t elements, int64_t ranks, const StateWidths& widths);

// Bytes that one rank sends in one step, by collective, (N-1)/N of the elements times:
//   stage 0: all-reduce 2            stage 1: reduce-scatter 1, all-gather 1
//   stage 2: reduce-scatter m, all-gather 1
//   stage 3: reduce-scatter m, all-gather 2m (before each forward and each backward pass)
std::array<int64_t, kCollectives> StepTraffic(int stage, int64_t elements, int64_t ranks,
                                              int64_t micro_batches, const StateWidths& widths);

// ZeRO-Offload: the optimizer's states, with gradients and master weights of what a rank owns, are
// on the host side; parameters, and what the stage itself keeps of gradients, stay on the device.
//   owned: everything at stage 0, so N equal copies of the host side are kept; else 1/N
//   host: gradients 1, and 12 bytes for master weights (in fp32 training too), m and v
//   device: stages 0 and 1 keep whole gradients, which backward adds to; 2 and 3 none
//   to the host, a step: the owned gradients, once; at stages 2 and 3 of every micro-batch
//   from the host, a step: the owned parameters
struct OffloadBytes {
  ModelStateBytes device;
  ModelStateBytes host;
  int64_t to_host = 0;
  int64_t from_host = 0;
};
OffloadBytes OptimizerOffload(int stage, int64_t elements, int64_t ranks, int64_t micro_batches,
                              const StateWidths& widths);

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_FORMULAS_H_
