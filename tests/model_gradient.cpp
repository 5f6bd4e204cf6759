// SPDX-License-Identifier: Apache-2.0
#include "tests/model_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/bfloat16.h"
#include "ops/collectives/plan_communicator.h"
#include "ops/device/host_device.h"
#include "trainer/gpt.h"
#include "trainer/step_programs.h"

namespace zerobox {
namespace {

using reference::Array;

void Write(const Array& values, Buffer to) {
  ASSERT_EQ(std::ssize(values), to.elements);
  for (int64_t i = 0; i < to.elements; ++i) {
    const auto value = static_cast<float>(values[i]);
    if (to.dtype == DType::kBFloat16) {
      to.As<BFloat16>()[i] = ToBFloat16(value);
    } else {
      to.As<float>()[i] = value;
    }
  }
}

Array Read(Buffer from) {
  Array values(from.elements);
  for (int64_t i = 0; i < from.elements; ++i) {
    values[i] =
        from.dtype == DType::kBFloat16 ? ToFloat(from.As<BFloat16>()[i]) : from.As<float>()[i];
  }
  return values;
}

}  // namespace

ModelGradient ComputeModelGradient(TrainSettings settings, const std::vector<Array>& weights,
                                   const std::vector<HostBatch>& micro_batches, float loss_scale) {
  const Layout layout =
      *Layout::Make(GptParameters(settings.model), 1, int64_t{1} << 20, settings.grad_accum_dtype);
  Abort abort;
  const auto device = *HostDevice::Make(
      {.regions = {4 << 20, 1 << 20, 2 << 20, 4 << 20}, .host_regions = {1 << 20}, .threads = 1},
      abort);
  PlanCommunicator alone(0, 1);
  Stage0 zero(*device, alone, layout, settings.types());
  OptimizerStates states(*device, layout, zero.Owned(), settings.types(), OptimizerSettings{});
  zero.AllocateParameters();
  const StepProgram program = TrainingProgram(settings.model.n_layer);
  zero.PrepareTraining(states, program);
  const auto count = static_cast<ParameterId>(weights.size());
  for (ParameterId id = 0; id < count; ++id) {
    const Held held = zero.Parameters(layout.bucket(layout.BucketOf(id)));
    Write(weights[id], held.Slice(layout.Parameter(id)));
  }
  const auto sequences = static_cast<int64_t>(micro_batches.front().samples.size());
  const int64_t positions = micro_batches.front().positions;
  BatchFeed feed(*device, sequences, positions);
  const Buffer loss_sum =
      device->Allocate(Region::kPersistent, Category::kWorkspace, DType::kFloat64, 1, "loss");
  device->Zero(StreamId::kCompute, loss_sum);

  settings.micro_batch = sequences;
  Gpt model(*device, layout, settings);
  const auto last = static_cast<int64_t>(micro_batches.size()) - 1;
  for (int64_t i = 0; i <= last; ++i) {
    *feed.Next() = micro_batches[i];
    const Batch batch = feed.Upload(sequences, positions);
    zero.Begin(program, {.first = i == 0, .last = i == last});
    MicroBatchInFlight micro_batch = model.BeginTraining(batch, loss_sum);
    for (const Visit& visit : program) {
      const Buffer w = zero.Acquire(visit);
      if (visit.pass == Pass::kForward) {
        model.Forward(visit, w, micro_batch);
      } else {
        model.Backward(visit, w, micro_batch, zero, loss_scale);
      }
      zero.Release(visit);
    }
    feed.Done();
  }
  EXPECT_TRUE(device->status().ok()) << device->status();
  const auto live = device->memory().ledger().live;
  EXPECT_EQ(live[static_cast<int>(Category::kActivations)], 0);
  EXPECT_EQ(live[static_cast<int>(Category::kActivationCheckpoints)], 0);

  ModelGradient result{.loss_sum = *loss_sum.As<double>(), .gradients = {}};
  for (ParameterId id = 0; id < count; ++id) {
    result.gradients.push_back(Read(zero.Gradient(id)));
  }
  return result;
}

}  // namespace zerobox
