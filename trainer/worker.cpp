// SPDX-License-Identifier: Apache-2.0
#include "trainer/worker.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoints/safetensors.h"
#include "ops/cuda/cuda.h"
#include "trainer/fit.h"
#include "trainer/model_file.h"

namespace zerobox {

Worker::Worker(const RunContext& run, int rank)
    : run_(run), settings_(run.settings), rank_(rank), status_(run.hooks.watch.clock) {
  if (settings_.trace_step != kTraceOff) {
    tracer_ = std::make_unique<Tracer>(settings_, run.hooks.recorder);
  }
}

Worker::~Worker() = default;

void Worker::Run() {
  absl::Status status;
  try {
    status = SetUp();
    if (status.ok()) {
      run_.board.PostSetUp();
      status = TrainAndSave();
    }
  } catch (const std::exception& e) {
    status =
        absl::InternalError(absl::StrCat("device ", rank_, ", ", status_.phase(), ": ", e.what()));
  }
  if (!status.ok()) run_.abort.Fail(status);  // the first one counts
  if (device_ != nullptr) Finish();
  where_ = status_.Where();
}

absl::Status Worker::SetUp() {
  {
    const RankStatus::Pause pause(status_);  // it may take the driver long to pin memory
    if (absl::Status status = MakeDevice(); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("device ", rank_, ": ", status.message()));
    }
  }
  status_.SetDevice(device_.get());
  if (tracer_ != nullptr) tracer_->Attach(*device_);
  communicator_ = run_.group.Join(rank_, *device_);
  if (run_.hooks.communicator) disturbed_ = run_.hooks.communicator(*communicator_);
  Communicator& used = disturbed_ ? *disturbed_ : *communicator_;
  if (tracer_ != nullptr) traced_ = tracer_->Traced(used);
  replica_ = std::make_unique<Replica>(*device_, traced_ ? *traced_ : used, run_.layout, settings_);
  if (run_.hooks.after_setup) run_.hooks.after_setup(rank_, *device_);
  ParameterSource given;
  if (const auto& hook = run_.hooks.initial_parameter) {
    given = [&](ParameterId parameter, std::span<float> values) {
      hook(run_.layout.spec(parameter).name, values.data(), std::ssize(values));
    };
  }
  replica_->InitializeWeights(given);
  return device_->status();
}

absl::Status Worker::MakeDevice() {
  const RankPlan& plan = run_.plan.ranks[rank_];
  RegionBytes regions = plan.regions;
  regions[static_cast<int>(Region::kPersistent)] += run_.hooks.extra_bytes;
  Recorder* const recorder = tracer_ != nullptr ? tracer_.get() : run_.hooks.recorder;
  const int host_threads = settings_.offload_optimizer ? settings_.threads_per_device() : 1;
  if (settings_.device == "cuda") {
    auto device = MakeCudaDevice({.rank = rank_,
                                  .gpu = settings_.virtual_devices ? 0 : rank_,
                                  .regions = regions,
                                  .host_regions = plan.host_regions,
                                  .threads = settings_.threads_per_device(),
                                  .sizes = OpsSizes(settings_),
                                  .tf32 = settings_.tf32,
                                  .recorder = recorder,
                                  .drop_wait = run_.hooks.drop_wait},
                                 run_.abort);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    return absl::OkStatus();
  }
  auto device = HostDevice::Make({.rank = rank_,
                                  .regions = regions,
                                  .host_regions = plan.host_regions,
                                  .threads = settings_.threads_per_device(),
                                  .host_threads = host_threads,
                                  .poison = run_.hooks.poison,
                                  .recorder = recorder,
                                  .threaded_compute = run_.hooks.threaded_compute,
                                  .drop_wait = run_.hooks.drop_wait},
                                 run_.abort);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  return absl::OkStatus();
}

absl::Status Worker::TrainAndSave() {
  int64_t step = 1;
  for (; run_.stop.Continue(step); ++step) {
    if (absl::Status status = TrainStep(step); !status.ok()) return status;
    if (settings_.eval_interval > 0 && step % settings_.eval_interval == 0) {
      if (absl::Status status = Evaluate(step); !status.ok()) return status;
    }
  }
  const int64_t last = step - 1;
  if (absl::Status status = PostSteps(last); !status.ok()) return status;
  result_.memory = device_->memory().ledger();
  result_.host_memory = device_->host_memory().ledger();
  if (last == 0) return absl::OkStatus();  // stopped before anything was trained
  if (settings_.eval_interval > 0 && evaluated_ < last) {
    if (absl::Status status = Evaluate(last); !status.ok()) return status;
  }
  if (absl::Status status = Save(); !status.ok()) return status;
  return KeepTrace();
}

absl::Status Worker::TrainStep(int64_t step) {
  status_.SetPhase(absl::StrCat("step ", step));
  const Traffic sent = communicator_->traffic();
  const CopiedBytes copied = device_->copied();
  const int64_t targets = Targets(step);
  double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, targets));
  if (run_.hooks.loss_scale) scale *= run_.hooks.loss_scale(rank_, step);
  const auto fill = [&](int64_t micro_batch, HostBatch& batch) {
    const int64_t first = Position(step, micro_batch);
    for (int64_t row = 0; row < settings_.micro_batch; ++row) {
      run_.dataset.Train(first + row, batch.Inputs(row), batch.Targets(row));
      batch.samples[row] = first + row;
    }
  };
  const bool evaluated_before = step > 1 && evaluated_ == step - 1;
  if (tracer_ != nullptr) tracer_->BeginStep(step, evaluated_before);
  replica_->TrainStep(fill, static_cast<float>(scale));
  if (tracer_ != nullptr) tracer_->EndStep();
  absl::Status status = run_.dataset.status();
  // What failed did so in this step, also where its results are asked for later.
  if (status.ok()) status = device_->status();
  if (status.ok()) status = PostSteps(step - device_->steps_ahead());
  if (status.ok() && step <= 2) {  // the second is a steady one
    result_.step_traffic = communicator_->traffic() - sent;
    result_.step_copies = device_->copied() - copied;
  }
  return status;
}

absl::Status Worker::PostSteps(int64_t last) {
  while (posted_ < last) {
    const absl::StatusOr<StepOutcome> outcome = replica_->Outcome();
    if (!outcome.ok()) return outcome.status();
    ++posted_;
    {
      const RankStatus::Pause pause(status_);  // it is shown, and written
      run_.board.PostStep(rank_, posted_, *outcome, Targets(posted_));
    }
    status_.SetSteps(posted_);
  }
  return absl::OkStatus();
}

// The first of this rank's samples: a micro-batch of the run takes consecutive samples, rank by
// rank.
int64_t Worker::Position(int64_t step, int64_t micro_batch) const {
  return (step - 1) * settings_.global_batch() +
         (micro_batch * settings_.devices + rank_) * settings_.micro_batch;
}

int64_t Worker::Targets(int64_t step) const {
  int64_t targets = 0;
  for (int64_t i = 0; i < settings_.global_batch(); ++i) {
    targets += run_.dataset.TrainTargets((step - 1) * settings_.global_batch() + i);
  }
  return targets;
}

// Every rank runs the same number of batches, because the stages gather together; where sequences
// run out, a row's targets are all ignored.
absl::Status Worker::Evaluate(int64_t step) {
  if (absl::Status status = PostSteps(step); !status.ok()) return status;
  status_.SetPhase(absl::StrCat("evaluation after step ", step));
  if (absl::Status status = WaitForTheOthers(); !status.ok()) return status;
  const RankStatus::Pause pause(status_);
  const std::vector<int64_t>& sequences = run_.eval_sequences;
  const int64_t global = settings_.micro_batch * settings_.devices;
  double loss_sum = 0;
  int64_t targets = 0;
  for (int64_t first = 0; first < std::ssize(sequences); first += global) {
    const auto fill = [&](HostBatch& batch) {
      for (int64_t row = 0; row < settings_.micro_batch; ++row) {
        const int64_t index = first + rank_ * settings_.micro_batch + row;
        const bool real = index < std::ssize(sequences);
        const std::span<int32_t> row_targets = batch.Targets(row);
        run_.dataset.Validation(real ? sequences[index] : 0, batch.Inputs(row), row_targets);
        if (!real) std::fill(row_targets.begin(), row_targets.end(), -1);
        targets += std::count_if(row_targets.begin(), row_targets.end(),
                                 [](int32_t target) { return target >= 0; });
      }
    };
    const absl::StatusOr<double> loss = replica_->EvaluateBatch(fill);
    if (!loss.ok()) return loss.status();
    loss_sum += *loss;
  }
  if (absl::Status status = run_.dataset.status(); !status.ok()) return status;
  run_.board.PostEval(rank_, step, loss_sum, targets);
  evaluated_ = step;
  return absl::OkStatus();
}

absl::Status Worker::KeepTrace() {
  if (tracer_ == nullptr) return absl::OkStatus();
  absl::StatusOr<RankTrace> trace = tracer_->Result();
  if (trace.ok()) {
    trace_ = *std::move(trace);
  } else if (!absl::IsNotFound(trace.status())) {
    trace_error_ = std::string(trace.status().message());
  }
  return device_->status();
}

absl::Status Worker::Save() {
  status_.SetPhase("saving the model");
  if (absl::Status status = WaitForTheOthers(); !status.ok()) return status;
  const RankStatus::Pause pause(status_);
  if (rank_ != 0) return replica_->ReadParameters(nullptr);
  std::unique_ptr<SafetensorsWriter> writer;
  if (!settings_.out.empty()) {
    auto created = CreateModelFile(settings_.out, settings_.model, settings_.dtype);
    if (!created.ok()) return created.status();
    writer = *std::move(created);
  }
  const auto save = [&](ParameterId parameter, std::span<const std::byte> bytes) {
    if (run_.hooks.parameter) {
      const std::vector<float> values = Widened(bytes, settings_.dtype);
      run_.hooks.parameter(run_.layout.spec(parameter).name, values.data(), std::ssize(values));
    }
    return writer == nullptr ? absl::OkStatus() : writer->Write(bytes);
  };
  absl::Status status = replica_->ReadParameters(save);
  if (!status.ok() || writer == nullptr) return status;
  return writer->Finish();
}

absl::Status Worker::WaitForTheOthers() {
  device_->SetWaitingFor(StreamId::kCompute, kTheOtherDevices);
  if (!run_.barrier.Arrive()) return run_.abort.status();
  device_->SetWaitingFor(StreamId::kCompute, "");
  return absl::OkStatus();
}

void Worker::Finish() {
  // Before the question what it waited for: a rank that has enqueued its last call is not yet done
  // with it. A rank that the run's end has woken still says what it was waiting for.
  if (communicator_ != nullptr) communicator_->Stop();
  device_->StopStreams();
  if (result_.memory.peak_bytes == 0) {
    result_.memory = device_->memory().ledger();
    result_.host_memory = device_->host_memory().ledger();
  }
  result_.capacity_bytes = settings_.device_memory_bytes;
  result_.poisoned_bytes = device_->memory().poisoned_bytes();
  result_.host_poisoned_bytes = device_->host_memory().poisoned_bytes();
}

}  // namespace zerobox
