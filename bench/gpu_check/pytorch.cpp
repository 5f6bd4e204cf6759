// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/gpu_check/check.h"
#include "bench/gpu_check/command.h"

namespace zerobox::gpu_check {
namespace {

// Of lines "name value".
std::map<std::string, std::string> Parse(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> values;
  for (const std::string& line : lines) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    values[parts.first] = parts.second;
  }
  return values;
}

std::string Command(const PyTorch& pytorch, const Trained& trained) {
  const ModelConfig& m = trained.sizes->model;
  return absl::StrCat("timeout ", pytorch.limit_seconds, " ", pytorch.python, " ", pytorch.script,
                      " --n_layer=", m.n_layer, " --n_head=", m.n_head, " --n_embd=", m.n_embd,
                      " --seq_len=", m.seq_len, " --vocab_size=", m.vocab_size,
                      " --micro_batch=", trained.micro_batch, " --warm_up=", trained.sizes->warm_up,
                      " --steps=", trained.sizes->steps, " 2>&1");
}

}  // namespace

void ComparePyTorch(const PyTorch& pytorch, const std::vector<Trained>& trained, Report& report) {
  if (trained.empty()) return report.Say("skipped: no model was measured");
  for (const Trained& ours : trained) {
    const CommandResult run = RunCommand(Command(pytorch, ours));
    auto values = Parse(run.lines);
    if (values.count("skipped") > 0) {
      return report.Say(absl::StrCat("skipped: ", values["skipped"]));
    }
    double speed = 0;
    if (run.exit_code != 0 || !absl::SimpleAtod(values["tokens_per_second"], &speed) ||
        speed <= 0) {
      // 124 is what timeout says.
      report.Say(absl::StrCat("skipped, ", ours.sizes->name, ": ", pytorch.python, " ended with ",
                              run.exit_code, run.exit_code == 124 ? " (it took too long)" : "",
                              run.lines.empty() ? "" : absl::StrCat(": ", run.lines.back())));
      continue;
    }
    report.Say(absl::StrFormat(
        "%s: torch %s, micro-batch %s: %.0f tokens/s, peak memory %s bytes; zerobox is %.2f times "
        "as fast",
        ours.sizes->name, values["torch"], values["micro_batch"], speed, values["peak_bytes"],
        ours.tokens_per_second / speed));
  }
}

}  // namespace zerobox::gpu_check
