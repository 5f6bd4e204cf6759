// SPDX-License-Identifier: Apache-2.0
#include "trainer/train.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/collectives/host_communicator.h"
#include "ops/cuda/cuda.h"
#include "trainer/board.h"
#include "trainer/gpt.h"
#include "trainer/watch.h"
#include "trainer/worker.h"

namespace zerobox {
namespace {

absl::StatusOr<std::unique_ptr<Group>> MakeGroup(const TrainSettings& settings,
                                                 const Layout& layout, const CallHook& hook,
                                                 Abort& abort) {
  if (settings.device == "cuda") {
    int64_t largest = 0;
    for (const Bucket& bucket : layout.buckets()) largest = std::max(largest, bucket.range.size());
    const int64_t bytes =
        largest * std::max(SizeOf(settings.dtype), SizeOf(settings.grad_accum_dtype));
    return MakeCudaGroup({.size = settings.devices,
                          .on_one_gpu = settings.virtual_devices,
                          .largest_call_bytes = bytes,
                          .hook = hook},
                         abort);
  }
  auto group = std::make_unique<HostGroup>(settings.devices, abort);
  if (hook) group->set_call_hook(hook);
  return group;
}

std::vector<std::thread> StartThreads(std::deque<Worker>& workers, Watch& watch, Abort& abort) {
  std::vector<std::thread> threads;
  threads.reserve(workers.size());  // no place for one can be missing once others run
  for (int rank = 0; rank < std::ssize(workers); ++rank) {
    Worker& worker = workers[rank];
    try {
      threads.emplace_back([&worker, &watch, rank] {
        worker.Run();
        watch.Back(rank);
      });
    } catch (const std::exception& error) {  // of the system, or for want of memory
      abort.Fail(absl::ResourceExhaustedError(absl::StrCat("the machine does not give device ",
                                                           rank, " a thread: ", error.what(),
                                                           ". Use fewer devices")));
      watch.Back(rank);
    }
  }
  return threads;
}

// What a failed run, some of whose workers do not come back, has to say: not more than may be read
// while they run.
RunResult KnownOf(const std::deque<Worker>& workers, Watch& watch, const Abort& abort) {
  RunResult result;
  result.status = abort.status();
  result.steps = workers[0].status().steps();
  for (int rank = 0; rank < std::ssize(workers); ++rank) {
    const Worker& worker = workers[rank];
    result.steps = std::min(result.steps, worker.status().steps());
    result.where.push_back(watch.IsBack(rank)
                               ? worker.where()
                               : absl::StrCat("did not come back: ", worker.status().Where()));
  }
  return result;
}

void CollectTraces(std::deque<Worker>& workers, RunResult& result) {
  std::vector<RankTrace> ranks;
  for (Worker& worker : workers) {
    if (result.trace_error.empty()) result.trace_error = worker.trace_error();
    if (std::optional<RankTrace> trace = worker.TakeTrace()) ranks.push_back(*std::move(trace));
  }
  if (ranks.size() < workers.size()) return;  // none was asked for, or the run failed meanwhile
  absl::StatusOr<StepTrace> merged = MergeTraces(std::move(ranks));
  if (merged.ok()) {
    result.trace = *std::move(merged);
  } else {
    result.trace_error = std::string(merged.status().message());
  }
}

}  // namespace

std::vector<int64_t> EvaluationSequences(const TrainSettings& settings, const Dataset& dataset) {
  const int64_t all = dataset.validation_sequences();
  const int64_t count = std::min(all, settings.eval_batches * settings.global_batch());
  std::vector<int64_t> sequences(count);
  for (int64_t i = 0; i < count; ++i) sequences[i] = i * all / count;
  return sequences;
}

RunResult Train(const TrainSettings& settings, const RunPlan& plan, const Dataset& dataset,
                RunObserver* observer, const std::function<int()>& stop_signal,
                const TrainHooks& hooks) {
  RunResult result;
  const absl::StatusOr<Layout> layout =
      Layout::Make(GptParameters(settings.model), settings.devices, settings.bucket_bytes,
                   settings.grad_accum_dtype);
  result.status = layout.status();
  if (!layout.ok()) return result;

  const std::vector<int64_t> eval_sequences = EvaluationSequences(settings, dataset);
  Abort abort;
  const absl::StatusOr<std::unique_ptr<Group>> group =
      MakeGroup(settings, *layout, hooks.call, abort);
  result.status = group.status();
  if (!group.ok()) return result;
  Board board(settings, dataset, observer);
  StopPoint stop(settings.steps, stop_signal);
  Barrier barrier(settings.devices, abort);
  const RunContext run{settings, plan,    dataset, hooks, *layout, eval_sequences,
                       abort,    **group, board,   stop,  barrier};

  std::deque<Worker> workers;
  std::vector<const RankStatus*> ranks;
  ranks.reserve(static_cast<size_t>(settings.devices));
  for (int rank = 0; rank < settings.devices; ++rank) {
    ranks.push_back(&workers.emplace_back(run, rank).status());
  }
  Watch watch(ranks, settings.collective_timeout_seconds, hooks.watch, abort);
  std::vector<std::thread> threads = StartThreads(workers, watch, abort);
  watch.UntilAllAreBack([&] {
    if (observer != nullptr) observer->OnGivenUp(KnownOf(workers, watch, abort));
  });
  for (std::thread& thread : threads) thread.join();

  result.status = abort.status();
  result.stopped_by_signal = stop.signal();
  board.MoveTo(result);
  for (const Worker& worker : workers) {
    result.ranks.push_back(worker.result());
    if (!result.status.ok()) result.where.push_back(worker.where());
  }
  CollectTraces(workers, result);
  return result;
}

}  // namespace zerobox
