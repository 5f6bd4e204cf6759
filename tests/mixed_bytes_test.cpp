// SPDX-License-Identifier: Apache-2.0
//
// What mixed precision, checkpointing and offload cost in bytes, planned: GPT-2's figures, and
// formulas that are written here again. (What is planned is what is measured: bytes_test,
// offload_test.)
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/collectives/plan_communicator.h"
#include "ops/device/plan_device.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/replica.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
const ModelConfig kGpt2 = {12, 12, 768, 1024, 50257};
constexpr int64_t kPsi = 124'439'808;

TrainSettings Settings(const ModelConfig& model, int stage, int devices, int64_t micro_batches) {
  TrainSettings settings;
  settings.model = model;
  settings.zero_stage = stage;
  settings.devices = devices;
  settings.grad_accum = micro_batches;
  settings.micro_batch = 1;
  return settings;
}

TrainSettings Gpt2(int stage, DType dtype, DType gradients, int64_t micro_batches = 1) {
  TrainSettings settings = Settings(kGpt2, stage, 8, micro_batches);
  settings.dtype = dtype;
  settings.grad_accum_dtype = gradients;
  return settings;
}

RunPlan Plan(const TrainSettings& settings) {
  absl::StatusOr<RunPlan> plan = PlanRun(settings);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : RunPlan{};
}

int64_t Live(const Ledger& ledger, Category category) {
  return ledger.live[static_cast<size_t>(category)];
}
int64_t States(const Ledger& ledger) {
  return Live(ledger, Category::kParameters) + Live(ledger, Category::kGradients) +
         Live(ledger, Category::kOptimizerStates);
}
int64_t Sent(const RunPlan& plan, Collective collective) {
  return plan.ranks[0].step_traffic.collectives[static_cast<size_t>(collective)].bytes_sent;
}
int64_t Paper(const RunPlan& plan) {
  int64_t bytes = 0;
  for (const int64_t of_collective : plan.paper_bytes) bytes += of_collective;
  return bytes;
}
std::array<int64_t, 3> All(const RunPlan& plan) {
  return {Sent(plan, Collective::kAllGather), Sent(plan, Collective::kReduceScatter),
          Sent(plan, Collective::kAllReduce)};
}

// In bf16 a bucket of 25 MiB is twice as many elements, so a block is one bucket: 7,087,872
// elements, which 8 x 64 divides into no rest after 256 more. The token embedding alone, 50,257 x
// 768, is padded by 256; positions and final norm, 1026 x 768, by nothing.
constexpr int64_t kPadding = 256 + 12 * 256;

TEST(MixedBytes, AreThePapersForGpt2OnEightDevices) {
  // Parameters, gradients and optimizer states, without padding.
  const struct {
    int64_t bf16, accumulating;  // gradients in bf16, in fp32
    // What a padding element costs, in 1/8 bytes.
    int64_t padding, accumulating_padding;
  } expected[] = {{1'991'036'928, 2'239'916'544, 8 * 16, 8 * 18},
                  {684'418'944, 933'298'560, 8 * 4 + 12, 8 * 6 + 12},
                  {466'649'280, 497'759'232, 8 * 2 + 14, 8 * 2 + 16},
                  {248'879'616, 279'989'568, 16, 18}};
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    const auto& [bf16, accumulating, padding, accumulating_padding] = expected[stage];
    const RunPlan plan = Plan(Gpt2(stage, kBf16, kBf16));
    EXPECT_EQ(plan.parameters, kPsi);
    EXPECT_EQ(plan.padding, kPadding);
    for (const RankPlan& rank : plan.ranks) {
      EXPECT_EQ(States(rank.memory), bf16 + kPadding * padding / 8);
      EXPECT_EQ(rank.host_memory.peak_bytes, 0);
    }
    const RunPlan wide = Plan(Gpt2(stage, kBf16, kFp32));
    EXPECT_EQ(wide.padding, kPadding);
    EXPECT_EQ(States(wide.ranks[7].memory), accumulating + kPadding * accumulating_padding / 8);
  }
}

TEST(MixedBytes, SentAreThePapersForGpt2OnEightDevices) {
  constexpr int64_t kOnce = 217'769'664;           // 2 bytes x Psi x 7/8
  constexpr int64_t kMore = 2 * kPadding / 8 * 7;  // and of padding
  // The last block, kept from its forward to its backward.
  constexpr int64_t kBlock = 2 * (7'087'872 + 256) / 8 * 7;
  using Bytes = std::array<int64_t, 3>;
  EXPECT_EQ(All(Plan(Gpt2(0, kBf16, kBf16))), (Bytes{0, 0, 2 * (kOnce + kMore)}));
  EXPECT_EQ(All(Plan(Gpt2(1, kBf16, kBf16))), (Bytes{kOnce + kMore, kOnce + kMore, 0}));
  EXPECT_EQ(All(Plan(Gpt2(2, kBf16, kBf16))), (Bytes{kOnce + kMore, kOnce + kMore, 0}));
  EXPECT_EQ(All(Plan(Gpt2(3, kBf16, kBf16))),
            (Bytes{2 * (kOnce + kMore) - kBlock, kOnce + kMore, 0}));
  for (const int stage : {0, 1, 2}) EXPECT_EQ(Paper(Plan(Gpt2(stage, kBf16, kBf16))), 435'539'328);
  EXPECT_EQ(Paper(Plan(Gpt2(3, kBf16, kBf16))), 653'308'992);
  // Four micro-batches, gradients in bf16 and in fp32.
  EXPECT_EQ(Paper(Plan(Gpt2(1, kBf16, kBf16, 4))), 435'539'328);
  EXPECT_EQ(Paper(Plan(Gpt2(2, kBf16, kBf16, 4))), 1'088'848'320);
  EXPECT_EQ(Paper(Plan(Gpt2(3, kBf16, kBf16, 4))), 2'613'235'968);
  EXPECT_EQ(Paper(Plan(Gpt2(1, kBf16, kFp32, 4))), 653'308'992);
  EXPECT_EQ(Paper(Plan(Gpt2(2, kBf16, kFp32, 4))), 1'959'926'976);
  EXPECT_EQ(Paper(Plan(Gpt2(3, kBf16, kFp32, 4))), 3'484'314'624);
  EXPECT_EQ(All(Plan(Gpt2(2, kBf16, kFp32, 4))),
            (Bytes{kOnce + kMore, 4 * 2 * (kOnce + kMore), 0}));
  EXPECT_EQ(All(Plan(Gpt2(3, kBf16, kFp32, 4))),
            (Bytes{4 * (2 * (kOnce + kMore) - kBlock), 4 * 2 * (kOnce + kMore), 0}));
}

TEST(MixedBytes, LeaveTheDeviceWhereTheOptimizerOfGpt2IsOffloaded) {
  constexpr int64_t kOwned = (kPsi + kPadding) / 8;
  for (int stage = 1; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    TrainSettings settings = Gpt2(stage, kBf16, kBf16);
    const RunPlan on_device = Plan(settings);
    settings.offload_optimizer = true;
    const RunPlan plan = Plan(settings);
    EXPECT_EQ(plan.paper_copies, (CopiedBytes{.to_host = 31'109'952, .from_host = 31'109'952}));
    const RankPlan& rank = plan.ranks[3];
    const int64_t gradient_shard = stage >= 2 ? 2 * kOwned : 0;
    EXPECT_EQ(States(on_device.ranks[3].memory) - States(rank.memory),
              12 * kOwned + gradient_shard);
    EXPECT_EQ(States(rank.memory), stage == 3   ? 2 * kOwned
                                   : stage == 2 ? 2 * (kPsi + kPadding)
                                                : 4 * (kPsi + kPadding));
    EXPECT_EQ(Live(rank.host_memory, Category::kOptimizerStates), 186'659'712 + 12 * kPadding / 8);
    EXPECT_EQ(Live(rank.host_memory, Category::kGradients), 31'109'952 + 2 * kPadding / 8);
    EXPECT_EQ(plan.ranks[3].step_traffic, on_device.ranks[3].step_traffic);
  }
}

// Every element and byte of a run's states, by formulas of its own.
void ExpectStatesTrafficAndCopies(const TrainSettings& settings) {
  const RunPlan plan = Plan(settings);
  const int64_t n = settings.devices, m = settings.grad_accum;
  const int stage = n == 1 ? 0 : settings.zero_stage;
  const int64_t elements = plan.parameters + plan.padding;
  const int64_t shard = elements / n;
  EXPECT_EQ(elements % (64 * n), 0);
  const int64_t p = settings.dtype == kBf16 ? 2 : 4;
  const int64_t g = settings.grad_accum_dtype == kBf16 ? 2 : 4;
  const int64_t os = settings.dtype == kBf16 ? 12 : 8;
  const int64_t owned = stage >= 1 ? shard : elements;
  const bool offload = settings.offload_optimizer;
  const auto& [host_parameters, host_gradients, host_states] =
      std::array<int64_t, 3>{0, offload ? g * owned : 0, offload ? 12 * owned : 0};
  ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(n));
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(Live(rank.memory, Category::kParameters), p * (stage >= 3 ? shard : elements));
    EXPECT_EQ(Live(rank.memory, Category::kGradients),
              stage >= 2 ? (offload ? 0 : g * shard) : g * elements);
    EXPECT_EQ(Live(rank.memory, Category::kOptimizerStates), offload ? 0 : os * owned);
    EXPECT_EQ(Live(rank.host_memory, Category::kParameters), host_parameters);
    EXPECT_EQ(Live(rank.host_memory, Category::kGradients), host_gradients);
    EXPECT_EQ(Live(rank.host_memory, Category::kOptimizerStates), host_states);

    const int64_t tokens = settings.micro_batch * settings.model.seq_len;
    const int64_t batches = m * (2 * 4 * tokens + 8 * settings.micro_batch);
    EXPECT_EQ(rank.step_copies.to_host,
              8 + 56 + (offload ? g * owned * (stage >= 2 ? m : 1) + 56 : 0));
    EXPECT_EQ(rank.step_copies.from_host, batches + (offload ? p * owned + 8 * n : 0));
  }
  const int64_t gradients = n == 1 ? 0 : g * shard * (n - 1);
  const int64_t parameters = n == 1 ? 0 : p * shard * (n - 1);
  EXPECT_EQ(Sent(plan, Collective::kAllReduce), stage == 0 ? 2 * gradients : 0);
  EXPECT_EQ(Sent(plan, Collective::kReduceScatter), gradients * (stage == 0   ? 0
                                                                 : stage == 1 ? 1
                                                                              : m));
  // Stage 3 gathers twice a micro-batch, but keeps the last block from forward to backward. The
  // ends are a bucket, or, where the token embedding is larger than one, two.
  const auto padded = [n](int64_t x) { return (x + 64 * n - 1) / (64 * n) * (64 * n); };
  const ModelConfig& model = settings.model;
  const int64_t tokens = model.vocab_size * model.n_embd;
  const int64_t rest = (model.seq_len + 2) * model.n_embd;
  const int64_t ends =
      g * tokens > settings.bucket_bytes ? padded(tokens) + padded(rest) : padded(tokens + rest);
  const int64_t last_block = n == 1 ? 0 : p * (elements - ends) / model.n_layer / n * (n - 1);
  EXPECT_EQ(Sent(plan, Collective::kAllGather), stage == 0  ? 0
                                                : stage < 3 ? parameters
                                                            : m * (2 * parameters - last_block));
}

TEST(MixedBytes, FollowTheFormulasForEveryTypeStageAndOffload) {
  for (const ModelConfig& model : {kGpt2, SmallSettings().model}) {
    for (const auto& [dtype, gradients] :
         {std::pair(kFp32, kFp32), std::pair(kBf16, kBf16), std::pair(kBf16, kFp32)}) {
      for (const int devices : {1, 2, 4, 8}) {
        for (const int64_t micro_batches : {1, 4}) {
          for (int stage = 0; stage <= 3; ++stage) {
            for (const bool offload : {false, true}) {
              TrainSettings settings = Settings(model, stage, devices, micro_batches);
              settings.dtype = dtype;
              settings.grad_accum_dtype = gradients;
              settings.offload_optimizer = offload;
              SCOPED_TRACE(testing::Message()
                           << "width " << model.n_embd << ", " << Name(dtype) << ", gradients in "
                           << Name(gradients) << ", N = " << devices << ", m = " << micro_batches
                           << ", stage " << stage << (offload ? ", offload" : ""));
              ExpectStatesTrafficAndCopies(settings);
            }
          }
        }
      }
    }
  }
}

// The whole step, micro-batch by micro-batch, as the run will do it.
RankPlan FullWalk(const TrainSettings& settings) {
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(settings.model), settings.devices, settings.bucket_bytes,
                   settings.grad_accum_dtype);
  PlanDevice device;
  PlanCommunicator communicator(0, settings.devices);
  Replica replica(device, communicator, *layout, settings);
  replica.InitializeWeights();
  RankPlan plan;
  for (int step = 0; step < 2; ++step) {
    const Traffic sent = communicator.traffic();
    const CopiedBytes copied = device.copied();
    replica.TrainStep(nullptr, 1);
    plan.step_traffic = communicator.traffic() - sent;
    plan.step_copies = device.copied() - copied;
  }
  plan.memory = device.memory().ledger();
  plan.host_memory = device.host_memory().ledger();
  plan.regions = device.memory().high_water();
  plan.host_regions = device.host_memory().high_water();
  return plan;
}

void ExpectSame(const Ledger& a, const Ledger& b) {
  EXPECT_EQ(a.live, b.live);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_EQ(a.at_peak, b.at_peak);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
}

TEST(PlanRun, OfManyMicroBatchesIsThatOfThreeCarriedOn) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool offload : {false, true}) {
      for (int64_t m = 1; m <= 6; ++m) {
        SCOPED_TRACE(testing::Message()
                     << "stage " << stage << ", m = " << m << (offload ? ", offload" : ""));
        TrainSettings settings = Settings(SmallSettings().model, stage, 4, m);
        settings.model.n_layer = 5;
        settings.eval_interval = 0;
        settings.offload_optimizer = offload;
        if (offload) {
          settings.activation_checkpointing = ActivationCheckpointing::kFull;
          settings.offload_activations = true;
        }
        const RankPlan plan = Plan(settings).ranks[0];
        const RankPlan walked = FullWalk(settings);
        EXPECT_EQ(plan.step_traffic, walked.step_traffic);
        EXPECT_EQ(plan.step_copies, walked.step_copies);
        ExpectSame(plan.memory, walked.memory);
        ExpectSame(plan.host_memory, walked.host_memory);
        EXPECT_EQ(plan.regions, walked.regions);
        EXPECT_EQ(plan.host_regions, walked.host_regions);
      }
    }
  }
}

TEST(PlanRun, OfAbsurdlyManyMicroBatchesIsExact) {
  TrainSettings settings = Gpt2(2, kBf16, kFp32, 65536);
  settings.offload_optimizer = true;
  ExpectStatesTrafficAndCopies(settings);
}

// What a block adds to a run is what the notes say that it keeps.
TEST(MemoryNotes, SayWhatABlockKeeps) {
  const struct {
    ActivationCheckpointing mode;
    int64_t channels, heads, ones;  // numbers a token: C, and statistics: H, 1
    Category category;
  } cases[] = {{ActivationCheckpointing::kNone, 16, 1, 4, Category::kActivations},
               {ActivationCheckpointing::kSelective, 10, 1, 0, Category::kActivationCheckpoints},
               {ActivationCheckpointing::kFull, 1, 0, 0, Category::kActivationCheckpoints}};
  for (const auto& [mode, channels, heads, ones, category] : cases) {
    for (const DType dtype : {kFp32, kBf16}) {
      SCOPED_TRACE(testing::Message() << Name(mode) << ", " << Name(dtype));
      TrainSettings settings = Gpt2(0, dtype, dtype);
      settings.activation_checkpointing = mode;
      const int64_t tokens = 1024;
      const int64_t bytes = tokens * (channels * 768 * SizeOf(dtype) + 4 * (heads * 12 + ones));
      const RunPlan plan = Plan(settings);
      std::vector<int64_t> noted;
      for (const MemoryNote& note : plan.notes) {
        if (note.category == category && !note.host) noted.push_back(note.bytes);
      }
      EXPECT_EQ(noted, std::vector<int64_t>{bytes});
      settings.model.n_layer = 13;
      const auto i = static_cast<size_t>(category);
      EXPECT_EQ(Plan(settings).ranks[0].memory.peak[i] - plan.ranks[0].memory.peak[i], bytes);
    }
  }
}

// What the notes of one side say, a line each.
std::string NotesText(const TrainSettings& settings, bool host) {
  std::string text;
  for (const MemoryNote& note : Plan(settings).notes) {
    if (note.host == host) text += note.what + ": " + std::to_string(note.bytes) + "\n";
  }
  return text;
}

TEST(MemoryNotes, SayWhatIsOffloaded) {
  TrainSettings settings = Gpt2(2, kBf16, kFp32);
  settings.activation_checkpointing = ActivationCheckpointing::kFull;
  settings.offload_activations = true;
  settings.offload_optimizer = true;
  // The largest owned part: an eighth of the token embedding, 50,257 x 768 and 256 of padding.
  constexpr int64_t kLargest = 4'824'704;
  EXPECT_EQ(NotesText(settings, true),
            "the reduced gradient of each parameter that the device owns: " +
                std::to_string(4 * (kPsi + kPadding) / 8) +
                "\nmaster weights, m and v, 12 bytes for each parameter that the device owns: " +
                std::to_string(12 * (kPsi + kPadding) / 8) +
                "\ncheckpoints of the first 10 blocks: 15728640"
                "\nwhere a gradient lands that is added to what is there: " +
                std::to_string(4 * kLargest) +
                "\ntwo buffers in which updated parameters wait to go up, each: " +
                std::to_string(2 * kLargest) + "\n");
  const Ledger host = Plan(settings).ranks[0].host_memory;
  EXPECT_EQ(Live(host, Category::kActivationCheckpoints), 10 * 1024 * 768 * 2);
  EXPECT_EQ(Live(host, Category::kCommunicationBuffers), (4 + 2 * 2) * kLargest);
  settings.zero_stage = 0;
  const std::string stage0 = NotesText(settings, true);
  for (const std::string& line :
       {"the reduced gradient of each parameter of the model: " +
            std::to_string(4 * (kPsi + kPadding)),
        "master weights, m and v, 12 bytes for each parameter of the model: stage 0 shares "
        "nothing, so 8 equal copies are kept: " +
            std::to_string(12 * (kPsi + kPadding)),
        std::string("checkpoints of the first 10 blocks: 15728640"),
        "two buffers in which updated parameters wait to go up, each: " +
            std::to_string(2 * 8 * kLargest)}) {
    EXPECT_NE(stage0.find(line + "\n"), std::string::npos) << stage0;
  }
}

TEST(MemoryNotes, SayWhereNoCheckpointLeaves) {
  TrainSettings settings = Gpt2(1, kBf16, kBf16);
  settings.activation_checkpointing = ActivationCheckpointing::kFull;
  settings.offload_activations = true;
  const struct {
    int64_t layers;
    std::string device, host;
  } cases[] = {
      {1, "the only block's checkpoint stays on the device: nothing leaves: 1572864\n", ""},
      {2, "both blocks' checkpoints stay on the device: nothing leaves: 3145728\n", ""},
      {3, "2 slots on the device, which blocks take in turn: 3145728\n",
       "checkpoints of the first 1 block: 1572864\n"}};
  for (const auto& [layers, device, host] : cases) {
    settings.model.n_layer = layers;
    const std::string notes = NotesText(settings, false);
    EXPECT_NE(notes.find(device), std::string::npos) << notes;
    EXPECT_EQ(NotesText(settings, true), host);
    EXPECT_EQ(Plan(settings).ranks[0].host_memory.peak_bytes, (layers == 3 ? 1 : 0) * 1'572'864);
  }
}

// A bf16 gradient is rounded after every chunk of logits; to fp32 nothing is lost.
TEST(MemoryNotes, WarnOfManyRoundingsOfATiedEmbeddingsGradient) {
  const std::string note = " --logits_bytes";
  TrainSettings settings = Gpt2(1, kBf16, kBf16);
  constexpr int64_t kRow = 2 * 50257;
  settings.logits_bytes = 128 * kRow;  // 1,024 tokens: 8 chunks
  EXPECT_EQ(NotesText(settings, false).find(note), std::string::npos);
  settings.logits_bytes = 128 * kRow - 1;  // 127 rows: 9
  const std::string notes = NotesText(settings, false);
  EXPECT_NE(notes.find("chunks of logits in a micro-batch"), std::string::npos) << notes;
  EXPECT_NE(notes.find(note), std::string::npos) << notes;
  EXPECT_NE(notes.find("--grad_accum_dtype=fp32 does not round: 9\n"), std::string::npos) << notes;
  settings.logits_bytes = 1 << 20;  // 10 rows
  EXPECT_NE(NotesText(settings, false).find("does not round: 103\n"), std::string::npos);
  settings.grad_accum_dtype = kFp32;
  EXPECT_EQ(NotesText(settings, false).find(note), std::string::npos);
}

// Every part of what a step of GPT-2 copies, at stage 2 on 8 devices.
TEST(CopiedParts, AreTheFormulasAndAllThatComesOnTop) {
  TrainSettings settings = Gpt2(2, kBf16, kFp32, 4);
  settings.activation_checkpointing = ActivationCheckpointing::kSelective;
  settings.offload_activations = true;
  settings.offload_optimizer = true;
  std::string text;
  for (const CopiedPart& part : Plan(settings).copies) {
    text += part.what + ": " + std::to_string(part.bytes.to_host) + " down, " +
            std::to_string(part.bytes.from_host) + " up\n";
  }
  const std::string checkpoints = std::to_string(4 * 10 * 1024 * (10 * 768 * 2 + 12 * 4));
  EXPECT_EQ(text,
            "gradients, by ZeRO-Offload's formula: 248879616 down, 0 up\n"
            "parameters, by ZeRO-Offload's formula: 0 down, 31109952 up\n"
            "their padding: " +
                std::to_string(4 * 4 * kPadding / 8) + " down, " +
                std::to_string(2 * kPadding / 8) +
                " up\n"
                "the step's state, for the update: 56 down, 0 up\n"
                "squares of the gradient, by owner: 0 down, 64 up\n"
                "activation checkpoints: " +
                checkpoints + " down, " + checkpoints +
                " up\n"
                "batches: 0 down, 32800 up\n"
                "results: the loss and the step's state: 64 down, 0 up\n");
}

TEST(MemoryNotes, NameTheTypeOfGradientsInMixedPrecision) {
  const auto gradients = [](const TrainSettings& settings) {
    std::string text;
    for (const MemoryNote& note : Plan(settings).notes) {
      if (note.category == Category::kGradients) text += note.what + std::to_string(note.bytes);
    }
    return text;
  };
  EXPECT_EQ(gradients(Gpt2(1, kBf16, kFp32)),
            "bytes for each: gradients are kept and sent in fp324");
  EXPECT_EQ(gradients(Gpt2(1, kBf16, kBf16)),
            "bytes for each: gradients are kept and sent in bf162");
  EXPECT_EQ(gradients(Gpt2(1, kFp32, kFp32)), "");
}

TEST(MemoryNotes, HaveTheBuffersInTheTypesInUse) {
  const auto buffers = [](const TrainSettings& settings) {
    std::vector<int64_t> bytes;
    for (const MemoryNote& note : Plan(settings).notes) {
      if (note.category == Category::kCommunicationBuffers) bytes.push_back(note.bytes);
    }
    return bytes;
  };
  constexpr int64_t kEnds = 50257 * 768 + 256 + 1026 * 768;
  constexpr int64_t kBlock = 7'087'872 + 256;
  // A block is two buckets where gradients are fp32, one where they are bf16.
  EXPECT_EQ(buffers(Gpt2(3, kBf16, kFp32)),
            (std::vector<int64_t>{4 * 4'727'808, 4 * kEnds, 2 * kEnds, 2 * kBlock}));
  EXPECT_EQ(buffers(Gpt2(3, kBf16, kBf16)),
            (std::vector<int64_t>{2 * kBlock, 2 * kEnds, 2 * kEnds, 2 * kBlock}));
  // The note of C_B is what stage 2 takes: the ends' gradient and two of these.
  const RunPlan plan = Plan(Gpt2(2, kBf16, kFp32));
  EXPECT_EQ(plan.ranks[0].memory.peak[static_cast<size_t>(Category::kCommunicationBuffers)],
            4 * kEnds + 2 * 4 * 4'727'808);
}

}  // namespace
}  // namespace zerobox
