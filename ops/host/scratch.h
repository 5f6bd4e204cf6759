// SPDX-License-Identifier: Apache-2.0
//
// Working memory of a host kernel.
#ifndef ZEROBOX_OPS_HOST_SCRATCH_H_
#define ZEROBOX_OPS_HOST_SCRATCH_H_

#include <cstddef>
#include <new>

#include "hwy/aligned_allocator.h"

namespace zerobox::host {

// Floats that one kernel on one thread works in: make it static thread_local. It grows to the
// largest call and stays, so that no call pays for fresh pages twice.
class Scratch {
 public:
  // n floats, aligned for every vector, with whatever values. Ends what earlier calls returned.
  // Throws std::bad_alloc like a standard container.
  float* Floats(size_t n) {
    if (n > size_) {
      memory_.reset();
      size_ = 0;
      memory_ = hwy::AllocateAligned<float>(n);
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = n;
    }
    return memory_.get();
  }

 private:
  size_t size_ = 0;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
};

}  // namespace zerobox::host

#endif  // ZEROBOX_OPS_HOST_SCRATCH_H_
