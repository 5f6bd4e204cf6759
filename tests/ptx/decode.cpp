// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/ptx/program.h"

namespace zerobox::ptx {
namespace {

constexpr size_t kSharedAlignment = 128;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

const std::map<std::string, Special, std::less<>>& Specials() {
  static const auto& specials = *new std::map<std::string, Special, std::less<>>{
      {"%tid.x", Special::kThreadX},    {"%tid.y", Special::kThreadY},
      {"%tid.z", Special::kThreadZ},    {"%ctaid.x", Special::kBlockX},
      {"%ctaid.y", Special::kBlockY},   {"%ctaid.z", Special::kBlockZ},
      {"%ntid.x", Special::kThreadsX},  {"%ntid.y", Special::kThreadsY},
      {"%ntid.z", Special::kThreadsZ},  {"%nctaid.x", Special::kBlocksX},
      {"%nctaid.y", Special::kBlocksY}, {"%nctaid.z", Special::kBlocksZ},
      {"%laneid", Special::kLane},      {"%warpid", Special::kWarp}};
  return specials;
}

class Decoder {
 public:
  Decoder(Module& module, const FunctionText& text, Function& function)
      : module_(module), text_(text), function_(function) {}

  absl::Status Run() {
    function_.module = &module_.text();
    function_.text = &text_;
    DeclareParameters(text_.results, function_.results);
    DeclareParameters(text_.parameters, function_.parameters);
    DeclareShared();
    FindLabels();
    for (const Line& line : text_.lines) {
      if (line.kind == Line::Kind::kDeclaration) Declare(text_.declarations[line.index]);
      if (line.kind == Line::Kind::kStatement) DecodeStatement(text_.statements[line.index]);
      if (!status_.ok()) return status_;
    }
    if (text_.statements.empty()) return absl::OkStatus();
    function_.code.push_back({.opcode = *FindOpcode("ret"), .statement = &text_.statements.back()});
    return absl::OkStatus();
  }

 private:
  void Fail(const std::string& what) {
    if (!status_.ok()) return;
    const std::string where = statement_ == nullptr ? ""
                                                    : absl::StrCat("line ", statement_->place.line,
                                                                   ", ", statement_->opcode, ": ");
    status_ = absl::UnimplementedError(absl::StrCat("PTX of ", text_.name, ", ", where, what));
  }

  //---- Declarations ----
  size_t AddSlot(const Declaration& d) {
    const size_t offset = RoundUp(function_.parameter_bytes, d.alignment);
    function_.parameter_bytes = offset + d.bytes;
    parameters_[d.name] = {offset, d.bytes};
    symbols_[d.name] = offset;
    return offset;
  }
  void DeclareParameters(const std::vector<Declaration>& from, std::vector<Function::Slot>& to) {
    for (const Declaration& d : from) to.push_back({AddSlot(d), d.bytes});
  }
  // Before all else, since dynamic shared memory lies behind all arrays, and may be named earlier.
  // Of those that functions share, only what this one names is there.
  void DeclareShared() {
    for (const Declaration& d : text_.declarations) {
      if (d.space == ".shared") AddShared(d);
    }
    std::set<std::string> names;
    for (const Statement& s : text_.statements) AddNames(s.operands, names);
    for (const Declaration& d : module_.text().variables) {
      if (d.space == ".shared" && d.bytes > 0 && names.count(d.name) != 0) AddShared(d);
    }
    function_.shared_bytes = RoundUp(function_.shared_bytes, kSharedAlignment);
    for (const Declaration& d : module_.text().variables) {
      if (d.space == ".shared" && d.bytes == 0) symbols_[d.name] = function_.shared_bytes;
    }
  }
  void AddShared(const Declaration& d) {
    const size_t offset = RoundUp(function_.shared_bytes, d.alignment);
    symbols_[d.name] = offset;
    function_.shared_bytes = offset + d.bytes;
  }
  static void AddNames(const std::vector<Operand>& operands, std::set<std::string>& names) {
    for (const Operand& operand : operands) {
      names.insert(operand.name);
      AddNames(operand.group, names);
    }
  }
  void Declare(const Declaration& d) {
    if (d.space == ".param") {
      AddSlot(d);
    } else if (d.space == ".local") {
      const size_t offset = RoundUp(function_.local_bytes, d.alignment);
      function_.local_bytes = offset + d.bytes;
      locals_[d.name] = offset;
    } else if (d.space == ".reg" && d.registers < 0) {
      registers_[d.name] = NewRegister(d.name);
    } else if (d.space == ".reg") {
      ranges_[d.name] = d.registers;
    } else if (d.space != ".shared") {
      Fail(absl::StrCat("a declaration in ", d.space));
    }
  }
  // Every statement is one instruction.
  void FindLabels() {
    size_t statements = 0;
    for (const Line& line : text_.lines) {
      if (line.kind == Line::Kind::kLabel) labels_[text_.labels[line.index]] = statements;
      if (line.kind == Line::Kind::kStatement) ++statements;
    }
  }

  //---- Operands ----
  uint32_t NewRegister(const std::string& name) {
    function_.registers.push_back(0xdeadbeefdeadbeef);
    function_.is_set.push_back(0);
    function_.register_names.push_back(name);
    return static_cast<uint32_t>(function_.registers.size() - 1);
  }
  uint32_t Constant(uint64_t value) {
    const auto [found, is_new] = constants_.try_emplace(value);
    if (is_new) {
      found->second = NewRegister("a constant");
      function_.registers.back() = value;
      function_.is_set.back() = 1;
    }
    return found->second;
  }
  bool IsOfRange(const std::string& name) const {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    const auto range = ranges_.find(name.substr(0, digits));
    return range != ranges_.end() && digits < name.size() &&
           std::stoi(name.substr(digits)) < range->second;
  }
  uint32_t Register(const Operand& operand) {
    const std::string& name = operand.name;
    if (name.empty()) return Constant(operand.value);
    if (name == "_") return NewRegister(name);
    if (const auto found = registers_.find(name); found != registers_.end()) return found->second;
    if (IsOfRange(name)) return registers_[name] = NewRegister(name);
    if (const auto found = symbols_.find(name); found != symbols_.end())
      return Constant(found->second);
    if (const auto found = locals_.find(name); found != locals_.end()) {
      const uint32_t number = registers_[name] = NewRegister(name);
      function_.is_set.back() = 1;
      function_.locals.push_back({number, found->second});
      return number;
    }
    if (const auto found = Specials().find(name); found != Specials().end()) {
      const uint32_t number = registers_[name] = NewRegister(name);
      function_.is_set.back() = 1;
      function_.specials.push_back({number, found->second});
      return number;
    }
    if (const auto* variable = module_.FindVariable(name)) {
      return Constant(reinterpret_cast<uint64_t>(variable->data()));
    }
    Fail(absl::StrCat("the name ", name, " is not known"));
    return 0;
  }
  void AddOperand(Instruction& instruction, const Operand& operand, bool is_output) {
    if (!operand.group.empty()) {
      for (const Operand& part : operand.group) AddOperand(instruction, part, is_output);
      return;
    }
    const int count = instruction.outputs + instruction.inputs;
    if (count == Instruction::kMostOperands) return Fail("too many operands");
    if (operand.is_address && operand.value != 0 && !operand.name.empty()) {
      if (instruction.immediate != 0) return Fail("two addresses with offsets");
      instruction.immediate = static_cast<int64_t>(operand.value);
    }
    instruction.operands[count] = Register(operand);
    ++(is_output ? instruction.outputs : instruction.inputs);
  }

  //---- Statements ----
  // `mov` of a group packs registers into one, or unpacks one.
  static std::string OpcodeName(const Statement& s) {
    if (s.opcode.starts_with("mov.") && s.operands.size() == 2) {
      if (!s.operands[0].group.empty()) return s.opcode + " unpack";
      if (!s.operands[1].group.empty()) return s.opcode + " pack";
    }
    return s.opcode;
  }
  void DecodeStatement(const Statement& s) {
    statement_ = &s;
    Instruction instruction = {.statement = &s};
    const Opcode* opcode = FindOpcode(OpcodeName(s));
    if (opcode == nullptr)
      return Fail(
          "the interpreter does not know this instruction: add it to the table of opcodes in "
          "tests/ptx");
    instruction.opcode = *opcode;
    if (!s.guard.empty()) {
      instruction.guard = static_cast<int32_t>(Register({.name = s.guard}));
      instruction.is_guard_negated = s.is_guard_negated;
    }
    if (opcode->flow == Flow::kBranch) {
      const auto label = s.operands.empty() ? labels_.end() : labels_.find(s.operands[0].name);
      if (label == labels_.end()) return Fail("no such label");
      instruction.immediate = static_cast<int64_t>(label->second);
    } else if (opcode->flow == Flow::kCall) {
      DecodeCall(s, instruction);
    } else {
      for (size_t i = 0; i < s.operands.size(); ++i) {
        AddOperand(instruction, s.operands[i], i == 0 && opcode->has_output);
      }
    }
    function_.code.push_back(instruction);
  }

  // call (results), name, (arguments): variables of .param, which the caller has filled.
  void DecodeCall(const Statement& s, Instruction& instruction) {
    const Operand* results = nullptr;
    const Operand* arguments = nullptr;
    std::string name;
    for (const Operand& operand : s.operands) {
      if (!operand.name.empty()) {
        name = operand.name;
      } else {
        (name.empty() ? results : arguments) = &operand;
      }
    }
    const auto callee = module_.Find(name);
    if (!callee.ok()) return Fail(std::string(callee.status().message()));
    Call call = {.callee = *callee};
    Pass(arguments, (*callee)->parameters, call.arguments);
    Pass(results, (*callee)->results, call.results);
    instruction.immediate = static_cast<int64_t>(function_.calls.size());
    function_.calls.push_back(std::move(call));
  }
  void Pass(const Operand* group, const std::vector<Function::Slot>& slots,
            std::vector<Passed>& passed) {
    const size_t count = group == nullptr ? 0 : group->group.size();
    if (count != slots.size()) return Fail("a call with another number of parameters");
    for (size_t i = 0; i < count; ++i) {
      const auto found = parameters_.find(group->group[i].name);
      if (found == parameters_.end() || found->second.bytes != slots[i].bytes) {
        return Fail("a parameter of another size");
      }
      passed.push_back({found->second.offset, slots[i].offset, slots[i].bytes});
    }
  }

  template <typename T>
  using ByName = std::map<std::string, T, std::less<>>;

  Module& module_;
  const FunctionText& text_;
  Function& function_;
  ByName<uint32_t> registers_;
  ByName<int> ranges_;  // %r<5>
  ByName<uint64_t> symbols_;
  ByName<size_t> locals_, labels_;
  ByName<Function::Slot> parameters_;
  std::map<uint64_t, uint32_t> constants_;
  const Statement* statement_ = nullptr;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> Module::Parse(std::string_view text) {
  auto parsed = ptx::Parse(text);
  if (!parsed.ok()) return parsed.status();
  auto module = std::make_unique<Module>();
  module->text_ = std::move(*parsed);
  for (const Declaration& d : module->text_.variables) {
    if (d.space == ".shared") continue;
    std::vector<char> bytes(d.bytes);
    std::copy(d.values.begin(), d.values.end(), bytes.begin());
    module->variables_[d.name] = std::move(bytes);
  }
  return module;
}

absl::StatusOr<const Function*> Module::Find(std::string_view name) {
  if (const auto found = functions_.find(name); found != functions_.end())
    return found->second.get();
  for (const FunctionText& text : text_.functions) {
    if (text.name != name) continue;
    auto function = std::make_unique<Function>();
    if (absl::Status status = Decode(*this, text, *function); !status.ok()) return status;
    return (functions_[text.name] = std::move(function)).get();
  }
  return absl::NotFoundError(
      absl::StrCat("there is no function ", std::string(name), " in the PTX"));
}

const std::vector<char>* Module::FindVariable(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

absl::Status Decode(Module& module, const FunctionText& text, Function& function) {
  return Decoder(module, text, function).Run();
}

}  // namespace zerobox::ptx
