// SPDX-License-Identifier: Apache-2.0
//
// Stage 3, P_os+g+p (arXiv:1910.02054, section 5.3): a rank keeps 1/N of the parameters too, and of
// everything: 16/N bytes a parameter in mixed precision.
//
// The difference to stage 2: the others' parts of the parameters are dropped after every use, where
// in stages 1 and 2 they go stale after every step. Acquire gathers a unit into transient memory,
// one unit ahead as before, and Release gives the memory back; so Gather asks whether a unit is
// there (whole_), not whether it is stale. At most the ends, the unit in use and the one fetched
// ahead are whole at once. The unit is gathered again for backward: 3 Psi (section 7.2.2), less
// what the step program keeps in between.
#ifndef ZEROBOX_ZERO_STAGE3_H_
#define ZEROBOX_ZERO_STAGE3_H_

#include <memory>
#include <vector>

#include "zero/stage2.h"

namespace zerobox {

class Stage3 final : public Stage2 {
 public:
  Stage3(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types);
  void AllocateParameters() override;  // the owned part
  void Release(const Visit& visit) override;
  Held Parameters(const Bucket& bucket) const override;  // the owned part

 protected:
  void Gather(UnitId unit) override;
  Buffer Whole(UnitId unit) const override { return whole_[unit]; }
  // The next to use the memory may be a gather.
  void FreeTransient(const Buffer& buffer) override;

 private:
  std::unique_ptr<Event> transient_free_;  // compute -> communication: freed memory may be written
  std::vector<Buffer> whole_;              // by unit, while it is gathered
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_STAGE3_H_
