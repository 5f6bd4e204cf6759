// SPDX-License-Identifier: Apache-2.0
//
// Communication hides behind compute. A gate holds collectives of rank 0 on its communication
// stream until its worker cannot go on, or until it has got to a certain op; what the worker did in
// between, it did while the collective was under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/device/device.h"
#include "ops/device/recorder.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

// What happened on rank 0, in order. Its compute runs in the worker's thread, so that the worker's
// calls and the compute are in one order.
struct Line {
  enum What { kEnqueue, kBegin, kEnd, kRecord, kWait } what;
  StreamId stream;
  std::string name;              // of the op, or the event
  int64_t id = -1;               // of the op
  const Event* event = nullptr;  // it may be gone
};
using Lines = std::vector<Line>;
constexpr auto kCompute = StreamId::kCompute;
constexpr auto kCommunication = StreamId::kCommunication;

// The first line at or after `from` that is so, or the number of lines.
size_t Find(const Lines& lines, size_t from, const std::function<bool(const Line&)>& is_so) {
  size_t i = from;
  while (i < lines.size() && !is_so(lines[i])) ++i;
  return i;
}

size_t FindOp(const Lines& lines, size_t from, Line::What what, int64_t id) {
  return Find(lines, from, [=](const Line& line) { return line.what == what && line.id == id; });
}

size_t FindBegin(const Lines& lines, size_t from, const std::string& op) {
  return Find(lines, from, [&](const Line& line) {
    return line.what == Line::kBegin && line.stream == kCompute && (op.empty() || line.name == op);
  });
}

// Where compute is first made to wait for something on the communication stream behind line `from`.
size_t FindWaitFor(const Lines& lines, size_t from) {
  std::set<const Event*> behind;
  return Find(lines, from, [&](const Line& line) {
    if (line.what == Line::kRecord && line.stream == kCommunication) behind.insert(line.event);
    return line.what == Line::kWait && line.stream == kCompute && behind.count(line.event) > 0;
  });
}

// Holds the collectives named `op`, at most `count` of them. `open(lines, enqueued, n)` is asked
// with what happened so far, the line where the n-th was enqueued, and n, until it is true.
class Gate final : public Recorder {
 public:
  using Open = std::function<bool(const Lines& lines, size_t enqueued, size_t n)>;
  Gate(std::string op, size_t count, Open open)
      : op_(std::move(op)), count_(count), open_(std::move(open)) {}

  void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add(rank, {Line::kEnqueue, stream, std::string(op), id});
  }
  void OnBegin(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add(rank, {Line::kBegin, stream, std::string(op), id});
    if (rank == 0 && stream == kCommunication && op == op_) Hold(id);
  }
  void OnEnd(int rank, StreamId stream, std::string_view op, int64_t id) override {
    Add(rank, {Line::kEnd, stream, std::string(op), id});
  }
  void OnRecord(int rank, StreamId stream, const Event& event) override {
    Add(rank, {Line::kRecord, stream, event.name(), -1, &event});
  }
  void OnWait(int rank, StreamId stream, const Event& event) override {
    Add(rank, {Line::kWait, stream, event.name(), -1, &event});
  }
  void OnAllocate(int, Region, Category, std::string_view, const Buffer&) override {}
  void OnFree(int, const Buffer&) override {}

  // After the run.
  const Lines& lines() const { return lines_; }
  const std::vector<int64_t>& held() const { return held_; }

 private:
  void Add(int rank, Line line) {
    if (rank != 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  void Hold(int64_t id) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (held_.size() == count_) return;
    const size_t n = held_.size();
    held_.push_back(id);
    const size_t enqueued = FindOp(lines_, 0, Line::kEnqueue, id);
    changed_.wait(lock, [&] { return open_(lines_, enqueued, n); });
  }

  const std::string op_;
  const size_t count_;
  const Open open_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Lines lines_;
  std::vector<int64_t> held_;
};

// Three blocks, each one bucket, as is the unit of the ends.
TrainSettings OverlapSettings(int stage) {
  TrainSettings settings = SmallSettings();
  settings.zero_stage = stage;
  settings.model.n_layer = 3;
  settings.devices = 3;
  settings.steps = 2;
  return settings;
}

bool ComputeWaitsForIt(const Lines& lines, size_t enqueued, size_t /*n*/) {
  return FindWaitFor(lines, enqueued) < lines.size();
}

// `visit` names an op of the visit before the one that needs the gathered unit; "": there is none,
// and compute waits at once.
void ExpectGatherBehind(const std::string& visit, const Lines& lines, int64_t gather) {
  const size_t enqueued = FindOp(lines, 0, Line::kEnqueue, gather);
  const size_t waiting = FindWaitFor(lines, enqueued);
  const size_t gathered = FindOp(lines, 0, Line::kEnd, gather);
  ASSERT_LT(waiting, lines.size());
  ASSERT_LT(gathered, lines.size());
  ASSERT_LT(waiting, gathered) << "the gate was not closed";
  std::vector<std::string> hidden_behind;
  for (size_t i = enqueued; i < waiting; ++i) {
    if (lines[i].what == Line::kEnd && lines[i].stream == kCompute) {
      hidden_behind.push_back(lines[i].name);
    }
  }
  if (visit.empty()) {
    EXPECT_EQ(hidden_behind.size(), 0u);
  } else {
    EXPECT_EQ(std::count(hidden_behind.begin(), hidden_behind.end(), visit), 1);
  }
  EXPECT_GT(FindBegin(lines, waiting, ""), gathered)
      << lines[FindBegin(lines, waiting, "")].name << " began before its unit was gathered";
}

TEST(Overlap, AStage3GatherHidesBehindTheVisitBeforeInForwardAndBackward) {
  // In the order of the step program; the head keeps the ends for its backward, as does the last
  // block what it gathered.
  const std::vector<std::string> behind = {"",
                                           "embedding_forward",
                                           "attention_forward",
                                           "attention_forward",
                                           "attention_forward",
                                           "attention_backward",
                                           "attention_backward"};
  const TrainSettings settings = OverlapSettings(3);
  Gate gate("all_gather", 2 * behind.size(), ComputeWaitsForIt);
  const SmallRun run = RunSmall(settings, {.recorder = &gate});
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  ASSERT_EQ(gate.held().size(), 2 * behind.size());
  for (size_t i = 0; i < gate.held().size(); ++i) {
    SCOPED_TRACE(testing::Message() << "gather " << i);
    ExpectGatherBehind(behind[i % behind.size()], gate.lines(), gate.held()[i]);
  }
}

TEST(Overlap, TheGatherOfStages1And2HidesBehindTheNextStepsForward) {
  const std::vector<std::string> behind = {"", "embedding_forward", "attention_forward",
                                           "attention_forward"};
  for (const int stage : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    const TrainSettings settings = OverlapSettings(stage);
    Gate gate("all_gather", behind.size(), ComputeWaitsForIt);
    const SmallRun run = RunSmall(settings, {.recorder = &gate});
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    ASSERT_EQ(gate.held().size(), behind.size());
    const size_t updated = FindBegin(gate.lines(), 0, "adamw");
    EXPECT_LT(updated, FindOp(gate.lines(), 0, Line::kEnqueue, gate.held()[0]))
        << "the first step gathers nothing";
    for (size_t i = 0; i < behind.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "gather " << i);
      ExpectGatherBehind(behind[i], gate.lines(), gate.held()[i]);
    }
  }
}

#ifndef __SANITIZE_THREAD__  // which rightly calls it a race
TEST(Overlap, WithoutItsWaitComputeRunsAheadOfTheGather) {
  bool ran_ahead = false;
  Gate gate("all_gather", 1, [&](const Lines& lines, size_t enqueued, size_t) {
    // The gate stays closed until compute has begun what needs the unit.
    const size_t waiting = FindWaitFor(lines, enqueued);
    ran_ahead = FindBegin(lines, waiting, "embedding_forward") < lines.size();
    return ran_ahead;
  });
  const SmallRun run =
      RunSmall(OverlapSettings(3), {.drop_wait = "unit gathered -> compute", .recorder = &gate});
  EXPECT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_TRUE(ran_ahead);
}
#endif

TEST(Overlap, ABucketIsReducedBehindTheBackwardOfTheNextLayer) {
  // Of blocks 2, 1 and 0.
  const std::vector<std::string> behind = {"attention_backward", "attention_backward",
                                           "embedding_backward"};
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    std::vector<bool> hidden;
    Gate gate(stage == 0 ? "all_reduce" : "reduce_scatter", behind.size(),
              [&](const Lines& lines, size_t enqueued, size_t n) {
                if (FindBegin(lines, enqueued, behind[n]) < lines.size()) {
                  hidden.push_back(true);
                  return true;
                }
                if (!ComputeWaitsForIt(lines, enqueued, n)) return false;
                hidden.push_back(false);  // compute does not go on without it
                return true;
              });
    const SmallRun run = RunSmall(OverlapSettings(stage), {.recorder = &gate});
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    EXPECT_EQ(hidden, std::vector<bool>(behind.size(), true));
  }
}

}  // namespace
}  // namespace zerobox
