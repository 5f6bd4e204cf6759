// SPDX-License-Identifier: Apache-2.0
//
// The ops of a host device, through its memory and its compute stream: that every call reaches its
// kernel with its arguments in their places. What the kernels compute is ops_test's matter; here
// each result is compared with a direct call of the kernel.
#include "ops/host/host_ops.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "ops/bfloat16.h"
#include "ops/device/abort.h"
#include "ops/device/host_device.h"
#include "ops/host/kernels.h"
#include "ops/ops.h"
#include "ops/plan_ops.h"
#include "tests/reference_arrays.h"

namespace zerobox {
namespace {

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;

class HostOpsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
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
  template <typename T>
  Buffer New(int64_t elements) {
    return New(kDTypeOf<T>, elements);
  }
  template <typename T>
  Buffer New(const Values<T>& values) {
    const Buffer buffer = New<T>(values.size());
    std::memcpy(buffer.data, values.data(), sizeof(T) * values.size());
    return buffer;
  }
  template <typename T>
  Buffer New(DType dtype, const std::vector<T>& values) {
    const Buffer buffer = New(dtype, static_cast<int64_t>(values.size()));
    std::memcpy(buffer.data, values.data(), sizeof(T) * values.size());
    return buffer;
  }
  template <typename T>
  static void ExpectBits(const Buffer& actual, const Values<T>& expected, const char* what) {
    ASSERT_EQ(actual.elements, expected.size()) << what;
    EXPECT_EQ(std::memcmp(actual.data, expected.data(), sizeof(T) * expected.size()), 0) << what;
  }

  // With parameters and activations of T, gradients of parameters of G.
  template <typename T, typename G>
  void ExpectThatEveryCallReachesItsKernel();

  Abort abort_;
  std::unique_ptr<HostDevice> device_;
};
INSTANTIATE_TEST_SUITE_P(Threads, HostOpsTest, testing::Values(1, 2, 3));

template <typename T, typename G>
void HostOpsTest::ExpectThatEveryCallReachesItsKernel() {
  TestThreads threads(GetParam());
  const SequenceShape shape{3, 20, 24};
  const int64_t rows = shape.rows(), C = shape.channels, n = shape.elements(), V = 50, heads = 4;
  const std::vector<int32_t> tokens = [&] {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < rows; ++i) result.push_back(static_cast<int32_t>(i * 7 % V));
    return result;
  }();
  const std::vector<int64_t> samples = {12, 5, 900};
  const auto random = [](int64_t count, uint64_t stream) {
    return Values<T>::Random(count, stream);
  };
  const Values<T> x = random(n, 1), y = random(n, 2), wte = random(V * C, 3);
  const Values<T> wpe = random(20 * C, 4), w3 = random(3 * C * C, 5), b3 = random(3 * C, 6);
  const Values<T> weight = random(C, 7), bias = random(C, 8);
  // What gradients of parameters are added to.
  const Values<G> gwte = Values<G>::Random(V * C, 9), gwpe = Values<G>::Random(20 * C, 10);
  const Values<G> gw3 = Values<G>::Random(3 * C * C, 11), gb3 = Values<G>::Random(3 * C, 12);
  const Values<G> gweight = Values<G>::Random(C, 13), gbias = Values<G>::Random(C, 14);
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
    const Buffer out = New<T>(n), dwte = New(gwte), dwpe = New(gwpe);
    Values<T> e(n);
    Values<G> edwte = gwte, edwpe = gwpe;
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
    const Buffer out = New<T>(n), mean = New<float>(rows), rstd = New<float>(rows), dx = New(y);
    const Buffer dweight = New(gweight), dbias = New(gbias);
    Values<T> e(n), edx = y;
    Values<G> edweight = gweight, edbias = gbias;
    Floats emean(rows), erstd(rows);
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
    const Buffer qkv = New<T>(3 * n), dx = New<T>(n), dw = New(gw3), dbias = New(gb3);
    const Buffer out = New<T>(n), logsumexp = New<float>(rows * heads), dqkv = New<T>(3 * n);
    Values<T> eqkv(3 * n), edx(n), e(n), edqkv(3 * n);
    Values<G> edw = gw3, edbias = gb3;
    Floats el(rows * heads);
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
    const Buffer out = New<T>(rows * V), losses = New<float>(rows), dx = New<T>(n);
    const Buffer dwte = New(gwte);
    Values<T> e(rows * V), edx(n);
    Values<G> edwte = gwte;
    Floats elosses(rows);
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
    const Buffer gelu = New<T>(n), dgelu = New<T>(n), residual = New<T>(n), dbranch = New<T>(n);
    const Buffer sum = New(y);
    Values<T> egelu(n), edgelu(n), eresidual(n), edbranch(n), esum = y;
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

TEST_P(HostOpsTest, EveryCallReachesItsKernel) {
  ExpectThatEveryCallReachesItsKernel<float, float>();
  ExpectThatEveryCallReachesItsKernel<BFloat16, BFloat16>();
  ExpectThatEveryCallReachesItsKernel<BFloat16, float>();
}

TEST_P(HostOpsTest, AnOptimizerStepRunsFromSumsToParameters) {
  TestThreads threads(GetParam());
  const int64_t n = 9001;
  const Buffer p = New<float>(n), g = New<float>(n), m = New<float>(n), v = New<float>(n);
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

TEST_P(HostOpsTest, AnOptimizerStepInBFloat16UpdatesTheMaster) {
  TestThreads threads(GetParam());
  const int64_t n = 9001;
  const Floats weights = Floats::Random(n, 1), m = Floats::Random(n, 3);
  const Floats v(reference::Array(n, 0.5));
  OptimizerSettings settings;
  StepState state;
  state.learning_rate = 0.25;
  const Buffer bstate = New(DType::kFloat64, sizeof(StepState) / 8);
  std::memcpy(bstate.data, &state, sizeof(StepState));
  const auto test = [&]<typename G>() {
    const Values<G> g = Values<G>::Random(n, 2);
    const Buffer bp = New<BFloat16>(n), bmaster = New(weights), bg = New(g), bm = New(m);
    const Buffer bv = New(v), sum = New(DType::kFloat64, std::vector<double>{1});
    Values<BFloat16> p(n);
    Values<G> eg = g;
    Floats master = weights, em = m, ev = v;
    double squares = 1;
    ops().AccumulateSquares(sum, bg);
    ops().AdamW(bp, bmaster, bg, bm, bv, true, bstate, settings);
    host::AccumulateSquares(threads, &squares, eg.data(), n);
    host::AdamW(threads, p.data(), master.data(), eg.data(), em.data(), ev.data(), n, true, state,
                settings);
    EXPECT_EQ(*sum.As<double>(), squares);
    ExpectBits(bp, p, "p");
    ExpectBits(bmaster, master, "master");
    ExpectBits(bg, eg, "g");
    ExpectBits(bm, em, "m");
    ExpectBits(bv, ev, "v");
  };
  test.template operator()<BFloat16>();
  test.template operator()<float>();
  const Buffer filled = New<BFloat16>(n);
  Values<BFloat16> expected(n);
  ops().Fill(filled, 0.3f);
  EXPECT_EQ(filled.As<BFloat16>()[n - 1].bits, 0x3E9A);
  ops().FillNormal(filled, 1, 2, 3, 0.5f);
  host::FillNormal(threads, expected.data(), n, 1, 2, 3, 0.5f);
  ExpectBits(filled, expected, "normal numbers");
}

TEST_P(HostOpsTest, OfTheHostSideRunOnToHost) {
  Ops& others = device_->host_ops();
  const Buffer x = New<float>(20000), y = New<float>(20000);
  const std::unique_ptr<Event> filled = device_->MakeEvent("filled");
  const std::unique_ptr<Event> added = device_->MakeEvent("added");
  ops().Fill(x, 1);
  device_->Record(*filled, StreamId::kCompute);
  device_->Wait(StreamId::kToHost, *filled);
  others.Fill(y, 2);
  others.Add(y, x);
  device_->Record(*added, StreamId::kToHost);
  device_->Wait(StreamId::kCompute, *added);
  ops().Add(x, y);
  EXPECT_EQ(x.As<float>()[0], 4);
  EXPECT_EQ(x.As<float>()[19999], 4);
  EXPECT_EQ(y.As<float>()[19999], 3);
}

TEST_P(HostOpsTest, AFailedDeviceSkipsItsKernels) {
  const Buffer x = New<float>(5);
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
