// SPDX-License-Identifier: Apache-2.0
//
// The machine that runs a kernel's PTX: block after block, each thread until it ends or waits for
// others, at a barrier or in a collective of its warp. As in the emulator (tests/emulation/simt.h),
// what CUDA does not promise goes wrong here: shared and local memory is NaN at first, cp.async
// copies when its wait makes it, and one warp runs as far ahead of the others as barriers allow.
#ifndef ZEROBOX_TESTS_PTX_MACHINE_H_
#define ZEROBOX_TESTS_PTX_MACHINE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/memory.h"
#include "tests/ptx/program.h"

namespace zerobox::ptx {

constexpr int kLanes = 32;

struct Size3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t Count() const { return uint64_t{x} * y * z; }
};

struct Launch {
  Size3 grid, block;
  size_t dynamic_shared_bytes = 0;
  std::vector<std::string> arguments;  // the bytes of each
  bool reverse = false;                // blocks, warps and lanes from the last to the first
};

// Runs the kernel to its end, or to the first error, which says where and what.
absl::Status Run(const Function& kernel, const Launch& launch, const GlobalMemory& memory);

class Block;

class Thread {
 public:
  void Begin(Block& block, uint32_t number);

  // For instructions: their inputs and outputs, by number.
  template <typename T>
  T Input(const Instruction& instruction, int k) const {
    const uint64_t bits = registers_[instruction.operands[instruction.outputs + k]];
    if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    } else if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<double>(bits);
    } else if constexpr (std::is_same_v<T, bool>) {
      return (bits & 1) != 0;
    } else {
      return static_cast<T>(bits);
    }
  }
  template <typename T>
  void SetOutput(const Instruction& instruction, int k, T value) {
    uint64_t& bits = registers_[instruction.operands[k]];
    if constexpr (std::is_same_v<T, float>) {
      bits = std::bit_cast<uint32_t>(value);
    } else if constexpr (std::is_same_v<T, double>) {
      bits = std::bit_cast<uint64_t>(value);
    } else if constexpr (std::is_same_v<T, bool>) {
      bits = value ? 1 : 0;
    } else {
      bits = static_cast<std::make_unsigned_t<T>>(value);
    }
  }
  bool IsInputSet(const Instruction& instruction, int k) const {
    return is_set_[instruction.operands[instruction.outputs + k]] != 0;
  }
  void MarkOutputs(const Instruction& instruction, bool are_set) {
    for (int k = 0; k < instruction.outputs; ++k) is_set_[instruction.operands[k]] = are_set;
  }

  // Where the bytes at `address` are on the host; null, after Stop, unless they are all in memory
  // of this space and the address is a multiple of `bytes`.
  char* Find(Space space, uint64_t address, size_t bytes);

  // The end of everything, for this reason. The instruction then still has to return.
  void Stop(const std::string& what);

  // cp.async: zeros unless `from` is given. Until the copy is waited for, its target is NaN.
  void CopyAsync(char* to, const char* from, size_t read_bytes, size_t bytes);
  void CommitCopies();
  void WaitForCopies(size_t groups_left);

  bool carry = false;  // the condition code's carry flag

  // For the machine.
  enum class State : uint8_t { kReady, kWaiting, kDone };
  State state() const { return state_; }
  // Runs until the thread ends, waits or is stopped.
  void RunUntilItWaits();
  const Instruction& next() const { return frames_[depth_ - 1].function->code[next_]; }
  void Pass() {  // what it waited at
    ++next_;
    state_ = State::kReady;
  }
  std::string Name() const;

 private:
  struct Frame {
    const Function* function = nullptr;
    size_t next = 0;
    std::vector<uint64_t> registers;
    std::vector<uint8_t> is_set;
    std::vector<char> parameters;
    size_t local_begin = 0;
  };
  struct Copy {
    char* to;
    std::string bytes;
  };

  void Enter(const Function& function);
  void Call(const ptx::Call& call);
  void Return();
  void Use(const Frame& frame);
  uint64_t ValueOf(Special special) const;
  void Step(const Instruction& instruction);
  bool AreInputsSet(const Instruction& instruction) const;
  void StepWithUnset(const Instruction& instruction);

  Block* block_ = nullptr;
  uint32_t number_ = 0;
  State state_ = State::kReady;
  // Of the innermost frame.
  uint64_t* registers_ = nullptr;
  uint8_t* is_set_ = nullptr;
  size_t next_ = 0;
  std::vector<Frame> frames_;  // kept for the next block, hence
  size_t depth_ = 0;           // those in use
  std::vector<char> local_;
  std::vector<Copy> open_copies_;
  std::vector<std::vector<Copy>> copy_groups_;
};

// A block while it runs.
class Block {
 public:
  Block(const Function& kernel, const Launch& launch, const GlobalMemory& memory);
  void Run(Size3 index);
  const absl::Status& status() const { return status_; }

  // For threads.
  const Function& kernel() const { return kernel_; }
  const Launch& launch() const { return launch_; }
  Size3 index() const { return index_; }
  const GlobalMemory& memory() const { return memory_; }
  std::span<char> shared() { return {shared_, shared_bytes_}; }
  void Fail(std::string what);

 private:
  void RunWarp(std::span<Thread*> lanes);
  bool RunCollective(std::span<Thread*> lanes);
  void PassAll(std::span<Thread*> lanes, const Instruction& instruction);
  bool RunBarrier();
  size_t InOrder(size_t i, size_t count) const { return launch_.reverse ? count - 1 - i : i; }

  const Function& kernel_;
  const Launch& launch_;
  const GlobalMemory& memory_;
  Size3 index_;
  std::vector<Thread> threads_;
  std::vector<Thread*> lanes_;  // all threads, warp by warp
  std::vector<char> shared_memory_;
  char* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  absl::Status status_;
};

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_MACHINE_H_
