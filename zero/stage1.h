// SPDX-License-Identifier: Apache-2.0
//
// Stage 1, P_os (arXiv:1910.02054, section 5.1): a rank keeps the optimizer states of 1/N of the
// parameters and updates only those: 4 + 12/N bytes a parameter instead of 16 in mixed precision.
//
// The difference to stage 0: the gradient is reduce-scattered, since a rank needs the sum of its
// own part only, and after the update the other parts of the parameters are stale. They are
// gathered lazily, a unit at a time, one unit ahead of the next forward pass, so that the gather
// hides behind the compute. Together that sends what the all-reduce did: 2 Psi (section 7.2.1).
#ifndef ZEROBOX_ZERO_STAGE1_H_
#define ZEROBOX_ZERO_STAGE1_H_

#include <memory>
#include <vector>

#include "zero/stage0.h"

namespace zerobox {

class Stage1 : public Stage0 {
 public:
  Stage1(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types);
  Buffer Acquire(const Visit& visit) override;
  void ParametersSet() override;
  OwnedShards Owned() const override { return {data_parallel_.rank(), 1}; }

 protected:
  void ReduceBucket(const Bucket& bucket) override;  // reduce-scatter, in the last micro-batch
  void ParametersChanged() override;

  // All-gathers the unit's parameters where they are stale.
  virtual void Gather(UnitId unit);
  // The unit's parameters once gathered.
  virtual Buffer Whole(UnitId unit) const;

  std::unique_ptr<Event> updated_;  // compute -> communication: the owned part is written
  std::vector<std::unique_ptr<Event>> gathered_;  // communication -> compute: the unit is whole

 private:
  std::vector<bool> stale_;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGE1_H_
