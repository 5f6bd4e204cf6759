// SPDX-License-Identifier: Apache-2.0
//
// The instructions that the interpreter knows (PTX ISA, "Instruction Set"), by their whole name.
// What is missing is added to one of these tables; nothing is known in part, so that no modifier is
// overlooked.
#ifndef ZEROBOX_TESTS_PTX_OPCODES_H_
#define ZEROBOX_TESTS_PTX_OPCODES_H_

#include <cstdint>
#include <string>
#include <unordered_map>

#include "tests/ptx/machine.h"
#include "tests/ptx/program.h"

namespace zerobox::ptx {

using Opcodes = std::unordered_map<std::string, Opcode>;

void AddIntegerOpcodes(Opcodes& opcodes);  // and logic, shifts and bits
void AddFloatOpcodes(Opcodes& opcodes);
void AddComparisonOpcodes(Opcodes& opcodes);  // setp, selp
void AddConversionOpcodes(Opcodes& opcodes);  // cvt
void AddMemoryOpcodes(Opcodes& opcodes);      // mov, ld, st, cvta, atom, cp.async
void AddWarpOpcodes(Opcodes& opcodes);        // shfl, vote, ldmatrix, mma, bar

// Calls call.operator()<T>(type) with each type's C++ type and name.
template <typename Call>
void ForUnsigned(const Call& call) {
  call.template operator()<uint16_t>(".u16");
  call.template operator()<uint32_t>(".u32");
  call.template operator()<uint64_t>(".u64");
}
template <typename Call>
void ForSigned(const Call& call) {
  call.template operator()<int16_t>(".s16");
  call.template operator()<int32_t>(".s32");
  call.template operator()<int64_t>(".s64");
}
template <typename Call>
void ForBits(const Call& call) {
  call.template operator()<uint16_t>(".b16");
  call.template operator()<uint32_t>(".b32");
  call.template operator()<uint64_t>(".b64");
}
template <typename Call>
void ForFloats(const Call& call) {
  call.template operator()<float>(".f32");
  call.template operator()<double>(".f64");
}

// output = F()(inputs...), all of one type.
template <typename T, typename F>
void Unary(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, F()(t.Input<T>(i, 0)));
}
template <typename T, typename F>
void Binary(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, F()(t.Input<T>(i, 0), t.Input<T>(i, 1)));
}
template <typename T, typename F>
void Ternary(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, F()(t.Input<T>(i, 0), t.Input<T>(i, 1), t.Input<T>(i, 2)));
}

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_OPCODES_H_
