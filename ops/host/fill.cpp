// SPDX-License-Identifier: Apache-2.0
//
// Initial values: a constant, or normal numbers that depend on (seed, stream, index) only.
#include <algorithm>
#include <array>
#include <cstdint>

#include "ops/bfloat16.h"
#include "ops/host/kernels.h"
#include "ops/host/threads.h"
#include "ops/philox.h"

namespace zerobox::host {
namespace {

constexpr int64_t kGrain = 4096;

}  // namespace

template <typename T>
void Fill(Threads& threads, T* out, int64_t n, float value) {
  ForRanges(threads, n, kGrain, [&](int64_t begin, int64_t end) {
    std::fill(out + begin, out + end, FromFloat<T>(value));
  });
}

template <typename T>
void FillNormal(Threads& threads, T* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
                float stddev) {
  ForRanges(threads, n, kGrain, [&](int64_t begin, int64_t end) {
    std::array<double, 2> pair{};
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t index = static_cast<uint64_t>(first + i);
      if (i == begin || index % 2 == 0) pair = NormalPairAt(seed, stream, index / 2);
      out[i] = FromFloat<T>(static_cast<float>(stddev * pair[index % 2]));
    }
  });
}

template void Fill(Threads&, float*, int64_t, float);
template void Fill(Threads&, BFloat16*, int64_t, float);
template void FillNormal(Threads&, float*, int64_t, uint64_t, uint64_t, int64_t, float);
template void FillNormal(Threads&, BFloat16*, int64_t, uint64_t, uint64_t, int64_t, float);

}  // namespace zerobox::host
