// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/ptx/machine.h"

namespace zerobox::ptx {

//---- Frames -------------------------------------------------------------------------------------

void Thread::Begin(Block& block, uint32_t number) {
  block_ = &block;
  number_ = number;
  state_ = State::kReady;
  depth_ = 0;
  local_.clear();
  open_copies_.clear();
  copy_groups_.clear();
  carry = false;
  const Function& kernel = block.kernel();
  Enter(kernel);
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const std::string& bytes = block.launch().arguments[i];
    std::copy(bytes.begin(), bytes.end(),
              frames_[0].parameters.begin() + static_cast<ptrdiff_t>(kernel.parameters[i].offset));
  }
}

void Thread::Enter(const Function& function) {
  if (depth_ > 0) frames_[depth_ - 1].next = next_;
  if (frames_.size() == depth_) frames_.emplace_back();
  Frame& frame = frames_[depth_++];
  frame.function = &function;
  frame.next = 0;
  frame.registers = function.registers;
  frame.is_set = function.is_set;
  frame.parameters.assign(function.parameter_bytes, '\xff');
  frame.local_begin = (local_.size() + 15) / 16 * 16;
  local_.resize(frame.local_begin + function.local_bytes, '\xff');
  for (const auto& special : function.specials)
    frame.registers[special.number] = ValueOf(special.which);
  for (const auto& local : function.locals)
    frame.registers[local.number] = frame.local_begin + local.offset;
  Use(frame);
}

void Thread::Use(const Frame& frame) {
  registers_ = const_cast<uint64_t*>(frame.registers.data());
  is_set_ = const_cast<uint8_t*>(frame.is_set.data());
  next_ = frame.next;
}

void Thread::Call(const ptx::Call& call) {
  ++next_;  // where the callee returns to
  Enter(*call.callee);
  const Frame& caller = frames_[depth_ - 2];
  Frame& callee = frames_[depth_ - 1];
  for (const Passed& passed : call.arguments) {
    std::memcpy(&callee.parameters[passed.callee_offset], &caller.parameters[passed.caller_offset],
                passed.bytes);
  }
}

void Thread::Return() {
  if (--depth_ == 0) {
    state_ = State::kDone;
    return;
  }
  const Frame& callee = frames_[depth_];
  Frame& caller = frames_[depth_ - 1];
  const Instruction& call = caller.function->code[caller.next - 1];
  for (const Passed& passed : caller.function->calls[static_cast<size_t>(call.immediate)].results) {
    std::memcpy(&caller.parameters[passed.caller_offset], &callee.parameters[passed.callee_offset],
                passed.bytes);
  }
  local_.resize(callee.local_begin);
  Use(caller);
}

uint64_t Thread::ValueOf(Special special) const {
  const Size3 grid = block_->launch().grid, block = block_->launch().block, index = block_->index();
  switch (special) {
    case Special::kThreadX:
      return number_ % block.x;
    case Special::kThreadY:
      return number_ / block.x % block.y;
    case Special::kThreadZ:
      return number_ / (block.x * block.y);
    case Special::kBlockX:
      return index.x;
    case Special::kBlockY:
      return index.y;
    case Special::kBlockZ:
      return index.z;
    case Special::kThreadsX:
      return block.x;
    case Special::kThreadsY:
      return block.y;
    case Special::kThreadsZ:
      return block.z;
    case Special::kBlocksX:
      return grid.x;
    case Special::kBlocksY:
      return grid.y;
    case Special::kBlocksZ:
      return grid.z;
    case Special::kLane:
      return number_ % kLanes;
    case Special::kWarp:
      return number_ / kLanes;
  }
  return 0;
}

//---- Instructions -------------------------------------------------------------------------------

void Thread::RunUntilItWaits() {
  while (state_ == State::kReady) {
    const Frame& frame = frames_[depth_ - 1];
    const Instruction& instruction = frame.function->code[next_];
    const Flow flow = instruction.opcode.flow;
    if (instruction.guard >= 0) {
      if (is_set_[instruction.guard] == 0) return Stop("nothing has set its guard");
      if (((registers_[instruction.guard] & 1) != 0) == instruction.is_guard_negated) {
        if (flow == Flow::kWarp || flow == Flow::kBarrier)
          return Stop("its guard leaves out this thread, for which others wait");
        ++next_;
        continue;
      }
    }
    switch (flow) {
      case Flow::kNext:
        Step(instruction);
        break;
      case Flow::kBranch:
        next_ = static_cast<size_t>(instruction.immediate);
        break;
      case Flow::kCall:
        Call(frame.function->calls[static_cast<size_t>(instruction.immediate)]);
        break;
      case Flow::kReturn:
        Return();
        break;
      case Flow::kWarp:
      case Flow::kBarrier:
        if (!AreInputsSet(instruction)) return StepWithUnset(instruction);
        state_ = State::kWaiting;
        break;
    }
  }
}

bool Thread::AreInputsSet(const Instruction& instruction) const {
  uint8_t all = 1;
  const uint32_t* const inputs = instruction.operands.data() + instruction.outputs;
  for (int k = 0; k < instruction.inputs; ++k) all &= is_set_[inputs[k]];
  return all != 0;
}

void Thread::Step(const Instruction& instruction) {
  if (AreInputsSet(instruction)) [[likely]] {
    instruction.opcode.execute(*this, instruction);
    MarkOutputs(instruction, true);
  } else {
    StepWithUnset(instruction);
  }
  ++next_;
}

void Thread::StepWithUnset(const Instruction& instruction) {
  switch (instruction.opcode.unset) {
    case Unset::kSpreads:
      instruction.opcode.execute(*this, instruction);
      return MarkOutputs(instruction, false);
    case Unset::kSelect: {
      constexpr int kPredicate = 2;
      const bool chosen = IsInputSet(instruction, Input<bool>(instruction, kPredicate) ? 0 : 1);
      instruction.opcode.execute(*this, instruction);
      return MarkOutputs(instruction, chosen && IsInputSet(instruction, kPredicate));
    }
    case Unset::kLogic: {
      // Whether an input that is set decides alone: then the other may be both.
      const auto decides = [&](int k) {
        if (!IsInputSet(instruction, k)) return false;
        return instruction.statement->opcode.starts_with("and") ? !Input<bool>(instruction, k)
                                                                : Input<bool>(instruction, k);
      };
      const bool decided = decides(0) || decides(1);
      instruction.opcode.execute(*this, instruction);
      if (decided) SetOutput(instruction, 0, !instruction.statement->opcode.starts_with("and"));
      return MarkOutputs(instruction, decided);
    }
    case Unset::kStops:
      break;
  }
  for (int k = 0; k < instruction.inputs; ++k) {
    if (IsInputSet(instruction, k)) continue;
    const uint32_t number = instruction.operands[instruction.outputs + k];
    return Stop(
        absl::StrCat("nothing has set ", frames_[depth_ - 1].function->register_names[number]));
  }
}

//---- Errors -------------------------------------------------------------------------------------

namespace {

std::string Print(const Operand& operand);

std::string PrintAll(const std::vector<Operand>& operands) {
  std::string text;
  for (const Operand& operand : operands) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", Print(operand));
  }
  return text;
}

std::string Print(const Operand& operand) {
  if (!operand.group.empty()) return absl::StrCat("{", PrintAll(operand.group), "}");
  const std::string number =
      operand.value > 0xffff ? absl::StrFormat("0x%x", operand.value) : absl::StrCat(operand.value);
  if (!operand.is_address) return operand.name.empty() ? number : operand.name;
  const auto offset = static_cast<int64_t>(operand.value);
  return absl::StrFormat("[%s%+d]", operand.name, offset);
}

std::string Print(const Statement& s) { return absl::StrCat(s.opcode, " ", PrintAll(s.operands)); }

std::string Print(Size3 i) { return absl::StrCat("(", i.x, ",", i.y, ",", i.z, ")"); }

}  // namespace

std::string Thread::Name() const {
  const Size3 block = block_->launch().block;
  return absl::StrCat(
      "thread ",
      Print(Size3{number_ % block.x, number_ / block.x % block.y, number_ / (block.x * block.y)}),
      " of block ", Print(block_->index()));
}

void Thread::Stop(const std::string& what) {
  state_ = State::kDone;
  const Function& function = *frames_[depth_ - 1].function;
  const Statement& statement = *function.code[next_].statement;
  const auto& files = function.module->source_files;
  std::string source;
  if (const Place& place = statement.place;
      place.file > 0 && static_cast<size_t>(place.file) < files.size()) {
    const std::string& file = files[static_cast<size_t>(place.file)];
    source = absl::StrCat(" (", file.substr(file.rfind('/') + 1), ":", place.source_line, ")");
  }
  block_->Fail(absl::StrCat(what, ": ", Print(statement), ", line ", statement.place.line,
                            " of the PTX", source, ", ", Name()));
}

//---- Memory -------------------------------------------------------------------------------------

char* Thread::Find(Space space, uint64_t address, size_t bytes) {
  if (space == Space::kGeneric) {
    space = Space::kGlobal;
    if ((address & kSharedWindow) != 0) {
      space = Space::kShared;
      address -= kSharedWindow;
    } else if ((address & kLocalWindow) != 0) {
      space = Space::kLocal;
      address -= kLocalWindow;
    }
  }
  if (address % bytes != 0) {
    Stop(absl::StrFormat("%d bytes at 0x%x, no multiple of that", bytes, address));
    return nullptr;
  }
  if (space == Space::kGlobal) {
    if (block_->memory().Contains(address, bytes)) return reinterpret_cast<char*>(address);
    Stop(absl::StrFormat("%d bytes at 0x%x, in no array", bytes, address));
    return nullptr;
  }
  std::vector<char>& parameters = frames_[depth_ - 1].parameters;
  const std::span<char> all = space == Space::kShared  ? block_->shared()
                              : space == Space::kLocal ? std::span<char>(local_)
                                                       : std::span<char>(parameters);
  if (address <= all.size() && all.size() - address >= bytes) return all.data() + address;
  const char* const name = space == Space::kShared  ? "shared"
                           : space == Space::kLocal ? "local"
                                                    : "parameter";
  Stop(absl::StrFormat("%d bytes at %d, where there are %d bytes of %s memory", bytes,
                       static_cast<int64_t>(address), all.size(), name));
  return nullptr;
}

void Thread::CopyAsync(char* to, const char* from, size_t read_bytes, size_t bytes) {
  std::string copy(from == nullptr ? "" : std::string(from, read_bytes));
  copy.resize(bytes, '\0');
  std::memset(to, 0xff, bytes);
  open_copies_.push_back({to, std::move(copy)});
}

void Thread::CommitCopies() {
  copy_groups_.push_back(std::move(open_copies_));
  open_copies_.clear();
}

void Thread::WaitForCopies(size_t groups_left) {
  while (copy_groups_.size() > groups_left) {
    for (const Copy& copy : copy_groups_.front())
      std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
    copy_groups_.erase(copy_groups_.begin());
  }
}

}  // namespace zerobox::ptx
