// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_CUDA_PAUSE_H_
#define ZEROBOX_OPS_CUDA_PAUSE_H_

#include <chrono>
#include <thread>

namespace zerobox::cuda {

// Between two questions whether the GPU is done: at first it will be soon.
class Pause {
 public:
  void operator()() {
    if (std::chrono::steady_clock::now() - begin_ < std::chrono::microseconds(50)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_PAUSE_H_
