// SPDX-License-Identifier: Apache-2.0
#include "tests/small_report.h"

#include "trainer/train.h"

namespace zerobox {

StepTrace SmallTrace() {
  StepTrace trace{.step = 7, .duration_ns = 1000};
  trace.ops = {
      {.kind = OpKind::kForward, .layer = "lookup", .unit = 0, .micro_batch = 0},
      {.kind = OpKind::kAllGather,
       .stream = StreamId::kCommunication,
       .unit = 1,
       .elements = 100,
       .bytes = 200,
       .purpose = OpPurpose::kParameters,
       .micro_batch = 0},
      {.kind = OpKind::kForward, .layer = "block 0", .unit = 1, .micro_batch = 0},
      {.kind = OpKind::kAllReduce,
       .stream = StreamId::kCommunication,
       .phase = StepPhase::kStep,
       .elements = 2,
       .bytes = 16,
       .purpose = OpPurpose::kScalars},
      {.kind = OpKind::kCopy,
       .stream = StreamId::kFromHost,
       .bytes = 32,
       .purpose = OpPurpose::kBatch,
       .micro_batch = 0},
  };
  trace.ranks.resize(2);
  trace.ranks[0].spans = {{0, 0, 100},   {1, 20, 120},  {2, 150, 400},
                          {2, 500, 600}, {3, 600, 700}, {4, 700, 700}};
  trace.ranks[1].spans = {{0, 50, 150},  {1, 60, 120},  {2, 150, 400},
                          {2, 500, 600}, {3, 650, 700}, {4, 700, 700}};
  for (StepTrace::Rank& rank : trace.ranks) {
    rank.regions = {{.category = Category::kParameters,
                     .holds = Category::kParameters,
                     .extent = Extent::kShard,
                     .bytes = 1000,
                     .label = "parameter shard"},
                    {.category = Category::kCommunicationBuffers,
                     .holds = Category::kParameters,
                     .extent = Extent::kFull,
                     .unit = 1,
                     .bytes = 400,
                     .begin_ns = 20,
                     .end_ns = 600,
                     .label = "gathered unit"},
                    {.category = Category::kActivations,
                     .bytes = 50,
                     .begin_ns = 150,
                     .end_ns = 600,
                     .label = "</script>"}};
  }
  return trace;
}

SmallReport::SmallReport(int stage) {
  TrainSettings& settings = resolved.settings;
  settings.data = "book.txt";
  settings.devices = 2;
  settings.zero_stage = stage;
  settings.model = {.n_layer = 2, .n_head = 2, .n_embd = 8, .seq_len = 4, .vocab_size = 16};
  settings.device_memory_bytes = int64_t{1} << 20;
  settings.micro_batch = 3;
  settings.steps = 10;
  resolved.model = "tiny";
  resolved.flags = {
      {"data", Topic::kDataAndOutput, std::string("book.txt"), "flag"},
      {"zero_stage", Topic::kZero, int64_t{stage}, "flag"},
      {"bucket_bytes", Topic::kZero, int64_t{25} << 20, "default"},
  };
  plan = PlanRun(settings).value();
  for (const RankPlan& rank : plan.ranks) {
    result.ranks.push_back({.memory = rank.memory,
                            .host_memory = rank.host_memory,
                            .capacity_bytes = settings.device_memory_bytes,
                            .step_traffic = rank.step_traffic,
                            .step_copies = rank.step_copies});
  }
  result.steps = 2;
  result.step_metrics = {{.step = 1, .loss = 2.5, .grad_norm = 0.5, .lr = 0.125},
                         {.step = 2, .loss = 2.25, .grad_norm = 0.25, .lr = 0.0625}};
  result.eval_metrics = {{.step = 2, .val_loss = 2.125}};
  result.trace = SmallTrace();
}

ReportRun SmallReport::run() const {
  return {.command = "zerobox train --data=book.txt",
          .created = 1700000000,  // 2023-11-14 22:13:20 UTC
          .resolved = &resolved,
          .plan = &plan,
          .result = &result,
          .references = {{"counting, 0 tokens of context", 2.75}}};
}

}  // namespace zerobox
