// SPDX-License-Identifier: Apache-2.0
//
// What IEEE 754 rounds is rounded so. The approximate instructions are those of the host's library
// here, whose last bits no test may ask for. `add` and `mul` without .rn are not fused, which the
// assembler behind the PTX might do.
#include <cfloat>
#include <cmath>
#include <string>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Subtract {
  template <typename T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct MultiplyAdd {
  template <typename T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
// A NaN loses against a number, and -0 is less than 0.
struct Minimum {
  template <typename T>
  T operator()(T a, T b) const {
    if (a == b) return std::signbit(a) ? a : b;
    return std::fmin(a, b);
  }
};
struct Maximum {
  template <typename T>
  T operator()(T a, T b) const {
    if (a == b) return std::signbit(a) ? b : a;
    return std::fmax(a, b);
  }
};
template <typename F>
struct KeepNan {
  template <typename T>
  T operator()(T a, T b) const {
    return a != a || b != b ? T(NAN) : F()(a, b);
  }
};
struct Negate {
  template <typename T>
  T operator()(T a) const {
    return -a;
  }
};
struct Absolute {
  template <typename T>
  T operator()(T a) const {
    return std::fabs(a);
  }
};
// The first's sign, the second's size.
struct CopySign {
  template <typename T>
  T operator()(T a, T b) const {
    return std::copysign(b, a);
  }
};
struct SquareRoot {
  template <typename T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <typename T>
  T operator()(T a) const {
    return 1 / a;
  }
};
struct ReciprocalSquareRoot {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(a)));
  }
};
struct Exp2 {
  float operator()(float a) const { return std::exp2(a); }
};
struct Log2 {
  float operator()(float a) const { return std::log2(a); }
};
struct Sine {
  float operator()(float a) const { return std::sin(a); }
};
struct Cosine {
  float operator()(float a) const { return std::cos(a); }
};
struct HyperbolicTangent {
  float operator()(float a) const { return std::tanh(a); }
};

// .ftz: subnormal inputs and results are 0, of their sign.
float Flush(float a) { return std::fabs(a) < FLT_MIN ? std::copysign(0.0f, a) : a; }
template <typename F>
struct Flushed {
  template <typename... Floats>
  float operator()(Floats... a) const {
    return Flush(F()(Flush(a)...));
  }
};

template <typename F>
void AddApproximation(Opcodes& opcodes, const std::string& name) {
  opcodes[name + ".f32"] = {.execute = Unary<float, F>};
  opcodes[name + ".ftz.f32"] = {.execute = Unary<float, Flushed<F>>};
}

// With and without .ftz, of fp32; and of fp64.
template <typename F>
void AddBinary(Opcodes& opcodes, const std::string& name) {
  opcodes[name + ".f32"] = {.execute = Binary<float, F>};
  opcodes[name + ".ftz.f32"] = {.execute = Binary<float, Flushed<F>>};
  opcodes[name + ".f64"] = {.execute = Binary<double, F>};
}

}  // namespace

void AddFloatOpcodes(Opcodes& opcodes) {
  for (const std::string rounding : {"", ".rn"}) {
    AddBinary<Add>(opcodes, "add" + rounding);
    AddBinary<Subtract>(opcodes, "sub" + rounding);
    AddBinary<Multiply>(opcodes, "mul" + rounding);
  }
  for (const std::string rounding : {".rn", ".full", ".approx"}) {
    AddBinary<Divide>(opcodes, "div" + rounding);
  }
  AddBinary<Minimum>(opcodes, "min");
  AddBinary<Maximum>(opcodes, "max");
  AddBinary<KeepNan<Minimum>>(opcodes, "min.NaN");
  AddBinary<KeepNan<Maximum>>(opcodes, "max.NaN");
  opcodes["fma.rn.ftz.f32"] = {.execute = Ternary<float, Flushed<MultiplyAdd>>};
  ForFloats([&]<typename T>(const std::string& type) {
    opcodes["fma.rn" + type] = {.execute = Ternary<T, MultiplyAdd>};
    opcodes["neg" + type] = {.execute = Unary<T, Negate>};
    opcodes["abs" + type] = {.execute = Unary<T, Absolute>};
    opcodes["copysign" + type] = {.execute = Binary<T, CopySign>};
    opcodes["sqrt.rn" + type] = {.execute = Unary<T, SquareRoot>};
    opcodes["rcp.rn" + type] = {.execute = Unary<T, Reciprocal>};
  });
  AddApproximation<SquareRoot>(opcodes, "sqrt.approx");
  AddApproximation<Reciprocal>(opcodes, "rcp.approx");
  AddApproximation<ReciprocalSquareRoot>(opcodes, "rsqrt.approx");
  AddApproximation<Exp2>(opcodes, "ex2.approx");
  AddApproximation<Log2>(opcodes, "lg2.approx");
  AddApproximation<Sine>(opcodes, "sin.approx");
  AddApproximation<Cosine>(opcodes, "cos.approx");
  opcodes["tanh.approx.f32"] = {.execute = Unary<float, HyperbolicTangent>};
  opcodes["rcp.approx.ftz.f64"] = {.execute = Unary<double, Reciprocal>};
  opcodes["rsqrt.approx.ftz.f64"] = {.execute = Unary<double, ReciprocalSquareRoot>};
}

}  // namespace zerobox::ptx
