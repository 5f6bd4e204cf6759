// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_BENCH_GPU_CHECK_GPU_THREAD_H_
#define ZEROBOX_BENCH_GPU_CHECK_GPU_THREAD_H_

#include <thread>

namespace zerobox::gpu_check {

// Runs `work` on a thread of its own. A device keeps the thread that makes it, and the cores that
// it may use, near its GPU: the rest of the program stays free of that.
template <typename Work>
void OnGpuThread(const Work& work) {
  std::thread thread(work);
  thread.join();
}

}  // namespace zerobox::gpu_check

#endif  // ZEROBOX_BENCH_GPU_CHECK_GPU_THREAD_H_
