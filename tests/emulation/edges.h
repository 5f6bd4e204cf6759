// SPDX-License-Identifier: Apache-2.0
//
// What becomes of training on GPUs when a wait for an event is left out: of one rank or several.
#ifndef ZEROBOX_TESTS_EMULATION_EDGES_H_
#define ZEROBOX_TESTS_EMULATION_EDGES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/emulation/fake_runtime.h"
#include "trainer/settings.h"

namespace zerobox {

// What a run comes to, to the bit, rank by rank: its losses, its gradient norms, its parameters.
struct EdgesOutcome {
  absl::Status status;
  std::vector<std::vector<uint64_t>> bits;
  std::vector<std::string> reports;  // of the fakes
};

// Two steps of settings.grad_accum micro-batches of one sequence each, reading the parameters, an
// evaluation, on every rank. The worker waits for the GPU only after both steps, so that nothing
// but events orders the end of the first and the beginning of the second. `correct` is what the
// steps should come to: where they do not, the run ends there with an error. `edges` (or null)
// receives every edge that the run has, as drop_wait names them.
EdgesOutcome RunEdges(const TrainSettings& settings, fake_cuda::Policy policy,
                      const std::string& drop_wait, const EdgesOutcome* correct,
                      std::set<std::string>* edges = nullptr);

// Every edge of `settings` is in one of the two sets. The run without one of `needed` is another
// one, or is reported, under some policy; without one of `covered`, of which others happen to order
// as much, it is not.
void ExpectEveryMissingWaitIsFound(const TrainSettings& settings,
                                   const std::set<std::string>& needed,
                                   const std::set<std::string>& covered);

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EMULATION_EDGES_H_
