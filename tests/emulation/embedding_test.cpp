// SPDX-License-Identifier: Apache-2.0
//
// ops/cuda/embedding.cu against the reference in double precision.
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/kernels.h"
#include "tests/emulation/kernel_test.h"

namespace zerobox {
namespace {

using reference::Array;
using reference::Tokens;

template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 0x1p-8 + 1e-5;

struct Case {
  SequenceShape shape;
  int64_t vocabulary;
  float p = 0;
  int64_t shift = 0;
};

template <typename T>
class Embedding {
 public:
  explicit Embedding(const Case& c) : Embedding(c, RandomTokens(c.shape.rows(), c.vocabulary)) {}
  Embedding(const Case& c, const Tokens& tokens)
      : case_(c),
        tokens_(tokens),
        dropout_(c.p, c.shape.batch, DropoutSite::kEmbedding, c.shape.positions * c.shape.channels),
        device_tokens_(tokens_),
        samples_(dropout_.samples),
        mask_{.p = c.p,
              .seed = 42,
              .samples = samples_.data(),
              .site = DropoutSite::kEmbedding,
              .layer = 3} {}

  void TestForward() const {
    const int64_t C = case_.shape.channels;
    const auto wte_values = Values<T>::Random(case_.vocabulary * C, 1);
    const auto wpe_values = Values<T>::Random(case_.shape.positions * C, 2);
    const DeviceArray<T> wte(wte_values, case_.shift), wpe(wpe_values, case_.shift);
    DeviceArray<T> out(case_.shape.elements(), case_.shift);
    ASSERT_EQ(cuda::EmbeddingForward(nullptr, out.data(), device_tokens_.data(), wte.data(),
                                     wpe.data(), case_.shape, mask_),
              cudaSuccess);
    ExpectClose(out,
                reference::Embedding(tokens_, wte_values.Doubles(), wpe_values.Doubles(),
                                     case_.shape, dropout_.factors),
                kTolerance<T>, "out");
  }

  template <typename G>
  void TestBackward() const {
    const int64_t C = case_.shape.channels;
    const auto dout_values = Values<T>::Random(case_.shape.elements(), 3);
    const auto old_dwte = Values<G>::Random(case_.vocabulary * C, 4);
    const auto old_dwpe = Values<G>::Random(case_.shape.positions * C, 5);
    const DeviceArray<T> dout(dout_values, case_.shift);
    DeviceArray<G> dwte(old_dwte, case_.shift), dwpe(old_dwpe, case_.shift);
    DeviceArray<char> workspace(cuda::EmbeddingBackwardWorkspace(case_.shape, case_.vocabulary));
    ASSERT_EQ(cuda::EmbeddingBackward(nullptr, dwte.data(), dwpe.data(), dout.data(),
                                      device_tokens_.data(), case_.shape, case_.vocabulary, mask_,
                                      workspace.data()),
              cudaSuccess);
    const auto expected = reference::EmbeddingGradient(
        dout_values.Doubles(), tokens_, case_.vocabulary, case_.shape, dropout_.factors);
    ExpectClose(dwte, old_dwte.Doubles() + expected.dwte, 3 * kTolerance<G>, "dwte");
    ExpectClose(dwpe, old_dwpe.Doubles() + expected.dwpe, 3 * kTolerance<G>, "dwpe");
  }

 private:
  Case case_;
  Tokens tokens_;
  TestDropout dropout_;
  DeviceArray<int32_t> device_tokens_;
  DeviceArray<int64_t> samples_;
  cuda::DropoutMask mask_;
};

// Few tokens, so that they fill windows; more tokens than rows; one row; rows longer than a warp's
// packs; channels that are no multiple of a pack; exactly one window; and unaligned arrays.
constexpr Case kCases[] = {{{1, 1, 8}, 3},    {{3, 37, 16}, 4},       {{3, 37, 16}, 5, 0.3f},
                           {{1, 32, 24}, 2},  {{2, 16, 8}, 1000},     {{2, 7, 264}, 5, 0.1f},
                           {{3, 17, 33}, 11}, {{2, 21, 35}, 3, 0.3f}, {{3, 37, 16}, 4, 0.3f, 2}};

class EmbeddingKernels : public KernelTest {};
ZEROBOX_IN_EVERY_ORDER(EmbeddingKernels);

TEST_P(EmbeddingKernels, ForwardEqualsTheReference) {
  for (const Case& c : kCases) {
    Embedding<float>(c).TestForward();
    Embedding<BFloat16>(c).TestForward();
  }
}

TEST_P(EmbeddingKernels, BackwardEqualsTheReference) {
  for (const Case& c : kCases) {
    Embedding<float>(c).TestBackward<float>();
    Embedding<BFloat16>(c).TestBackward<BFloat16>();
    Embedding<BFloat16>(c).TestBackward<float>();
  }
}

// Runs of equal tokens that end with a window, end and begin inside one, and fill several.
TEST_P(EmbeddingKernels, BackwardAddsUpRunsOverWindows) {
  const Case c = {{1, 200, 8}, 7};
  for (const auto& runs : {std::vector<int>{200},
                           {32, 168},
                           {31, 1, 64, 104},
                           {40, 100, 60},
                           {1, 1, 30, 33, 96, 39},
                           {33, 95, 32, 40}}) {
    Tokens tokens;
    for (size_t i = 0; i < runs.size(); ++i) tokens.insert(tokens.end(), runs[i], i);
    Embedding<float>(c, tokens).TestBackward<float>();
    // The same with the rows in another order.
    for (size_t i = 0; i < tokens.size(); ++i) std::swap(tokens[i], tokens[i * 37 % tokens.size()]);
    Embedding<float>(c, tokens).TestBackward<float>();
  }
}

TEST_P(EmbeddingKernels, GradientsOfManyRowsAreRoundedOnce) {
  // 512 rows of 2^-9 are 1. Added to 1 row by row they would vanish, as bf16 numbers above 1 are
  // 2^-7 apart.
  const SequenceShape shape = {512, 1, 16};
  const DeviceArray<BFloat16> small(Values<BFloat16>(Array(512 * 16, 0x1p-9)));
  const DeviceArray<int32_t> tokens(Tokens(512, 0));
  DeviceArray<BFloat16> dwte(Values<BFloat16>(Array(16, 1))), dwpe(Values<BFloat16>(Array(16, 1)));
  DeviceArray<char> workspace(cuda::EmbeddingBackwardWorkspace(shape, 1));
  ASSERT_EQ(cuda::EmbeddingBackward(nullptr, dwte.data(), dwpe.data(), small.data(), tokens.data(),
                                    shape, 1, {}, workspace.data()),
            cudaSuccess);
  const Values<BFloat16> two(Array(16, 2));
  EXPECT_TRUE(OnHost(dwte).HasTheBitsOf(two) && OnHost(dwpe).HasTheBitsOf(two));
}

TEST(EmbeddingLaunchers, LaunchNothingForNoRows) {
  float* none = nullptr;
  const float* nothing = nullptr;
  EXPECT_EQ(cuda::EmbeddingForward(nullptr, none, nullptr, nothing, nothing, {0, 4, 8}, {}),
            cudaSuccess);
  EXPECT_EQ(
      cuda::EmbeddingBackward(nullptr, none, none, nothing, nullptr, {0, 4, 8}, 5, {}, nullptr),
      cudaSuccess);
  EXPECT_EQ(cuda::EmbeddingBackwardWorkspace({0, 4, 8}, 5), 0);
  EXPECT_TRUE(simt::TakeReports().empty());
}

}  // namespace
}  // namespace zerobox
