// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/ptx/lexer.h"
#include "tests/ptx/syntax.h"

namespace zerobox::ptx {

size_t BytesOf(std::string_view type) {
  if (type == ".pred") return 1;
  const size_t digits = type.find_first_of("0123456789");
  if (digits == type.npos || digits != 2 ||
      std::string_view("usbf").find(type[1]) == std::string_view::npos)
    return 0;
  return std::strtoul(std::string(type.substr(digits)).c_str(), nullptr, 10) / 8;
}

namespace {

// The first error ends the parsing: what is read behind it does not count.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<ModuleText> Run() {
    while (!AtEnd()) ParseTop();
    if (!status_.ok()) return status_;
    return std::move(module_);
  }

 private:
  const Token& Next() const { return tokens_[at_]; }
  bool AtEnd() const { return !status_.ok() || Next().kind == Token::Kind::kEnd; }
  Token Take() {
    const Token token = Next();
    if (token.kind != Token::Kind::kEnd) ++at_;
    return token;
  }
  bool TakeIf(std::string_view text) {
    if (!Next().Is(text)) return false;
    ++at_;
    return true;
  }
  void Expect(const char* text) {
    if (!TakeIf(text)) Fail(absl::StrCat("'", text, "' should be here"));
  }
  void Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("line ", Next().line, ", at '", std::string(Next().text), "': ", what));
    }
  }
  std::string TakeWord() {
    if (Next().kind != Token::Kind::kWord) Fail("a name should be here");
    return std::string(Take().text);
  }
  uint64_t TakeNumber() {
    const bool negative = TakeIf("-");
    if (Next().kind != Token::Kind::kNumber) Fail("a number should be here");
    const uint64_t number = Take().number;
    return negative ? -number : number;
  }
  void SkipLine() {
    const int line = Next().line;
    while (Next().kind != Token::Kind::kEnd && Next().line == line) ++at_;
  }
  void SkipBraces() {
    int depth = 0;
    do {
      if (Next().Is("{")) ++depth;
      if (Next().Is("}")) --depth;
      Take();
    } while (depth > 0 && !AtEnd());
  }

  void ParseTop() {
    while (Next().Is(".visible") || Next().Is(".weak") || Next().Is(".extern") ||
           Next().Is(".common"))
      Take();
    if (TakeIf(".target")) {
      module_.target = TakeWord();
    } else if (TakeIf(".file")) {
      ParseFile();
    } else if (Next().Is(".version") || Next().Is(".address_size")) {
      SkipLine();
    } else if (TakeIf(".section")) {
      while (!Next().Is("{") && !AtEnd()) Take();
      SkipBraces();
    } else if (Next().Is(".entry") || Next().Is(".func")) {
      ParseFunction();
    } else if (Next().Is(".global") || Next().Is(".const") || Next().Is(".shared")) {
      ParseDeclarations(module_.variables);
    } else {
      Fail("no directive that the parser knows");
    }
  }

  void ParseFile() {
    const size_t number = TakeNumber();
    const std::string_view quoted = Take().text;
    if (module_.source_files.size() <= number) module_.source_files.resize(number + 1);
    if (quoted.size() > 2) module_.source_files[number] = quoted.substr(1, quoted.size() - 2);
    while (TakeIf(",")) Take();
  }

  //---- Declarations ----
  // .space [.align n] .type name[bytes] [= {..}], in a list of parameters without the semicolon.
  Declaration ParseDeclaration() {
    Declaration d;
    d.space = TakeWord();
    if (TakeIf(".align")) d.alignment = TakeNumber();
    d.type = TakeWord();
    const size_t element = BytesOf(d.type);
    if (element == 0) Fail("no type that the parser knows is before this");
    d.alignment = std::max(d.alignment, element);
    ParseName(d, element);
    return d;
  }
  void ParseName(Declaration& d, size_t element) {
    d.name = TakeWord();
    d.bytes = element;
    d.registers = -1;
    if (TakeIf("<")) {
      d.registers = static_cast<int>(TakeNumber());
      Expect(">");
    }
    while (TakeIf("[")) {
      d.bytes *= Next().Is("]") ? 0 : TakeNumber();
      Expect("]");
    }
    if (TakeIf("=")) ParseValues(d, element);
  }
  void ParseValues(Declaration& d, size_t element) {
    const bool is_list = TakeIf("{");
    do {
      const uint64_t value = TakeNumber();
      for (size_t i = 0; i < element; ++i)
        d.values.push_back(static_cast<uint8_t>(value >> (8 * i)));
    } while (is_list && TakeIf(","));
    if (is_list) Expect("}");
    d.values.resize(d.bytes);
  }
  void ParseDeclarations(std::vector<Declaration>& to) {
    to.push_back(ParseDeclaration());
    while (TakeIf(",")) {
      Declaration next = to.back();
      ParseName(next, BytesOf(next.type));
      to.push_back(next);
    }
    Expect(";");
  }
  std::vector<Declaration> ParseParameters() {
    std::vector<Declaration> parameters;
    Expect("(");
    while (!Next().Is(")") && !AtEnd()) {
      parameters.push_back(ParseDeclaration());
      if (!TakeIf(",")) break;
    }
    Expect(")");
    return parameters;
  }

  //---- Functions ----
  void ParseFunction() {
    FunctionText f;
    f.is_entry = TakeWord() == ".entry";
    if (Next().Is("(")) f.results = ParseParameters();
    f.name = TakeWord();
    if (Next().Is("(")) f.parameters = ParseParameters();
    while (!Next().Is("{") && !Next().Is(";") && !AtEnd()) ParseAttribute(f);
    if (TakeIf(";")) return;  // declared; the body comes later
    ParseBody(f);
    module_.functions.push_back(std::move(f));
  }
  void ParseAttribute(FunctionText& f) {
    const std::string name = TakeWord();
    uint64_t product = 1;
    while (Next().kind == Token::Kind::kNumber) {
      product *= TakeNumber();
      TakeIf(",");
    }
    if (name == ".maxntid" || name == ".reqntid") f.most_threads = static_cast<int>(product);
  }

  void ParseBody(FunctionText& f) {
    Expect("{");
    place_ = {};
    for (int depth = 1; depth > 0 && !AtEnd();) {
      if (TakeIf("{")) {
        ++depth;
      } else if (TakeIf("}")) {
        --depth;
      } else if (TakeIf(";")) {
      } else {
        ParseLine(f);
      }
    }
  }
  void ParseLine(FunctionText& f) {
    if (Next().Is(".loc")) {
      ParseLoc();
    } else if (Next().Is(".pragma")) {
      SkipLine();
    } else if (Next().text.starts_with(".")) {
      const size_t begin = f.declarations.size();
      ParseDeclarations(f.declarations);
      for (size_t i = begin; i < f.declarations.size(); ++i) {
        f.lines.push_back({Line::Kind::kDeclaration, i});
      }
    } else if (tokens_[at_ + 1].Is(":")) {
      f.lines.push_back({Line::Kind::kLabel, f.labels.size()});
      f.labels.push_back(TakeWord());
      Take();
    } else {
      f.lines.push_back({Line::Kind::kStatement, f.statements.size()});
      f.statements.push_back(ParseStatement());
    }
  }
  // Of code that was inlined it is where the inlined function has it.
  void ParseLoc() {
    const int line = Take().line;
    if (Next().line == line) place_.file = static_cast<int>(TakeNumber());
    if (Next().line == line) place_.source_line = static_cast<int>(TakeNumber());
    while (Next().line == line && Next().kind != Token::Kind::kEnd) Take();
  }

  Statement ParseStatement() {
    Statement s;
    s.place = place_;
    s.place.line = Next().line;
    if (TakeIf("@")) {
      s.is_guard_negated = TakeIf("!");
      s.guard = TakeWord();
    }
    s.opcode = TakeWord();
    while (!Next().Is(";") && !AtEnd()) {
      s.operands.push_back(ParseOperand());
      if (Next().Is("|")) {
        Operand both;
        both.group.push_back(std::move(s.operands.back()));
        while (TakeIf("|")) both.group.push_back(ParseOperand());
        s.operands.back() = std::move(both);
      }
      if (!TakeIf(",")) break;
    }
    Expect(";");
    return s;
  }
  Operand ParseOperand() {
    Operand operand;
    if (Next().Is("{") || Next().Is("(")) {
      const char* const end = Take().Is("{") ? "}" : ")";
      while (!Next().Is(end) && !AtEnd()) {
        operand.group.push_back(ParseOperand());
        if (!TakeIf(",")) break;
      }
      Expect(end);
    } else if (TakeIf("[")) {
      operand = ParseOperand();
      operand.is_address = true;
      if (TakeIf("+")) operand.value += TakeNumber();
      Expect("]");
    } else if (Next().kind == Token::Kind::kWord) {
      operand.name = TakeWord();
    } else {
      operand.value = TakeNumber();
    }
    return operand;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Place place_;
  ModuleText module_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<ModuleText> Parse(std::string_view text) {
  auto tokens = Tokenize(text);
  if (!tokens.ok()) return tokens.status();
  return Parser(std::move(*tokens)).Run();
}

}  // namespace zerobox::ptx
