// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/virtual_group.h"

#include "ops/collectives/plan_communicator.h"

namespace zerobox::cuda {
namespace {

class VirtualGroup final : public Group {
 public:
  explicit VirtualGroup(int size) : size_(size) {}
  std::unique_ptr<Communicator> Join(int rank, Device&) override {
    return std::make_unique<PlanCommunicator>(rank, size_);
  }

 private:
  const int size_;
};

}  // namespace

std::unique_ptr<Group> MakeVirtualGroup(int size, CallHook, Abort&) {
  return std::make_unique<VirtualGroup>(size);
}

}  // namespace zerobox::cuda
