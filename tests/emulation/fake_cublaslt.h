// SPDX-License-Identifier: Apache-2.0
//
// A cuBLASLt without a GPU, for tests: linked in place of the toolkit's, on top of the fake
// runtime. It refuses what the real one refuses: descriptions that do not fit together, operands
// less aligned than was said, an algorithm that was chosen for something else or needs a larger
// workspace. A product adds in fp32, in the order of the inner dimension, and rounds once. It
// writes the workspace that its algorithm wants, so one that two streams share is a race that is
// reported.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_CUBLASLT_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_CUBLASLT_H_

#include <cublasLt.h>

#include <functional>

namespace zerobox::fake_cublaslt {

// There is no algorithm where this holds for the epilogue. Null: there is one for all.
void SetUnsupported(std::function<bool(cublasLtEpilogue_t)> unsupported);

// Products since the last call, in fp32 by TF32 those.
struct Counts {
  int heuristics = 0, products = 0, tf32_products = 0;
};
Counts TakeCounts();

}  // namespace zerobox::fake_cublaslt

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_CUBLASLT_H_
