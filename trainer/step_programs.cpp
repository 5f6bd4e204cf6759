// SPDX-License-Identifier: Apache-2.0
#include "trainer/step_programs.h"

#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

void Add(StepProgram& program, Visit visit) {
  visit.index = static_cast<int>(program.size());
  program.push_back(visit);
}

Visit Block(Pass pass, int64_t block) {
  const UnitId unit = BlockUnit(block);
  return {.pass = pass, .layer = UnitName(unit), .unit = unit};
}

}  // namespace

std::string UnitName(UnitId unit) {
  return unit == kEnds ? "ends" : absl::StrCat("block ", unit - BlockUnit(0));
}

StepProgram TrainingProgram(int64_t n_layer) {
  StepProgram program = ForwardProgram(n_layer);
  if (n_layer > 0) program[n_layer].keeps_parameters = true;  // the last block
  program.back().keeps_parameters = true;                     // the head
  Add(program, {.pass = Pass::kBackward, .layer = kHead, .unit = kEnds});
  for (int64_t block = n_layer - 1; block >= 0; --block)
    Add(program, Block(Pass::kBackward, block));
  Add(program,
      {.pass = Pass::kBackward, .layer = kLookup, .unit = kEnds, .needs_parameters = false});
  return program;
}

StepProgram ForwardProgram(int64_t n_layer) {
  StepProgram program;
  Add(program, {.pass = Pass::kForward, .layer = kLookup, .unit = kEnds});
  for (int64_t block = 0; block < n_layer; ++block) Add(program, Block(Pass::kForward, block));
  Add(program, {.pass = Pass::kForward, .layer = kHead, .unit = kEnds});
  return program;
}

StepProgram ReadingProgram(int64_t n_layer) {
  StepProgram program;
  Add(program, {.layer = "ends", .unit = kEnds});
  for (int64_t block = 0; block < n_layer; ++block) Add(program, Block(Pass::kForward, block));
  return program;
}

}  // namespace zerobox
