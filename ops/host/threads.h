// SPDX-License-Identifier: Apache-2.0
//
// How the host kernels share work over threads: in contiguous ranges that are fixed by the size of
// the work and the number of threads, so that equal calls give equal bits.
#ifndef ZEROBOX_OPS_HOST_THREADS_H_
#define ZEROBOX_OPS_HOST_THREADS_H_

#include <algorithm>
#include <cstdint>
#include <functional>

namespace zerobox::host {

// The threads that a kernel may use.
class Threads {
 public:
  virtual ~Threads() = default;
  virtual int count() const = 0;
  // Runs task(0) .. task(tasks - 1), each once, and returns when all are done.
  virtual void For(int64_t tasks, const std::function<void(int64_t)>& task) = 0;
};

struct Range {
  int64_t begin, end;
};

// How many ranges [0, n) is cut into: no more than `parts`, none shorter than `grain` but the last.
inline int64_t Parts(int64_t n, int64_t parts, int64_t grain) {
  return std::clamp<int64_t>((n + grain - 1) / grain, 1, std::max<int64_t>(parts, 1));
}

// Part `index` of `parts`; all bounds but n are multiples of `grain`. May be empty.
inline Range Part(int64_t n, int64_t parts, int64_t grain, int64_t index) {
  const int64_t grains = (n + grain - 1) / grain;
  return {std::min(n, grains * index / parts * grain),
          std::min(n, grains * (index + 1) / parts * grain)};
}

// Calls body(begin, end) for each part of [0, n): in the calling thread alone when there is one.
template <typename Body>
void ForRanges(Threads& threads, int64_t n, int64_t grain, const Body& body) {
  const int64_t parts = Parts(n, threads.count(), grain);
  if (parts == 1) return body(int64_t{0}, n);
  const auto task = [&](int64_t index) {
    const Range range = Part(n, parts, grain, index);
    body(range.begin, range.end);
  };
  threads.For(parts, std::ref(task));  // by reference: a std::function of it allocates nothing
}

}  // namespace zerobox::host

#endif  // ZEROBOX_OPS_HOST_THREADS_H_
