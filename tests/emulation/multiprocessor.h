// SPDX-License-Identifier: Apache-2.0
//
// What runs a grid: one block at a time, its threads as fibers. Internal to the emulator;
// tests/emulation/simt.h says what it promises.
#ifndef ZEROBOX_TESTS_EMULATION_MULTIPROCESSOR_H_
#define ZEROBOX_TESTS_EMULATION_MULTIPROCESSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulation/access_checker.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/primitives.h"
#include "tests/emulation/shared_memory.h"
#include "tests/emulation/simt.h"

namespace zerobox::simt {

constexpr int kLanes = 32;

class Multiprocessor {
 public:
  // Each OS thread has one.
  static Multiprocessor& OfThisThread();

  void Run(const KernelLaunch& launch);

  // For device code, on a fiber.
  int Barrier(simt::Barrier kind, bool predicate, Site site);
  void Collective(uint32_t lanes, simt::Collective kind, CollectiveArguments& arguments, Site site);
  SharedMemory& shared_memory() { return shared_memory_; }
  CopyQueue& copies() { return copies_[current_thread->number]; }
  // Reports what `describe` returns, with the current thread's name, and gives the block up: its
  // threads stay where they are for ever, so that nothing on their stacks is freed.
  template <typename Describe>
  [[noreturn]] void Stop(Describe describe) {
    ReportAbout(current_thread->number, describe());
    GiveUp();
  }

  Instant Now() const { return InstantOf(current_thread->number); }
  // Whether memory is the running thread's own.
  bool IsLocal(const void* memory) const { return running_->Contains(memory); }

 private:
  enum class State : uint8_t { kNotStarted, kReady, kWaiting, kDone };
  struct ThreadState {
    State state = State::kNotStarted;
    Fiber* fiber = nullptr;
    Site site = {"", 0};  // where it waits
  };
  // A collective that some of its lanes wait in.
  struct Rendezvous {
    uint32_t lanes = 0, arrived = 0;  // lanes 0: unused
    simt::Collective kind = simt::Collective::kSyncWarp;
    Site site = {"", 0};
    std::array<CollectiveArguments*, kLanes> arguments = {};
  };
  struct Warp {
    uint32_t alive = 0;  // lanes that exist and did not exit
    uint16_t barriers = 0;
    std::array<Rendezvous, 4> pending;
  };
  struct BarrierState {
    uint32_t arrived = 0;
    simt::Barrier kind = simt::Barrier::kPlain;
    Site site = {"", 0};
    uint32_t count = 0;  // of true predicates
    int result = 0;      // of the last barrier that everyone reached
    std::vector<uint32_t> waiting;
  };

  void BeginGrid(const KernelLaunch& launch);
  void BeginBlock(uint64_t number);
  void RunBlock();
  void EndBlock();
  uint64_t BlockInOrder(uint64_t i, uint64_t blocks) const;

  // The scheduler: threads that could run, in the order in which they became so.
  void MakeReady(uint32_t thread);
  static constexpr int kNone = -1;
  int TakeReady();
  void Wait(Site site);  // lets others run until the current thread is ready and taken
  void Enter(int thread);
  Fiber& FreeFiber();
  void SwitchTo(Fiber& fiber);
  static void FiberMain();
  void RunThreadsUntilOneWaits();
  void ExitThread();
  uint32_t RandomBelow(uint32_t n);

  void ReleaseBarrier();
  Rendezvous& MeetingFor(uint32_t lanes, simt::Collective kind, Site site);
  void Perform(const Rendezvous& meeting, uint32_t first_thread);
  void Shuffle(const Rendezvous& meeting, uint32_t first_thread);
  void LdMatrix(const Rendezvous& meeting, uint32_t first_thread);

  [[noreturn]] void GiveUp();
  void ReportAbout(uint32_t thread, const std::string& what) const;
  Instant InstantOf(uint32_t thread) const;
  std::string NameOf(uint32_t thread) const;
  std::string DeadlockReport() const;

  const KernelLaunch* launch_ = nullptr;
  BlockPosition position_;
  uint64_t random_ = 1;
  std::vector<Thread> threads_;
  std::vector<ThreadState> states_;
  std::vector<CopyQueue> copies_;
  std::vector<Warp> warps_;
  uint32_t alive_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> ready_;
  size_t first_ready_ = 0;
  BarrierState barrier_;
  SharedMemory shared_memory_;

  Fiber scheduler_;  // the OS thread's stack, in Run
  Fiber* running_ = &scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;

  uint32_t launches_ = 0;
  uint32_t block_number_ = 0;
  uint32_t block_barriers_ = 0;
};

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_MULTIPROCESSOR_H_
