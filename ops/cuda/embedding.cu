// SPDX-License-Identifier: Apache-2.0
//
// Token and position embeddings, and dropout on their sum:
//   out[b, t] = r (wte[token] + wpe[t]),
//   dwte[token] += the sum of r dout[b, t] over all (b, t) with this token,
//   dwpe[t] += the sum of r dout[b, t] over b.
//
// Forward: (B, T, C), a warp 256 channels of a row (elementwise.cuh). It is bound by memory: 6
// bytes an element in bf16 where no row of wte is in the L2 cache. A gathered row is 1.5 KB and
// more, so gathering costs nothing. To expect: 85% of a copy's bandwidth. dwpe: a thread adds 8
// elements of a position over B; 2 bytes an element.
//
// dwte without atomics, which would add in any order: the rows of dout are sorted by token (stably,
// so that each sum has one order), and the sorted rows are cut into windows of 32.
//   1. A warp adds 256 channels of a window's rows in order. A token whose rows all lie in the
//      window is then done: its sum is added to dwte, by the only warp that ever touches it. The
//      sum of a token that began in an earlier window goes into the window's slot 0, that of one
//      that goes on in the next window into slot 1.
//   2. The warp in whose window such a token began adds up slot 1 and the slots 0 that follow.
// So a token that is 4% of all rows is a sum over 32 times fewer slots, and no token makes the GPU
// wait for one warp that walks thousands of rows. What bounds it: memory, 2 bytes an element in
// bf16, what the touched rows of dwte need, and the sort of B T pairs, 30 to 50 microseconds. To
// expect: 80% of a copy's bandwidth in stage 1.
#include <bit>
#include <cstdint>

#include "ops/cuda/device_algorithms.h"
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/random.cuh"

namespace zerobox::cuda {
namespace {

template <typename T, bool kDropout>
struct Forward {
  T* out;
  const int32_t* tokens;
  const T* wte;
  const T* wpe;
  uint32_t positions;
  int64_t channels;
  DropoutDraw dropout;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t row, int64_t channel) const {
    const uint32_t sample = static_cast<uint32_t>(row) / positions;
    const uint32_t position = static_cast<uint32_t>(row) - sample * positions;
    const int64_t element = position * channels + channel;
    float values[kCount], offsets[kCount];
    Read(values, wte + tokens[row] * channels + channel);
    Read(offsets, wpe + element);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] += offsets[k];
    if constexpr (kDropout) {
      dropout.Apply(values, dropout.samples[sample], static_cast<uint64_t>(element));
    }
    Write(out + row * channels + channel, values);
  }
};

// Rows of LaunchElements: one, of T C elements.
template <typename T, typename G, bool kDropout>
struct PositionGradient {
  G* dwpe;
  const T* dout;
  int64_t batch, sample_size;
  DropoutDraw dropout;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t, int64_t element) const {
    float sums[kCount] = {}, values[kCount];
    // With dropout registers are short, and Philox covers the time that loads take.
#pragma unroll(kDropout ? 1 : 4)
    for (int64_t b = 0; b < batch; ++b) {
      Read(values, dout + b * sample_size + element);
      if constexpr (kDropout) {
        dropout.Apply(values, dropout.samples[b], static_cast<uint64_t>(element));
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] += values[k];
    }
    Read(values, dwpe + element);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] += sums[k];
    Write(dwpe + element, values);
  }
};

//---- dwte ---------------------------------------------------------------------------------------

constexpr int kWindow = 32;  // rows; one a lane, when their numbers are loaded
constexpr int kWarps = 4;    // of a block, each with a window of its own
constexpr int kThreads = kWarps * gpu::kLanes;
static_assert(kWindow == gpu::kLanes);

__global__ void __launch_bounds__(kElementwiseThreads) RowNumbersKernel(int32_t* rows, int n) {
  const int i = static_cast<int>(blockIdx.x) * kElementwiseThreads + static_cast<int>(threadIdx.x);
  if (i < n) rows[i] = i;
}

// tokens, rows (n): sorted. slots (windows, 2, channels).
template <typename T, typename G>
struct TokenGradient {
  G* dwte;
  float* slots;
  const T* dout;
  const int32_t* tokens;
  const int32_t* rows;
  int n;
  uint32_t positions;
  int64_t channels;
  DropoutDraw dropout;

  __device__ __forceinline__ float* Slot(int window, int which, int64_t channel) const {
    return slots + (int64_t{window} * 2 + which) * channels + channel;
  }
  __device__ __forceinline__ bool SameToken(int i, int token) const {
    return i >= 0 && i < n && tokens[i] == token;
  }
  template <int kCount>
  __device__ __forceinline__ void AddToGradient(int token, int64_t channel,
                                                const float (&sums)[kCount]) const {
    G* const gradient = dwte + token * channels + channel;
    float values[kCount];
    Read(values, gradient);
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] += sums[k];
    Write(gradient, values);
  }
};

// kCount channels a lane.
template <typename T, typename G, int kCount, bool kDropout>
__global__ void __launch_bounds__(kThreads, 4)
    AddRowsKernel(const __grid_constant__ TokenGradient<T, G> task) {
  const int window = static_cast<int>(blockIdx.x) * kWarps + gpu::WarpInBlock();
  const int first = window * kWindow;
  if (first >= task.n) return;  // the whole warp
  const int count = task.n - first < kWindow ? task.n - first : kWindow;
  const int lane = gpu::Lane();
  const int my_token = lane < count ? task.tokens[first + lane] : -1;
  const int my_row = lane < count ? task.rows[first + lane] : 0;
  const int64_t channel = (int64_t{blockIdx.y} * gpu::kLanes + lane) * kCount;
  const bool mine = channel < task.channels;

  float sums[kCount] = {};
  int token = gpu::ShuffleFrom(my_token, 0);
  bool began_before = task.SameToken(first - 1, token);
  const auto finish = [&](bool goes_on) {
    if (!mine) return;
    if (began_before) {
      Write(task.Slot(window, 0, channel), sums);
    } else if (goes_on) {
      Write(task.Slot(window, 1, channel), sums);
    } else {
      task.AddToGradient(token, channel, sums);
    }
  };
  constexpr int kLoads = 4;  // rows on their way at a time
  for (int i = 0; i < count; i += kLoads) {
    float values[kLoads][kCount] = {};
    int rows[kLoads], row_tokens[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      rows[k] = gpu::ShuffleFrom(my_row, i + k);
      row_tokens[k] = gpu::ShuffleFrom(my_token, i + k);
      if (mine && i + k < count) Read(values[k], task.dout + rows[k] * task.channels + channel);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (i + k >= count) break;
      if (row_tokens[k] != token) {
        finish(false);
        token = row_tokens[k];
        began_before = false;
#pragma unroll
        for (int j = 0; j < kCount; ++j) sums[j] = 0;
      }
      if constexpr (kDropout) {
        const uint32_t sample = static_cast<uint32_t>(rows[k]) / task.positions;
        const uint32_t position = static_cast<uint32_t>(rows[k]) - sample * task.positions;
        task.dropout.Apply(values[k], task.dropout.samples[sample],
                           static_cast<uint64_t>(position * task.channels + channel));
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j] += values[k][j];
    }
  }
  finish(task.SameToken(first + count, token));
}

template <typename T, typename G, int kCount>
__global__ void __launch_bounds__(kThreads)
    AddSlotsKernel(const __grid_constant__ TokenGradient<T, G> task) {
  int window = static_cast<int>(blockIdx.x) * kWarps + gpu::WarpInBlock();
  const int first = window * kWindow, end = first + kWindow;
  const int64_t channel = (int64_t{blockIdx.y} * gpu::kLanes + gpu::Lane()) * kCount;
  // The window's last token, if it goes on in the next window and did not begin before this one.
  if (end >= task.n || channel >= task.channels) return;
  const int token = task.tokens[end - 1];
  if (!task.SameToken(end, token) || task.SameToken(first - 1, token)) return;
  float sums[kCount], values[kCount];
  Read(sums, task.Slot(window, 1, channel));
  do {
    ++window;
    Read(values, task.Slot(window, 0, channel));
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += values[k];
    // On, while the token fills this window and the next row has it too.
  } while (task.SameToken((window + 1) * kWindow, token));
  task.AddToGradient(token, channel, sums);
}

//---- The workspace of backward ------------------------------------------------------------------

struct Workspace {
  int key_bits;
  size_t storage_bytes;
  // Offsets, in bytes.
  size_t slots = 0, tokens, row_numbers, rows, storage, all;
};

Workspace PlanWorkspace(int64_t n, int64_t channels, int64_t vocabulary) {
  const auto round_up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  Workspace plan;
  plan.key_bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(vocabulary)));
  plan.storage_bytes = SortPairsBytes(static_cast<int>(n), plan.key_bits);
  const size_t number_bytes = round_up(static_cast<size_t>(n) * sizeof(int32_t));
  plan.tokens =
      round_up(static_cast<size_t>(gpu::CeilDiv(n, kWindow) * 2 * channels) * sizeof(float));
  plan.row_numbers = plan.tokens + number_bytes;
  plan.rows = plan.row_numbers + number_bytes;
  plan.storage = plan.rows + number_bytes;
  plan.all = plan.storage + round_up(plan.storage_bytes);
  return plan;
}

template <typename T, typename G, int kCount>
cudaError_t LaunchTokenGradient(cudaStream_t stream, const TokenGradient<T, G>& task, bool drop) {
  const int64_t windows = gpu::CeilDiv(task.n, kWindow);
  const dim3 grid(static_cast<unsigned>(gpu::CeilDiv(windows, kWarps)),
                  static_cast<unsigned>(gpu::CeilDiv(task.channels, gpu::kLanes * kCount)));
  const cudaError_t error = gpu::Launch(
      stream, grid, dim3(kThreads), 0,
      drop ? AddRowsKernel<T, G, kCount, true> : AddRowsKernel<T, G, kCount, false>, task);
  if (error != cudaSuccess || windows == 1) return error;
  return gpu::Launch(stream, grid, dim3(kThreads), 0, AddSlotsKernel<T, G, kCount>, task);
}

}  // namespace

template <typename T>
cudaError_t EmbeddingForward(cudaStream_t stream, T* out, const int32_t* tokens, const T* wte,
                             const T* wpe, SequenceShape shape, const DropoutMask& dropout) {
  const bool aligned = gpu::AreAligned(out, wte, wpe);
  const auto positions = static_cast<uint32_t>(shape.positions);
  if (!(dropout.p > 0)) {
    return LaunchRows(stream, shape.rows(), shape.channels, aligned,
                      Forward<T, false>{out, tokens, wte, wpe, positions, shape.channels, {}});
  }
  return LaunchRows(
      stream, shape.rows(), shape.channels, aligned,
      Forward<T, true>{out, tokens, wte, wpe, positions, shape.channels, DropoutDraw(dropout)});
}

int64_t EmbeddingBackwardWorkspace(SequenceShape shape, int64_t vocabulary) {
  if (shape.elements() == 0) return 0;
  return static_cast<int64_t>(PlanWorkspace(shape.rows(), shape.channels, vocabulary).all);
}

template <typename T, typename G>
cudaError_t EmbeddingBackward(cudaStream_t stream, G* dwte, G* dwpe, const T* dout,
                              const int32_t* tokens, SequenceShape shape, int64_t vocabulary,
                              const DropoutMask& dropout, void* workspace) {
  if (shape.elements() == 0) return cudaSuccess;
  const bool drop = dropout.p > 0;
  const DropoutDraw draw = drop ? DropoutDraw(dropout) : DropoutDraw();
  const int64_t sample_size = shape.positions * shape.channels;
  const bool aligned = gpu::AreAligned(dwpe, dout) && sample_size % kPack == 0;
  cudaError_t error =
      drop
          ? LaunchElements(stream, 1, sample_size, aligned,
                           PositionGradient<T, G, true>{dwpe, dout, shape.batch, sample_size, draw})
          : LaunchElements(
                stream, 1, sample_size, aligned,
                PositionGradient<T, G, false>{dwpe, dout, shape.batch, sample_size, draw});
  if (error != cudaSuccess) return error;

  const Workspace plan = PlanWorkspace(shape.rows(), shape.channels, vocabulary);
  char* const memory = static_cast<char*>(workspace);
  int32_t* const row_numbers = reinterpret_cast<int32_t*>(memory + plan.row_numbers);
  int32_t* const sorted_tokens = reinterpret_cast<int32_t*>(memory + plan.tokens);
  int32_t* const sorted_rows = reinterpret_cast<int32_t*>(memory + plan.rows);
  const int n = static_cast<int>(shape.rows());
  error = gpu::Launch(stream, dim3(static_cast<unsigned>(gpu::CeilDiv(n, kElementwiseThreads))),
                      dim3(kElementwiseThreads), 0, RowNumbersKernel, row_numbers, n);
  if (error != cudaSuccess) return error;
  error = SortPairs(stream, sorted_tokens, tokens, sorted_rows, row_numbers, n, plan.key_bits,
                    memory + plan.storage, plan.storage_bytes);
  if (error != cudaSuccess) return error;
  const TokenGradient<T, G> task = {.dwte = dwte,
                                    .slots = reinterpret_cast<float*>(memory + plan.slots),
                                    .dout = dout,
                                    .tokens = sorted_tokens,
                                    .rows = sorted_rows,
                                    .n = n,
                                    .positions = static_cast<uint32_t>(shape.positions),
                                    .channels = shape.channels,
                                    .dropout = draw};
  const bool packed = gpu::AreAligned(dwte, dout) && shape.channels % kPack == 0;
  return packed ? LaunchTokenGradient<T, G, kPack>(stream, task, drop)
                : LaunchTokenGradient<T, G, 1>(stream, task, drop);
}

template cudaError_t EmbeddingForward(cudaStream_t, float*, const int32_t*, const float*,
                                      const float*, SequenceShape, const DropoutMask&);
template cudaError_t EmbeddingForward(cudaStream_t, BFloat16*, const int32_t*, const BFloat16*,
                                      const BFloat16*, SequenceShape, const DropoutMask&);
template cudaError_t EmbeddingBackward(cudaStream_t, float*, float*, const float*, const int32_t*,
                                       SequenceShape, int64_t, const DropoutMask&, void*);
template cudaError_t EmbeddingBackward(cudaStream_t, BFloat16*, BFloat16*, const BFloat16*,
                                       const int32_t*, SequenceShape, int64_t, const DropoutMask&,
                                       void*);
template cudaError_t EmbeddingBackward(cudaStream_t, float*, float*, const BFloat16*,
                                       const int32_t*, SequenceShape, int64_t, const DropoutMask&,
                                       void*);

}  // namespace zerobox::cuda
