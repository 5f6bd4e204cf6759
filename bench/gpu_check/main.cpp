// SPDX-License-Identifier: Apache-2.0
//
// build/gpu-check [--tiny] [--parts=2,3] [--python=COMMAND]: see bench/gpu_check/check.h. Exits
// with 1 where something is wrong, and where there is no GPU; slow is not wrong.
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "bench/gpu_check/check.h"

namespace zerobox::gpu_check {
namespace {

bool ParseParts(absl::string_view text, std::vector<int>& parts) {
  parts.clear();
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int part = 0;
    if (!absl::SimpleAtoi(word, &part) || part < 1 || part > 7) return false;
    parts.push_back(part);
  }
  return true;
}

bool ParseArgument(absl::string_view argument, Options& options) {
  if (argument == "--tiny") {
    options.sizes = TinySizes();
    return true;
  }
  if (absl::ConsumePrefix(&argument, "--parts=")) return ParseParts(argument, options.parts);
  if (absl::ConsumePrefix(&argument, "--python=")) {
    options.pytorch.python = std::string(argument);
    return true;
  }
  return false;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (ParseArgument(argv[i], options)) continue;
    std::fprintf(
        stderr, "gpu-check: wanted --tiny, --parts=1,2,3,4,5,6,7 or --python=COMMAND, found '%s'\n",
        argv[i]);
    return 1;
  }
  Report report(stdout);
  RunCheck(options, report);
  std::printf("%d passed, %d slow (WARN), %d failed\n", report.Count(Verdict::kPass),
              report.Count(Verdict::kWarn), report.Count(Verdict::kFail));
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace zerobox::gpu_check

int main(int argc, char** argv) { return zerobox::gpu_check::Main(argc, argv); }
