// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at best, to hold measurements against: multiply-adds in fp32, and bytes
// through memory. Include it in one source of a program (its vector code is compiled per target).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peak.h"
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::peak {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `rounds` times 12 multiply-adds of a vector, none waiting for another: enough to hide the latency
// (4 or 5 cycles) of two units. `values` are 14 numbers, different ones so that the compiler cannot
// merge sums; one is written. Returns the floating-point operations done.
inline double MultiplyAdds(int64_t rounds, float* values) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, values[12]), b = hn::Set(d, values[13]);
  auto s0 = hn::Set(d, values[0]), s1 = hn::Set(d, values[1]), s2 = hn::Set(d, values[2]);
  auto s3 = hn::Set(d, values[3]), s4 = hn::Set(d, values[4]), s5 = hn::Set(d, values[5]);
  auto s6 = hn::Set(d, values[6]), s7 = hn::Set(d, values[7]), s8 = hn::Set(d, values[8]);
  auto s9 = hn::Set(d, values[9]), s10 = hn::Set(d, values[10]), s11 = hn::Set(d, values[11]);
  for (int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
    s10 = hn::MulAdd(s10, a, b);
    s11 = hn::MulAdd(s11, a, b);
  }
  const auto sum0 = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(s4, s5));
  const auto sum1 = hn::Add(hn::Add(hn::Add(s6, s7), hn::Add(s8, s9)), hn::Add(s10, s11));
  values[0] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

// x *= factor, for n a multiple of every vector's length: 8 bytes through memory an element.
inline void ScaleInPlace(float* x, size_t n, float factor) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

inline const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::peak
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#ifndef ZEROBOX_BENCH_PEAK_H_
#define ZEROBOX_BENCH_PEAK_H_
namespace zerobox::peak {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(ScaleInPlace);
HWY_EXPORT(TargetName);

inline double MultiplyAdds(int64_t rounds, float* values) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds, values);
}
inline void ScaleInPlace(float* x, size_t n, float factor) {
  HWY_DYNAMIC_DISPATCH(ScaleInPlace)(x, n, factor);
}
// The vector instructions that run.
inline const char* TargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

// Seconds that `threads` threads take to do work(thread) each.
inline double Seconds(int threads, const std::function<void(int)>& work) {
  const auto begin = std::chrono::steady_clock::now();
  if (threads == 1) {
    work(0);
  } else {
    std::vector<std::jthread> pool;
    pool.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) pool.emplace_back([&work, i] { work(i); });
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Multiply-adds and additions a second of `threads` threads.
inline double PeakFlops(int threads) {
  std::vector<double> flops(static_cast<size_t>(threads));
  const double seconds = Seconds(threads, [&](int thread) {
    float values[14] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f,
                        0.8f, 0.9f, 1.0f, 1.1f, 1.2f, 0.5f, 0.25f};
    flops[static_cast<size_t>(thread)] = MultiplyAdds(4'000'000, values);
  });
  double sum = 0;
  for (const double f : flops) sum += f;
  return sum / seconds;
}

}  // namespace zerobox::peak
#endif  // ZEROBOX_BENCH_PEAK_H_
#endif  // HWY_ONCE
