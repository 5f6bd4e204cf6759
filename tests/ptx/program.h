// SPDX-License-Identifier: Apache-2.0
//
// PTX as it is executed: a function's statements with their operands resolved to registers and
// their opcodes to the C++ functions that do them.
//
// Everything that a statement reads or writes is a register of 64 bits, of which an instruction
// takes as many as its type has, and a bit that says whether anything set it. Immediates, addresses
// of symbols and special registers (%tid.x) are registers that are set when a thread begins.
#ifndef ZEROBOX_TESTS_PTX_PROGRAM_H_
#define ZEROBOX_TESTS_PTX_PROGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/ptx/syntax.h"

namespace zerobox::ptx {

class Thread;
struct Instruction;

// What the threads of a block wait for each other at, and what changes the order of instructions;
// the machine does these, or calls `collective`.
enum class Flow : uint8_t { kNext, kBranch, kCall, kReturn, kWarp, kBarrier };

// What becomes of an instruction that reads a register which nothing set. The compiler lets such
// values run through moves and arithmetic on paths that do not use them.
enum class Unset : uint8_t {
  kSpreads,  // its results count as not set either
  kSelect,   // only those of its inputs that it chose count
  kLogic,    // of a predicate, `false and x` is set whatever x is
  kStops     // an error: addresses, stored values, branches, collectives
};

// A thread's share of an instruction; and the whole warp's, whose 32 lanes are given.
using Execute = void (*)(Thread&, const Instruction&);
using Collect = void (*)(std::span<Thread*> lanes, const Instruction&);

struct Opcode {
  Execute execute = nullptr;
  Collect collect = nullptr;
  Flow flow = Flow::kNext;
  Unset unset = Unset::kSpreads;
  bool has_output = true;  // its first operand, or group of operands
};

// By name with all modifiers, such as "ld.global.v4.f32"; null for what is not known.
const Opcode* FindOpcode(const std::string& name);

struct Instruction {
  static constexpr int kMostOperands = 16;
  Opcode opcode;
  uint8_t outputs = 0, inputs = 0;
  std::array<uint32_t, kMostOperands> operands;  // registers: outputs, then inputs
  bool is_guard_negated = false;
  int32_t guard = -1;     // a register; -1: none
  int64_t immediate = 0;  // an address's offset; a branch's target; a call's index in `calls`
  const Statement* statement = nullptr;
};

enum class Special : uint8_t {
  kThreadX,
  kThreadY,
  kThreadZ,
  kBlockX,
  kBlockY,
  kBlockZ,  // %tid, %ctaid
  kThreadsX,
  kThreadsY,
  kThreadsZ,
  kBlocksX,
  kBlocksY,
  kBlocksZ,  // %ntid, %nctaid
  kLane,
  kWarp
};

struct Function;
// Bytes of the caller's memory of parameters, and where the callee has them.
struct Passed {
  size_t caller_offset, callee_offset, bytes;
};
struct Call {
  const Function* callee;
  std::vector<Passed> arguments, results;
};

struct Function {
  const ModuleText* module = nullptr;
  const FunctionText* text = nullptr;
  std::vector<Instruction> code;  // one for each statement, and a return
  std::vector<Call> calls;
  // A frame's registers at the start.
  std::vector<uint64_t> registers;
  std::vector<uint8_t> is_set;
  std::vector<std::string> register_names;
  struct SpecialRegister {
    uint32_t number;
    Special which;
  };
  std::vector<SpecialRegister> specials;
  struct LocalAddress {
    uint32_t number;
    size_t offset;  // in the frame's local memory
  };
  std::vector<LocalAddress> locals;
  // Of .param, which holds its own parameters and those that it passes; of .local.
  struct Slot {
    size_t offset, bytes;
  };
  std::vector<Slot> parameters, results;
  size_t parameter_bytes = 0, local_bytes = 0;
  // Of .shared; dynamic shared memory lies behind.
  size_t shared_bytes = 0;
};

// The PTX of one source file. Functions are decoded when they are asked for, so that what is never
// run need not be known.
class Module {
 public:
  static absl::StatusOr<std::unique_ptr<Module>> Parse(std::string_view text);

  const ModuleText& text() const { return text_; }
  // By its mangled name.
  absl::StatusOr<const Function*> Find(std::string_view name);
  // Of .global and .const; null if there is no such variable.
  const std::vector<char>* FindVariable(std::string_view name) const;
  const std::map<std::string, std::vector<char>, std::less<>>& variables() const {
    return variables_;
  }

 private:
  ModuleText text_;
  std::map<std::string, std::vector<char>, std::less<>> variables_;
  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions_;
};

// Functions of the module that it calls are decoded too.
absl::Status Decode(Module& module, const FunctionText& text, Function& function);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_PROGRAM_H_
