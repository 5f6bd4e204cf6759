// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

// Comparisons of floats are false for NaNs; those with a `u` behind are true then.
struct Equal {
  template <typename T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Less {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Greater {
  template <typename T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterOrEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct NotEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b || a > b;
  }
};
struct IsNan {
  template <typename T>
  bool operator()(T a, T b) const {
    return a != a || b != b;
  }
};
struct IsNumber {
  template <typename T>
  bool operator()(T a, T b) const {
    return !IsNan()(a, b);
  }
};
template <typename F>
struct OrNan {
  template <typename T>
  bool operator()(T a, T b) const {
    return F()(a, b) || IsNan()(a, b);
  }
};

struct First {
  bool operator()(bool a, bool) const { return a; }
};
struct And {
  bool operator()(bool a, bool b) const { return a && b; }
};
struct Or {
  bool operator()(bool a, bool b) const { return a || b; }
};
struct Xor {
  bool operator()(bool a, bool b) const { return a != b; }
};

// setp p|q, a, b, c: p is the comparison combined with c, q its opposite combined with c.
template <typename T, typename Compare, typename Combine>
void SetPredicate(Thread& t, const Instruction& i) {
  const bool result = Compare()(t.Input<T>(i, 0), t.Input<T>(i, 1));
  const bool with = i.inputs > 2 && t.Input<bool>(i, 2);
  t.SetOutput(i, 0, Combine()(result, with));
  if (i.outputs > 1) t.SetOutput(i, 1, Combine()(!result, with));
}

template <typename T, typename Compare>
void AddComparison(Opcodes& opcodes, const std::string& compare, const std::string& type) {
  const std::string name = "setp." + compare;
  opcodes[name + type] = {.execute = SetPredicate<T, Compare, First>};
  opcodes[name + ".and" + type] = {.execute = SetPredicate<T, Compare, And>};
  opcodes[name + ".or" + type] = {.execute = SetPredicate<T, Compare, Or>};
  opcodes[name + ".xor" + type] = {.execute = SetPredicate<T, Compare, Xor>};
}

template <typename T>
void Select(Thread& t, const Instruction& i) {
  t.SetOutput<T>(i, 0, t.Input<T>(i, t.Input<bool>(i, 2) ? 0 : 1));
}

}  // namespace

void AddComparisonOpcodes(Opcodes& opcodes) {
  const auto add_equal = [&]<typename T>(const std::string& type) {
    AddComparison<T, Equal>(opcodes, "eq", type);
    AddComparison<T, NotEqual>(opcodes, "ne", type);
  };
  const auto add_ordered = [&]<typename T>(const std::string& type) {
    AddComparison<T, Less>(opcodes, "lt", type);
    AddComparison<T, LessOrEqual>(opcodes, "le", type);
    AddComparison<T, Greater>(opcodes, "gt", type);
    AddComparison<T, GreaterOrEqual>(opcodes, "ge", type);
  };
  ForBits(add_equal);
  ForUnsigned(add_equal);
  ForSigned(add_equal);
  ForFloats(add_equal);
  ForUnsigned(add_ordered);
  ForSigned(add_ordered);
  ForFloats(add_ordered);
  ForUnsigned([&]<typename T>(const std::string& type) {
    AddComparison<T, Less>(opcodes, "lo", type);
    AddComparison<T, LessOrEqual>(opcodes, "ls", type);
    AddComparison<T, Greater>(opcodes, "hi", type);
    AddComparison<T, GreaterOrEqual>(opcodes, "hs", type);
  });
  ForFloats([&]<typename T>(const std::string& type) {
    AddComparison<T, OrNan<Equal>>(opcodes, "equ", type);
    AddComparison<T, OrNan<NotEqual>>(opcodes, "neu", type);
    AddComparison<T, OrNan<Less>>(opcodes, "ltu", type);
    AddComparison<T, OrNan<LessOrEqual>>(opcodes, "leu", type);
    AddComparison<T, OrNan<Greater>>(opcodes, "gtu", type);
    AddComparison<T, OrNan<GreaterOrEqual>>(opcodes, "geu", type);
    AddComparison<T, IsNan>(opcodes, "nan", type);
    AddComparison<T, IsNumber>(opcodes, "num", type);
  });
  const auto add_select = [&]<typename T>(const std::string& type) {
    opcodes["selp" + type] = {.execute = Select<T>, .unset = Unset::kSelect};
  };
  ForBits(add_select);
  ForUnsigned(add_select);
  ForSigned(add_select);
  ForFloats(add_select);
}

}  // namespace zerobox::ptx
