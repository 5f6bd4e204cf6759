// SPDX-License-Identifier: Apache-2.0
//
// The event protocol. With the compute stream a thread of its own, as on a GPU, nothing but events
// orders the streams of a device. Every edge, that is every event and who waits for it, is listed
// here. Each is needed in two ways: it orders what no other edges order (found in the record of a
// run), and without it two streams race for memory (found by the thread sanitizer, in its build).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/collectives/host_communicator.h"
#include "ops/device/host_device.h"
#include "tests/process.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/replica.h"

namespace zerobox {
namespace {

enum class Offload { kNothing, kOptimizer, kActivations, kBoth };

// What is trained; all kinds of runs.
struct Kind {
  int stage;
  Offload offload;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::kSelective;  // where they leave
  int threads = 1;  // of a device, and of its host side
};
const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {0, Offload::kNothing},
      {1, Offload::kNothing},
      {2, Offload::kNothing},
      {3, Offload::kNothing},
      {0, Offload::kOptimizer},
      {1, Offload::kOptimizer},
      {2, Offload::kOptimizer},
      {3, Offload::kOptimizer},
      {0, Offload::kActivations},
      {3, Offload::kActivations},
      {0, Offload::kActivations, ActivationCheckpointing::kFull},
      {3, Offload::kBoth},
      {2, Offload::kBoth, ActivationCheckpointing::kFull, /*threads=*/2}};
  return kinds;
}

std::string NameOf(const Kind& kind) {
  std::string name = "Stage" + std::to_string(kind.stage);
  if (kind.offload == Offload::kOptimizer) name += "_optimizer";
  if (kind.offload == Offload::kActivations) name += "_activations";
  if (kind.offload == Offload::kBoth) name += "_both";
  if (kind.checkpointing == ActivationCheckpointing::kFull) name += "_full";
  if (kind.threads > 1) name += "_threads";
  return name;
}

struct Edge {
  std::string name;
  std::vector<int> stages;  // that use it
  std::vector<Offload> offloads = {Offload::kNothing, Offload::kOptimizer, Offload::kActivations,
                                   Offload::kBoth};
  std::vector<Offload> covered = {};  // where other edges happen to order as much
  bool IsCoveredIn(const Kind& kind) const {
    return std::count(covered.begin(), covered.end(), kind.offload) > 0;
  }
  bool IsIn(const Kind& kind) const {
    return std::count(stages.begin(), stages.end(), kind.stage) > 0 &&
           std::count(offloads.begin(), offloads.end(), kind.offload) > 0;
  }
};

// Every edge of a run, as drop_wait names it.
const std::vector<Edge>& Edges() {
  static const std::vector<int> all = {0, 1, 2, 3};
  static const std::vector<Offload> anything = Edge{}.offloads;
  static const std::vector<Offload> on_device = {Offload::kNothing, Offload::kActivations};
  static const std::vector<Offload> optimizer = {Offload::kOptimizer, Offload::kBoth};
  static const std::vector<Offload> activations = {Offload::kActivations, Offload::kBoth};
  static const std::vector<Edge> edges = {
      // zero/
      {"bucket full -> communication", all},
      {"gradients reduced -> compute", {0, 1}},
      {"squares ready -> communication", {1, 2, 3}},
      {"squares known -> compute", {1, 2, 3}},
      {"parameters updated -> communication", {1, 2, 3}},
      {"unit gathered -> compute", {1, 2, 3}},
      {"bucket reduced -> compute", {2, 3}, on_device},
      {"transient memory free -> communication", {3}},
      // zero/, with the optimizer on the host side
      {"gradients reduced -> to_host", {0, 1}, optimizer},
      {"bucket reduced -> to_host", {2, 3}, optimizer},
      {"gradient landed -> compute", {2, 3}, optimizer},
      {"squares summed -> from_host", all, optimizer},
      {"squares up -> compute", all, optimizer},
      {"step prepared -> to_host", all, optimizer},
      {"bucket updated -> from_host", all, optimizer},
      {"staging free -> to_host", all, optimizer},
      {"parameters up -> compute", all, optimizer},
      // trainer/
      {"batch uploaded -> compute", all},
      {"batch uploaded -> host", all},
      // Checkpoints that come back while the next batch is computed tell that this one is read.
      {"batch consumed -> from_host", all, anything, activations},
      {"results ready -> to_host", all},
      {"results read -> host", all},
      {"results read -> compute", all},
      // trainer/, with checkpoints on the host side
      {"checkpoint written -> to_host", all, activations},
      {"checkpoint left -> compute", all, activations},
      {"checkpoint slot free -> from_host", all, activations},
      {"checkpoint back -> compute", all, activations},
  };
  return edges;
}

// Three micro-batches a step, as the two slots of the batch feed are free at first. Parameters on
// their way up are staged in mixed precision only. Of four checkpoints two leave.
TrainSettings EventSettings(const Kind& kind) {
  TrainSettings settings = SmallSettings();
  settings.devices = 2;
  settings.zero_stage = kind.stage;
  settings.model.n_layer = 3;
  settings.grad_accum = 3;
  settings.steps = 2;
  settings.eval_interval = 2;
  settings.eval_batches = 1;
  if (kind.offload != Offload::kNothing) settings.dtype = DType::kBFloat16;
  settings.threads = kind.threads * settings.devices;
  settings.offload_optimizer =
      kind.offload == Offload::kOptimizer || kind.offload == Offload::kBoth;
  settings.offload_activations =
      kind.offload == Offload::kActivations || kind.offload == Offload::kBoth;
  if (settings.offload_activations) {
    settings.model.n_layer = 4;
    settings.activation_checkpointing = kind.checkpointing;
  }
  return settings;
}

// One rank's whole life. Training waits for the host only once, after two steps, so that nothing
// but events orders the end of a step and the beginning of the next.
void RunRank(const TrainSettings& settings, const Layout& layout, Communicator& communicator,
             HostDevice& device) {
  Replica replica(device, communicator, layout, settings);
  const SyntheticDataset dataset(settings.model.seq_len, settings.model.vocab_size);
  replica.InitializeWeights();
  for (int64_t step = 0; step < settings.steps; ++step) {
    const auto fill = [&](int64_t micro_batch, HostBatch& batch) {
      const int64_t position =
          (step * settings.grad_accum + micro_batch) * settings.devices + device.rank();
      dataset.Train(position, batch.Inputs(0), batch.Targets(0));
      batch.samples[0] = position;
    };
    replica.TrainStep(fill, 0.01F);
  }
  for (int64_t step = 0; step < settings.steps; ++step) {
    const absl::StatusOr<StepOutcome> outcome = replica.Outcome();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->loss_sum > 0);
    EXPECT_EQ(outcome->state.skip, 0);
  }
  // Read first: the next batch comes behind offloaded parameters on from_host, and would tell that
  // they are there.
  double sum = 0;
  const absl::Status status =
      replica.ReadParameters([&](ParameterId, std::span<const std::byte> bytes) {
        for (const float value : Widened(bytes, settings.dtype)) sum += value;
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(sum != 0);
  const absl::StatusOr<double> loss = replica.EvaluateBatch([&](HostBatch& batch) {
    dataset.Validation(0, batch.Inputs(0), batch.Targets(0));
    batch.samples[0] = 0;
  });
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_TRUE(*loss > 0);
  device.StopStreams();
}

void RunRanks(const Kind& kind, const std::string& drop_wait, Recorder* recorder) {
  const TrainSettings settings = EventSettings(kind);
  const absl::StatusOr<RunPlan> plan = PlanRun(settings);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(settings.model), settings.devices, settings.bucket_bytes,
                   settings.grad_accum_dtype);
  ASSERT_TRUE(layout.ok()) << layout.status();
  Abort abort;
  HostGroup group(settings.devices, abort);
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < settings.devices; ++rank) {
    auto device = HostDevice::Make({.rank = rank,
                                    .regions = plan->ranks[rank].regions,
                                    .host_regions = plan->ranks[rank].host_regions,
                                    .threads = kind.threads,
                                    .recorder = rank == 0 ? recorder : nullptr,
                                    .threaded_compute = true,
                                    .drop_wait = drop_wait},
                                   abort);
    ASSERT_TRUE(device.ok()) << device.status();
    devices.push_back(*std::move(device));
    communicators.push_back(group.Join(rank, *devices.back()));
  }
  for (int rank = 0; rank < settings.devices; ++rank) {
    threads.emplace_back(
        [&, rank] { RunRank(settings, *layout, *communicators[rank], *devices[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

// What rank 0's worker put into its streams, in its order.
struct Entry {
  enum { kOp, kRecord, kWait } kind;
  size_t who;          // a stream, or kHost
  const Event* event;  // it may be gone
  std::string name;    // the event's
  std::string edge;    // of a wait
};
constexpr size_t kHost = kStreams;

class EntryLog final : public Recorder {
 public:
  void OnEnqueue(int, StreamId stream, std::string_view, int64_t) override {
    entries.push_back({Entry::kOp, static_cast<size_t>(stream), nullptr, "", ""});
  }
  void OnRecord(int, StreamId stream, const Event& event) override {
    entries.push_back({Entry::kRecord, static_cast<size_t>(stream), &event, event.name(), ""});
  }
  void OnWait(int, StreamId stream, const Event& event) override {
    entries.push_back({Entry::kWait, static_cast<size_t>(stream), &event, event.name(),
                       event.name() + " -> " + std::string(Name(stream))});
  }
  void OnHostWait(int, const Event& event) override {
    entries.push_back({Entry::kWait, kHost, &event, event.name(), event.name() + " -> host"});
  }
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}
  std::vector<Entry> entries;  // the calls above come from the worker's thread alone
};

// How many ops of each stream are known to be done.
using Clock = std::array<int64_t, kStreams>;

void Join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < kStreams; ++i) clock[i] = std::max(clock[i], other[i]);
}

// Follows who knows what to be done by the rules of Device alone. Of the waits of `edge`, which are
// left out, returns those whose event then tells more than the waiter knows.
int64_t OrdersLostWithout(const std::string& edge, const std::vector<Entry>& entries) {
  std::array<Clock, kStreams + 1> known{};
  std::map<const Event*, Clock> events;
  int64_t lost = 0;
  for (const Entry& entry : entries) {
    Clock& clock = known[entry.who];
    Join(clock, known[kHost]);  // what the worker knows, it knows when it enqueues
    switch (entry.kind) {
      case Entry::kOp:
        ++clock[entry.who];
        break;
      case Entry::kRecord:
        events[entry.event] = clock;
        break;
      case Entry::kWait: {
        Clock with = clock;
        Join(with, events[entry.event]);
        if (entry.edge != edge) {
          clock = with;
        } else if (with != clock) {
          ++lost;
        }
      }
    }
  }
  return lost;
}

class Events : public testing::TestWithParam<Kind> {};

TEST_P(Events, OfARunAreAllListedAndEachOrdersWhatNoOtherDoes) {
  EntryLog log;
  RunRanks(GetParam(), "", &log);
  std::set<std::string> expected;
  for (const Edge& edge : Edges()) {
    if (edge.IsIn(GetParam())) expected.insert(edge.name);
  }
  std::set<std::string> found;
  std::set<std::string> recorded;
  std::set<std::string> waited;
  for (const Entry& entry : log.entries) {
    if (entry.kind == Entry::kWait) found.insert(entry.edge);
    if (entry.kind == Entry::kWait) waited.insert(entry.name);
    if (entry.kind == Entry::kRecord) recorded.insert(entry.name);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(recorded, waited) << "an event is recorded for nobody";
  for (const Edge& edge : Edges()) {
    if (!edge.IsIn(GetParam())) continue;
    const int64_t lost = OrdersLostWithout(edge.name, log.entries);
    if (edge.IsCoveredIn(GetParam())) {
      EXPECT_EQ(lost, 0) << edge.name << " is not covered";
    } else {
      EXPECT_GT(lost, 0) << edge.name << " orders nothing";
    }
  }
  EXPECT_EQ(OrdersLostWithout("no such edge", log.entries), 0);
}

TEST_P(Events, LetAComputeThreadTrainToTheSameBits) {
  TrainSettings settings = EventSettings(GetParam());
  settings.devices = 3;
  settings.threads = GetParam().threads * settings.devices;
  settings.steps = 4;
  for (const int64_t bucket_bytes : {int64_t{1}, int64_t{25} << 20}) {
    settings.bucket_bytes = bucket_bytes;
    const SmallRun reference = RunSmall(settings);
    const SmallRun threaded = RunSmall(settings, {.threaded_compute = true});
    ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
    ASSERT_TRUE(threaded.result.status.ok()) << threaded.result.status;
    EXPECT_EQ(reference.result.eval_metrics.size(), 2u);
    EXPECT_EQ(Bits(threaded.result), Bits(reference.result));
    EXPECT_TRUE(threaded.parameters == reference.parameters);  // too much to print
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Events, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return NameOf(info.param); });

#ifdef __SANITIZE_THREAD__

constexpr char kKind[] = "ZEROBOX_TEST_KIND";
constexpr char kDropWait[] = "ZEROBOX_TEST_DROP_WAIT";
constexpr int kRaceExitCode = 66;

// What the tests below run in a process of its own.
TEST(EventsChild, DISABLED_Trains) {
  const char* name = std::getenv(kKind);
  const char* drop_wait = std::getenv(kDropWait);
  ASSERT_TRUE(name != nullptr && drop_wait != nullptr);
  const auto kind = std::find_if(Kinds().begin(), Kinds().end(),
                                 [&](const Kind& k) { return NameOf(k) == name; });
  ASSERT_TRUE(kind != Kinds().end()) << name;
  RunRanks(*kind, drop_wait, nullptr);
}

struct Outcome {
  int code;
  std::string output;
};

Outcome TrainInAChild(const Kind& kind, const std::string& drop_wait) {
  Process process(
      {"/proc/self/exe", "--gtest_also_run_disabled_tests",
       "--gtest_filter=EventsChild.DISABLED_Trains", "--gtest_output="},
      {std::string(kKind) + "=" + NameOf(kind), std::string(kDropWait) + "=" + drop_wait,
       "TSAN_OPTIONS=halt_on_error=1:exitcode=" + std::to_string(kRaceExitCode)});
  const int code = process.Wait();
  return {code, process.output()};
}

struct Drop {
  std::string edge;
  Kind kind;
};

std::vector<Drop> Drops() {
  std::vector<Drop> drops;
  for (const Edge& edge : Edges()) {
    for (const Kind& kind : Kinds()) {
      if (!edge.IsIn(kind)) continue;
      // What all stages do alike is tried at the first and the last, what several offloads do alike
      // with the first of them, and nothing on several threads.
      if (edge.stages.size() == 4 && kind.stage != 0 && kind.stage != 3) continue;
      if (kind.offload != edge.offloads.front() || kind.threads > 1) continue;
      drops.push_back({edge.name, kind});
    }
  }
  return drops;
}

class EventsUnderTheThreadSanitizer : public testing::TestWithParam<Drop> {};

TEST_P(EventsUnderTheThreadSanitizer, ADroppedWaitIsARace) {
  const Outcome outcome = TrainInAChild(GetParam().kind, GetParam().edge);
  EXPECT_EQ(outcome.code, kRaceExitCode);
  EXPECT_NE(outcome.output.find("WARNING: ThreadSanitizer: data race"), std::string::npos)
      << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Edges, EventsUnderTheThreadSanitizer, testing::ValuesIn(Drops()),
                         [](const auto& info) {
                           std::string name = info.param.edge;
                           std::erase(name, '>');
                           std::erase(name, '-');
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name + "_" + NameOf(info.param.kind);
                         });

TEST(EventsUnderTheThreadSanitizer, NothingRacesWithEveryWait) {
  for (const Kind& kind : Kinds()) {
    const Outcome outcome = TrainInAChild(kind, "");
    EXPECT_EQ(outcome.code, 0) << NameOf(kind) << ": " << outcome.output;
  }
}

#endif  // __SANITIZE_THREAD__

}  // namespace
}  // namespace zerobox
