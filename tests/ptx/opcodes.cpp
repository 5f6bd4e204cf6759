// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

void DoNothing(Thread&, const Instruction&) {}

Opcodes AllOpcodes() {
  Opcodes opcodes;
  AddIntegerOpcodes(opcodes);
  AddFloatOpcodes(opcodes);
  AddComparisonOpcodes(opcodes);
  AddConversionOpcodes(opcodes);
  AddMemoryOpcodes(opcodes);
  AddWarpOpcodes(opcodes);
  for (const char* name : {"bra", "bra.uni"}) opcodes[name] = {.flow = Flow::kBranch};
  for (const char* name : {"call", "call.uni"}) opcodes[name] = {.flow = Flow::kCall};
  for (const char* name : {"ret", "ret.uni"}) opcodes[name] = {.flow = Flow::kReturn};
  // Memory is in order here.
  for (const char* name : {"membar.cta", "membar.gl", "fence.acq_rel.gpu", "fence.sc.cta"}) {
    opcodes[name] = {.execute = DoNothing, .has_output = false};
  }
  return opcodes;
}

}  // namespace

const Opcode* FindOpcode(const std::string& name) {
  static const Opcodes& opcodes = *new Opcodes(AllOpcodes());
  const auto found = opcodes.find(name);
  return found == opcodes.end() ? nullptr : &found->second;
}

}  // namespace zerobox::ptx
