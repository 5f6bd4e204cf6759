// SPDX-License-Identifier: Apache-2.0
//
// The events of several ranks on GPUs: those of docs/architecture.md, and each is needed.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cuda/cuda.h"
#include "tests/cuda_runs.h"
#include "tests/emulation/edges.h"

namespace zerobox {
namespace {

enum class Offload { kNothing, kOptimizer, kBoth };

struct Kind {
  bool on_one_gpu;
  int stage;
  Offload offload = Offload::kNothing;
};
std::string NameOf(const Kind& kind) {
  static constexpr const char* kOffloads[] = {"", "_optimizer", "_both"};
  return absl::StrCat(kind.on_one_gpu ? "one_gpu" : "gpus", "_stage", kind.stage,
                      kOffloads[static_cast<int>(kind.offload)]);
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const bool on_one_gpu : {false, true}) {
    if (!on_one_gpu && !CheckNccl().ok()) continue;
    for (int stage = 0; stage <= 3; ++stage) kinds.push_back({on_one_gpu, stage});
    // What moves to the host has no part in how ranks meet.
    if (!on_one_gpu) kinds.push_back({on_one_gpu, 1, Offload::kOptimizer});
    if (on_one_gpu) kinds.push_back({on_one_gpu, 3, Offload::kBoth});
  }
  return kinds;
}

// As drop_wait names them.
using Edges = std::set<std::string>;

Edges EdgesOf(const Kind& kind) {
  Edges edges = {"batch uploaded -> compute",   "batch uploaded -> host",
                 "batch consumed -> from_host", "results ready -> to_host",
                 "results read -> compute",     "results read -> host",
                 "bucket full -> communication"};
  const auto add = [&](const Edges& more) { edges.insert(more.begin(), more.end()); };
  if (kind.on_one_gpu) {
    add({"call ready -> communication", "call done -> communication"});
  } else {
    add({"collectives warm -> host"});
  }
  const bool optimizer = kind.offload != Offload::kNothing;
  const std::string reduced = kind.stage <= 1 ? "gradients reduced" : "bucket reduced";
  if (kind.stage <= 1 || !optimizer) add({reduced + " -> compute"});
  if (kind.stage >= 1) {
    add({"squares ready -> communication", "squares known -> compute",
         "parameters updated -> communication", "unit gathered -> compute"});
  }
  if (kind.stage == 3) add({"transient memory free -> communication"});
  if (optimizer) {
    add({reduced + " -> to_host", "squares summed -> from_host", "squares up -> compute",
         "step prepared -> to_host", "bucket updated -> from_host", "staging free -> to_host",
         "parameters up -> compute"});
    if (kind.stage >= 2) add({"gradient landed -> compute"});
  }
  if (kind.offload == Offload::kBoth) {
    add({"checkpoint written -> to_host", "checkpoint left -> compute",
         "checkpoint slot free -> from_host", "checkpoint back -> compute"});
  }
  return edges;
}

// Where others happen to order as much.
Edges CoveredIn(const Kind& kind) {
  // Checkpoints that come back while the next batch is computed tell that this one is read.
  if (kind.offload == Offload::kBoth) return {"batch consumed -> from_host"};
  // What compute does with gradients next comes behind the parameters that were made of these.
  if (kind.offload == Offload::kOptimizer) return {"gradients reduced -> compute"};
  // The first calls of all share memory with kernels, but here those come behind a gathered unit.
  if (kind.stage == 3 && !kind.on_one_gpu) return {"collectives warm -> host"};
  return {};
}

TrainSettings SettingsOf(const Kind& kind) {
  const bool both = kind.offload == Offload::kBoth;
  TrainSettings settings =
      SettingsOf(CudaRunKind{.name = "",
                             .stage = kind.stage,
                             .checkpointing = both ? ActivationCheckpointing::kSelective
                                                   : ActivationCheckpointing::kNone,
                             .offload_optimizer = kind.offload != Offload::kNothing,
                             .offload_activations = both,
                             .devices = 2,
                             .on_one_gpu = kind.on_one_gpu},
                 "cuda");
  settings.model = {
      .n_layer = both ? 3 : 2, .n_head = 1, .n_embd = 8, .seq_len = 3, .vocab_size = 19};
  settings.micro_batch = 1;
  settings.grad_accum = 3;  // the two slots of the batch feed are free at first
  // Parameters on their way up are staged in mixed precision only.
  if (kind.offload != Offload::kNothing) settings.dtype = DType::kBFloat16;
  settings.grad_accum_dtype = DType::kFloat32;
  settings.bucket_bytes = 2 << 10;
  return settings;
}

class SeveralGpusEdges : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(, SeveralGpusEdges, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(SeveralGpusEdges, AMissingWaitIsFoundInSomeOrderOfTheStreams) {
  const Edges covered = CoveredIn(GetParam());
  Edges needed = EdgesOf(GetParam());
  for (const std::string& edge : covered) needed.erase(edge);
  ExpectEveryMissingWaitIsFound(SettingsOf(GetParam()), needed, covered);
}

}  // namespace
}  // namespace zerobox
