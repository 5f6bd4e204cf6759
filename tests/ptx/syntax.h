// SPDX-License-Identifier: Apache-2.0
//
// PTX as it is written: functions, their declarations and statements, without meaning. The parser
// takes what nvcc emits, not all of the language.
#ifndef ZEROBOX_TESTS_PTX_SYNTAX_H_
#define ZEROBOX_TESTS_PTX_SYNTAX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace zerobox::ptx {

// A register or symbol; a number; [address + offset]; or a group: {a, b}, a|b, and of calls (a, b).
struct Operand {
  std::string name;    // empty: a number
  uint64_t value = 0;  // the number's bits, or an address's offset
  bool is_address = false;
  std::vector<Operand> group;
};

struct Place {
  int line = 0;                   // of the PTX
  int file = 0, source_line = 0;  // by .loc; 0: unknown
};

struct Statement {
  std::string guard;  // a predicate, empty: none
  bool is_guard_negated = false;
  std::string opcode;  // with all its modifiers
  std::vector<Operand> operands;
  Place place;
};

// Of .global, .const, .shared, .local, .param and .reg.
struct Declaration {
  std::string space, type;  // with their dots
  std::string name;
  size_t alignment = 1;
  size_t bytes = 0;             // 0: extern, as long as a launch says
  int registers = -1;           // of .reg %r<5>: 5, which are %r0 to %r4; -1: the name itself
  std::vector<uint8_t> values;  // of an initialised variable
};

// A line of a body: a declaration, whose scope may end before the body does but whose name has no
// other meaning in it until it is declared again; a label; or a statement.
struct Line {
  enum class Kind : uint8_t { kDeclaration, kLabel, kStatement };
  Kind kind;
  size_t index;  // in the function's list of these
};

struct FunctionText {
  std::string name;
  bool is_entry = false;
  std::vector<Declaration> results, parameters;
  int most_threads = 0;  // of a block, by .maxntid; 0: not said
  std::vector<Line> lines;
  std::vector<Declaration> declarations;
  std::vector<std::string> labels;
  std::vector<Statement> statements;
};

struct ModuleText {
  std::string target;  // sm_90
  std::vector<Declaration> variables;
  std::vector<FunctionText> functions;    // those with a body
  std::vector<std::string> source_files;  // by number; [0] is unused
};

// The bytes of one .u32, .b8, .f64, .pred; 0 for what is no type.
size_t BytesOf(std::string_view type);

absl::StatusOr<ModuleText> Parse(std::string_view text);

}  // namespace zerobox::ptx

#endif  // ZEROBOX_TESTS_PTX_SYNTAX_H_
