// SPDX-License-Identifier: Apache-2.0
//
// Stage 2, P_os+g (arXiv:1910.02054, section 5.2): a rank keeps the gradient of its own 1/N only:
// 2 + 14/N bytes a parameter in mixed precision.
//
// The difference to stage 1: a gradient is whole only in a transient bucket, while backward fills
// it and until its reduce-scatter has left the owned part, which is added to the gradient shard.
// Two bucket buffers of constant size (C_B, section 6.2) are enough whatever the depth: one is
// filled while the other is reduced. No rank keeps a whole gradient, so every micro-batch reduces:
// (m + 1) Psi with m micro-batches instead of 2 Psi.
//
// One exception: a unit that backward visits twice (the ends: the head first, the lookup last)
// keeps its whole gradient in a buffer of its own in between, so that it is reduced only once.
#ifndef ZEROBOX_ZERO_STAGE2_H_
#define ZEROBOX_ZERO_STAGE2_H_

#include <deque>
#include <memory>
#include <vector>

#include "zero/stage1.h"

namespace zerobox {

class Stage2 : public Stage1 {
 public:
  Stage2(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types);
  Buffer Gradient(ParameterId parameter) override;

 protected:
  void AllocateGradients() override;                 // the owned part
  void ReduceBucket(const Bucket& bucket) override;  // reduce-scatter, in every micro-batch
  void JoinReductions() override;

  // Frees memory that compute was the last to use, and that only compute will use next.
  virtual void FreeTransient(const Buffer& buffer);

 private:
  void OpenBucket(const Bucket& bucket);
  void RetireOldest();
  // The owned part of a bucket that is handed to reduce-scatter.
  ReducedGradient Reduced(const Bucket& bucket) const;

  std::vector<bool> visited_twice_;                     // by unit
  int64_t constant_size_ = 0;                           // C_B, in elements: the largest bucket
  int open_buckets_ = 0;                                // buffers of constant size in use: 0, 1, 2
  std::vector<Buffer> buffers_;                         // by bucket, while its gradient is whole
  std::deque<BucketId> in_flight_;                      // handed to reduce-scatter, oldest first
  std::vector<std::unique_ptr<Event>> bucket_reduced_;  // communication -> compute, to_host
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGE2_H_
