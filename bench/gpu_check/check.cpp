// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_check/check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace zerobox::gpu_check {
namespace {

// With the vocabulary rounded up to a multiple of 128, as rows of 16-byte words are what fast
// matrix products want. (50257 would be 1% fewer operations.)
constexpr int64_t kVocabulary = 50304;

ModelConfig Gpt2(int64_t layers, int64_t heads, int64_t channels) {
  return {.n_layer = layers,
          .n_head = heads,
          .n_embd = channels,
          .seq_len = 1024,
          .vocab_size = kVocabulary};
}

}  // namespace

Sizes FullSizes() {
  return {
      .networks = {{{2, 7, 24}, 3, 40, 19},
                   {{3, 65, 96}, 3, 384, 101},
                   {{2, 129, 256}, 2, 1024, 509},
                   {{1, 200, 768}, 12, 3072, 1024}},
      .runs = CudaRunKinds(),
      .several_runs = SeveralDevicesKinds(/*devices=*/2, /*on_one_gpu=*/true),
      .virtual_ranks = {2, 4},
      .memory_bytes = int64_t{8} << 30,
      .copy_bytes = int64_t{1} << 30,
      .square = 8192,
      .adamw_elements = 124'475'904,
      .launches = 20,
      .kernels = {{"124M", {16, 1024, 768}, 12, kVocabulary, 8192, 0.55},
                  {"1558M", {16, 1024, 1600}, 25, kVocabulary, 8192, 0.60}},
      .training = {{"GPT-2 124M", Gpt2(12, 12, 768), {64, 32, 16, 8, 4}, 3, 20, 0.42},
                   {"GPT-2 1558M", Gpt2(48, 25, 1600), {32, 16, 8, 4, 2, 1}, 2, 8, 0.50}},
  };
}

Sizes TinySizes() {
  const ModelConfig tiny = {
      .n_layer = 2, .n_head = 2, .n_embd = 32, .seq_len = 32, .vocab_size = 64};
  return {
      .networks = {{{2, 7, 24}, 3, 40, 19}, {{1, 33, 32}, 1, 64, 37}},
      .runs = {{.name = "optimizer_offloaded",
                .dtype = DType::kBFloat16,
                .stage = 3,
                .offload_optimizer = true}},
      .several_runs = {{.name = "stage3", .stage = 3},
                       {.name = "full_all_offloaded",
                        .dtype = DType::kBFloat16,
                        .stage = 2,
                        .checkpointing = ActivationCheckpointing::kFull,
                        .offload_optimizer = true,
                        .offload_activations = true}},
      .virtual_ranks = {2},
      .memory_bytes = int64_t{16} << 20,
      .copy_bytes = int64_t{64} << 10,
      .square = 64,
      .adamw_elements = 5000,
      .launches = 2,
      .kernels = {{"tiny", {2, 32, 64}, 2, 128, 8, 0.55}},
      .training = {{"tiny", tiny, {1 << 16, 2}, 1, 2, 0.42}},
  };
}

void RunCheck(const Options& options, Report& report) {
  const auto asked = [&](int part) {
    return std::find(options.parts.begin(), options.parts.end(), part) != options.parts.end();
  };
  report.BeginPart(1, "The machine");
  const absl::StatusOr<Gpu> gpu = DescribeMachine(report);
  if (!gpu.ok()) {
    report.Fail(gpu.status(), "no GPU to check");
    return report.EndPart();
  }
  if (asked(2)) {
    report.BeginPart(2, "Every op against the host's");
    CheckOps(options.sizes, report);
  }
  if (asked(3)) {
    report.BeginPart(3, "Training against the host device, 10 steps");
    CheckTraining(options.sizes, report);
  }
  if (asked(4)) {
    report.BeginPart(4, "Kernels, bf16");
    MeasureKernels(*gpu, options.sizes, report);
  }
  std::vector<Trained> trained;
  if (asked(5)) {
    report.BeginPart(5, "Training, bf16");
    trained = MeasureTraining(*gpu, options.sizes, report);
  }
  if (asked(6)) {
    report.BeginPart(6, "The same models by PyTorch");
    ComparePyTorch(options.pytorch, trained, report);
  }
  if (asked(7)) {
    report.BeginPart(7, "Several ranks");
    CheckSeveral(*gpu, options.sizes, report);
  }
  report.EndPart();
}

}  // namespace zerobox::gpu_check
