// SPDX-License-Identifier: Apache-2.0
//
// The seam between the emulator and what watches every access to memory (tests/emulation/race.h),
// which only one of the builds has: in the others nothing is set here and nothing is watched.
#ifndef ZEROBOX_TESTS_EMULATION_ACCESS_CHECKER_H_
#define ZEROBOX_TESTS_EMULATION_ACCESS_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace zerobox::simt {

enum class MemoryKind : uint8_t { kShared, kDevice, kPinned };
enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

// Which CUDA thread, and after how many barriers: all that decides whether two accesses of one grid
// are ordered.
struct Instant {
  uint32_t launch = 0;         // counted on this OS thread
  uint32_t block = 0;          // its number in the grid
  uint32_t block_barrier = 0;  // barriers of the block so far, from a start that no other block has
  uint16_t thread = 0;         // its number in the block
  uint16_t warp_barrier = 0;   // __syncwarp()s of its warp so far
};

class AccessChecker {
 public:
  virtual ~AccessChecker() = default;
  // Watches [memory, memory + bytes), which nobody wrote yet, until Forget.
  virtual void Watch(const void* memory, size_t bytes, MemoryKind kind) = 0;
  virtual void Forget(const void* memory) = 0;
  // An access by device code at `code`, or by the emulator in its name.
  virtual void Access(const Instant& who, const void* memory, size_t bytes, AccessKind kind,
                      const void* code) = 0;
  // One by an operation of a stream that is no kernel (a copy, a collective), or by the host.
  virtual void HostAccess(const void* memory, size_t bytes, AccessKind kind) = 0;

  // For a runtime with streams. Accesses of this OS thread are by stream operation `number` (0:
  // none, which is ordered with everything) from now on.
  virtual void SetOperation(uint32_t number) = 0;
  // Whether an operation is ordered before another, by streams and events; and its name.
  virtual void SetStreamOrder(bool (*happens_before)(uint32_t, uint32_t),
                              std::string (*name)(uint32_t)) = 0;
};

// Null where no checker is linked.
AccessChecker* access_checker();
void SetAccessChecker(AccessChecker* checker);

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_ACCESS_CHECKER_H_
