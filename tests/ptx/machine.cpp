// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/machine.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace zerobox::ptx {

Block::Block(const Function& kernel, const Launch& launch, const GlobalMemory& memory)
    : kernel_(kernel), launch_(launch), memory_(memory), threads_(launch.block.Count()) {
  for (Thread& thread : threads_) lanes_.push_back(&thread);
  constexpr size_t kAlignment = 1024;
  shared_bytes_ = kernel.shared_bytes + launch.dynamic_shared_bytes;
  shared_memory_.resize(shared_bytes_ + kAlignment);
  shared_ = shared_memory_.data();
  shared_ += kAlignment - reinterpret_cast<uintptr_t>(shared_) % kAlignment;
}

void Block::Fail(std::string what) {
  if (status_.ok()) status_ = absl::InternalError(what);
}

void Block::Run(Size3 index) {
  index_ = index;
  std::memset(shared_, 0xff, shared_bytes_);
  for (uint32_t i = 0; i < threads_.size(); ++i) threads_[i].Begin(*this, i);
  // A warp runs until all of it waits at the barrier.
  const size_t warps = (threads_.size() + kLanes - 1) / kLanes;
  do {
    for (size_t i = 0; i < warps && status_.ok(); ++i) {
      const size_t first = InOrder(i, warps) * kLanes;
      const size_t count = std::min<size_t>(kLanes, threads_.size() - first);
      RunWarp(std::span(lanes_).subspan(first, count));
    }
  } while (status_.ok() && RunBarrier());
}

void Block::RunWarp(std::span<Thread*> lanes) {
  do {
    for (size_t i = 0; i < lanes.size() && status_.ok(); ++i) {
      lanes[InOrder(i, lanes.size())]->RunUntilItWaits();
    }
  } while (status_.ok() && RunCollective(lanes));
}

// Whether there was one. Threads of the warp wait, if at all, all at the same instruction.
bool Block::RunCollective(std::span<Thread*> lanes) {
  Thread* const first = *std::find_if(lanes.begin(), lanes.end() - 1, [](const Thread* lane) {
    return lane->state() == Thread::State::kWaiting;
  });
  if (first->state() != Thread::State::kWaiting) return false;
  const Instruction& instruction = first->next();
  for (Thread* lane : lanes) {
    if (lane->state() == Thread::State::kDone) {
      first->Stop(absl::StrCat("waits for ", lane->Name(), ", which has ended"));
      return false;
    }
    if (&lane->next() != &instruction) {
      first->Stop(absl::StrCat("is not where ", lane->Name(), " of the same warp waits, line ",
                               lane->next().statement->place.line));
      return false;
    }
  }
  if (instruction.opcode.flow == Flow::kBarrier) return false;
  if (lanes.size() != kLanes) {
    first->Stop("a collective of a warp with fewer than 32 threads");
    return false;
  }
  instruction.opcode.collect(lanes, instruction);
  PassAll(lanes, instruction);
  return status_.ok();
}

void Block::PassAll(std::span<Thread*> lanes, const Instruction& instruction) {
  for (Thread* lane : lanes) {
    lane->MarkOutputs(instruction, true);
    if (status_.ok()) lane->Pass();
  }
}

// Whether all threads waited at it. Warps may do so at different instructions.
bool Block::RunBarrier() {
  const bool all_done = std::all_of(lanes_.begin(), lanes_.end(), [](const Thread* thread) {
    return thread->state() == Thread::State::kDone;
  });
  if (all_done) return false;
  Thread* const waiting = *std::find_if(lanes_.begin(), lanes_.end(), [](const Thread* thread) {
    return thread->state() == Thread::State::kWaiting;
  });
  for (Thread* thread : lanes_) {
    if (thread->state() == Thread::State::kDone) {
      waiting->Stop(absl::StrCat("waits for ", thread->Name(), ", which has ended"));
      return false;
    }
    if (waiting->next().opcode.collect != nullptr && &thread->next() != &waiting->next()) {
      waiting->Stop(absl::StrCat("is not where ", thread->Name(), " waits"));
      return false;
    }
  }
  if (waiting->next().opcode.collect != nullptr)
    waiting->next().opcode.collect(lanes_, waiting->next());
  for (Thread* thread : lanes_) {
    thread->MarkOutputs(thread->next(), true);
    thread->Pass();
  }
  return true;
}

namespace {

absl::Status Check(const Function& kernel, const Launch& launch) {
  if (launch.arguments.size() != kernel.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        launch.arguments.size(), " arguments, where the PTX has ", kernel.parameters.size()));
  }
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    if (launch.arguments[i].size() != kernel.parameters[i].bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument ", i, " has ", launch.arguments[i].size(),
                       " bytes, where the PTX has ", kernel.parameters[i].bytes));
    }
  }
  const int most = kernel.text->most_threads;
  if (most != 0 && launch.block.Count() > static_cast<uint64_t>(most)) {
    return absl::InvalidArgumentError(absl::StrCat(
        launch.block.Count(), " threads in a block, where the PTX has at most ", most));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const Function& kernel, const Launch& launch, const GlobalMemory& memory) {
  if (absl::Status status = Check(kernel, launch); !status.ok()) return status;
  Block block(kernel, launch, memory);
  const uint64_t count = launch.grid.Count();
  for (uint64_t i = 0; i < count && block.status().ok(); ++i) {
    const uint64_t number = launch.reverse ? count - 1 - i : i;
    const Size3 grid = launch.grid;
    block.Run({static_cast<uint32_t>(number % grid.x),
               static_cast<uint32_t>(number / grid.x % grid.y),
               static_cast<uint32_t>(number / (uint64_t{grid.x} * grid.y))});
  }
  return block.status();
}

}  // namespace zerobox::ptx
