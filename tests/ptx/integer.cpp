// SPDX-License-Identifier: Apache-2.0
//
// Integers wrap around; the arithmetic is on unsigned numbers of at least 32 bits.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

__extension__ using Wide = unsigned __int128;
__extension__ using SignedWide = __int128;

template <typename T>
constexpr int kBits = 8 * sizeof(T);
template <typename T>
using ToWide = std::conditional_t<std::is_signed_v<T>, SignedWide, Wide>;
// Twice as many bits.
template <typename T>
using Doubled =
    std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                       std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Subtract {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
};
struct MultiplyLow {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct MultiplyHigh {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>((ToWide<T>(a) * ToWide<T>(b)) >> kBits<T>);
  }
};
template <typename Multiply>
struct MultiplyAdd {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return Add()(Multiply()(a, b), c);
  }
};
struct Negate {
  template <typename T>
  T operator()(T a) const {
    return Subtract()(T{0}, a);
  }
};
struct Absolute {
  template <typename T>
  T operator()(T a) const {
    return a < 0 ? Negate()(a) : a;
  }
};
// By zero the result is not defined; it is one that is easily noticed.
struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(~T{0});
    return static_cast<T>(ToWide<T>(a) / ToWide<T>(b));
  }
};
struct Remainder {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(~T{0});
    return static_cast<T>(ToWide<T>(a) % ToWide<T>(b));
  }
};
struct Minimum {
  template <typename T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Maximum {
  template <typename T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

template <typename T>
void MultiplyWide(Thread& t, const Instruction& i) {
  const auto product = static_cast<Doubled<T>>(ToWide<T>(t.Input<T>(i, 0)) * t.Input<T>(i, 1));
  t.SetOutput<Doubled<T>>(i, 0, product);
}
template <typename T>
void MultiplyAddWide(Thread& t, const Instruction& i) {
  const auto product = static_cast<Doubled<T>>(ToWide<T>(t.Input<T>(i, 0)) * t.Input<T>(i, 1));
  t.SetOutput<Doubled<T>>(i, 0, Add()(product, t.Input<Doubled<T>>(i, 2)));
}

//---- With the carry flag ------------------------------------------------------------------------

template <typename T, bool kIn, bool kOut>
void SetSum(Thread& t, const Instruction& i, T a, T b) {
  const Wide sum = Wide{a} + b + (kIn && t.carry ? 1 : 0);
  if (kOut) t.carry = (sum >> kBits<T>) != 0;
  t.SetOutput<T>(i, 0, static_cast<T>(sum));
}
template <typename T, bool kIn, bool kOut>
void AddCarry(Thread& t, const Instruction& i) {
  SetSum<T, kIn, kOut>(t, i, t.Input<T>(i, 0), t.Input<T>(i, 1));
}
template <typename T, bool kIn, bool kOut>
void SubtractBorrow(Thread& t, const Instruction& i) {
  const Wide a = t.Input<T>(i, 0), b = Wide{t.Input<T>(i, 1)} + (kIn && t.carry ? 1 : 0);
  if (kOut) t.carry = a < b;
  t.SetOutput<T>(i, 0, static_cast<T>(a - b));
}
template <typename T, typename Multiply, bool kIn, bool kOut>
void MultiplyAddCarry(Thread& t, const Instruction& i) {
  SetSum<T, kIn, kOut>(t, i, Multiply()(t.Input<T>(i, 0), t.Input<T>(i, 1)), t.Input<T>(i, 2));
}

template <typename T>
void AddCarryOpcodes(Opcodes& opcodes, const std::string& type) {
  opcodes["add.cc" + type] = {.execute = AddCarry<T, false, true>};
  opcodes["addc" + type] = {.execute = AddCarry<T, true, false>};
  opcodes["addc.cc" + type] = {.execute = AddCarry<T, true, true>};
  opcodes["sub.cc" + type] = {.execute = SubtractBorrow<T, false, true>};
  opcodes["subc" + type] = {.execute = SubtractBorrow<T, true, false>};
  opcodes["subc.cc" + type] = {.execute = SubtractBorrow<T, true, true>};
  opcodes["mad.lo.cc" + type] = {.execute = MultiplyAddCarry<T, MultiplyLow, false, true>};
  opcodes["madc.lo" + type] = {.execute = MultiplyAddCarry<T, MultiplyLow, true, false>};
  opcodes["madc.lo.cc" + type] = {.execute = MultiplyAddCarry<T, MultiplyLow, true, true>};
  opcodes["mad.hi.cc" + type] = {.execute = MultiplyAddCarry<T, MultiplyHigh, false, true>};
  opcodes["madc.hi" + type] = {.execute = MultiplyAddCarry<T, MultiplyHigh, true, false>};
  opcodes["madc.hi.cc" + type] = {.execute = MultiplyAddCarry<T, MultiplyHigh, true, true>};
}

//---- Bits ---------------------------------------------------------------------------------------

struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
  bool operator()(bool a) const { return !a; }
};

// Distances of the width and more shift everything out.
template <typename T>
void ShiftLeft(Thread& t, const Instruction& i) {
  const uint32_t by = t.Input<uint32_t>(i, 1);
  t.SetOutput<T>(i, 0, by >= kBits<T> ? T{0} : static_cast<T>(uint64_t{t.Input<T>(i, 0)} << by));
}
template <typename T>
void ShiftRight(Thread& t, const Instruction& i) {
  const uint32_t most = std::is_signed_v<T> ? kBits<T> - 1 : kBits<T>;
  const uint32_t by = std::min<uint32_t>(t.Input<uint32_t>(i, 1), most);
  const T value = t.Input<T>(i, 0);
  t.SetOutput<T>(i, 0, by == kBits<T> ? T{0} : static_cast<T>(value >> by));
}
// Of the 64 bits (b, a).
template <bool kLeft, bool kWrap>
void FunnelShift(Thread& t, const Instruction& i) {
  const uint64_t both = uint64_t{t.Input<uint32_t>(i, 1)} << 32 | t.Input<uint32_t>(i, 0);
  const uint32_t by = t.Input<uint32_t>(i, 2), n = kWrap ? by % 32 : std::min(by, 32u);
  t.SetOutput<uint32_t>(i, 0, static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n));
}

uint64_t Mask(uint64_t bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

template <typename T>
void BitFieldInsert(Thread& t, const Instruction& i) {
  const uint64_t at = t.Input<uint32_t>(i, 2) & 255, length = t.Input<uint32_t>(i, 3) & 255;
  const uint64_t field = at >= 64 ? 0 : Mask(length) << at;
  const uint64_t inserted = at >= 64 ? 0 : uint64_t{t.Input<T>(i, 0)} << at;
  t.SetOutput<T>(i, 0, static_cast<T>((t.Input<T>(i, 1) & ~field) | (inserted & field)));
}
template <typename T>
void BitFieldExtract(Thread& t, const Instruction& i) {
  using U = std::make_unsigned_t<T>;
  const uint64_t at = t.Input<uint32_t>(i, 1) & 255, length = t.Input<uint32_t>(i, 2) & 255;
  const T value = t.Input<T>(i, 0);
  uint64_t field = at >= kBits<T> ? 0 : (uint64_t{static_cast<U>(value)} >> at) & Mask(length);
  if (std::is_signed_v<T> && length > 0) {
    const uint64_t sign_at = std::min<uint64_t>(at + length - 1, kBits<T> - 1);
    if ((static_cast<U>(value) >> sign_at & 1) != 0)
      field |= ~Mask(sign_at - std::min(sign_at, at) + 1);
  }
  t.SetOutput<T>(i, 0, static_cast<T>(field));
}
// Bytes of (b, a) that the digits of c number; a digit of 8 and more repeats the byte's sign.
void Permute(Thread& t, const Instruction& i) {
  const uint64_t both = uint64_t{t.Input<uint32_t>(i, 1)} << 32 | t.Input<uint32_t>(i, 0);
  const auto selector = t.Input<uint32_t>(i, 2);
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t digit = selector >> (4 * k) & 15;
    uint32_t byte = static_cast<uint32_t>(both >> (8 * (digit & 7))) & 255;
    if (digit >= 8) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * k);
  }
  t.SetOutput(i, 0, result);
}
// Any function of three bits, by its table.
void Logic3(Thread& t, const Instruction& i) {
  const uint32_t a = t.Input<uint32_t>(i, 0), b = t.Input<uint32_t>(i, 1),
                 c = t.Input<uint32_t>(i, 2), table = t.Input<uint32_t>(i, 3);
  uint32_t result = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
    result |= (table >> row & 1) << bit;
  }
  t.SetOutput(i, 0, result);
}
template <typename T>
void CountOnes(Thread& t, const Instruction& i) {
  t.SetOutput<uint32_t>(i, 0, std::popcount(t.Input<T>(i, 0)));
}
template <typename T>
void CountLeadingZeros(Thread& t, const Instruction& i) {
  t.SetOutput<uint32_t>(i, 0, std::countl_zero(t.Input<T>(i, 0)));
}

template <typename T>
void AddBitOpcodes(Opcodes& opcodes, const std::string& type) {
  opcodes["and" + type] = {.execute = Binary<T, And>};
  opcodes["or" + type] = {.execute = Binary<T, Or>};
  opcodes["xor" + type] = {.execute = Binary<T, Xor>};
  opcodes["not" + type] = {.execute = Unary<T, Not>};
}

}  // namespace

void AddIntegerOpcodes(Opcodes& opcodes) {
  const auto add_arithmetic = [&]<typename T>(const std::string& type) {
    opcodes["add" + type] = {.execute = Binary<T, Add>};
    opcodes["sub" + type] = {.execute = Binary<T, Subtract>};
    opcodes["mul.lo" + type] = {.execute = Binary<T, MultiplyLow>};
    opcodes["mul.hi" + type] = {.execute = Binary<T, MultiplyHigh>};
    opcodes["mad.lo" + type] = {.execute = Ternary<T, MultiplyAdd<MultiplyLow>>};
    opcodes["mad.hi" + type] = {.execute = Ternary<T, MultiplyAdd<MultiplyHigh>>};
    opcodes["div" + type] = {.execute = Binary<T, Divide>};
    opcodes["rem" + type] = {.execute = Binary<T, Remainder>};
    opcodes["min" + type] = {.execute = Binary<T, Minimum>};
    opcodes["max" + type] = {.execute = Binary<T, Maximum>};
    opcodes["shr" + type] = {.execute = ShiftRight<T>};
    if constexpr (sizeof(T) < 8) {
      opcodes["mul.wide" + type] = {.execute = MultiplyWide<T>};
      opcodes["mad.wide" + type] = {.execute = MultiplyAddWide<T>};
    }
    if constexpr (sizeof(T) > 2) opcodes["bfe" + type] = {.execute = BitFieldExtract<T>};
  };
  ForUnsigned(add_arithmetic);
  ForSigned(add_arithmetic);
  ForSigned([&]<typename T>(const std::string& type) {
    opcodes["neg" + type] = {.execute = Unary<T, Negate>};
    opcodes["abs" + type] = {.execute = Unary<T, Absolute>};
  });
  for (const char* type : {".u32", ".s32"}) AddCarryOpcodes<uint32_t>(opcodes, type);
  for (const char* type : {".u64", ".s64"}) AddCarryOpcodes<uint64_t>(opcodes, type);
  ForBits([&]<typename T>(const std::string& type) {
    AddBitOpcodes<T>(opcodes, type);
    opcodes["shl" + type] = {.execute = ShiftLeft<T>};
    opcodes["shr" + type] = {.execute = ShiftRight<T>};
    if constexpr (sizeof(T) > 2) {
      opcodes["bfi" + type] = {.execute = BitFieldInsert<T>};
      opcodes["popc" + type] = {.execute = CountOnes<T>};
      opcodes["clz" + type] = {.execute = CountLeadingZeros<T>};
    }
  });
  AddBitOpcodes<bool>(opcodes, ".pred");
  opcodes["and.pred"].unset = Unset::kLogic;
  opcodes["or.pred"].unset = Unset::kLogic;
  opcodes["shf.l.wrap.b32"] = {.execute = FunnelShift<true, true>};
  opcodes["shf.l.clamp.b32"] = {.execute = FunnelShift<true, false>};
  opcodes["shf.r.wrap.b32"] = {.execute = FunnelShift<false, true>};
  opcodes["shf.r.clamp.b32"] = {.execute = FunnelShift<false, false>};
  opcodes["prmt.b32"] = {.execute = Permute};
  opcodes["lop3.b32"] = {.execute = Logic3};
}

}  // namespace zerobox::ptx
