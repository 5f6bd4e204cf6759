// SPDX-License-Identifier: Apache-2.0
//
// The ops of a host device, through its memory and its compute stream: that every call reaches its
// kernel with its arguments in their places. What the kernels compute is ops_test's matter; here
// each result is compared with a direct call of the kernel.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "ops/device/abort.h"
#include "ops/device/host_device.h"
#include "ops/host/kernels.h"
#include "ops/host/matmul.h"
#include "ops/ops.h"
#include "ops/plan_ops.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

class HostOpsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(LoadMatmul().ok()) << LoadMatmul();
    HostDeviceOptions options;
    options.regions[static_cast<size_t>(Region::kPersistent)] = 8 << 20;
    options.threads = GetParam();
    options.poison = true;
    auto device = HostDevice::Make(options, abort_);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  Ops& ops() { return device_->ops(); }
  Buffer New(DType dtype, int64_t elements) {
    return device_->Allocate(Region::kPersistent, Category::kActivations, dtype, elements, "test");
  }
  Buffer New(int64_t elements) { return New(DType::kFloat32, elements); }
  Buffer New(const Floats& values) {
    const Buffer buffer = New(values.size());
    std::memcpy(buffer.data, values.data(), sizeof(float) * values.size());
    return buffer;
  }
  template <typename T>
  Buffer New(DType dtype, const std::vector<T>& values) {
    const Buffer buffer = New(dtype, static_cast<int64_t>(values.size()));
    std::memcpy(buffer.data, values.data(), sizeof(T) * values.size());
    return buffer;
  }
  static void ExpectBits(const Buffer& actual, const Floats& expected, const char* what) {
    ASSERT_EQ(actual.elements, expected.size()) << what;
    EXPECT_EQ(std::memcmp(actual.data, expected.data(), sizeof(float) * expected.size()), 0)
        << what;
  }

  Abort abort_;
  std::unique_ptr<HostDevice> device_;
};
INSTANTIATE_TEST_SUITE_P(Threads, HostOpsTest, testing::Values(1, 2, 3));

TEST_P(HostOpsTest, EveryCallReachesItsKernel) {
  TestThreads threads(GetParam());
  const SequenceShape shape{3, 20, 24};
  const int64_t rows = shape.rows(), C = shape.channels, n = shape.elements(), V = 50, heads = 4;
  const std::vector<int32_t> tokens = [&] {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < rows; ++i) result.push_back(static_cast<int32_t>(i * 7 % V));
    return result;
  }();
  const std::vector<int64_t> samples = {12, 5, 900};
  const Floats x = Floats::Random(n, 1), y = Floats::Random(n, 2), wte = Floats::Random(V * C, 3);
  const Floats wpe = Floats::Random(20 * C, 4), w3 = Floats::Random(3 * C * C, 5);
  const Floats b3 = Floats::Random(3 * C, 6), weight = Floats::Random(C, 7);
  const Floats bias = Floats::Random(C, 8), logits = Floats::Random(rows * V, 9);
  const Buffer bx = New(x), by = New(y), bwte = New(wte), bwpe = New(wpe), bw3 = New(w3);
  const Buffer bb3 = New(b3), bweight = New(weight), bbias = New(bias);
  const Buffer btokens = New(DType::kInt32, tokens), bsamples = New(DType::kInt64, samples);
  const Dropout dropout{
      .p = 0.2f, .seed = 77, .samples = bsamples, .layer = 2, .site = DropoutSite::kMlpOutput};
  const host::DropoutMask mask{.p = 0.2f,
                               .seed = 77,
                               .samples = samples.data(),
                               .site = DropoutSite::kMlpOutput,
                               .layer = 2};
  {
    const Buffer out = New(n), dwte = New(wte), dwpe = New(wpe);
    Floats e(n), edwte = wte, edwpe = wpe;
    ops().EmbeddingForward(out, btokens, bwte, bwpe, shape, dropout);
    ops().EmbeddingBackward(dwte, dwpe, by, btokens, shape, dropout);
    host::EmbeddingForward(threads, e.data(), tokens.data(), wte.data(), wpe.data(), shape, mask);
    host::EmbeddingBackward(threads, edwte.data(), edwpe.data(), y.data(), tokens.data(), shape,
                            mask);
    ExpectBits(out, e, "embedding");
    ExpectBits(dwte, edwte, "dwte");
    ExpectBits(dwpe, edwpe, "dwpe");
  }
  {
    const Buffer out = New(n), mean = New(rows), rstd = New(rows), dx = New(y);
    const Buffer dweight = New(weight), dbias = New(bias);
    Floats e(n), emean(rows), erstd(rows), edx = y, edweight = weight, edbias = bias;
    ops().LayerNormForward(out, mean, rstd, bx, bweight, bbias, rows, C);
    ops().LayerNormBackward(dx, dweight, dbias, by, bx, mean, rstd, bweight, rows, C);
    host::LayerNormForward(threads, e.data(), emean.data(), erstd.data(), x.data(), weight.data(),
                           bias.data(), rows, C);
    host::LayerNormBackward(threads, edx.data(), edweight.data(), edbias.data(), y.data(), x.data(),
                            emean.data(), erstd.data(), weight.data(), rows, C);
    ExpectBits(out, e, "layernorm");
    ExpectBits(mean, emean, "mean");
    ExpectBits(rstd, erstd, "rstd");
    ExpectBits(dx, edx, "layernorm dx");
    ExpectBits(dweight, edweight, "dweight");
    ExpectBits(dbias, edbias, "dbias");
  }
  {
    const Buffer qkv = New(3 * n), dx = New(n), dw = New(w3), dbias = New(b3);
    const Buffer out = New(n), logsumexp = New(rows * heads), dqkv = New(3 * n);
    Floats eqkv(3 * n), edx(n), edw = w3, edbias = b3, e(n), el(rows * heads), edqkv(3 * n);
    ops().LinearForward(qkv, bx, bw3, bb3, rows, C, 3 * C);
    ops().AttentionForward(out, logsumexp, qkv, shape, heads, dropout);
    ops().AttentionBackward(dqkv, by, qkv, out, logsumexp, shape, heads, dropout);
    ops().LinearBackward(dx, dw, dbias, dqkv, bx, bw3, rows, C, 3 * C);
    host::LinearForward(threads, eqkv.data(), x.data(), w3.data(), b3.data(), rows, C, 3 * C);
    host::AttentionForward(threads, e.data(), el.data(), eqkv.data(), shape, heads, mask);
    host::AttentionBackward(threads, edqkv.data(), y.data(), eqkv.data(), e.data(), el.data(),
                            shape, heads, mask);
    host::LinearBackward(threads, edx.data(), edw.data(), edbias.data(), edqkv.data(), x.data(),
                         w3.data(), rows, C, 3 * C);
    ExpectBits(qkv, eqkv, "linear");
    ExpectBits(out, e, "attention");
    ExpectBits(logsumexp, el, "logsumexp");
    ExpectBits(dqkv, edqkv, "dqkv");
    ExpectBits(dx, edx, "linear dx");
    ExpectBits(dw, edw, "dw");
    ExpectBits(dbias, edbias, "linear dbias");
  }
  {
    const Buffer out = New(rows * V), losses = New(rows), dx = New(n), dwte = New(wte);
    Floats e(rows * V), elosses(rows), edx(n), edwte = wte;
    ops().HeadForward(out, bx, bwte, rows, C, V);
    host::HeadForward(threads, e.data(), x.data(), wte.data(), rows, C, V);
    ExpectBits(out, e, "logits");
    ops().CrossEntropyForward(losses, out, btokens, rows, V);
    ops().CrossEntropyBackward(out, btokens, rows, V, 0.01f);
    ops().HeadBackward(dx, dwte, out, bx, bwte, rows, C, V);
    host::CrossEntropyForward(threads, elosses.data(), e.data(), tokens.data(), rows, V);
    host::CrossEntropyBackward(threads, e.data(), tokens.data(), rows, V, 0.01f);
    host::HeadBackward(threads, edx.data(), edwte.data(), e.data(), x.data(), wte.data(), rows, C,
                       V);
    ExpectBits(losses, elosses, "losses");
    ExpectBits(out, e, "dlogits");
    ExpectBits(dx, edx, "head dx");
    ExpectBits(dwte, edwte, "head dwte");
  }
  {
    const Buffer gelu = New(n), dgelu = New(n), residual = New(n), dbranch = New(n), sum = New(y);
    Floats egelu(n), edgelu(n), eresidual(n), edbranch(n), esum = y;
    ops().GeluForward(gelu, bx);
    ops().GeluBackward(dgelu, bx, by);
    ops().ResidualForward(residual, bx, by, shape, dropout);
    ops().DropoutBackward(dbranch, by, shape, dropout);
    ops().Add(sum, bx);
    host::GeluForward(threads, egelu.data(), x.data(), n);
    host::GeluBackward(threads, edgelu.data(), x.data(), y.data(), n);
    host::ResidualForward(threads, eresidual.data(), x.data(), y.data(), shape, mask);
    host::DropoutBackward(threads, edbranch.data(), y.data(), shape, mask);
    host::Add(threads, esum.data(), x.data(), n);
    ExpectBits(gelu, egelu, "gelu");
    ExpectBits(dgelu, edgelu, "gelu dx");
    ExpectBits(residual, eresidual, "residual");
    ExpectBits(dbranch, edbranch, "dbranch");
    ExpectBits(sum, esum, "sum");
  }
  EXPECT_TRUE(device_->status().ok()) << device_->status();
}

TEST_P(HostOpsTest, AnOptimizerStepRunsFromSumsToParameters) {
  TestThreads threads(GetParam());
  const int64_t n = 9001;
  const Buffer p = New(n), g = New(n), m = New(n), v = New(n);
  const Buffer sums = New(DType::kFloat64, std::vector<double>{0, 4});
  const Buffer state = New(DType::kFloat64, sizeof(StepState) / 8);
  OptimizerSettings settings;
  settings.total_steps = 10;
  StepState expected_state;
  std::memcpy(state.data, &expected_state, sizeof(StepState));
  ops().FillNormal(p, 1, 2, 0, 0.5f);
  ops().FillNormal(g, 1, 3, 100, 2.0f);
  ops().Fill(m, 0);
  ops().Fill(v, 0);
  ops().AccumulateSquares(sums.Slice(0, 1), g);
  ops().AccumulateSum(sums.Slice(1, 1), g);
  ops().PrepareStep(state, sums, settings);
  ops().AdamW(p, {}, g, m, v, true, state, settings);

  Floats ep(n), eg(n), em(reference::Array(n, 0)), ev(reference::Array(n, 0));
  double esums[2] = {0, 4};
  host::FillNormal(threads, ep.data(), n, 1, 2, 0, 0.5f);
  host::FillNormal(threads, eg.data(), n, 1, 3, 100, 2.0f);
  host::AccumulateSquares(threads, &esums[0], eg.data(), n);
  host::AccumulateSum(threads, &esums[1], eg.data(), n);
  PrepareStep(expected_state, esums, 2, settings);
  host::AdamW(threads, ep.data(), nullptr, eg.data(), em.data(), ev.data(), n, true, expected_state,
              settings);
  ExpectBits(g, eg, "g");
  ExpectBits(p, ep, "p");
  ExpectBits(m, em, "m");
  ExpectBits(v, ev, "v");
  EXPECT_EQ(sums.As<double>()[0], esums[0]);
  EXPECT_EQ(sums.As<double>()[1], esums[1]);
  EXPECT_EQ(reinterpret_cast<const StepState*>(state.data)->applied, 1);
  EXPECT_EQ(reinterpret_cast<const StepState*>(state.data)->clip_scale, expected_state.clip_scale);
  EXPECT_TRUE(expected_state.clip_scale < 1);

  // A gradient that is not finite: nothing changes.
  g.As<float>()[7] = std::numeric_limits<float>::infinity();
  sums.As<double>()[0] = 0;
  ops().AccumulateSquares(sums.Slice(0, 1), g);
  ops().PrepareStep(state, sums, settings);
  ops().AdamW(p, {}, g, m, v, true, state, settings);
  EXPECT_EQ(reinterpret_cast<const StepState*>(state.data)->skip, 1);
  EXPECT_EQ(reinterpret_cast<const StepState*>(state.data)->applied, 1);
  ExpectBits(p, ep, "p");
  ExpectBits(m, em, "m");
  ExpectBits(v, ev, "v");
}

TEST_P(HostOpsTest, AFailedDeviceSkipsItsKernels) {
  const Buffer x = New(5);
  ops().Fill(x, 1);
  EXPECT_EQ(x.As<float>()[0], 1);
  device_->Fail(absl::InternalError("test"));
  ops().Fill(x, 2);
  EXPECT_EQ(x.As<float>()[0], 1);
}

TEST(PlanOps, FollowNoBuffer) {
  const std::unique_ptr<Ops> ops = MakePlanOps();
  const Buffer nowhere{reinterpret_cast<std::byte*>(uintptr_t{64}), 1 << 20, DType::kFloat32};
  ops->Fill(nowhere, 1);
  ops->GeluForward(nowhere, nowhere);
  ops->AdamW(nowhere, nowhere, nowhere, nowhere, nowhere, true, nowhere, {});
  EXPECT_EQ(nowhere.elements, 1 << 20);
}

}  // namespace
}  // namespace zerobox
