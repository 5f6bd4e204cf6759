// SPDX-License-Identifier: Apache-2.0
//
// One rank fails, at any point of a run: every worker comes back, the run's status is that first
// error, each rank says where it was, and nothing stays behind.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "ops/device/host_device.h"
#include "tests/process.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int kDevices = 3;

// The threads of this process, the one included that a sanitizer starts beside the first. A thread
// that was joined may take a moment to leave the list, so this is compared by waiting for it.
int64_t Threads() {
  [[maybe_unused]] static const bool first = [] {
    std::thread([] {}).join();
    return true;
  }();
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}
void AwaitThreads(int64_t wanted) {
  while (Threads() > wanted) std::this_thread::yield();
}

bool Contains(absl::string_view text, absl::string_view part) {
  return text.find(part) != absl::string_view::npos;
}

// Two steps, one evaluation, and the saving of the model.
TrainSettings FailureSettings(int stage) {
  TrainSettings settings = SmallSettings();
  settings.devices = kDevices;
  settings.zero_stage = stage;
  settings.steps = 2;
  settings.eval_interval = 2;
  settings.eval_batches = 1;
  return settings;
}

struct Case {
  int stage;
  bool evaluates;
  bool threaded_compute;
  // Optimizer and checkpoints on the host side, in mixed precision, of three blocks: one leaves.
  bool offload = false;
};

// The phases of that run, and the collective calls of each. Two blocks and the ends are one bucket
// each. Stage 0 all-reduces them; 1 and 2 reduce-scatter them and sum the squares, and gather what
// a step has made stale once, when it is read next; 3 gathers the ends and all blocks but the last
// twice.
struct Phase {
  std::string name;
  int64_t calls;
};
std::vector<Phase> PhasesOf(const Case& c) {
  const bool lazy = c.stage == 1 || c.stage == 2;
  const int64_t units = c.offload ? 4 : 3;  // reduced, or gathered, once
  const int64_t step = c.stage == 0 ? units : c.stage == 3 ? 3 * units : units + 1;
  std::vector<Phase> phases = {{"step 1", step}, {"step 2", lazy ? step + units : step}};
  if (c.evaluates) {
    phases.push_back({"evaluation after step 2", lazy ? units : c.stage == 3 ? units + 1 : 0});
  }
  phases.push_back({"saving the model", c.stage == 3 || (lazy && !c.evaluates) ? units : 0});
  return phases;
}

TrainSettings SettingsOf(const Case& c) {
  TrainSettings settings = FailureSettings(c.stage);
  if (!c.evaluates) settings.eval_interval = 0;
  if (c.offload) {
    settings.model.n_layer = 3;
    settings.dtype = DType::kBFloat16;
    settings.activation_checkpointing = ActivationCheckpointing::kFull;
    settings.offload_activations = true;
    settings.offload_optimizer = true;
  }
  return settings;
}

int64_t CallsOf(const Case& c) {
  int64_t calls = 0;
  for (const Phase& phase : PhasesOf(c)) calls += phase.calls;
  return calls;
}

std::string PhaseOf(const Case& c, int64_t number) {
  for (const Phase& phase : PhasesOf(c)) {
    if (number < phase.calls) return phase.name;
    number -= phase.calls;
  }
  return "";
}

// "reduce-scatter number 5 (gradients, unit 1)"
std::string TextOf(const CallInfo& call) {
  std::string kind(Name(call.collective));
  kind.replace(kind.find('_'), 1, "-");
  std::string unit = call.label.unit < 0 ? "" : ", unit " + std::to_string(call.label.unit);
  return kind + " number " + std::to_string(call.number) + " (" +
         std::string(Name(call.label.purpose)) + unit + ")";
}

class Failure : public testing::TestWithParam<Case> {};

TEST_P(Failure, AtAnyCollectiveCallOfAnyRankEndsTheRunAndSaysWhereEachRankWas) {
  const Case& c = GetParam();
  const TrainSettings settings = SettingsOf(c);
  const int64_t threads = Threads();
  for (int64_t number = 0; number < CallsOf(c); ++number) {
    const int failing = static_cast<int>(number % kDevices);
    SCOPED_TRACE(testing::Message() << "rank " << failing << ", call " << number);
    std::array<std::atomic<const HostDevice*>, kDevices> devices{};
    std::string failed_call;
    TrainHooks hooks;
    hooks.threaded_compute = c.threaded_compute;
    hooks.after_setup = [&](int rank, Device& device) {
      devices[rank] = static_cast<const HostDevice*>(&device);
    };
    hooks.call = [&](const CallInfo& call) -> absl::Status {
      if (call.rank != failing || call.number != number) return absl::OkStatus();
      failed_call = TextOf(call);
      // The others cannot get further than this call; it fails once all stand there.
      for (int rank = 0; rank < kDevices; ++rank) {
        if (rank == failing) continue;
        const HostDevice* device = nullptr;
        do {
          std::this_thread::yield();
          device = devices[rank];
        } while (device == nullptr || device->WaitingFor(StreamId::kCommunication) != failed_call);
      }
      return absl::UnavailableError("the cable is out");
    };
    const RunResult result = RunSmall(settings, hooks).result;
    EXPECT_EQ(result.status, absl::UnavailableError("rank " + std::to_string(failing) + ": " +
                                                    failed_call + ": the cable is out"));
    ASSERT_EQ(result.where.size(), kDevices);
    for (int rank = 0; rank < kDevices; ++rank) {
      const std::string& where = result.where[rank];
      EXPECT_EQ(where.substr(0, PhaseOf(c, number).size()), PhaseOf(c, number)) << where;
      EXPECT_EQ(Contains(where, failed_call), rank != failing) << where;
    }
    AwaitThreads(threads);
  }
}

TEST_P(Failure, AtOnceWhateverTheOthersDoEndsTheRun) {
  const Case& c = GetParam();
  const TrainSettings settings = SettingsOf(c);
  const int64_t threads = Threads();
  for (int64_t number = 0; number < CallsOf(c); ++number) {
    const int failing = static_cast<int>((number + 1) % kDevices);
    SCOPED_TRACE(testing::Message() << "rank " << failing << ", call " << number);
    TrainHooks hooks;
    hooks.threaded_compute = c.threaded_compute;
    hooks.call = [&](const CallInfo& call) -> absl::Status {
      if (call.rank != failing || call.number != number) return absl::OkStatus();
      return absl::UnavailableError("the cable is out");
    };
    const RunResult result = RunSmall(settings, hooks).result;
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
    EXPECT_TRUE(Contains(result.status.message(), " number " + std::to_string(number) + " ("))
        << result.status;
    ASSERT_EQ(result.where.size(), kDevices);
    for (const std::string& where : result.where) EXPECT_NE(where, "");
    AwaitThreads(threads);
  }
}

TEST_P(Failure, HasNoMoreCallsToFailAt) {
  const Case& c = GetParam();
  std::array<std::atomic<int64_t>, kDevices> calls{};
  const SmallRun run = RunSmall(SettingsOf(c), {.call =
                                                    [&](const CallInfo& call) {
                                                      ++calls[call.rank];
                                                      return absl::OkStatus();
                                                    },
                                                .threaded_compute = c.threaded_compute});
  EXPECT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_TRUE(run.result.where.empty());
  for (const std::atomic<int64_t>& of_rank : calls) EXPECT_EQ(of_rank, CallsOf(c));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    cases.push_back({stage, /*evaluates=*/true, /*threaded_compute=*/false});
    cases.push_back({stage, /*evaluates=*/false, /*threaded_compute=*/true});
  }
  for (const int stage : {0, 2, 3}) {
    cases.push_back({stage, /*evaluates=*/false, /*threaded_compute=*/true, /*offload=*/true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Stages, Failure, testing::ValuesIn(Cases()), [](const auto& info) {
  return "Stage" + std::to_string(info.param.stage) +
         (info.param.threaded_compute ? "ThreadedCompute" : "") +
         (info.param.offload ? "Offload" : "");
});

TEST(FailureInSetUp, OfADeviceIsTheRunsFailure) {
  TrainHooks hooks;
  hooks.after_setup = [](int rank, Device& device) {
    if (rank == 1) device.Fail(absl::DataLossError("a bit flipped"));
  };
  const int64_t threads = Threads();
  const RunResult result = RunSmall(FailureSettings(3), hooks).result;
  EXPECT_EQ(result.status, absl::DataLossError("rank 1: a bit flipped"));
  ASSERT_EQ(result.where.size(), kDevices);
  EXPECT_EQ(result.where[1], "set-up");
  for (const std::string& where : result.where) {
    EXPECT_TRUE(Contains(where, "set-up") || Contains(where, "step 1")) << where;
  }
  EXPECT_EQ(result.steps, 0);
  AwaitThreads(threads);
}

TEST(FailureInSetUp, MemoryThatTheMachineDoesNotHaveIsRefusedByName) {
  TrainHooks hooks;
  hooks.extra_bytes = int64_t{1} << 50;
  const int64_t threads = Threads();
  const RunResult result = RunSmall(FailureSettings(3), hooks).result;
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(result.status.message()).substr(0, 7), "device ") << result.status;
  EXPECT_TRUE(Contains(result.status.message(), "wanted 11258999")) << result.status;
  EXPECT_EQ(result.where, std::vector<std::string>(kDevices, "set-up"));
  EXPECT_EQ(result.ranks.size(), kDevices);
  AwaitThreads(threads);
}

TEST(FailureInSetUp, ADeviceThatIsFullIsTheRunsFailure) {
  TrainHooks hooks;
  hooks.after_setup = [](int rank, Device& device) {
    if (rank != 2) return;
    device.Allocate(Region::kTransient, Category::kWorkspace, DType::kFloat32, int64_t{1} << 40,
                    "a giant");
  };
  const RunResult result = RunSmall(FailureSettings(2), hooks).result;
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(result.status.message()).substr(0, 8), "rank 2: ") << result.status;
  EXPECT_TRUE(Contains(result.status.message(), "a giant")) << result.status;
  EXPECT_EQ(result.where[2], "set-up");
}

TEST(FailureToSave, InAFolderThatIsNotThereIsTheRunsFailure) {
  const TemporaryFolder folder;
  WriteFile(folder.path() + "/file", "not a folder");
  for (const std::string& out : {folder.path() + "/missing", folder.path() + "/file"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      TrainSettings settings = FailureSettings(stage);
      settings.out = out;
      const int64_t threads = Threads();
      const RunResult result = RunSmall(settings).result;
      EXPECT_FALSE(result.status.ok());
      EXPECT_TRUE(Contains(result.status.message(), out + "/model.safetensors")) << result.status;
      ASSERT_EQ(result.where.size(), kDevices);
      for (const std::string& where : result.where) {
        EXPECT_EQ(where.substr(0, 16), "saving the model") << where;
      }
      EXPECT_EQ(result.steps, 2);
      EXPECT_EQ(result.eval_metrics.size(), 1u);
      AwaitThreads(threads);
    }
  }
  EXPECT_EQ(ReadFile(folder.path() + "/file"), "not a folder");
}

// A corpus that can no longer be read from some point on.
class TornDataset final : public Dataset {
 public:
  TornDataset(const TrainSettings& settings, int64_t first_bad_position, bool bad_validation,
              bool throws)
      : whole_(settings.model.seq_len, settings.model.vocab_size),
        first_bad_(first_bad_position),
        bad_validation_(bad_validation),
        throws_(throws) {}
  int64_t train_tokens() const override { return whole_.train_tokens(); }
  int64_t train_sequences() const override { return whole_.train_sequences(); }
  int64_t validation_sequences() const override { return whole_.validation_sequences(); }
  int64_t TrainTargets(int64_t position) const override { return whole_.TrainTargets(position); }
  int64_t Epoch(int64_t position) const override { return whole_.Epoch(position); }
  int64_t TrainSequence(int64_t position) const override { return whole_.TrainSequence(position); }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    whole_.Train(position, inputs, targets);
    if (position >= first_bad_) Tear();
  }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    whole_.Validation(sequence, inputs, targets);
    if (bad_validation_) Tear();
  }
  absl::Status status() const override {
    return torn_ ? absl::DataLossError("the file became shorter") : absl::OkStatus();
  }

 private:
  void Tear() const {
    if (throws_) throw std::runtime_error("the disk is gone");
    torn_ = true;
  }
  SyntheticDataset whole_;
  const int64_t first_bad_;
  const bool bad_validation_;
  const bool throws_;
  mutable std::atomic<bool> torn_{false};
};

constexpr int64_t kNever = int64_t{1} << 40;

TEST(FailureToRead, EndsTheRunInTheStepThatRead) {
  TrainSettings settings = FailureSettings(0);
  settings.devices = 1;
  const RunResult alone =
      RunSmall(settings, TornDataset(settings, /*first_bad_position=*/1, false, false), {}).result;
  EXPECT_EQ(alone.status, absl::DataLossError("the file became shorter"));
  EXPECT_EQ(alone.steps, 1);
  EXPECT_EQ(alone.where, std::vector<std::string>{"step 2"});
  for (int stage = 0; stage <= 3; ++stage) {
    settings = FailureSettings(stage);
    const int64_t threads = Threads();
    const RunResult result =
        RunSmall(settings, TornDataset(settings, kDevices + 1, false, false), {}).result;
    EXPECT_EQ(result.status, absl::DataLossError("the file became shorter"));
    EXPECT_LE(result.steps, 1);
    EXPECT_EQ(result.where.size(), kDevices);
    AwaitThreads(threads);
  }
}

TEST(FailureToRead, InAnEvaluationEndsTheRunThere) {
  const TrainSettings settings = FailureSettings(3);
  const RunResult result =
      RunSmall(settings, TornDataset(settings, kNever, true, false), {}).result;
  EXPECT_EQ(result.status, absl::DataLossError("the file became shorter"));
  EXPECT_EQ(result.steps, 2);
  EXPECT_TRUE(result.eval_metrics.empty());
  ASSERT_EQ(result.where.size(), kDevices);
  for (const std::string& where : result.where) {
    EXPECT_EQ(where.substr(0, 23), "evaluation after step 2") << where;
  }
}

TEST(FailureToRead, ByAnExceptionEndsTheRun) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TrainSettings settings = FailureSettings(stage);
    const int64_t threads = Threads();
    const RunResult result =
        RunSmall(settings, TornDataset(settings, kDevices + 2, false, true), {}).result;
    EXPECT_EQ(result.status, absl::InternalError("device 2, step 2: the disk is gone"));
    ASSERT_EQ(result.where.size(), kDevices);
    EXPECT_EQ(result.where[2], "step 2");
    AwaitThreads(threads);
  }
}

// ---- the program ----

std::string Text() {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i * 7919 % 1000) + "\n";
  return text;
}

TEST(FailedProgram, ExitsWith3AndSaysWhatFailedAndWhereEachDeviceWas) {
  const TemporaryFolder folder;
  const std::string data = folder.path() + "/data.txt";
  const std::string out = folder.path() + "/run";
  WriteFile(data, Text());
  Process process({ProgramPath(), "train", "--data=" + data, "--out=" + out, "--devices=2",
                   "--zero_stage=3", "--n_layer=1", "--n_head=1", "--n_embd=16", "--seq_len=16",
                   "--micro_batch=1", "--steps=3", "--eval_interval=0", "--device_memory=64MiB"},
                  {}, [] {
                    const rlimit limit{16384, 16384};  // the model takes 30 kB
                    setrlimit(RLIMIT_FSIZE, &limit);
                  });
  EXPECT_EQ(process.Wait(), 3);
  const std::string output = process.output();
  EXPECT_TRUE(Contains(output, "a worker failed after step 3: ")) << output;
  EXPECT_TRUE(Contains(output, out + "/model.safetensors")) << output;
  EXPECT_TRUE(Contains(output, "\n  device 0: saving the model\n")) << output;
  EXPECT_TRUE(Contains(output, "\n  device 1: saving the model")) << output;
  // What could be written is there, and nothing half-written.
  EXPECT_TRUE(std::filesystem::exists(out + "/memory.json"));
  EXPECT_TRUE(std::filesystem::exists(out + "/communication.json"));
  EXPECT_TRUE(Contains(ReadFile(out + "/metrics.jsonl"), "\"step\":3"));
  EXPECT_TRUE(Contains(ReadFile(out + "/log.txt"), "a worker failed after step 3: "));
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    EXPECT_FALSE(Contains(entry.path().filename().string(), "model")) << entry.path();
  }
}

}  // namespace
}  // namespace zerobox
