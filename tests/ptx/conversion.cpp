// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

template <typename Call>
void ForIntegers(const Call& call) {
  call.template operator()<uint8_t>(".u8");
  call.template operator()<int8_t>(".s8");
  ForUnsigned(call);
  ForSigned(call);
}

// Registers are wider than 8 bits, and signed results are extended to all of one.
template <typename To>
void SetExtended(Thread& t, const Instruction& i, To value) {
  t.SetOutput<int64_t>(i, 0, static_cast<int64_t>(value));
}
template <typename To, typename From>
void IntegerToInteger(Thread& t, const Instruction& i) {
  SetExtended(t, i, static_cast<To>(t.Input<From>(i, 0)));
}
template <typename To, typename From>
void NumberToFloat(Thread& t, const Instruction& i) {
  t.SetOutput<To>(i, 0, static_cast<To>(t.Input<From>(i, 0)));
}

struct ToEven {
  double operator()(double x) const { return std::nearbyint(x); }
};
struct ToZero {
  double operator()(double x) const { return std::trunc(x); }
};
struct Down {
  double operator()(double x) const { return std::floor(x); }
};
struct Up {
  double operator()(double x) const { return std::ceil(x); }
};

// To the nearest number that there is; a NaN becomes 0.
template <typename To, typename From, typename Rounding>
void FloatToInteger(Thread& t, const Instruction& i) {
  const double x = Rounding()(static_cast<double>(t.Input<From>(i, 0)));
  constexpr To kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
  To result = 0;
  if (x <= static_cast<double>(kLeast)) {
    result = kLeast;
  } else if (x >= static_cast<double>(kMost)) {
    result = kMost;
  } else if (x == x) {
    result = static_cast<To>(x);
  }
  SetExtended(t, i, result);
}
template <typename T, typename Rounding>
void FloatToWhole(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, static_cast<T>(Rounding()(static_cast<double>(t.Input<T>(i, 0)))));
}

template <typename Rounding>
void AddRounding(Opcodes& opcodes, const std::string& rounding) {
  ForIntegers([&]<typename To>(const std::string& to) {
    ForFloats([&]<typename From>(const std::string& from) {
      opcodes["cvt" + rounding + to + from] = {.execute = FloatToInteger<To, From, Rounding>};
    });
  });
  ForFloats([&]<typename T>(const std::string& type) {
    opcodes["cvt" + rounding + type + type] = {.execute = FloatToWhole<T, Rounding>};
  });
}

//---- bf16, the upper half of an fp32 ------------------------------------------------------------

uint16_t ToBFloat16Bits(float x) {
  if (x != x) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
void FloatToBFloat16(Thread& t, const Instruction& i) {
  t.SetOutput<uint16_t>(i, 0, ToBFloat16Bits(t.Input<float>(i, 0)));
}
// The first input goes to the upper half.
void FloatsToBFloat16(Thread& t, const Instruction& i) {
  const uint32_t high = ToBFloat16Bits(t.Input<float>(i, 0));
  t.SetOutput<uint32_t>(i, 0, high << 16 | ToBFloat16Bits(t.Input<float>(i, 1)));
}
void BFloat16ToFloat(Thread& t, const Instruction& i) {
  t.SetOutput<uint32_t>(i, 0, uint32_t{t.Input<uint16_t>(i, 0)} << 16);
}

}  // namespace

void AddConversionOpcodes(Opcodes& opcodes) {
  ForIntegers([&]<typename To>(const std::string& to) {
    ForIntegers([&]<typename From>(const std::string& from) {
      opcodes["cvt" + to + from] = {.execute = IntegerToInteger<To, From>};
    });
  });
  ForFloats([&]<typename To>(const std::string& to) {
    ForIntegers([&]<typename From>(const std::string& from) {
      opcodes["cvt.rn" + to + from] = {.execute = NumberToFloat<To, From>};
    });
  });
  opcodes["cvt.f64.f32"] = {.execute = NumberToFloat<double, float>};
  opcodes["cvt.rn.f32.f64"] = {.execute = NumberToFloat<float, double>};
  AddRounding<ToEven>(opcodes, ".rni");
  AddRounding<ToZero>(opcodes, ".rzi");
  AddRounding<Down>(opcodes, ".rmi");
  AddRounding<Up>(opcodes, ".rpi");
  opcodes["cvt.rn.bf16.f32"] = {.execute = FloatToBFloat16};
  opcodes["cvt.rn.bf16x2.f32"] = {.execute = FloatsToBFloat16};
  opcodes["cvt.f32.bf16"] = {.execute = BFloat16ToFloat};
}

}  // namespace zerobox::ptx
