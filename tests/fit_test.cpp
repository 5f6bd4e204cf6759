// SPDX-License-Identifier: Apache-2.0
//
// The program itself, with a device memory that one stage exceeds and another fits.
#include "trainer/fit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "tests/program_run.h"
#include "tests/small_run.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;

int64_t Reserved(const TrainSettings& settings) {
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? ReservedBytes(plan->ranks[0].regions) : 0;
}

TEST_F(Program, FitsInStage3WhatDoesNotFitInStage2) {
  TrainSettings settings;
  settings.model = {.n_layer = 12, .n_head = 4, .n_embd = 64, .seq_len = 32, .vocab_size = 256};
  settings.devices = 4;
  settings.micro_batch = 1;
  settings.steps = 2;
  settings.eval_interval = 0;
  settings.zero_stage = 2;
  const int64_t stage2 = Reserved(settings);
  settings.zero_stage = 3;
  const int64_t stage3 = Reserved(settings);
  // Psi/N instead of Psi parameters, for two gathered blocks: (12 - 3 - 2) x 50 thousand or so.
  ASSERT_LT(stage3 + 500'000, stage2);

  settings.device_memory_bytes = stage3;
  settings.zero_stage = 2;
  EXPECT_EQ(Train(settings), 1);
  EXPECT_FALSE(fs::exists(Out())) << "refused before anything was written";
  EXPECT_NE(Stderr().find("does not fit"), std::string::npos) << Stderr();
  EXPECT_NE(Stderr().find("--zero_stage=3"), std::string::npos) << Stderr();

  settings.zero_stage = 3;
  settings.device_memory_bytes = stage3 - 1;
  EXPECT_EQ(Train(settings), 1) << "not one byte less";
  EXPECT_FALSE(fs::exists(Out()));

  settings.device_memory_bytes = stage3;
  EXPECT_EQ(Train(settings), 0) << Stderr();
  EXPECT_TRUE(fs::exists(Out() / "model.safetensors"));
}

// The settings of a command line with some flags added.
absl::StatusOr<ResolvedTrain> Resolve(std::vector<std::string> flags, const std::string& more,
                                      const Machine& machine) {
  const absl::FlagSaver saver;
  std::istringstream words(more);
  for (std::string flag; words >> flag;) flags.push_back(flag);
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, flags);
  if (!line.ok()) return line.status();
  return ResolveTrain(*line, machine);
}

// The lines of flags in what a refused run says.
std::vector<std::string> FlagLines(const std::string& message) {
  std::vector<std::string> lines;
  std::istringstream text(message);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("  --")) lines.push_back(line);
  }
  return lines;
}

struct Saving {
  int stage;
  ActivationCheckpointing checkpointing;
  bool optimizer, activations;
};

std::vector<Saving> AllSavings() {
  std::vector<Saving> all;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto checkpointing :
         {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective,
          ActivationCheckpointing::kFull}) {
      for (const bool optimizer : {false, true}) {
        for (const bool activations : {false, true}) {
          if (activations && checkpointing == ActivationCheckpointing::kNone) continue;
          all.push_back({stage, checkpointing, optimizer, activations});
        }
      }
    }
  }
  return all;
}

TEST_F(Program, FitsOnlyWithEverySavingAndNamesTheFlagsOtherwise) {
  TrainSettings settings;
  settings.model = {.n_layer = 12, .n_head = 4, .n_embd = 64, .seq_len = 32, .vocab_size = 256};
  settings.devices = 4;
  settings.micro_batch = 1;
  settings.steps = 2;
  settings.eval_interval = 0;
  settings.logits_bytes = 4096;
  const auto save = [&settings](const Saving& saving) {
    settings.zero_stage = saving.stage;
    settings.activation_checkpointing = saving.checkpointing;
    settings.offload_optimizer = saving.optimizer;
    settings.offload_activations = saving.activations;
  };
  save({3, ActivationCheckpointing::kFull, true, true});
  settings.device_memory_bytes = Reserved(settings);
  EXPECT_EQ(Train(settings), 0) << Stderr();
  fs::remove_all(Out());

  int refused = 0;
  for (const Saving& saving : AllSavings()) {
    save(saving);
    if (saving.stage == 3 && saving.checkpointing == ActivationCheckpointing::kFull &&
        saving.optimizer && saving.activations) {
      continue;
    }
    SCOPED_TRACE(testing::Message()
                 << "stage " << saving.stage << ", " << Name(saving.checkpointing) << ", offload "
                 << OffloadName(saving.optimizer, saving.activations));
    ASSERT_GT(Reserved(settings), settings.device_memory_bytes);
    EXPECT_EQ(Train(settings), 1);
    EXPECT_FALSE(fs::exists(Out()));
    EXPECT_NE(Stderr().find("the run does not fit"), std::string::npos) << Stderr();
    EXPECT_NE(Stdout().find("Memory of each of 4 devices"), std::string::npos);
    EXPECT_NE(Stdout().find("▸ ZeRO-" + std::to_string(saving.stage)), std::string::npos);
    // One combination fits, and its flags are printed: added to the command line, they do it.
    const std::vector<std::string> lines = FlagLines(Stderr());
    ASSERT_EQ(lines.size(), 1u) << Stderr();
    const auto fitting = Resolve(Flags(settings), lines[0], ThisMachine());
    ASSERT_TRUE(fitting.ok()) << fitting.status();
    EXPECT_LE(Reserved(fitting->settings), settings.device_memory_bytes);
    ++refused;
  }
  EXPECT_EQ(refused, 4 * (2 + 4 + 4) - 1);
}

const Machine kLargeMachine = {.cores = 1, .available_memory = int64_t{1} << 50};

TEST_F(Program, NamesFlagsThatFitWhateverIsShort) {
  TrainSettings settings;
  settings.micro_batch = 4;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    settings.dtype = dtype;
    for (const int devices : {1, 2, 8}) {
      settings.devices = devices;
      settings.device_memory_bytes = kLargeMachine.available_memory;
      const int64_t needed = Reserved(Resolve(Flags(settings), "", kLargeMachine)->settings);
      for (const int percent : {99, 75, 50, 35}) {
        SCOPED_TRACE(testing::Message()
                     << Name(dtype) << ", N = " << devices << ", " << percent << "%");
        settings.device_memory_bytes = needed * percent / 100;
        const auto resolved = Resolve(Flags(settings), "", kLargeMachine);
        ASSERT_TRUE(resolved.ok()) << resolved.status();
        const std::vector<FittingSettings> found = FindFitting(*resolved, kLargeMachine, 3);
        ASSERT_GE(found.size(), 1u);
        ASSERT_LE(found.size(), 3u);
        for (const FittingSettings& fitting : found) {
          SCOPED_TRACE(fitting.flags);
          EXPECT_TRUE(fitting.fits);
          const auto with = Resolve(Flags(settings), fitting.flags, kLargeMachine);
          ASSERT_TRUE(with.ok()) << with.status();
          EXPECT_EQ(with->settings.global_batch(), settings.global_batch());
          EXPECT_EQ(Reserved(with->settings), fitting.device_bytes);
          EXPECT_LE(fitting.device_bytes, settings.device_memory_bytes);
        }
      }
    }
  }
}

TEST_F(Program, SaysWhatTheSmallestWouldNeedWhereNothingFits) {
  TrainSettings settings;
  settings.device_memory_bytes = 1 << 20;
  const ResolvedTrain resolved = Resolve(Flags(settings), "", kLargeMachine).value();
  const std::vector<FittingSettings> found = FindFitting(resolved, kLargeMachine, 3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].fits);
  // No other combination of one sequence at a time needs less.
  for (const Saving& saving : AllSavings()) {
    settings.zero_stage = saving.stage;
    settings.activation_checkpointing = saving.checkpointing;
    settings.offload_optimizer = saving.optimizer;
    settings.offload_activations = saving.activations;
    settings.micro_batch = 1;
    settings.grad_accum = 4;
    EXPECT_GE(Reserved(settings), found[0].device_bytes);
  }
  const std::string text = WhatWouldFit(resolved, kLargeMachine);
  EXPECT_NE(text.find("makes it fit; the least is\n  " + found[0].flags), std::string::npos)
      << text;
  EXPECT_NE(text.find(WithCommas(found[0].device_bytes)), std::string::npos) << text;
}

// What is left to a run that no saving of memory makes fit.
TEST_F(Program, AdvisesOnlyWhatWouldHelp) {
  TrainSettings settings;
  settings.devices = 4;
  const std::vector<std::string> all = Flags(settings);
  const auto advice = [&](const std::string& more, const Machine& machine) {
    const std::vector<std::string> without_memory(all.begin(), all.end() - 1);
    const auto resolved = Resolve(without_memory, more, machine);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    const std::string text = WhatWouldFit(*resolved, machine);
    const size_t left = text.find("What is left: ");
    return left == std::string::npos ? text : text.substr(left);
  };
  const auto has = [](const std::string& text, const char* flag) {
    return text.find(flag) != std::string::npos;
  };
  const Machine small = {.cores = 1, .available_memory = 4 << 20};
  // The share of a small machine: fewer devices would have more each.
  std::string text = advice("", small);
  EXPECT_TRUE(has(text, "--dtype=bf16")) << text;
  EXPECT_TRUE(has(text, "fewer --devices")) << text;
  EXPECT_TRUE(has(text, "a smaller --seq_len, --n_layer or --n_embd")) << text;
  EXPECT_FALSE(has(text, "--device_memory")) << text;
  EXPECT_FALSE(has(text, "--logits_bytes")) << "logits are small: " << text;
  EXPECT_FALSE(has(advice("--dtype=bf16", small), "--dtype")) << "it is";
  EXPECT_FALSE(has(advice("--devices=1", small), "--devices")) << "there is but one";
  // A capacity that was asked for stays, however few devices there are; unless the machine is
  // short.
  text = advice("--device_memory=1MiB", kLargeMachine);
  EXPECT_FALSE(has(text, "fewer --devices")) << text;
  EXPECT_TRUE(has(text, "more --device_memory")) << text;
  text = advice("--device_memory=1GiB", small);
  EXPECT_TRUE(has(text, "fewer --devices")) << text;
  EXPECT_FALSE(has(text, "more --device_memory")) << text;
  // 128 rows of 8,000 logits in fp32 are 4 MB.
  text = advice("--device_memory=1MiB --vocab_size=8000 --n_embd=4", kLargeMachine);
  EXPECT_TRUE(has(text, "a smaller --logits_bytes")) << text;
  EXPECT_FALSE(has(text, "--bucket_bytes")) << text;
  text = advice("--device_memory=1MiB --vocab_size=8000 --n_embd=4 --logits_bytes=32000",
                kLargeMachine);
  EXPECT_FALSE(has(text, "--logits_bytes")) << "one row, the least there is: " << text;
  // Two buckets, each a whole block of 12 x 256 x 256 parameters.
  text = advice("--device_memory=1MiB --n_embd=256 --n_layer=4 --seq_len=16", kLargeMachine);
  EXPECT_TRUE(has(text, "a smaller --bucket_bytes")) << text;
}

TEST(CheckFit, CountsTheHostSidesOfAllDevices) {
  TrainSettings settings;
  settings.device_memory_bytes = int64_t{1} << 30;
  settings.offload_optimizer = true;
  const RunPlan plan = PlanRun(settings).value();
  const int64_t device = ReservedBytes(plan.ranks[0].regions);
  const int64_t host = ReservedBytes(plan.ranks[0].host_regions);
  EXPECT_GT(host, 16 * plan.parameters);  // stage 0: a gradient, and 12 bytes, each whole
  EXPECT_EQ(HostReservations(plan), 4 * host);
  EXPECT_TRUE(CheckFit(settings, plan, {.available_memory = 4 * (device + host)}).ok());
  const absl::Status status =
      CheckFit(settings, plan, {.available_memory = 4 * (device + host) - 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("on their host sides for --offload"), std::string::npos)
      << status;
  EXPECT_NE(status.message().find(WithCommas(4 * host)), std::string::npos) << status;
}

TEST(CheckFit, AGpuTakesOnlyItsHostSideFromTheMachine) {
  TrainSettings settings;
  settings.device = "cuda";
  settings.devices = 1;
  settings.offload_optimizer = true;
  const RunPlan plan = PlanRun(settings).value();
  const int64_t device = ReservedBytes(plan.ranks[0].regions);
  const int64_t host = ReservedBytes(plan.ranks[0].host_regions);
  ASSERT_GT(host, 0);
  settings.device_memory_bytes = device;
  const auto with = [](int64_t memory) {
    return Machine{.available_memory = memory,
                   .free_gpu_memory = [](int) { return int64_t{1} << 40; }};
  };
  EXPECT_TRUE(CheckFit(settings, plan, with(host)).ok());
  const absl::Status status = CheckFit(settings, plan, with(host - 1));
  EXPECT_NE(status.message().find("of this machine's memory for --offload"), std::string::npos)
      << status;
  settings.device_memory_bytes = device - 1;
  EXPECT_NE(CheckFit(settings, plan, with(host)).message().find("on a device"), std::string::npos);
}

TEST(CheckFit, CountsAllDevicesOfAGpuThatTheyShare) {
  TrainSettings settings;
  settings.device = "cuda";
  settings.virtual_devices = true;
  const RunPlan plan = PlanRun(settings).value();
  const int64_t device = ReservedBytes(plan.ranks[0].regions);
  settings.device_memory_bytes = device;
  int64_t free = 4 * (device + 1000);
  const Machine machine = {.free_gpu_memory =
                               [&free](int gpu) {
                                 EXPECT_EQ(gpu, 0);
                                 return free;
                               },
                           .gpu_workspace =
                               [](const CudaOpsSizes& sizes) {
                                 EXPECT_EQ(sizes.shape.channels, 128);
                                 return 1000;
                               }};
  EXPECT_TRUE(CheckFit(settings, plan, machine).ok());
  --free;
  const absl::Status status = CheckFit(settings, plan, machine);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("for its 4 devices"), std::string::npos) << status;
  EXPECT_NE(status.message().find(WithCommas(4 * (device + 1000))), std::string::npos) << status;
  EXPECT_NE(status.message().find(WithCommas(free)), std::string::npos) << status;
}

TEST(CheckFit, CountsTheWorkspaceOnEveryGpu) {
  TrainSettings settings;
  settings.device = "cuda";
  settings.devices = 2;
  const RunPlan plan = PlanRun(settings).value();
  settings.device_memory_bytes = int64_t{1} << 40;  // more than they have
  const int64_t needed = ReservedBytes(plan.ranks[0].regions) + 1000;
  std::vector<int64_t> free = {needed + 5, needed};
  Machine machine = {.free_gpu_memory = [&free](int gpu) { return free.at(gpu); },
                     .gpu_workspace = [](const CudaOpsSizes&) { return 1000; }};
  EXPECT_TRUE(CheckFit(settings, plan, machine).ok());
  --free[1];
  const absl::Status status = CheckFit(settings, plan, machine);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(WithCommas(needed)), std::string::npos) << status;
  EXPECT_NE(status.message().find("workspace"), std::string::npos) << status;
  // A dry run may be of GPUs elsewhere.
  machine.free_gpu_memory = [](int) { return absl::UnavailableError("no driver"); };
  EXPECT_EQ(CheckFit(settings, plan, machine), absl::UnavailableError("no driver"));
  settings.dry_run = true;
  EXPECT_TRUE(CheckFit(settings, plan, machine).ok());
}

// Devices that are to share less memory may be fewer; of GPUs each has its own.
TEST(WhatWouldFit, AdvisesFewerDevicesWhereTheyShareAGpu) {
  ResolvedTrain resolved;
  resolved.settings.device = "cuda";
  resolved.settings.device_memory_bytes = 1 << 20;
  resolved.flags = {{"device_memory", Topic::kDevicesAndMemory, int64_t{1} << 20, "derived"}};
  const Machine machine = {.available_memory = int64_t{1} << 40,
                           .free_gpu_memory = [](int) { return int64_t{1} << 40; }};
  std::string text = WhatWouldFit(resolved, machine);
  EXPECT_EQ(text.find("fewer --devices"), std::string::npos) << text;
  resolved.settings.virtual_devices = true;
  text = WhatWouldFit(resolved, machine);
  EXPECT_NE(text.find("fewer --devices"), std::string::npos) << text;
}

}  // namespace
}  // namespace zerobox
