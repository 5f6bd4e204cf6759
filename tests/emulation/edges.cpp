// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/edges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

#include "ops/cuda/cuda.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/replica.h"

namespace zerobox {
namespace {

class EdgeLog final : public Recorder {
 public:
  explicit EdgeLog(std::set<std::string>& edges) : edges_(edges) {}
  void OnWait(int, StreamId stream, const Event& event) override {
    Add(event.name() + " -> " + std::string(Name(stream)));
  }
  void OnHostWait(int, const Event& event) override { Add(event.name() + " -> host"); }
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}

 private:
  void Add(const std::string& edge) {
    const std::lock_guard<std::mutex> lock(mutex_);
    edges_.insert(edge);
  }
  std::mutex mutex_;
  std::set<std::string>& edges_;
};

// One rank's part of RunEdges, after whose steps nothing may be touched that they got wrong.
class Trainer {
 public:
  Trainer(Replica& replica, const TrainSettings& settings, int rank)
      : replica_(replica),
        settings_(settings),
        rank_(rank),
        dataset_(settings.model.seq_len, settings.model.vocab_size) {}

  absl::Status Run(const std::vector<uint64_t>* correct) {
    replica_.InitializeWeights();
    for (int64_t step = 0; step < 2; ++step) TrainStep(step);
    for (int64_t step = 0; step < 2; ++step) {
      const absl::StatusOr<StepOutcome> result = replica_.Outcome();
      if (!result.ok()) return result.status();
      Add(result->loss_sum);
      Add(result->state.gradient_norm);
    }
    if (correct != nullptr && !std::equal(bits_.begin(), bits_.end(), correct->begin())) {
      return absl::DataLossError("other losses or norms");
    }
    // Before the evaluation, whose batch comes behind offloaded parameters on from_host, and would
    // tell that they are there.
    absl::Status status =
        replica_.ReadParameters([&](ParameterId, std::span<const std::byte> bytes) {
          for (const float value : Widened(bytes, settings_.dtype)) Add(value);
          return absl::OkStatus();
        });
    return status.ok() ? Evaluate() : status;
  }
  std::vector<uint64_t> bits() const { return bits_; }

 private:
  void Add(double value) { bits_.push_back(std::bit_cast<uint64_t>(value)); }
  void TrainStep(int64_t step) {
    const auto fill = [&](int64_t micro_batch, HostBatch& batch) {
      const int64_t position =
          (step * settings_.grad_accum + micro_batch) * settings_.devices + rank_;
      dataset_.Train(position, batch.Inputs(0), batch.Targets(0));
      batch.samples[0] = position;
    };
    replica_.TrainStep(fill, 0.01F);
  }
  absl::Status Evaluate() {
    const absl::StatusOr<double> loss = replica_.EvaluateBatch([&](HostBatch& batch) {
      dataset_.Validation(0, batch.Inputs(0), batch.Targets(0));
      batch.samples[0] = 0;
    });
    if (loss.ok()) Add(*loss);
    return loss.status();
  }

  Replica& replica_;
  const TrainSettings& settings_;
  const int rank_;
  const SyntheticDataset dataset_;
  std::vector<uint64_t> bits_;
};

// The ranks of a run.
class Ranks {
 public:
  Ranks(const TrainSettings& settings, const RunPlan& plan, const Layout& layout,
        const std::string& drop_wait, Recorder* recorder)
      : settings_(settings),
        plan_(plan),
        layout_(layout),
        drop_wait_(drop_wait),
        recorder_(recorder),
        devices_(static_cast<size_t>(settings.devices)) {}

  EdgesOutcome Run(const EdgesOutcome* correct) {
    EdgesOutcome outcome;
    outcome.bits.resize(devices_.size());
    const auto group = MakeCudaGroup({.size = settings_.devices,
                                      .on_one_gpu = settings_.virtual_devices,
                                      .largest_call_bytes = 4096},
                                     abort_);
    outcome.status = group.status();
    if (!group.ok()) return outcome;
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < devices_.size(); ++rank) {
      const auto* expected = correct == nullptr ? nullptr : &correct->bits[rank];
      threads.emplace_back([&, rank, expected] {
        outcome.bits[rank] = RunRank(static_cast<int>(rank), **group, expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
    outcome.status = abort_.status();
    return outcome;
  }

 private:
  std::vector<uint64_t> RunRank(int rank, Group& group, const std::vector<uint64_t>* correct) {
    const RankPlan& plan = plan_.ranks[static_cast<size_t>(rank)];
    auto made = MakeCudaDevice({.rank = rank,
                                .gpu = settings_.virtual_devices ? 0 : rank,
                                .regions = plan.regions,
                                .host_regions = plan.host_regions,
                                .workspace_bytes = 1 << 20,
                                .ops_ahead = 1 << 30,  // that nothing but edges orders
                                .recorder = recorder_,
                                .drop_wait = drop_wait_},
                               abort_);
    if (!made.ok()) {
      abort_.Fail(made.status());
      return {};
    }
    Device& device = **made;
    devices_[static_cast<size_t>(rank)] = *std::move(made);
    const std::unique_ptr<Communicator> communicator = group.Join(rank, device);
    Replica replica(device, *communicator, layout_, settings_);
    Trainer trainer(replica, settings_, rank);
    const absl::Status status = trainer.Run(correct);
    if (!status.ok()) device.Fail(status);
    communicator->Stop();
    device.StopStreams();
    return trainer.bits();
  }

  const TrainSettings& settings_;
  const RunPlan& plan_;
  const Layout& layout_;
  const std::string& drop_wait_;
  Recorder* const recorder_;
  Abort abort_;
  std::vector<std::unique_ptr<Device>> devices_;  // until all have ended: others use their memory
};

}  // namespace

EdgesOutcome RunEdges(const TrainSettings& settings, fake_cuda::Policy policy,
                      const std::string& drop_wait, const EdgesOutcome* correct,
                      std::set<std::string>* edges) {
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(settings.model), settings.devices, settings.bucket_bytes,
                   settings.grad_accum_dtype);
  const absl::Status planned = plan.ok() ? layout.status() : plan.status();
  if (!planned.ok()) return {planned, {}, {}};
  fake_cuda::Reset({.devices = settings.virtual_devices ? 1 : settings.devices,
                    .policy = policy,
                    .workers = settings.devices,
                    .patience = std::chrono::seconds(10)});
  std::unique_ptr<EdgeLog> log;
  if (edges != nullptr) log = std::make_unique<EdgeLog>(*edges);
  EdgesOutcome outcome = Ranks(settings, *plan, *layout, drop_wait, log.get()).Run(correct);
  outcome.reports = fake_cuda::TakeReports();
  return outcome;
}

void ExpectEveryMissingWaitIsFound(const TrainSettings& settings,
                                   const std::set<std::string>& needed,
                                   const std::set<std::string>& covered) {
  std::set<std::string> edges;
  const EdgesOutcome correct = RunEdges(settings, fake_cuda::Policy::kRandom, "", nullptr, &edges);
  ASSERT_TRUE(correct.status.ok()) << correct.status;
  ASSERT_THAT(correct.reports, testing::IsEmpty());
  std::set<std::string> all = needed;
  all.insert(covered.begin(), covered.end());
  EXPECT_EQ(edges, all);
  for (const std::string& edge : edges) {
    std::string found;
    for (const fake_cuda::Policy policy : fake_cuda::kPolicies) {
      const EdgesOutcome outcome = RunEdges(settings, policy, edge, &correct);
      if (!outcome.status.ok() || !outcome.reports.empty() || outcome.bits != correct.bits) {
        found = fake_cuda::Name(policy);
        break;
      }
    }
    EXPECT_EQ(found.empty(), covered.count(edge) > 0) << edge << ": " << found;
  }
}

}  // namespace zerobox
