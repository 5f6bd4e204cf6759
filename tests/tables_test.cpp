// SPDX-License-Identifier: Apache-2.0
#include "trainer/tables.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/text.h"

namespace zerobox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Widest(const std::string& text) {
  int widest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    widest = std::max(widest, Columns(std::string_view(line.data(), line.size())));
  }
  return widest;
}

// Two devices, stage 3: Ψ + padding = 1,024 elements.
struct Example {
  Example() {
    settings.devices = 2;
    settings.zero_stage = 3;
    settings.device_memory_bytes = 1 << 20;
    plan.parameters = 1000;
    plan.padding = 24;
    plan.ranks.resize(2);
    for (RankPlan& rank : plan.ranks) {
      rank.memory.at_peak = {2048, 2048, 4096, 100000, 0, 512, 128};
      rank.memory.peak_bytes = 108832;
      rank.regions = {8192, 0, 100000, 640};
      rank.step_traffic.collectives[0] = {4, 4096};
      rank.step_traffic.collectives[1] = {2, 2048};
      rank.step_traffic.scalars = {2, 16};
    }
    plan.paper_bytes = {4000, 2000, 0, 0};
    plan.differences = {{Collective::kAllGather, "padding", 96},
                        {Collective::kReduceScatter, "padding", 48}};
    plan.notes = {{Category::kCommunicationBuffers, "gradient of the ends, whole", 512}};
    plan.program = {{0, Pass::kForward, "lookup", 0, true, false},
                    {1, Pass::kForward, "block 0", 1, true, true},
                    {2, Pass::kBackward, "lookup", 0, false, false}};
    measured.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      measured[rank].memory = plan.ranks[rank].memory;
      measured[rank].step_traffic = plan.ranks[rank].step_traffic;
    }
  }
  TrainSettings settings;
  RunPlan plan;
  std::vector<RankResult> measured;
};

TEST(MemoryTable, HasOneBlockWhenDevicesAreAlike) {
  const Example example;
  const std::string table = MemoryTable(example.settings, example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("Memory of each of 2 devices at its peak"));
  EXPECT_THAT(table, HasSubstr("  activations                    100,000 =        100,000"));
  EXPECT_THAT(table,
              HasSubstr("  sum                            108,832 =        108,832  106 KiB"));
  EXPECT_THAT(table, Not(HasSubstr("activation checkpoints")));  // nothing there
  EXPECT_THAT(table, Not(HasSubstr("≠")));
  EXPECT_THAT(table,
              HasSubstr("  communication buffers              512  gradient of the ends, whole\n"));
  EXPECT_THAT(
      table,
      HasSubstr("  padding                             24  elements over the model (2.40%)\n"));
  EXPECT_LE(Widest(table), 80);
}

TEST(MemoryTable, ShowsEveryStageBesideThisOne) {
  const Example example;
  const std::string table = MemoryTable(example.settings, example.plan, example.measured, {});
  // 16 bytes for each of 1,024 elements; 8 + 8/2; 4 + 12/2; 16/2.
  EXPECT_THAT(table, HasSubstr("  ZeRO-0                          16,384  16.0 KiB"));
  EXPECT_THAT(table, HasSubstr("  ZeRO-1                          12,288  12.0 KiB"));
  EXPECT_THAT(table, HasSubstr("  ZeRO-2                          10,240  10.0 KiB"));
  EXPECT_THAT(table, HasSubstr("▸ ZeRO-3                           8,192  8.00 KiB  ██████████  "));
  EXPECT_THAT(table, HasSubstr("1/2.00"));
}

TEST(MemoryTable, GivesADeviceThatDiffersItsOwnRows) {
  Example example;
  example.measured[1].memory.at_peak[6] += 1000000;
  example.measured[1].memory.peak_bytes += 1000000;
  const std::string table = MemoryTable(example.settings, example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("Memory of device 0 at its peak"));
  EXPECT_THAT(table, HasSubstr("but device 1\n"));
  EXPECT_THAT(table, HasSubstr("  workspace                          128 ≠      1,000,128"));
  EXPECT_THAT(table, HasSubstr("  sum                            108,832 ≠      1,108,832"));
  EXPECT_LE(Widest(table), 80);
}

TEST(MemoryTable, PredictsWhenNothingWasMeasured) {
  const Example example;
  const std::string table = MemoryTable(example.settings, example.plan, {}, {});
  EXPECT_THAT(table, HasSubstr("108,832"));
  EXPECT_THAT(table, Not(HasSubstr("measured")));
  EXPECT_THAT(table, Not(HasSubstr("=  ")));
}

TEST(MemoryTable, NamesTypesInMixedPrecision) {
  Example example;
  const std::string plain = MemoryTable(example.settings, example.plan, {}, {});
  EXPECT_THAT(plain, Not(HasSubstr("fp32")));
  example.settings.dtype = DType::kBFloat16;
  example.settings.grad_accum_dtype = DType::kFloat32;
  const std::string table = MemoryTable(example.settings, example.plan, {}, {});
  EXPECT_THAT(table, HasSubstr("  parameters (bf16)                2,048  "));
  EXPECT_THAT(table, HasSubstr("  gradients (fp32)                 2,048  "));
  EXPECT_THAT(table, HasSubstr("  optimizer states (fp32)          4,096  "));
  EXPECT_THAT(table, HasSubstr("  activations                    100,000  "));  // some are fp32
  EXPECT_THAT(table, HasSubstr("  kept in bf16, fp32 and fp32\n"));
  // 18 bytes for each of 1,024 elements; 6 + 12/2; 2 + 16/2; 18/2.
  EXPECT_THAT(table, HasSubstr("  ZeRO-0                          18,432  18.0 KiB"));
  EXPECT_THAT(table, HasSubstr("  ZeRO-1                          12,288  12.0 KiB"));
  EXPECT_THAT(table, HasSubstr("  ZeRO-2                          10,240  10.0 KiB"));
  EXPECT_THAT(table, HasSubstr("▸ ZeRO-3                           9,216  9.00 KiB"));
  EXPECT_LE(Widest(table), 80);
}

// The example with its optimizer offloaded: 4 + 12 bytes for each of 512 owned elements.
Example Offloaded() {
  Example example;
  example.settings.offload_optimizer = true;
  for (RankPlan& rank : example.plan.ranks) {
    rank.memory.at_peak = {2048, 0, 0, 100000, 0, 512, 128};
    rank.memory.peak_bytes = 102688;
    rank.host_memory.at_peak = {0, 2048, 6144, 0, 0, 1024, 256};
    rank.host_memory.peak_bytes = 9472;
    rank.step_copies = {.to_host = 2100, .from_host = 3000};
  }
  example.plan.paper_copies = {.to_host = 2000, .from_host = 2000};
  example.plan.copies = {{"gradients, by ZeRO-Offload's formula", {.to_host = 2000}},
                         {"parameters, by ZeRO-Offload's formula", {.from_host = 2000}},
                         {"their padding", {.to_host = 36, .from_host = 36}},
                         {"batches", {.from_host = 964}},
                         {"results", {.to_host = 64}}};
  example.plan.notes.push_back({Category::kOptimizerStates, "master weights, m and v", 6144,
                                /*host=*/true});
  for (size_t rank = 0; rank < 2; ++rank) {
    example.measured[rank].memory = example.plan.ranks[rank].memory;
    example.measured[rank].host_memory = example.plan.ranks[rank].host_memory;
    example.measured[rank].step_copies = example.plan.ranks[rank].step_copies;
  }
  return example;
}

TEST(MemoryTable, ShowsTheHostSideBelowTheDevice) {
  const Example example = Offloaded();
  const std::string table = MemoryTable(example.settings, example.plan, example.measured, {});
  const size_t host = table.find("  On the host side\n");
  ASSERT_NE(host, std::string::npos);
  EXPECT_LT(table.find("  sum                            102,688 =        102,688"), host);
  EXPECT_GT(table.find("  optimizer states                 6,144 =          6,144"), host);
  EXPECT_GT(table.find("  sum                              9,472 =          9,472"), host);
  // What left the device is seen to be gone from it.
  EXPECT_LT(table.find("  optimizer states                     0 =              0"), host);
  EXPECT_THAT(table,
              HasSubstr("  of which on the host side\n"
                        "  optimizer states                 6,144  master weights, m and v\n"));
  // Stage 0 keeps 8 bytes of each element on the device and 16 beside it, of 16 without offload.
  EXPECT_THAT(table, HasSubstr("  ZeRO-0            8,192  8.00 KiB            16,384  ███████ "));
  EXPECT_THAT(table, HasSubstr("  ZeRO-1            8,192  8.00 KiB             8,192  ███████ "));
  EXPECT_THAT(table, HasSubstr("  ZeRO-2            4,096  4.00 KiB             8,192  ███▌"));
  EXPECT_THAT(table, HasSubstr("▸ ZeRO-3            2,048  2.00 KiB             8,192  █▊"));
  EXPECT_THAT(table, HasSubstr("1/8.00"));
  EXPECT_THAT(table, Not(HasSubstr("≠")));
  EXPECT_LE(Widest(table), 80);
}

TEST(MemoryTable, SaysWhereTheHostSideDiffers) {
  Example example = Offloaded();
  example.measured[1].host_memory.at_peak[2] += 128;
  example.measured[1].host_memory.peak_bytes += 128;
  const std::string table = MemoryTable(example.settings, example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("but device 1\n"));
  EXPECT_THAT(table, HasSubstr("6,144 ≠          6,272"));
}

TEST(TrafficTable, HasWhatIsCopiedToAndFromTheHost) {
  Example example = Offloaded();
  example.measured[0].step_traffic = example.measured[1].step_traffic =
      example.plan.ranks[0].step_traffic;
  const std::string table = TrafficTable(example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("  copied to host                  2,000          2,100 =          "
                               "2,100 2.05 KiB"));
  EXPECT_THAT(table, HasSubstr("  copied from host                2,000          3,000 =          "
                               "3,000 2.93 KiB"));
  EXPECT_THAT(table,
              HasSubstr("  Copied are\n"
                        "  to host                   2,000  gradients, by ZeRO-Offload's formula\n"
                        "                               36  their padding\n"
                        "                               64  results\n"
                        "  from host                 2,000  parameters, by ZeRO-Offload's formula\n"
                        "                               36  their padding\n"
                        "                              964  batches\n"));
  EXPECT_THAT(table, Not(HasSubstr("unexplained")));
  EXPECT_LE(Widest(table), 80);
  example.measured[1].step_copies.to_host = 0;
  EXPECT_THAT(TrafficTable(example.plan, example.measured, {}),
              HasSubstr("2,000          2,100 ≠              0"));
  // Without offload the paper has no figure for them.
  example = Example();
  EXPECT_THAT(TrafficTable(example.plan, example.measured, {}), Not(HasSubstr("ZeRO-Offload")));
}

TEST(TrafficTable, SaysWhichCopiesNobodyExplained) {
  Example example = Offloaded();
  example.plan.copies.pop_back();
  const std::string table = TrafficTable(example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("                               36  their padding\n"
                               "                               64  unexplained\n"
                               "  from host  "));
}

TEST(TrafficTable, OfOneDeviceHasItsCopies) {
  Example example = Offloaded();
  example.plan.ranks.resize(1);
  example.measured.resize(1);
  const std::string table = TrafficTable(example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("nobody to send to"));
  EXPECT_THAT(table, HasSubstr("2,100 =          2,100"));
}

TEST(TrafficTable, ComparesPaperPredictionAndCount) {
  const Example example;
  const std::string table = TrafficTable(example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("Bytes that each of 2 devices sends in one step"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "  all-gather           4          4,000          4,096 =          4,096 4.00 KiB"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "  sum                             6,000          6,144 =          6,144 6.00 KiB"));
  EXPECT_THAT(table, HasSubstr("16 bytes in 2 calls"));
  EXPECT_THAT(table, HasSubstr("  all-gather                  +96  padding"));
  EXPECT_THAT(table, Not(HasSubstr("unexplained")));
  EXPECT_THAT(table, Not(HasSubstr("all-reduce")));
  EXPECT_LE(Widest(table), 80);
}

TEST(TrafficTable, SaysWhatNobodyExplained) {
  Example example;
  example.plan.differences.pop_back();
  example.measured[1].step_traffic.collectives[1].bytes_sent = 2000;
  const std::string table = TrafficTable(example.plan, example.measured, {});
  EXPECT_THAT(table, HasSubstr("  reduce-scatter              +48  unexplained"));
  EXPECT_THAT(table, HasSubstr("but device 1"));
  EXPECT_THAT(table, HasSubstr("2,048 ≠          2,000"));
}

TEST(TrafficTable, HasTheMedianOfExposedCommunicationBelowIt) {
  RunResult result;
  result.ranks.resize(2);
  // Those of the first two steps are not looked at.
  for (const auto& [exposed, whole] : {std::pair{9.0, 20.0}, {9.0, 20.0}}) {
    result.step_metrics.push_back({.step_seconds = whole, .exposed_seconds = exposed});
  }
  EXPECT_EQ(ExposedCommunication(result, {}), "");
  for (const auto& [exposed, whole] : {std::pair{0.0025, 0.02}, {0.0019, 0.0123}, {0.0, 0.0121}}) {
    result.step_metrics.push_back({.step_seconds = whole, .exposed_seconds = exposed});
  }
  EXPECT_EQ(ExposedCommunication(result, {}),
            "  exposed communication   1.9 ms of 12.3 ms a step (15%)\n");
  result.ranks.resize(1);  // which waits for nobody
  EXPECT_EQ(ExposedCommunication(result, {}), "");
}

TEST(Header, ShowsTheBatchIdentityAndFits) {
  Example example;
  example.settings.data = std::string(300, 'd') + ".txt";
  example.settings.grad_accum = 3;
  const DataFacts facts = {
      .train_tokens = 1000000, .train_sequences = 4800, .validation_sequences = 10};
  const std::string header = Header(example.settings, "tiny", example.plan, &facts, "", {});
  EXPECT_THAT(header, HasSubstr("4 micro_batch × 3 grad_accum × 2 devices = 24 sequences"));
  EXPECT_THAT(header, HasSubstr("24 × 128 = 3,072 tokens a step, 400 steps = 1.23M tokens"));
  EXPECT_THAT(header, HasSubstr("Ψ = 1,000 parameters"));
  EXPECT_THAT(header, HasSubstr("2.00 epochs"));
  EXPECT_THAT(header, HasSubstr("parameters in fp32, gradients in fp32\n"));
  EXPECT_THAT(header, HasSubstr("activation checkpointing none; offload none\n"));
  EXPECT_LE(Widest(header), 80);
  example.settings.model = ModelPreset("gpt2-xl").value();
  example.settings.dtype = DType::kBFloat16;
  example.settings.dropout = 0.125;
  example.settings.activation_checkpointing = ActivationCheckpointing::kSelective;
  example.settings.offload_optimizer = example.settings.offload_activations = true;
  EXPECT_THAT(Header(example.settings, "gpt2-xl", example.plan, nullptr, "", {}),
              HasSubstr("parameters in bf16, gradients in fp32\n"));
  EXPECT_THAT(Header(example.settings, "gpt2-xl", example.plan, nullptr, "", {}),
              HasSubstr("activation checkpointing selective; offload optimizer,activations\n"));
  EXPECT_LE(Widest(Header(example.settings, "gpt2-xl", example.plan, nullptr, "", {})), 80);
}

TEST(Header, SaysWhichDevicesTheseAre) {
  Example example;
  const auto header = [&](const std::string& about) {
    return Header(example.settings, "tiny", example.plan, nullptr, about, {});
  };
  EXPECT_THAT(header(""), HasSubstr("A GPT on 2 devices, ZeRO-3\n"));
  EXPECT_THAT(header(""), Not(HasSubstr("  devices ")));
  const std::string host =
      header("host devices: this machine has 1 GPU for 2 devices; --virtual puts them all on it");
  EXPECT_THAT(host, HasSubstr("\n  devices   host devices: this machine has 1 GPU for 2 devices; "
                              "--virtual puts\n            them all on it\n  model "));
  EXPECT_LE(Widest(host), 80);
  example.settings.device = "cuda";
  const std::string gpus = header("NVLink between all GPUs");
  EXPECT_THAT(gpus, HasSubstr("A GPT on 2 GPUs, ZeRO-3\n"));
  EXPECT_THAT(gpus, HasSubstr("\n  devices   NVLink between all GPUs\n"));
  EXPECT_THAT(gpus, HasSubstr("P_os+g+p: optimizer states, gradients and parameters are shared"));
  example.settings.virtual_devices = true;
  EXPECT_THAT(header(""), HasSubstr("A GPT on 2 devices of one GPU, ZeRO-3\n"));
  example.settings.virtual_devices = false;
  example.settings.devices = 1;
  EXPECT_THAT(header(""), HasSubstr("A GPT on 1 GPU, ZeRO-3\n            one device has nobody to "
                                    "share with: every stage is stage 0 there\n"));
}

TEST(Tables, ShowTheStepProgram) {
  const Example example;
  const std::string table = ProgramTable(example.settings, example.plan, {});
  EXPECT_THAT(table, HasSubstr("      1  forward   block 0        1  acquired, and kept"));
  EXPECT_THAT(table, HasSubstr("      2  backward  lookup         0  not needed"));
}

TEST(Tables, BreakLongLinesOfASample) {
  const std::string block = SampleBlock("one\n" + std::string(100, 'x') + "\x1b", {});
  EXPECT_EQ(block,
            "  │ one\n  │ " + std::string(76, 'x') + "\n  │ " + std::string(24, 'x') + "·\n");
}

TEST(Tables, CompareWithModelsThatCount) {
  const std::string table =
      YardstickTable({{"counting", 4.0}, {"ours", 2.0, true}, {"broken", -std::nan("")}}, {});
  EXPECT_THAT(table, HasSubstr(" 4.0000  " + Bar(1, 0, 26)));
  EXPECT_THAT(table, HasSubstr(" 2.0000  " + Bar(0.5, 0, 26)));
  EXPECT_THAT(table, HasSubstr("    nan  " + Bar(0, 0, 26)));
  EXPECT_LE(Widest(table), 80);
}

}  // namespace
}  // namespace zerobox
