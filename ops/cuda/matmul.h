// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by cuBLASLt, with what follows a product in a GPT fused to it where cuBLASLt can.
//
// Sums are taken in fp32, whatever the types, also where the inner dimension is split over blocks;
// TF32 is off unless asked for. For one GPU model, library version and shape the results are the
// same bits every time: the algorithm is chosen by shape alone, and the workspace is not shared.
#ifndef ZEROBOX_OPS_CUDA_MATMUL_H_
#define ZEROBOX_OPS_CUDA_MATMUL_H_

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "ops/device/buffer.h"

namespace zerobox::cuda {

enum class Epilogue : uint8_t {
  kNone,
  kBias,          // D = product + bias, which has an element a column
  kBiasGelu,      // aux = product + bias; D = GELU(aux), tanh form
  kGeluGradient,  // D = product * GELU'(aux)
  kBiasGradient,  // besides, bias = the sums of op(B)'s columns (written, not added to)
};

// D (rows, columns) = op(A) (rows, inner) op(B) (inner, columns), all row-major and dense. A
// transposed A is stored as (inner, rows), a transposed B as (columns, inner).
struct MatmulCall {
  int64_t rows, columns, inner;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::kFloat32;   // of A and B; fp32 or bf16
  DType out = DType::kFloat32;  // of D, bias and aux; fp32, or bf16 where `in` is
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  bool accumulate = false;  // D += ...; with kNone and kBiasGradient
  Epilogue epilogue = Epilogue::kNone;
  void* bias = nullptr;  // const in kBias and kBiasGelu
  void* aux = nullptr;   // (rows, columns); const in kGeluGradient
};

// The epilogues' parts as kernels of their own, for what cuBLASLt does not fuse. Each is enqueued.
// Where out is bf16 a result is then rounded once more, between product and epilogue.
class EpilogueKernels {
 public:
  virtual ~EpilogueKernels() = default;
  virtual absl::Status AddBias(cudaStream_t stream, DType type, void* y, const void* bias,
                               int64_t rows, int64_t columns) = 0;
  virtual absl::Status GeluForward(cudaStream_t stream, DType type, void* out, const void* x,
                                   int64_t n) = 0;
  // dx may be dout.
  virtual absl::Status GeluBackward(cudaStream_t stream, DType type, void* dx, const void* x,
                                    const void* dout, int64_t n) = 0;
  // sums (columns) = the sums of x (rows, columns) over its rows.
  virtual absl::Status SumColumns(cudaStream_t stream, DType sums_type, void* sums, DType x_type,
                                  const void* x, int64_t rows, int64_t columns) = 0;
};

struct MatmulOptions {
  bool tf32 = false;  // fp32 products by tensor cores, with 10 bits of mantissa
  // Which may be fused.
  bool fuse_bias = true;
  bool fuse_gelu = true;  // kBiasGelu and kGeluGradient
  bool fuse_bias_gradient = true;
};

// For one stream, whose work alone uses the workspace (256-byte aligned) while a product runs. Used
// by one thread. Everything given outlives it.
class Matmul {
 public:
  static absl::StatusOr<std::unique_ptr<Matmul>> Make(void* workspace, int64_t workspace_bytes,
                                                      EpilogueKernels& kernels,
                                                      const MatmulOptions& options = {});
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Enqueues it. The first call of a shape chooses the algorithm, which takes the host some time.
  // Internal, with cuBLASLt's reason and the shape, when there is none.
  absl::Status Run(cudaStream_t stream, const MatmulCall& call);

  // Of the calls so far: shapes that algorithms were chosen for, and calls by whether the epilogue
  // (other than kNone) was fused.
  struct Counts {
    int64_t shapes = 0, fused = 0, unfused = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  // What the choice of an algorithm depends on.
  struct Shape {
    int64_t rows, columns, inner;
    bool transpose_a, transpose_b, accumulate;
    DType in, out;
    Epilogue epilogue;
    uint32_t a_alignment, b_alignment, d_alignment, bias_alignment, aux_alignment;
    friend auto operator<=>(const Shape&, const Shape&) = default;  // NOLINT(modernize-use-nullptr)
  };
  // Descriptors, and the algorithm: if there is none, the shape is not supported.
  struct Plan;

  Matmul(void* workspace, int64_t workspace_bytes, EpilogueKernels& kernels,
         const MatmulOptions& options);
  bool MayFuse(const MatmulCall& call) const;
  absl::StatusOr<Plan*> PlanFor(const MatmulCall& call);
  absl::Status Choose(const MatmulCall& call, const Shape& shape, Plan& plan);
  absl::Status RunUnfused(cudaStream_t stream, const MatmulCall& call);
  absl::Status Launch(cudaStream_t stream, const MatmulCall& call, const Plan& plan);

  cublasLtHandle_t handle_ = nullptr;
  void* const workspace_;
  const int64_t workspace_bytes_;
  EpilogueKernels& kernels_;
  const MatmulOptions options_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  Counts counts_;
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_MATMUL_H_
