// SPDX-License-Identifier: Apache-2.0
//
// The tables that docs/memory.md shows are those that zerobox prints.
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "trainer/tables.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

// --model=gpt2 --dtype=bf16 --devices=8 --micro_batch=1.
TrainSettings Gpt2(int stage) {
  TrainSettings settings;
  settings.model = {
      .n_layer = 12, .n_head = 12, .n_embd = 768, .seq_len = 1024, .vocab_size = 50257};
  settings.dtype = settings.grad_accum_dtype = DType::kBFloat16;
  settings.devices = 8;
  settings.micro_batch = 1;
  settings.zero_stage = stage;
  return settings;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    lines.emplace_back(absl::StripTrailingAsciiWhitespace(line));
  }
  return lines;
}

// The memory and traffic tables of a dry run.
std::vector<std::string> Printed(const TrainSettings& settings) {
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  return LinesOf(MemoryTable(settings, *plan, {}, {}) + TrafficTable(*plan, {}, {}));
}

std::string Document() {
  std::ifstream file("docs/memory.md", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Block {
  std::string heading;
  std::vector<std::string> lines;
};

// Lines between fences, with the heading above them.
std::vector<Block> BlocksOf(const std::string& document) {
  std::vector<Block> blocks;
  std::string heading;
  bool inside = false;
  for (const std::string& line : LinesOf(document)) {
    if (absl::StartsWith(line, "```")) {
      inside = !inside;
      if (inside) blocks.push_back({heading, {}});
    } else if (inside) {
      if (!line.empty()) blocks.back().lines.push_back(line);
    } else if (absl::StartsWith(line, "#")) {
      heading = line;
    }
  }
  return blocks;
}

// Parts of what is printed may be left out, but nothing is in another order.
void ExpectPrinted(const Block& block, const std::vector<std::string>& printed) {
  size_t next = 0;
  for (const std::string& line : block.lines) {
    size_t at = next;
    while (at < printed.size() && printed[at] != line) ++at;
    EXPECT_LT(at, printed.size()) << "not printed, or not here:\n" << line;
    if (at < printed.size()) next = at + 1;
  }
}

TEST(MemoryMd, ShowsTheTablesThatArePrinted) {
  TrainSettings offload = Gpt2(2);
  offload.offload_optimizer = true;
  const std::map<std::string, TrainSettings> runs = {
      {"## Stage 0", Gpt2(0)},         {"## Stage 1, P_os", Gpt2(1)},
      {"## Stage 2, P_os+g", Gpt2(2)}, {"## Stage 3, P_os+g+p", Gpt2(3)},
      {"## The four stages", Gpt2(0)}, {"## Offload", offload}};
  size_t compared = 0;
  for (const Block& block : BlocksOf(Document())) {
    const auto run = runs.find(block.heading);
    if (run == runs.end()) {
      EXPECT_EQ(block.heading, "# What every byte is for");  // the command line
      continue;
    }
    SCOPED_TRACE(block.heading);
    EXPECT_GE(block.lines.size(), 6u);
    ExpectPrinted(block, Printed(run->second));
    ++compared;
  }
  EXPECT_EQ(compared, runs.size());
}

TEST(MemoryMd, HasThePlannedBytesOfEveryWayOfCheckpointing) {
  const std::string document = Document();
  for (const auto mode : {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective,
                          ActivationCheckpointing::kFull}) {
    for (const bool offload : {false, true}) {
      if (offload && mode == ActivationCheckpointing::kNone) continue;
      TrainSettings settings = Gpt2(1);
      settings.grad_accum_dtype = DType::kFloat32;
      settings.logits_bytes = 1 << 20;
      settings.activation_checkpointing = mode;
      settings.offload_activations = offload;
      const RankPlan rank = PlanRun(settings).value().ranks[0];
      const auto held = [](const Ledger& ledger, Category category) {
        return WithCommas(ledger.at_peak[static_cast<size_t>(category)]);
      };
      const std::string row =
          absl::StrCat("\n| ", std::string(Name(mode)), offload ? ", `--offload=activations`" : "",
                       " | ", held(rank.memory, Category::kActivations), " | ",
                       held(rank.memory, Category::kActivationCheckpoints), " | ",
                       WithCommas(rank.memory.peak_bytes), " | ",
                       held(rank.host_memory, Category::kActivationCheckpoints), " |\n");
      EXPECT_NE(document.find(row), std::string::npos) << row;
    }
  }
}

}  // namespace
}  // namespace zerobox
