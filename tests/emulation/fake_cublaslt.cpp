// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_cublaslt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/cuda/cublaslt.h"
#include "tests/emulation/fake_runtime.h"

// What the library's handles point to.
struct cublasLtContext {};

namespace zerobox::fake_cublaslt {
namespace {

using fake_cuda::Access;
using fake_cuda::Injected;

// Column-major, as everything here.
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
  size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  size_t bytes() const {
    return ((columns - 1) * static_cast<uint64_t>(ld) + rows) * element_bytes();
  }
};

struct Description {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  cudaDataType_t bias_type = CUDA_R_32F, aux_type = CUDA_R_32F;
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

// What is kept in the opaque bytes of an algorithm.
struct Algorithm {
  uint64_t problem;  // a hash
  uint64_t workspace_bytes;
  uint32_t alignment[4];
};
// So that a product is soon done that writes it.
constexpr uint64_t kMostWorkspaceBytes = 64 << 10;
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct State {
  std::function<bool(cublasLtEpilogue_t)> unsupported;
  Counts counts;
} state;

cublasStatus_t Refuse(const std::string& why) {
  fake_cuda::Report("cuBLASLt: " + why);
  return CUBLAS_STATUS_INVALID_VALUE;
}

// Calls `body` unless the call is to fail.
template <typename Body>
cublasStatus_t Call(const char* function, const Body& body) {
  return Injected(function) == cudaSuccess ? body() : CUBLAS_STATUS_INTERNAL_ERROR;
}

template <typename T>
cublasStatus_t Set(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return Refuse("an attribute of the wrong size");
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool HasBias(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool HasBiasGradient(cublasLtEpilogue_t e) { return e == CUBLASLT_EPILOGUE_BGRADA; }
bool HasAux(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DGELU;
}

uint64_t Hash(const Description& d, const Layout& a, const Layout& b, const Layout& out) {
  uint64_t hash = 1469598103934665603ull;
  const auto mix = [&](auto value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211ull;
  };
  for (const Layout* layout : {&a, &b, &out}) {
    mix(layout->type);
    mix(layout->rows);
    mix(layout->columns);
    mix(layout->ld);
  }
  mix(d.transpose_a);
  mix(d.transpose_b);
  mix(d.epilogue);
  mix(d.compute);
  mix(d.aux_ld);
  return hash;
}

// Null when all fit together.
const char* Complaint(const Description& d, const Layout& a, const Layout& b, const Layout& out) {
  const uint64_t inner = d.transpose_a == CUBLAS_OP_T ? a.rows : a.columns;
  if ((d.transpose_a == CUBLAS_OP_T ? a.columns : a.rows) != out.rows) return "rows of A";
  if ((d.transpose_b == CUBLAS_OP_T ? b.columns : b.rows) != inner) return "rows of B";
  if ((d.transpose_b == CUBLAS_OP_T ? b.rows : b.columns) != out.columns) return "columns of B";
  for (const Layout* layout : {&a, &b, &out}) {
    if (layout->ld < static_cast<int64_t>(layout->rows)) return "a leading dimension";
  }
  if (a.type != b.type || (a.type == CUDA_R_32F && out.type != CUDA_R_32F)) return "types";
  if (d.compute != CUBLAS_COMPUTE_32F &&
      (d.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a.type != CUDA_R_32F)) {
    return "the compute type";
  }
  if ((HasBias(d.epilogue) || HasBiasGradient(d.epilogue)) &&
      (d.bias == nullptr || d.bias_type != out.type)) {
    return "the bias";
  }
  if (HasAux(d.epilogue) &&
      (d.aux == nullptr || d.aux_ld % 8 != 0 || d.aux_ld < static_cast<int64_t>(out.rows))) {
    return "aux";
  }
  return nullptr;
}

float Load(const void* data, size_t i, cudaDataType_t type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  return ToFloat(static_cast<const BFloat16*>(data)[i]);
}
void Store(void* data, size_t i, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<BFloat16*>(data)[i] = ToBFloat16(value);
  }
}

// The tanh form and its derivative.
constexpr double kRootTwoOverPi = 0.7978845608028654;
float Gelu(double x) {
  return static_cast<float>(0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x))));
}
float GeluDerivative(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x));
  return static_cast<float>(0.5 * (1 + t) +
                            0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * 0.044715 * x * x));
}

struct Product {
  Description description;
  Layout a, b, out;
  const void* a_data;
  const void* b_data;
  void* d_data;
  float alpha, beta;
  void* workspace;
  size_t workspace_bytes;

  std::vector<Access> Accesses() const {
    const cublasLtEpilogue_t e = description.epilogue;
    std::vector<Access> all = {{a_data, a.bytes(), false},
                               {b_data, b.bytes(), false},
                               {d_data, out.bytes(), true},
                               {workspace, workspace_bytes, true}};
    if (beta != 0) all.push_back({d_data, out.bytes(), false});
    if (HasBias(e) || HasBiasGradient(e)) {
      all.push_back({description.bias, out.rows * out.element_bytes(), HasBiasGradient(e)});
    }
    if (HasAux(e)) {
      const Layout aux = {description.aux_type, out.rows, out.columns, description.aux_ld};
      all.push_back({description.aux, aux.bytes(), e != CUBLASLT_EPILOGUE_DGELU});
    }
    return all;
  }

  float A(uint64_t row, uint64_t k) const {
    const bool transpose = description.transpose_a == CUBLAS_OP_T;
    return Load(a_data, transpose ? row * a.ld + k : k * a.ld + row, a.type);
  }
  float B(uint64_t k, uint64_t column) const {
    const bool transpose = description.transpose_b == CUBLAS_OP_T;
    return Load(b_data, transpose ? k * b.ld + column : column * b.ld + k, b.type);
  }

  float Finish(float sum, uint64_t row, uint64_t column) const {
    const cublasLtEpilogue_t e = description.epilogue;
    const size_t aux = column * static_cast<size_t>(description.aux_ld) + row;
    if (HasBias(e)) sum += Load(description.bias, row, description.bias_type);
    if (e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
      Store(description.aux, aux, description.aux_type, sum);
      return Gelu(sum);
    }
    if (e == CUBLASLT_EPILOGUE_DGELU) {
      return sum * GeluDerivative(Load(description.aux, aux, description.aux_type));
    }
    return sum;
  }

  void Run() const {
    if (workspace != nullptr) std::memset(workspace, 0x5a, workspace_bytes);
    const uint64_t inner = description.transpose_a == CUBLAS_OP_T ? a.rows : a.columns;
    for (uint64_t row = 0; row < out.rows; ++row) {
      std::vector<float> of_a(inner);
      float sum_of_a = 0;
      for (uint64_t k = 0; k < inner; ++k) sum_of_a += of_a[k] = A(row, k);
      for (uint64_t column = 0; column < out.columns; ++column) {
        float sum = 0;
        for (uint64_t k = 0; k < inner; ++k) sum += of_a[k] * B(k, column);
        const size_t i = column * static_cast<size_t>(out.ld) + row;
        sum *= alpha;
        if (beta != 0) sum += beta * Load(d_data, i, out.type);
        Store(d_data, i, out.type, Finish(sum, row, column));
      }
      if (HasBiasGradient(description.epilogue)) {
        Store(description.bias, row, description.bias_type, sum_of_a);
      }
    }
  }
};

}  // namespace

void SetUnsupported(std::function<bool(cublasLtEpilogue_t)> unsupported) {
  state.unsupported = std::move(unsupported);
}

Counts TakeCounts() { return std::exchange(state.counts, {}); }

}  // namespace zerobox::fake_cublaslt

namespace zerobox::cuda {
std::string CublasLtProblem() { return ""; }
}  // namespace zerobox::cuda

using namespace zerobox::fake_cublaslt;  // NOLINT(google-build-using-namespace)

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return Call("cublasLtCreate", [&] {
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  return Call("cublasLtMatrixLayoutCreate", [&] {
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  return Call("cublasLtMatmulDescCreate", [&] {
    if (scale != CUDA_R_32F) return Refuse("the scale is not fp32");
    *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute});
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return Call("cublasLtMatmulDescSetAttribute", [&] {
    auto& d = *reinterpret_cast<Description*>(description);
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA:
        return Set(d.transpose_a, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB:
        return Set(d.transpose_b, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return Set(d.epilogue, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return Set(d.bias, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return Set(d.bias_type, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return Set(d.aux, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return Set(d.aux_ld, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return Set(d.aux_type, value, bytes);
      default:
        return Refuse("attribute " + std::to_string(attribute) + " of a matmul is not known");
    }
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Call("cublasLtMatmulPreferenceCreate", [&] {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return Call("cublasLtMatmulPreferenceSetAttribute", [&] {
    auto& p = *reinterpret_cast<Preference*>(preference);
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return Set(p.workspace_bytes, value, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return Set(p.reduction_schemes, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return Set(p.alignment[0], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return Set(p.alignment[1], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return Set(p.alignment[2], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return Set(p.alignment[3], value, bytes);
      default:
        return Refuse("preference " + std::to_string(attribute) + " is not known");
    }
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  return Call("cublasLtMatmulAlgoGetHeuristic", [&] {
    const auto& desc = *reinterpret_cast<Description*>(description);
    const auto& prefer = *reinterpret_cast<Preference*>(preference);
    const auto& out = *reinterpret_cast<Layout*>(d);
    const auto& of_a = *reinterpret_cast<Layout*>(a);
    const auto& of_b = *reinterpret_cast<Layout*>(b);
    *returned = 0;
    ++state.counts.heuristics;
    if (const char* complaint = Complaint(desc, of_a, of_b, out)) return Refuse(complaint);
    if (prefer.reduction_schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) {
      return Refuse("partial sums would be rounded to the output's type");
    }
    if (state.unsupported && state.unsupported(desc.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t workspace_bytes = std::min(prefer.workspace_bytes, kMostWorkspaceBytes);
    Algorithm algorithm = {Hash(desc, of_a, of_b, out), workspace_bytes, {}};
    std::copy(std::begin(prefer.alignment), std::end(prefer.alignment), algorithm.alignment);
    for (int i = 0; i < std::min(requested, 2); ++i) {
      results[i] = {};
      std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
      results[i].workspaceSize = algorithm.workspace_bytes;
      results[i].state = i == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
      *returned = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return Call("cublasLtMatmul", [&] {
    Product product = {.description = *reinterpret_cast<Description*>(description),
                       .a = *reinterpret_cast<Layout*>(a_layout),
                       .b = *reinterpret_cast<Layout*>(b_layout),
                       .out = *reinterpret_cast<Layout*>(d_layout),
                       .a_data = a,
                       .b_data = b,
                       .d_data = d,
                       .alpha = *static_cast<const float*>(alpha),
                       .beta = *static_cast<const float*>(beta),
                       .workspace = workspace,
                       .workspace_bytes = workspace_bytes};
    const char* complaint = Complaint(product.description, product.a, product.b, product.out);
    if (complaint != nullptr) return Refuse(complaint);
    if (algorithm == nullptr) return Refuse("no algorithm: it would be chosen again each time");
    Algorithm chosen;
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.problem != Hash(product.description, product.a, product.b, product.out)) {
      return Refuse("the algorithm was chosen for another problem");
    }
    if (chosen.workspace_bytes > workspace_bytes) return Refuse("the workspace is too small");
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
      return Refuse("the workspace's alignment");
    const void* operands[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
      if (reinterpret_cast<uintptr_t>(operands[i]) % chosen.alignment[i] != 0) {
        return Refuse("an operand is less aligned than was said");
      }
    }
    product.workspace_bytes = chosen.workspace_bytes;
    ++state.counts.products;
    if (product.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32) ++state.counts.tf32_products;
    const cudaError_t error = zerobox::fake_cuda::Enqueue(
        stream, "cublasLtMatmul", product.Accesses(), [product] { product.Run(); });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

}  // extern "C"
