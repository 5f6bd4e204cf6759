// SPDX-License-Identifier: Apache-2.0
//
// Sums. Those that decide something (loss, gradient norm) are taken in fp64, over parts whose size
// is fixed, so that they do not depend on the number of threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/sums.cpp"
#include <vector>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// The sum over x of transform(x, sum), with four sums in flight.
template <class Transform>
HWY_INLINE double SumInFp64(const float* x, size_t n, const Transform& accumulate) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = accumulate(hn::PromoteTo(d, hn::LoadU(half, x + i)), sum0);
    sum1 = accumulate(hn::PromoteTo(d, hn::LoadU(half, x + i + lanes)), sum1);
    sum2 = accumulate(hn::PromoteTo(d, hn::LoadU(half, x + i + 2 * lanes)), sum2);
    sum3 = accumulate(hn::PromoteTo(d, hn::LoadU(half, x + i + 3 * lanes)), sum3);
  }
  ForLanes(half, n - i, [&](size_t k, auto memory) HWY_ATTR {
    sum0 = accumulate(hn::PromoteTo(d, memory.Load(half, x + i + k)), sum0);
  });
  return Sum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

double SumRange(const float* x, size_t n) {
  return SumInFp64(x, n, [](auto v, auto sum) HWY_ATTR { return hn::Add(v, sum); });
}

double SquaresRange(const float* x, size_t n) {
  return SumInFp64(x, n, [](auto v, auto sum) HWY_ATTR { return hn::MulAdd(v, v, sum); });
}

void AddRange(float* to, const float* from, size_t n) {
  const hn::ScalableTag<float> d;
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Add(memory.Load(d, to + i), memory.Load(d, from + i)), to + i);
  });
}

// As in LayerNormBackwardColumns: blocks of rows in registers.
void AddColumnSumsRange(float* sums, const float* x, size_t rows, size_t stride, size_t columns) {
  constexpr size_t kRowBlock = 32;
  const hn::ScalableTag<float> d;
  for (size_t begin = 0; begin < rows; begin += kRowBlock) {
    const size_t end = HWY_MIN(rows, begin + kRowBlock);
    ForLanes(d, columns, [&](size_t i, auto memory) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (size_t row = begin; row < end; ++row) {
        sum = hn::Add(sum, memory.Load(d, x + row * stride + i));
      }
      memory.Store(d, hn::Add(memory.Load(d, sums + i), sum), sums + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(SumRange);
HWY_EXPORT(SquaresRange);
HWY_EXPORT(AddRange);
HWY_EXPORT(AddColumnSumsRange);

namespace {

constexpr int64_t kPart = 1 << 15;  // elements that are summed as one

// sum += the sum of part_sum(parts of x), added in order.
template <typename PartSum>
void AccumulateParts(Threads& threads, double* sum, const float* x, int64_t n,
                     const PartSum& part_sum) {
  static thread_local std::vector<double> sums;
  const int64_t parts = (n + kPart - 1) / kPart;
  sums.resize(static_cast<size_t>(parts));
  double* const part_sums = sums.data();  // the caller's, also in the other threads
  ForRanges(threads, n, kPart, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kPart) {
      part_sums[i / kPart] = part_sum(x + i, static_cast<size_t>(std::min(kPart, end - i)));
    }
  });
  double total = 0;
  for (int64_t part = 0; part < parts; ++part) total += part_sums[part];
  *sum += total;
}

}  // namespace

void AccumulateSum(Threads& threads, double* sum, const float* x, int64_t n) {
  AccumulateParts(threads, sum, x, n, HWY_DYNAMIC_DISPATCH(SumRange));
}

void AccumulateSquares(Threads& threads, double* sum, const float* x, int64_t n) {
  AccumulateParts(threads, sum, x, n, HWY_DYNAMIC_DISPATCH(SquaresRange));
}

void Add(Threads& threads, float* to, const float* from, int64_t n) {
  ForRanges(threads, n, 4096, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRange)(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void AddColumnSums(Threads& threads, float* sums, const float* x, int64_t rows, int64_t columns) {
  ForRanges(threads, columns, 64, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddColumnSumsRange)
    (sums + begin, x + begin, static_cast<size_t>(rows), static_cast<size_t>(columns),
     static_cast<size_t>(end - begin));
  });
}

}  // namespace zerobox::host
#endif  // HWY_ONCE
