// SPDX-License-Identifier: Apache-2.0
//
// Sums. Those that decide something (loss, gradient norm) are taken in fp64, over parts whose size
// is fixed, so that they do not depend on the number of threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/sums.cpp"
#include <algorithm>
#include <tuple>
#include <vector>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/instances.h"
#include "ops/host/kernels.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// The sum over x of accumulate(x, sum), with four sums in flight.
template <typename T, class Accumulate>
HWY_INLINE double SumInFp64(const T* x, size_t n, const Accumulate& accumulate) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const size_t lanes = hn::Lanes(d);
  const auto load = [&](size_t i) HWY_ATTR { return hn::PromoteTo(d, Whole().Load(half, x + i)); };
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = accumulate(load(i), sum0);
    sum1 = accumulate(load(i + lanes), sum1);
    sum2 = accumulate(load(i + 2 * lanes), sum2);
    sum3 = accumulate(load(i + 3 * lanes), sum3);
  }
  ForLanes(half, n - i, [&](size_t k, auto memory) HWY_ATTR {
    sum0 = accumulate(hn::PromoteTo(d, memory.Load(half, x + i + k)), sum0);
  });
  return Sum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

double SumRange(const float* x, size_t n) {
  return SumInFp64(x, n, [](auto v, auto sum) HWY_ATTR { return hn::Add(v, sum); });
}

template <typename G>
double SquaresRange(const G* x, size_t n) {
  return SumInFp64(x, n, [](auto v, auto sum) HWY_ATTR { return hn::MulAdd(v, v, sum); });
}

// As in LayerNormBackwardColumns: blocks of rows in registers, their sums in memory.
template <typename T, typename G>
void AddColumnSumsRange(G* sums, const T* x, size_t rows, size_t stride, size_t columns) {
  constexpr size_t kRowBlock = 32, kColumns = 256;
  const hn::ScalableTag<float> d;
  for (size_t first = 0; first < columns; first += kColumns) {
    const size_t count = HWY_MIN(kColumns, columns - first);
    HWY_ALIGN float totals[kColumns] = {};
    for (size_t begin = 0; begin < rows; begin += kRowBlock) {
      const size_t end = HWY_MIN(rows, begin + kRowBlock);
      ForLanes(d, count, [&](size_t i, auto memory) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (size_t row = begin; row < end; ++row) {
          sum = hn::Add(sum, memory.Load(d, x + row * stride + first + i));
        }
        memory.Store(d, hn::Add(memory.Load(d, totals + i), sum), totals + i);
      });
    }
    AddTo(sums + first, totals, count);
  }
}

auto SquaresRanges() { return std::make_tuple(SquaresRange<float>, SquaresRange<BFloat16>); }
auto AddRanges() { return std::make_tuple(AddTo<float, float>, AddTo<BFloat16, BFloat16>); }
auto AddColumnSumsRanges() {
  return std::make_tuple(AddColumnSumsRange<float, float>, AddColumnSumsRange<BFloat16, BFloat16>,
                         AddColumnSumsRange<BFloat16, float>);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(SumRange);
HWY_EXPORT(SquaresRanges);
HWY_EXPORT(AddRanges);
HWY_EXPORT(AddColumnSumsRanges);

namespace {

constexpr int64_t kPart = 1 << 15;  // elements that are summed as one

// sum += the sum of part_sum(parts of x), added in order.
template <typename T, typename PartSum>
void AccumulateParts(Threads& threads, double* sum, const T* x, int64_t n,
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

template <typename G>
void AccumulateSquares(Threads& threads, double* sum, const G* x, int64_t n) {
  AccumulateParts(threads, sum, x, n, InstanceOf<G>(HWY_DYNAMIC_DISPATCH(SquaresRanges)()));
}

template <typename T>
void Add(Threads& threads, T* to, const T* from, int64_t n) {
  const auto range = InstanceOf<T>(HWY_DYNAMIC_DISPATCH(AddRanges)());
  ForRanges(threads, n, 4096, [&](int64_t begin, int64_t end) {
    range(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

template <typename T, typename G>
void AddColumnSums(Threads& threads, G* sums, const T* x, int64_t rows, int64_t columns) {
  const auto range = InstanceOf<T, G>(HWY_DYNAMIC_DISPATCH(AddColumnSumsRanges)());
  ForRanges(threads, columns, 64, [&](int64_t begin, int64_t end) {
    range(sums + begin, x + begin, static_cast<size_t>(rows), static_cast<size_t>(columns),
          static_cast<size_t>(end - begin));
  });
}

template void AccumulateSquares(Threads&, double*, const float*, int64_t);
template void AccumulateSquares(Threads&, double*, const BFloat16*, int64_t);
template void Add(Threads&, float*, const float*, int64_t);
template void Add(Threads&, BFloat16*, const BFloat16*, int64_t);
template void AddColumnSums(Threads&, float*, const float*, int64_t, int64_t);
template void AddColumnSums(Threads&, BFloat16*, const BFloat16*, int64_t, int64_t);
template void AddColumnSums(Threads&, float*, const BFloat16*, int64_t, int64_t);

}  // namespace zerobox::host
#endif  // HWY_ONCE
