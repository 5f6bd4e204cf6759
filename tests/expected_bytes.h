// SPDX-License-Identifier: Apache-2.0
//
// What a run must cost in bytes, from its settings and GPT-2's shapes alone: a second opinion on
// the layout, the stages and the plan, which it uses nothing of.
#ifndef ZEROBOX_TESTS_EXPECTED_BYTES_H_
#define ZEROBOX_TESTS_EXPECTED_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/collectives/communicator.h"
#include "ops/device/memory.h"
#include "trainer/settings.h"

namespace zerobox {

class ExpectedBytes {
 public:
  explicit ExpectedBytes(const TrainSettings& settings);

  // ---- sizes; in elements: ----
  int64_t psi() const { return psi_; }
  int64_t padded() const { return padded_; }
  // ---- in bytes, padding included; of parameters: ----
  int64_t ends() const { return width_ * ends_; }
  int64_t block() const { return width_ * block_; }
  // ---- of gradients: ----
  int64_t constant_size() const { return gradient_width_ * constant_size_; }  // C_B
  // ---- of one block's checkpoint: ----
  int64_t Checkpoint() const;

  // What stays for the whole run: what is live after the last step.
  PerCategory<int64_t> Persistent() const;
  PerCategory<int64_t> PersistentOnHost() const;
  // By category, when the total is at its peak.
  PerCategory<int64_t> AtPeak() const;
  // The most of a category that is live at any one time.
  int64_t ActivationsPeak() const;
  int64_t CheckpointsPeak() const;
  int64_t CommunicationBuffersPeak() const;

  // Of one steady step, one rank.
  Traffic StepTraffic() const;
  int64_t FromHost() const;  // the batches, and what was offloaded
  int64_t ToHost() const;    // the loss and the step's state, and what is offloaded

  // Of all activations that one micro-batch's forward pass keeps without checkpointing.
  int64_t ForwardActivations() const;

 private:
  struct Bucket {
    int64_t elements;  // padded
    int first, last;   // parameters of its unit
  };
  // A moment in backward at which the total may peak.
  struct Moment {
    std::string what;
    int64_t activations;
    int64_t checkpoints;
    int64_t buffers;
    int64_t sum() const { return activations + checkpoints + buffers; }
  };

  std::vector<Bucket> Cut(const std::vector<int64_t>& parameters) const;
  int64_t Activations(const std::vector<int64_t>& tensors) const;
  int64_t Statistics(const std::vector<int64_t>& tensors) const;
  int64_t BlockActivations() const;
  int64_t Recomputed() const;
  int64_t FinalNorm() const;
  int64_t HeadBackward() const;
  int64_t Slots() const;
  int64_t OffloadedCheckpoints() const;
  std::vector<Moment> Moments() const;
  int64_t EndsGradient(bool lookup, bool norm_retired) const;
  int64_t Owned() const;
  int64_t LargestOwnedPart() const;

  const TrainSettings settings_;
  const int64_t n_;
  const int stage_;                       // 0 on one rank
  const int64_t width_, gradient_width_;  // bytes of a parameter or an activation; of a gradient
  std::vector<Bucket> ends_buckets_, block_buckets_;
  int64_t psi_ = 0, padded_ = 0, ends_ = 0, block_ = 0, constant_size_ = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_EXPECTED_BYTES_H_
