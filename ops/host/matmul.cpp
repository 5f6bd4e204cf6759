// SPDX-License-Identifier: Apache-2.0
#include "ops/host/matmul.h"

#include <cassert>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/host/openblas.h"

namespace zerobox {
namespace {

constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

const absl::StatusOr<OpenBlas>& Library() {
  static const auto* const kLibrary =
      new absl::StatusOr<OpenBlas>(OpenOpenBlas(OpenBlasFiles(), OpenBlasCore()));
  return *kLibrary;
}

int Int(int64_t value) {
  assert(value >= 0 && value <= std::numeric_limits<int>::max());
  return static_cast<int>(value);
}

}  // namespace

absl::Status LoadMatmul() { return Library().status(); }

void Matmul(const MatmulArguments& arguments) {
  static Sgemm* const kSgemm = Library().value().sgemm;
  const auto transpose = [](bool wanted) { return wanted ? kTranspose : kNoTranspose; };
  const MatmulArguments& x = arguments;
  kSgemm(kRowMajor, transpose(x.transpose_a), transpose(x.transpose_b), Int(x.m), Int(x.n),
         Int(x.k), x.alpha, x.a, Int(x.lda), x.b, Int(x.ldb), x.beta, x.c, Int(x.ldc));
}

}  // namespace zerobox
