// SPDX-License-Identifier: Apache-2.0
//
// The memory of one device: a pool that is reserved once, and a ledger of what it is used for.
//
// The pool is laid out in regions by lifetime, so that long-lived and short-lived allocations never
// interleave and fragmentation cannot arise (M_D in ZeRO, arXiv:1910.02054, section 6.3). A pool
// without memory behind it only counts: a run is planned by walking its real step program against
// such a pool, and the real pool is then reserved with the high-water mark of every region.
// Allocation is a pure function of the sequence of calls, so the walk and the run agree to the
// byte.
#ifndef ZEROBOX_OPS_DEVICE_MEMORY_H_
#define ZEROBOX_OPS_DEVICE_MEMORY_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "ops/device/buffer.h"

namespace zerobox {

// What memory is used for. The names are those of memory.json and of the tables.
enum class Category : uint8_t {
  kParameters,
  kGradients,
  kOptimizerStates,  // fp32 master weights included
  kActivations,
  kActivationCheckpoints,
  kCommunicationBuffers,  // gathered units, whole transient gradients, landing buffers
  kWorkspace,
};
inline constexpr int kCategories = 7;
std::string_view Name(Category category);

// How long memory is used.
enum class Region : uint8_t {
  kPersistent,   // from set-up to the end; never freed before
  kCheckpoints,  // a stack: freed in reverse order of allocation
  kActivations,  // a stack: freed in reverse order of allocation
  kTransient,    // first fit, by offset
};
inline constexpr int kRegions = 4;
std::string_view Name(Region region);
using RegionBytes = std::array<int64_t, kRegions>;

// Every allocation is rounded up to this, and the rounding is counted in its category.
inline constexpr int64_t kAllocationAlignment = 128;
constexpr int64_t AllocatedBytes(int64_t bytes) {
  return (bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
}

// Rounds each region up to whole allocations; returns their sum.
int64_t RoundUpRegions(RegionBytes& regions);

template <typename T>
using PerCategory = std::array<T, kCategories>;

// Live bytes by category, and what they were when the total was at its peak. At every moment the
// categories sum to the total.
struct Ledger {
  PerCategory<int64_t> live{};
  PerCategory<int64_t> peak{};     // each category's own maximum
  PerCategory<int64_t> at_peak{};  // sums to peak_bytes
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;

  void Add(Category category, int64_t bytes);  // negative: freed
};

// Sees the life of every allocation; see ops/device/recorder.h.
class Recorder;

// Used by the worker thread of its device only; allocations take effect in the order in which the
// worker enqueues work, and whoever reuses memory from another stream waits for the event that says
// it is free.
class MemoryPool {
 public:
  // A pool that only counts: as large as needed, addresses that may not be followed.
  MemoryPool();
  // A pool in [base, base + sum of regions), not owned. `base` is aligned to kAllocationAlignment.
  MemoryPool(std::byte* base, const RegionBytes& regions);
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // ResourceExhausted when the region is full: the message names label, category, wanted and free.
  // No elements: an empty buffer that occupies nothing and need not be freed.
  absl::StatusOr<Buffer> Allocate(Region region, Category category, DType dtype, int64_t elements,
                                  std::string_view label);
  // `buffer` is exactly what Allocate returned. In the stack regions it must be the newest. Null
  // (what Device::Allocate returns on failure) is ignored.
  void Free(const Buffer& buffer);

  const Ledger& ledger() const { return ledger_; }
  // The high-water mark of each region: what a real pool must reserve to repeat the same calls.
  const RegionBytes& high_water() const { return high_water_; }

  // From now on every allocation is filled with bytes that read as NaN in every float type, and
  // `poisoned_bytes` counts them, alignment included. For tests: nothing may depend on fresh
  // memory. Only where the host may write to the memory. The worker writes at the call, so with
  // poison on, the streams that used the memory before must be done with it by then as the worker
  // sees it.
  void PoisonFreshMemory() { poison_ = true; }
  int64_t poisoned_bytes() const { return poisoned_bytes_; }

  void set_recorder(Recorder* recorder, int rank) {
    recorder_ = recorder;
    rank_ = rank;
  }

 private:
  struct Block {
    Region region;
    Category category;
    int64_t bytes;  // rounded up
  };
  using Blocks = std::map<uintptr_t, Block>;  // live, by address; regions do not overlap

  uintptr_t Begin(Region region) const { return begin_[static_cast<size_t>(region)]; }
  // The first block at or after the region's begin, and behind its last.
  std::pair<Blocks::const_iterator, Blocks::const_iterator> BlocksOf(Region region) const;
  // Where `bytes` fit: for kTransient the first hole, else behind the last block; without regard to
  // the region's end.
  uintptr_t FindAddress(Region region, int64_t bytes) const;
  int64_t LargestHole(Region region) const;

  std::array<uintptr_t, kRegions> begin_{};
  RegionBytes capacity_{};
  RegionBytes high_water_{};
  Blocks blocks_;
  Ledger ledger_;
  bool poison_ = false;
  int64_t poisoned_bytes_ = 0;
  Recorder* recorder_ = nullptr;
  int rank_ = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_MEMORY_H_
