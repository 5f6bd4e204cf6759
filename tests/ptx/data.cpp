// SPDX-License-Identifier: Apache-2.0
//
// Moves between registers, and between registers and memory.
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

// Of the instruction's address, which is its input k.
uint64_t Address(const Thread& t, const Instruction& i, int k) {
  return t.Input<uint64_t>(i, k) + static_cast<uint64_t>(i.immediate);
}

//---- mov ----------------------------------------------------------------------------------------

template <typename T>
void Move(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, t.Input<T>(i, 0));
}
template <int kBits>
uint64_t Low(uint64_t value) {
  return kBits == 64 ? value : value & ((uint64_t{1} << kBits) - 1);
}
// The first of the group has the lowest bits.
template <int kBits>
void Pack(Thread& t, const Instruction& i) {
  const int each = kBits / i.inputs;
  uint64_t value = 0;
  for (int k = 0; k < i.inputs; ++k) {
    value |= (t.Input<uint64_t>(i, k) & ((uint64_t{1} << each) - 1)) << (each * k);
  }
  t.SetOutput(i, 0, Low<kBits>(value));
}
template <int kBits>
void Unpack(Thread& t, const Instruction& i) {
  const int each = kBits / i.outputs;
  for (int k = 0; k < i.outputs; ++k) {
    t.SetOutput(i, k, t.Input<uint64_t>(i, 0) >> (each * k) & ((uint64_t{1} << each) - 1));
  }
}

template <int kBits>
void AddGroupMoves(Opcodes& opcodes, const std::string& type) {
  opcodes["mov" + type + " pack"] = {.execute = Pack<kBits>};
  opcodes["mov" + type + " unpack"] = {.execute = Unpack<kBits>};
}

//---- ld, st -------------------------------------------------------------------------------------

// Elements of 8 and 16 bits are extended to the register.
template <Space kSpace, typename T>
void Load(Thread& t, const Instruction& i) {
  const size_t bytes = sizeof(T) * i.outputs;
  const char* from = t.Find(kSpace, Address(t, i, 0), bytes);
  if (from == nullptr) return;
  for (int k = 0; k < i.outputs; ++k) {
    T value;
    std::memcpy(&value, from + sizeof(T) * static_cast<size_t>(k), sizeof(T));
    if constexpr (std::is_signed_v<T>) {
      t.SetOutput<int64_t>(i, k, value);
    } else {
      t.SetOutput<uint64_t>(i, k, value);
    }
  }
}
template <Space kSpace, typename T>
void Store(Thread& t, const Instruction& i) {
  const int count = i.inputs - 1;
  char* to = t.Find(kSpace, Address(t, i, 0), sizeof(T) * static_cast<size_t>(count));
  if (to == nullptr) return;
  for (int k = 0; k < count; ++k) {
    const T value = t.Input<T>(i, 1 + k);
    std::memcpy(to + sizeof(T) * static_cast<size_t>(k), &value, sizeof(T));
  }
}

template <typename Call>
void ForMemoryTypes(const Call& call) {
  call.template operator()<uint8_t>(".u8");
  call.template operator()<uint8_t>(".b8");
  call.template operator()<int8_t>(".s8");
  ForUnsigned(call);
  ForBits(call);
  ForSigned(call);
  call.template operator()<uint32_t>(".f32");
  call.template operator()<uint64_t>(".f64");
}

// Hints for the caches change nothing here.
template <Space kSpace>
void AddSpace(Opcodes& opcodes, const std::string& space, const std::vector<std::string>& hints) {
  for (const std::string vector : {"", ".v2", ".v4"}) {
    ForMemoryTypes([&]<typename T>(const std::string& type) {
      for (const std::string& hint : hints) {
        const bool in_front = hint == ".volatile";
        const std::string place = in_front ? hint + space : space + hint;
        opcodes["ld" + place + vector + type] = {.execute = Load<kSpace, T>,
                                                 .unset = Unset::kStops};
        opcodes["st" + place + vector + type] = {
            .execute = Store<kSpace, T>, .unset = Unset::kStops, .has_output = false};
      }
    });
  }
}

//---- cvta ---------------------------------------------------------------------------------------

template <uint64_t kWindow, bool kToSpace>
void ConvertAddress(Thread& t, const Instruction& i) {
  const uint64_t address = t.Input<uint64_t>(i, 0);
  t.SetOutput<uint64_t>(i, 0, kToSpace ? address - kWindow : address + kWindow);
}
template <uint64_t kWindow>
void AddAddressConversions(Opcodes& opcodes, const std::string& space) {
  opcodes["cvta" + space + ".u64"] = {.execute = ConvertAddress<kWindow, false>};
  opcodes["cvta.to" + space + ".u64"] = {.execute = ConvertAddress<kWindow, true>};
}

//---- atom ---------------------------------------------------------------------------------------

// Threads take turns, so nothing has to be atomic. atom d, [a], b(, c); cas compares with b.
struct AtomicAdd {
  template <typename T>
  T operator()(T old, T b, T) const {
    return old + b;
  }
};
struct AtomicMaximum {
  template <typename T>
  T operator()(T old, T b, T) const {
    return old < b ? b : old;
  }
};
struct AtomicExchange {
  template <typename T>
  T operator()(T, T b, T) const {
    return b;
  }
};
struct AtomicCompareAndSwap {
  template <typename T>
  T operator()(T old, T b, T c) const {
    return old == b ? c : old;
  }
};
template <Space kSpace, typename T, typename F>
void Atomic(Thread& t, const Instruction& i) {
  char* place = t.Find(kSpace, Address(t, i, 0), sizeof(T));
  if (place == nullptr) return;
  T old;
  std::memcpy(&old, place, sizeof(T));
  const T result = F()(old, t.Input<T>(i, 1), i.inputs > 2 ? t.Input<T>(i, 2) : T{});
  std::memcpy(place, &result, sizeof(T));
  if (i.outputs > 0) t.SetOutput<T>(i, 0, old);
}
template <Space kSpace>
void AddAtomics(Opcodes& opcodes, const std::string& space) {
  const auto add = [&](const std::string& operation, Execute execute) {
    opcodes["atom" + space + operation] = {.execute = execute, .unset = Unset::kStops};
    opcodes["red" + space + operation] = {
        .execute = execute, .unset = Unset::kStops, .has_output = false};
  };
  add(".add.u32", Atomic<kSpace, uint32_t, AtomicAdd>);
  add(".add.s32", Atomic<kSpace, uint32_t, AtomicAdd>);
  add(".add.u64", Atomic<kSpace, uint64_t, AtomicAdd>);
  add(".max.u32", Atomic<kSpace, uint32_t, AtomicMaximum>);
  add(".max.s32", Atomic<kSpace, int32_t, AtomicMaximum>);
  add(".exch.b32", Atomic<kSpace, uint32_t, AtomicExchange>);
  add(".cas.b32", Atomic<kSpace, uint32_t, AtomicCompareAndSwap>);
  add(".cas.b64", Atomic<kSpace, uint64_t, AtomicCompareAndSwap>);
}

//---- cp.async -----------------------------------------------------------------------------------

// cp.async [to], [from], bytes(, how many of them are read)
void CopyAsync(Thread& t, const Instruction& i) {
  const auto bytes = t.Input<uint32_t>(i, 2);
  const uint32_t read = i.inputs > 3 ? t.Input<uint32_t>(i, 3) : bytes;
  if (i.immediate != 0 || read > bytes)
    return t.Stop("a form of cp.async that the interpreter does not know");
  char* to = t.Find(Space::kShared, t.Input<uint32_t>(i, 0), bytes);
  if (to == nullptr) return;
  const char* from = read == 0 ? nullptr : t.Find(Space::kGlobal, t.Input<uint64_t>(i, 1), read);
  if (read != 0 && from == nullptr) return;
  t.CopyAsync(to, from, read, bytes);
}
void CommitCopies(Thread& t, const Instruction&) { t.CommitCopies(); }
void WaitForCopies(Thread& t, const Instruction& i) { t.WaitForCopies(t.Input<uint32_t>(i, 0)); }
void WaitForAllCopies(Thread& t, const Instruction&) {
  t.CommitCopies();
  t.WaitForCopies(0);
}

}  // namespace

void AddMemoryOpcodes(Opcodes& opcodes) {
  const auto add_move = [&]<typename T>(const std::string& type) {
    opcodes["mov" + type] = {.execute = Move<T>};
  };
  ForUnsigned(add_move);
  ForSigned(add_move);
  ForBits(add_move);
  ForFloats(add_move);
  opcodes["mov.pred"] = {.execute = Move<bool>};
  AddGroupMoves<32>(opcodes, ".b32");
  AddGroupMoves<64>(opcodes, ".b64");
  AddSpace<Space::kGlobal>(opcodes, ".global",
                           {"", ".nc", ".cg", ".cs", ".ca", ".wb", ".wt", ".volatile"});
  AddSpace<Space::kGlobal>(opcodes, ".const", {""});
  AddSpace<Space::kShared>(opcodes, ".shared", {"", ".volatile"});
  AddSpace<Space::kLocal>(opcodes, ".local", {""});
  AddSpace<Space::kParameter>(opcodes, ".param", {""});
  AddSpace<Space::kGeneric>(opcodes, "", {"", ".volatile"});
  AddAddressConversions<0>(opcodes, ".global");
  AddAddressConversions<0>(opcodes, ".const");
  AddAddressConversions<kSharedWindow>(opcodes, ".shared");
  AddAddressConversions<kLocalWindow>(opcodes, ".local");
  AddAtomics<Space::kGlobal>(opcodes, ".global");
  AddAtomics<Space::kShared>(opcodes, ".shared");
  AddAtomics<Space::kGeneric>(opcodes, "");
  for (const char* name : {"cp.async.cg.shared.global", "cp.async.ca.shared.global"}) {
    opcodes[name] = {.execute = CopyAsync, .unset = Unset::kStops, .has_output = false};
  }
  opcodes["cp.async.commit_group"] = {.execute = CommitCopies, .has_output = false};
  opcodes["cp.async.wait_group"] = {.execute = WaitForCopies, .has_output = false};
  opcodes["cp.async.wait_all"] = {.execute = WaitForAllCopies, .has_output = false};
}

}  // namespace zerobox::ptx
