// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt's matrices are column-major: a row-major matrix is its transpose there. So D^T = op(B)^T
// op(A)^T is asked for, with our B as its A. Its rows are our columns, which is where it wants the
// bias; and what it calls the bias gradient of A is that of our B.
#include "ops/cuda/matmul.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "ops/cuda/cublaslt.h"
#include "ops/device/memory.h"

namespace zerobox::cuda {
namespace {

constexpr int kAlgorithms = 4;  // that are asked for; the first that is possible is taken

cudaDataType_t CudaType(DType dtype) {
  assert(dtype == DType::kFloat32 || dtype == DType::kBFloat16);
  return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

absl::Status ToStatus(cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string problem = CublasLtProblem();
  if (!problem.empty()) return absl::UnavailableError(problem);
  return absl::InternalError(absl::StrCat(call, ": ", cublasLtGetStatusName(status)));
}

std::string Describe(const MatmulCall& call) {
  return absl::StrCat("a matrix product (", call.rows, ", ", call.inner, ") x (", call.inner, ", ",
                      call.columns, ") of ", absl::string_view(Name(call.in).data()), " to ",
                      absl::string_view(Name(call.out).data()));
}

// The largest power of two that divides the address, at most what every buffer of a pool has:
// beyond that it would depend on what else is in memory, and with it the algorithm.
uint32_t Alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | uintptr_t{kAllocationAlignment};
  return static_cast<uint32_t>(address & (~address + 1));
}

cublasLtEpilogue_t LtEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool UsesAux(Epilogue epilogue) {
  return epilogue == Epilogue::kBiasGelu || epilogue == Epilogue::kGeluGradient;
}
bool UsesBias(Epilogue epilogue) {
  return epilogue != Epilogue::kNone && epilogue != Epilogue::kGeluGradient;
}

template <typename T>
absl::Status Set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                 const T& value) {
  return ToStatus(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute");
}

template <typename T>
absl::Status Set(cublasLtMatmulPreference_t preference,
                 cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return ToStatus(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                  "cublasLtMatmulPreferenceSetAttribute");
}

// A dense row-major matrix.
absl::Status CreateLayout(cublasLtMatrixLayout_t* layout, DType dtype, int64_t rows,
                          int64_t columns) {
  return ToStatus(
      cublasLtMatrixLayoutCreate(layout, CudaType(dtype), static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), columns),
      "cublasLtMatrixLayoutCreate");
}

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  ~Preference() {
    if (handle != nullptr) (void)cublasLtMatmulPreferenceDestroy(handle);
  }
};

}  // namespace

struct Matmul::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
    }
    if (description != nullptr) (void)cublasLtMatmulDescDestroy(description);
  }
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  bool possible = false;
  cublasLtMatmulAlgo_t algorithm{};
};

absl::StatusOr<std::unique_ptr<Matmul>> Matmul::Make(void* workspace, int64_t workspace_bytes,
                                                     EpilogueKernels& kernels,
                                                     const MatmulOptions& options) {
  assert(reinterpret_cast<uintptr_t>(workspace) % 256 == 0);
  auto matmul = std::unique_ptr<Matmul>(new Matmul(workspace, workspace_bytes, kernels, options));
  absl::Status status = ToStatus(cublasLtCreate(&matmul->handle_), "cublasLtCreate");
  if (!status.ok()) return status;
  return matmul;
}

Matmul::Matmul(void* workspace, int64_t workspace_bytes, EpilogueKernels& kernels,
               const MatmulOptions& options)
    : workspace_(workspace),
      workspace_bytes_(workspace_bytes),
      kernels_(kernels),
      options_(options) {}

Matmul::~Matmul() {
  plans_.clear();
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

bool Matmul::MayFuse(const MatmulCall& call) const {
  switch (call.epilogue) {
    case Epilogue::kNone:
      return true;
    case Epilogue::kBias:
      return options_.fuse_bias;
    case Epilogue::kBiasGelu:
    case Epilogue::kGeluGradient:
      return options_.fuse_gelu && call.columns % 8 == 0;  // which it demands of aux
    case Epilogue::kBiasGradient:
      return options_.fuse_bias_gradient;
  }
  return false;
}

absl::Status Matmul::Run(cudaStream_t stream, const MatmulCall& call) {
  assert(!call.accumulate || call.epilogue == Epilogue::kNone ||
         call.epilogue == Epilogue::kBiasGradient);
  if (call.rows == 0 || call.columns == 0) return absl::OkStatus();
  if (MayFuse(call)) {
    const absl::StatusOr<Plan*> plan = PlanFor(call);
    if (!plan.ok()) return plan.status();
    if ((*plan)->possible) {
      if (call.epilogue != Epilogue::kNone) ++counts_.fused;
      return Launch(stream, call, **plan);
    }
    if (call.epilogue == Epilogue::kNone) {
      return absl::InternalError(
          absl::StrCat("cublasLtMatmulAlgoGetHeuristic: no algorithm for ", Describe(call)));
    }
  }
  ++counts_.unfused;
  return RunUnfused(stream, call);
}

absl::Status Matmul::RunUnfused(cudaStream_t stream, const MatmulCall& call) {
  MatmulCall product = call;
  product.epilogue = Epilogue::kNone;
  if (call.epilogue == Epilogue::kBiasGelu) product.d = call.aux;
  absl::Status status = Run(stream, product);
  if (!status.ok()) return status;
  const int64_t elements = call.rows * call.columns;
  switch (call.epilogue) {
    case Epilogue::kNone:
      return status;
    case Epilogue::kBias:
      return kernels_.AddBias(stream, call.out, call.d, call.bias, call.rows, call.columns);
    case Epilogue::kBiasGelu:
      status = kernels_.AddBias(stream, call.out, call.aux, call.bias, call.rows, call.columns);
      if (!status.ok()) return status;
      return kernels_.GeluForward(stream, call.out, call.d, call.aux, elements);
    case Epilogue::kGeluGradient:
      return kernels_.GeluBackward(stream, call.out, call.d, call.aux, call.d, elements);
    case Epilogue::kBiasGradient:
      assert(!call.transpose_b);
      return kernels_.SumColumns(stream, call.out, call.bias, call.in, call.b, call.inner,
                                 call.columns);
  }
  return status;
}

absl::StatusOr<Matmul::Plan*> Matmul::PlanFor(const MatmulCall& call) {
  const Shape shape = {
      .rows = call.rows,
      .columns = call.columns,
      .inner = call.inner,
      .transpose_a = call.transpose_a,
      .transpose_b = call.transpose_b,
      .accumulate = call.accumulate,
      .in = call.in,
      .out = call.out,
      .epilogue = call.epilogue,
      .a_alignment = Alignment(call.a),
      .b_alignment = Alignment(call.b),
      .d_alignment = Alignment(call.d),
      .bias_alignment = UsesBias(call.epilogue) ? Alignment(call.bias) : 0,
      .aux_alignment = UsesAux(call.epilogue) ? Alignment(call.aux) : 0,
  };
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>();
  absl::Status status = Choose(call, shape, *plan);
  if (!status.ok())
    return absl::Status(status.code(), absl::StrCat(status.message(), ", for ", Describe(call)));
  ++counts_.shapes;
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

absl::Status Matmul::Choose(const MatmulCall& call, const Shape& shape, Plan& plan) {
  const bool tf32 = options_.tf32 && call.in == DType::kFloat32;
  absl::Status status = ToStatus(
      cublasLtMatmulDescCreate(
          &plan.description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "cublasLtMatmulDescCreate");
  if (!status.ok()) return status;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    if (status.ok()) status = Set(plan.description, attribute, value);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, LtEpilogue(call.epilogue));
  // Their alignment matters; the pointers themselves are those of each launch.
  if (UsesBias(call.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CudaType(call.out));
  }
  if (UsesAux(call.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.columns);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, CudaType(call.out));
  }
  const auto layout = [&](cublasLtMatrixLayout_t* created, DType dtype, int64_t rows,
                          int64_t columns, bool transposed) {
    if (transposed) std::swap(rows, columns);
    if (status.ok()) status = CreateLayout(created, dtype, rows, columns);
  };
  layout(&plan.a, call.in, call.inner, call.columns, call.transpose_b);
  layout(&plan.b, call.in, call.rows, call.inner, call.transpose_a);
  layout(&plan.d, call.out, call.rows, call.columns, false);

  Preference preference;
  if (status.ok()) {
    status = ToStatus(cublasLtMatmulPreferenceCreate(&preference.handle),
                      "cublasLtMatmulPreferenceCreate");
  }
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status.ok()) status = Set(preference.handle, attribute, value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_));
  // No partial sums in bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.d_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d_alignment);
  if (!status.ok()) return status;

  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> results{};
  int count = 0;
  const cublasStatus_t found =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.description, plan.a, plan.b, plan.d, plan.d,
                                     preference.handle, kAlgorithms, results.data(), &count);
  // Its ways to say that there is none.
  if (found == CUBLAS_STATUS_NOT_SUPPORTED || found == CUBLAS_STATUS_INVALID_VALUE) {
    count = 0;
  } else if (found != CUBLAS_STATUS_SUCCESS) {
    return ToStatus(found, "cublasLtMatmulAlgoGetHeuristic");
  }
  const auto end = results.begin() + count;
  const auto first = std::find_if(results.begin(), end, [](const auto& result) {
    return result.state == CUBLAS_STATUS_SUCCESS;
  });
  plan.possible = first != end;
  if (plan.possible) plan.algorithm = first->algo;
  return absl::OkStatus();
}

absl::Status Matmul::Launch(cudaStream_t stream, const MatmulCall& call, const Plan& plan) {
  absl::Status status;
  if (UsesBias(call.epilogue)) {
    status = Set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  }
  if (UsesAux(call.epilogue) && status.ok()) {
    status = Set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux);
  }
  if (!status.ok()) return status;
  const float alpha = 1;
  const float beta = call.accumulate ? 1 : 0;
  status = ToStatus(cublasLtMatmul(handle_, plan.description, &alpha, call.b, plan.a, call.a,
                                   plan.b, &beta, call.d, plan.d, call.d, plan.d, &plan.algorithm,
                                   workspace_, static_cast<size_t>(workspace_bytes_), stream),
                    "cublasLtMatmul");
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), ", for ", Describe(call)));
}

}  // namespace zerobox::cuda
