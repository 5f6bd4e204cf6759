// SPDX-License-Identifier: Apache-2.0
#include "trainer/replica.h"

#include <cassert>

#include "ops/ops.h"
#include "trainer/step_programs.h"

namespace zerobox {

Replica::Replica(Device& device, Communicator& communicator, const Layout& layout,
                 const TrainSettings& settings)
    : device_(device),
      layout_(layout),
      settings_(settings),
      training_(TrainingProgram(settings.model.n_layer)),
      forward_(ForwardProgram(settings.model.n_layer)),
      reading_(ReadingProgram(settings.model.n_layer)),
      model_(device, layout, settings),
      zero_(MakeStage(settings.zero_stage, device, communicator, layout, settings.types())),
      states_(MakeOptimizerStates(settings.offload_optimizer, device, layout, zero_->Owned(),
                                  settings.types(), settings.optimizer)),
      feed_(device, settings.micro_batch, settings.model.seq_len),
      loss_sum_(device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kFloat64, 1,
                                "loss sum")),
      results_ready_(device.MakeEvent("results ready")) {
  for (Result& result : results_) result.read = device.MakeEvent("results read");
  zero_->AllocateParameters();
  states_->Allocate();
  zero_->PrepareTraining(*states_, training_);
}

void Replica::InitializeWeights(const ParameterSource& given) {
  for (const Bucket& bucket : layout_.buckets()) {
    InitializeParts(device_.ops(), bucket, zero_->Parameters(bucket), given);
    InitializeParts(states_->ops(), bucket, states_->Master(bucket), given);
  }
  zero_->ParametersSet();
}

// The numbers are the same wherever they are made, so parameters are master weights, rounded.
void Replica::InitializeParts(Ops& ops, const Bucket& bucket, const Held& held,
                              const ParameterSource& given) {
  for (int i = 0; i < bucket.parameters; ++i) {
    const ParameterId parameter = bucket.first_parameter + i;
    const Range range = layout_.Parameter(parameter);
    const Range part = Intersection(range, held.range);
    if (part.size() == 0) continue;
    if (given) {
      std::vector<float> values(range.size());
      given(parameter, values);
      // One at a time is slow, and reaches every dtype and both sides.
      for (int64_t element = part.begin; element < part.end; ++element) {
        ops.Fill(held.Slice({element, element + 1}), values[element - range.begin]);
      }
      continue;
    }
    const InitialValue initial = InitialValueOf(settings_.model, parameter);
    if (initial.stddev == 0) {
      ops.Fill(held.Slice(part), initial.constant);
    } else {
      ops.FillNormal(held.Slice(part), settings_.seed, parameter, part.begin - range.begin,
                     static_cast<float>(initial.stddev));
    }
  }
}

void Replica::TrainStep(const FillMicroBatch& fill, float loss_scale) {
  const int64_t first_wait = device_.communication_waits();
  StartLossSum();
  for (int64_t i = 0; i < settings_.grad_accum; ++i) {
    device_.Announce(Activity::kNone);
    if (HostBatch* batch = fill ? feed_.Next() : nullptr) fill(i, *batch);
    const Batch batch = feed_.Upload(settings_.micro_batch, settings_.model.seq_len);
    RunMicroBatch({.first = i == 0, .last = i == settings_.grad_accum - 1}, batch, loss_scale);
    feed_.Done();
  }
  zero_->Step();
  device_.Announce(Activity::kNone);
  Result& result = BeginResult();
  result.first_wait = first_wait;
  device_.CopyToHost(StreamId::kToHost, &result.outcome.loss_sum, loss_sum_);
  device_.CopyToHost(StreamId::kToHost, &result.outcome.state, states_->step_state());
  device_.StoreTime(StreamId::kToHost, &result.outcome.done);
  device_.Record(*result.read, StreamId::kToHost);
}

void Replica::RunMicroBatch(MicroBatch where, const Batch& batch, float loss_scale) {
  zero_->Begin(training_, where);
  MicroBatchInFlight micro_batch = model_.BeginTraining(batch, loss_sum_);
  for (const Visit& visit : training_) {
    const bool forward = visit.pass == Pass::kForward;
    device_.Announce(forward ? Activity::kForward : Activity::kBackward, visit.unit);
    const Buffer w = zero_->Acquire(visit);
    if (forward) {
      model_.Forward(visit, w, micro_batch);
    } else {
      model_.Backward(visit, w, micro_batch, *zero_, loss_scale);
    }
    zero_->Release(visit);
  }
}

absl::StatusOr<StepOutcome> Replica::Outcome() {
  assert(results_waited_for_ < results_begun_ && results_begun_ - results_waited_for_ <= 2);
  const Result& result = results_[++results_waited_for_ % 2];
  if (absl::Status status = device_.HostWait(*result.read); !status.ok()) return status;
  StepOutcome outcome = result.outcome;
  if (device_.steps_ahead() == 0) outcome.done = std::chrono::steady_clock::now();
  (void)device_.SecondsExposed(result.first_wait);  // of evaluations
  outcome.exposed_seconds = device_.SecondsExposed(result.end_wait);
  if (absl::Status status = device_.status(); !status.ok()) return status;
  return outcome;
}

Replica::Result& Replica::BeginResult() {
  ++results_begun_;
  device_.Record(*results_ready_, StreamId::kCompute);
  device_.Wait(StreamId::kToHost, *results_ready_);
  Latest().first_wait = Latest().end_wait = device_.communication_waits();
  return Latest();
}

absl::StatusOr<double> Replica::EvaluateBatch(const FillBatch& fill) {
  StartLossSum();
  if (HostBatch* batch = fill ? feed_.Next() : nullptr) fill(*batch);
  const Batch batch = feed_.Upload(settings_.micro_batch, settings_.model.seq_len);
  zero_->Begin(forward_, {});
  MicroBatchInFlight micro_batch = model_.BeginEvaluation(batch, loss_sum_);
  for (const Visit& visit : forward_) {
    const Buffer w = zero_->Acquire(visit);
    model_.Forward(visit, w, micro_batch);
    zero_->Release(visit);
  }
  model_.End(micro_batch);
  feed_.Done();
  Result& result = BeginResult();
  device_.CopyToHost(StreamId::kToHost, &result.outcome.loss_sum, loss_sum_);
  device_.Record(*result.read, StreamId::kToHost);
  const absl::StatusOr<StepOutcome> outcome = Outcome();
  if (!outcome.ok()) return outcome.status();
  return outcome->loss_sum;
}

void Replica::StartLossSum() {
  device_.Wait(StreamId::kCompute, *Latest().read);
  device_.Zero(StreamId::kCompute, loss_sum_);
}

absl::Status Replica::ReadParameters(const ParameterSink& sink) {
  zero_->Begin(reading_, {});
  for (const Visit& visit : reading_) {
    const Buffer w = zero_->Acquire(visit);
    absl::Status status = sink ? ReadUnit(visit.unit, w, sink) : device_.status();
    zero_->Release(visit);
    if (!status.ok()) {
      device_.Fail(status);
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Replica::ReadUnit(UnitId unit, Buffer w, const ParameterSink& sink) {
  const Range whole = layout_.Unit(unit);
  for (const Bucket& bucket : layout_.Buckets(unit)) {
    for (int i = 0; i < bucket.parameters; ++i) {
      const ParameterId parameter = bucket.first_parameter + i;
      const Range range = layout_.Parameter(parameter);
      const Buffer values = Held{whole, w}.Slice(range);
      parameter_.resize(values.bytes());
      const Result& result = BeginResult();  // the unit is gathered
      device_.CopyToHost(StreamId::kToHost, parameter_.data(), values);
      device_.Record(*result.read, StreamId::kToHost);
      absl::Status status = Outcome().status();
      if (status.ok()) status = sink(parameter, parameter_);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace zerobox
