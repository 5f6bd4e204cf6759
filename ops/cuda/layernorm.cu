// SPDX-License-Identifier: Apache-2.0
//
// Layer normalization (arXiv:1607.06450, section 3), over the C channels of a row:
//   n = (x - mean) rstd,  rstd = 1 / sqrt(variance + eps),  y = n weight + bias.
// Backward, with dn = weight dy and means over the channels:
//   dx      += rstd (dn - mean(dn) - n mean(dn n))
//   dweight += sum over rows of dy n,  dbias += sum over rows of dy.
//
// What bounds it: memory. Forward reads x and writes y, 4 bytes an element in bf16; backward reads
// dy, x and dx and writes dx, 8 bytes. weight, bias and the statistics are small beside them and
// stay in the caches. To expect: 90% of a copy's bandwidth forward and 80% backward. Both reach for
// it in the same way:
//   - A warp takes a row, so that sums over channels are five shuffles and no barrier holds back a
//     warp whose data is there. Lanes hold 8 neighbouring channels at a time (layernorm.cuh).
//   - The whole row is in registers, so each element is loaded once, and all of its loads are on
//     their way before the first is needed. Hence an instance for each number of packs, up to
//     kMostPacks: 1792 channels, GPT-2 XL's 1600 among them.
// Rows that are longer, or not aligned to 16 bytes, take plain kernels, which read elements one by
// one, and again from the caches what they need again.
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/layernorm.cuh"

namespace zerobox::cuda {
namespace {

using namespace layernorm;  // NOLINT(google-build-using-namespace): of our own header

//---- Forward ------------------------------------------------------------------------------------

template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads, 2)
    ForwardKernel(T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                  const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                  int64_t rows, int channels) {
  const int64_t row = RowOfWarp();
  if (row >= rows) return;  // the whole warp, and nothing below waits for other warps
  float values[kPacks][kPack];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ChannelOf(p) >= channels) continue;
    gpu::LoadFloats(values[p], x + row * channels + ChannelOf(p));
  }
  Normalize(out + row * channels, mean + row, rstd + row, values, weight, bias, channels);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainForwardKernel(T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                       const T* __restrict__ x, const T* __restrict__ weight,
                       const T* __restrict__ bias, int64_t rows, int channels) {
  const int64_t row = RowOfWarp();
  if (row >= rows) return;
  NormalizePlainly(out + row * channels, mean + row, rstd + row, x + row * channels, weight, bias,
                   channels);
}

//---- Backward -----------------------------------------------------------------------------------

// The sums over rows are taken in two stages, both in a fixed order. Here a warp walks over every
// (blocks * kWarps)-th row and keeps the sums of its lanes' channels in registers; in the end the
// block adds those of its warps, in order, to partial_sums[block], (2, channels): of dweight, of
// dbias. FinishKernel adds the blocks'. The grid is as large as the GPU holds at once, so that
// there are as few partial sums as may be: 2 * multiprocessors of 8 bytes a channel, beside the 8
// bytes of every element.
//
// A row's dy and x are needed twice, before and behind the sums over channels. Kept as they lie in
// memory, in bf16 they take half the registers that floats would, and everything fits without
// spilling. In fp32 longer rows would not, and are read again, from the caches.
template <typename T, int kPacks>
constexpr bool kKeepRow = kPacks * sizeof(T) <= 14;
// One block of long rows fills the registers of a multiprocessor.
constexpr int BlocksPerMultiprocessor(int packs) { return packs <= 4 ? 2 : 1; }

template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads, BlocksPerMultiprocessor(kPacks))
    BackwardKernel(T* __restrict__ dx, float* __restrict__ partial_sums, const T* __restrict__ dout,
                   const T* __restrict__ x, const float* __restrict__ mean,
                   const float* __restrict__ rstd, const T* __restrict__ weight, int64_t rows,
                   int channels) {
  float dweight[kPacks][kPack] = {}, dbias[kPacks][kPack] = {};
  for (int64_t row = RowOfWarp(); row < rows; row += int64_t{gridDim.x} * kWarps) {
    const T* dout_row = dout + row * channels;
    const T* x_row = x + row * channels;
    const float m = mean[row], r = rstd[row];
    gpu::Pack<T, kPack> dout_packs[kPacks], x_packs[kPacks];
    const auto load = [&](int p, int channel) {
      dout_packs[p] = gpu::Load<kPack>(dout_row + channel);
      x_packs[p] = gpu::Load<kPack>(x_row + channel);
    };
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int channel = ChannelOf(p);
      if (kKeepRow<T, kPacks> && channel < channels) load(p, channel);
    }
    float sum_dn = 0, sum_dn_n = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int channel = ChannelOf(p);
      if (channel >= channels) continue;
      if (!kKeepRow<T, kPacks>) load(p, channel);
      float dy[kPack], n[kPack], w[kPack];
      gpu::Unpack(dy, dout_packs[p]);
      gpu::Unpack(n, x_packs[p]);
      gpu::LoadFloats(w, weight + channel);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        n[i] = (n[i] - m) * r;
        dweight[p][i] = fmaf(dy[i], n[i], dweight[p][i]);
        dbias[p][i] += dy[i];
        sum_dn = fmaf(w[i], dy[i], sum_dn);
        sum_dn_n = fmaf(w[i] * dy[i], n[i], sum_dn_n);
      }
    }
    const float mean_dn = gpu::WarpReduce(sum_dn, gpu::Sum()) / static_cast<float>(channels);
    const float mean_dn_n = gpu::WarpReduce(sum_dn_n, gpu::Sum()) / static_cast<float>(channels);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int channel = ChannelOf(p);
      if (channel >= channels) continue;
      if (!kKeepRow<T, kPacks>) load(p, channel);
      float dy[kPack], n[kPack], w[kPack], sum[kPack];
      gpu::Unpack(dy, dout_packs[p]);
      gpu::Unpack(n, x_packs[p]);
      gpu::LoadFloats(w, weight + channel);
      gpu::LoadFloats(sum, dx + row * channels + channel);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        n[i] = (n[i] - m) * r;
        sum[i] = fmaf(r, w[i] * dy[i] - mean_dn - n[i] * mean_dn_n, sum[i]);
      }
      gpu::StoreFloats(dx + row * channels + channel, sum);
    }
  }

  // A slot of 9 for 8 channels: with 8, a store of the warp would meet four banks alone.
  SHARED_ARRAY(float, sums, [kWarps][gpu::kLanes][kPack + 1]);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      __syncthreads();  // everyone has read what was there
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        sums[gpu::WarpInBlock()][gpu::Lane()][i] = which == 0 ? dweight[p][i] : dbias[p][i];
      }
      __syncthreads();
      // kThreads is also the number of channels of a pack.
      const int slot = static_cast<int>(threadIdx.x);
      const int channel = p * kPackedRow + slot;
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][slot / kPack][slot % kPack];
      if (channel < channels) {
        partial_sums[(int64_t{blockIdx.x} * 2 + which) * channels + channel] = sum;
      }
    }
  }
}
static_assert(kThreads == kPackedRow);

// Stage two, and the end of stage one in the plain kernels. A block takes 32 channels (a warp reads
// 128 neighbouring bytes) of dweight (blockIdx.y 0) or dbias (1); its warp w adds partial sums w,
// w + 8, ..., and then the first warp the warps'.
template <typename G>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(G* __restrict__ dweight, G* __restrict__ dbias,
                 const float* __restrict__ partial_sums, int count, int channels) {
  SHARED_ARRAY(float, sums, [kWarps][gpu::kLanes]);
  const int warp = gpu::WarpInBlock(), lane = gpu::Lane();
  const int channel = static_cast<int>(blockIdx.x) * gpu::kLanes + lane;
  float sum = 0;
  if (channel < channels) {
    for (int i = warp; i < count; i += kWarps) {
      sum += partial_sums[(int64_t{i} * 2 + blockIdx.y) * channels + channel];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= channels) return;
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  G* gradient = (blockIdx.y == 0 ? dweight : dbias) + channel;
  *gradient = gpu::FromFloat<G>(gpu::ToFloat(*gradient) + sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainBackwardKernel(T* __restrict__ dx, const T* __restrict__ dout, const T* __restrict__ x,
                        const float* __restrict__ mean, const float* __restrict__ rstd,
                        const T* __restrict__ weight, int64_t rows, int channels) {
  const int64_t row = RowOfWarp();
  if (row >= rows) return;
  dx += row * channels;
  dout += row * channels;
  x += row * channels;
  const float m = mean[row], r = rstd[row];
  float sum_dn = 0, sum_dn_n = 0;
  for (int c = gpu::Lane(); c < channels; c += gpu::kLanes) {
    const float dn = gpu::ToFloat(weight[c]) * gpu::ToFloat(dout[c]);
    sum_dn += dn;
    sum_dn_n = fmaf(dn, (gpu::ToFloat(x[c]) - m) * r, sum_dn_n);
  }
  const float mean_dn = gpu::WarpReduce(sum_dn, gpu::Sum()) / static_cast<float>(channels);
  const float mean_dn_n = gpu::WarpReduce(sum_dn_n, gpu::Sum()) / static_cast<float>(channels);
  for (int c = gpu::Lane(); c < channels; c += gpu::kLanes) {
    const float dn = gpu::ToFloat(weight[c]) * gpu::ToFloat(dout[c]);
    const float n = (gpu::ToFloat(x[c]) - m) * r;
    dx[c] = gpu::FromFloat<T>(fmaf(r, dn - mean_dn - n * mean_dn_n, gpu::ToFloat(dx[c])));
  }
}

// Stage one of the sums over rows, in the layout of BackwardKernel's. A block takes 32 channels and
// every (gridDim.y * kWarps)-th row for each of its warps.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainSumsKernel(float* __restrict__ partial_sums, const T* __restrict__ dout,
                    const T* __restrict__ x, const float* __restrict__ mean,
                    const float* __restrict__ rstd, int64_t rows, int channels) {
  SHARED_ARRAY(float, sums, [2][kWarps][gpu::kLanes]);
  const int warp = gpu::WarpInBlock(), lane = gpu::Lane();
  const int channel = static_cast<int>(blockIdx.x) * gpu::kLanes + lane;
  float dweight = 0, dbias = 0;
  if (channel < channels) {
    for (int64_t row = int64_t{blockIdx.y} * kWarps + warp; row < rows;
         row += int64_t{gridDim.y} * kWarps) {
      const float dy = gpu::ToFloat(dout[row * channels + channel]);
      const float n = (gpu::ToFloat(x[row * channels + channel]) - mean[row]) * rstd[row];
      dweight = fmaf(dy, n, dweight);
      dbias += dy;
    }
  }
  sums[0][warp][lane] = dweight;
  sums[1][warp][lane] = dbias;
  __syncthreads();
  if (warp > 1 || channel >= channels) return;
  float sum = 0;  // warp 0 of dweight, warp 1 of dbias
  for (int i = 0; i < kWarps; ++i) sum += sums[warp][i][lane];
  partial_sums[(int64_t{blockIdx.y} * 2 + warp) * channels + channel] = sum;
}

//---- Launches -----------------------------------------------------------------------------------

// Of the first stage of backward's sums: the same for both kinds of kernels.
int64_t BackwardBlocks(int64_t rows, int64_t channels, int multiprocessors) {
  const int64_t most = int64_t{BlocksPerMultiprocessor(PacksFor(channels))} * multiprocessors;
  const int64_t needed = gpu::CeilDiv(rows, kWarps);
  return needed < most ? needed : most;
}

}  // namespace

template <typename T>
cudaError_t LayerNormForward(cudaStream_t stream, T* out, float* mean, float* rstd, const T* x,
                             const T* weight, const T* bias, int64_t rows, int64_t channels) {
  if (rows == 0 || channels == 0) return cudaSuccess;
  const int packs = PacksFor(channels);
  const auto launch = [&](auto kernel) {
    return gpu::Launch(stream, GridOfRows(rows), dim3(kThreads), 0, kernel, out, mean, rstd, x,
                       weight, bias, rows, static_cast<int>(channels));
  };
  if (packs == 0 || !gpu::AreAligned(out, x, weight, bias)) return launch(PlainForwardKernel<T>);
  return WithPacks(packs, [&](auto instance) { return launch(ForwardKernel<T, instance()>); });
}

int64_t LayerNormBackwardWorkspace(int64_t rows, int64_t channels, int multiprocessors) {
  return BackwardBlocks(rows, channels, multiprocessors) * 2 * channels;
}

template <typename T, typename G>
cudaError_t LayerNormBackward(cudaStream_t stream, T* dx, G* dweight, G* dbias, const T* dout,
                              const T* x, const float* mean, const float* rstd, const T* weight,
                              int64_t rows, int64_t channels, float* workspace,
                              int multiprocessors) {
  if (rows == 0 || channels == 0) return cudaSuccess;
  const int packs = PacksFor(channels);
  const int count = static_cast<int>(channels);
  const auto blocks = static_cast<unsigned>(BackwardBlocks(rows, channels, multiprocessors));
  const auto columns = static_cast<unsigned>(gpu::CeilDiv(channels, gpu::kLanes));
  cudaError_t error = cudaSuccess;
  if (packs == 0 || !gpu::AreAligned(dx, dout, x, weight)) {
    error = gpu::Launch(stream, GridOfRows(rows), dim3(kThreads), 0, PlainBackwardKernel<T>, dx,
                        dout, x, mean, rstd, weight, rows, count);
    if (error != cudaSuccess) return error;
    error = gpu::Launch(stream, dim3(columns, blocks), dim3(kThreads), 0, PlainSumsKernel<T>,
                        workspace, dout, x, mean, rstd, rows, count);
  } else {
    error = WithPacks(packs, [&](auto instance) {
      return gpu::Launch(stream, dim3(blocks), dim3(kThreads), 0, BackwardKernel<T, instance()>, dx,
                         workspace, dout, x, mean, rstd, weight, rows, count);
    });
  }
  if (error != cudaSuccess) return error;
  return gpu::Launch(stream, dim3(columns, 2), dim3(kThreads), 0, FinishKernel<G>, dweight, dbias,
                     workspace, static_cast<int>(blocks), count);
}

template cudaError_t LayerNormForward(cudaStream_t, float*, float*, float*, const float*,
                                      const float*, const float*, int64_t, int64_t);
template cudaError_t LayerNormForward(cudaStream_t, BFloat16*, float*, float*, const BFloat16*,
                                      const BFloat16*, const BFloat16*, int64_t, int64_t);
template cudaError_t LayerNormBackward(cudaStream_t, float*, float*, float*, const float*,
                                       const float*, const float*, const float*, const float*,
                                       int64_t, int64_t, float*, int);
template cudaError_t LayerNormBackward(cudaStream_t, BFloat16*, BFloat16*, BFloat16*,
                                       const BFloat16*, const BFloat16*, const float*, const float*,
                                       const BFloat16*, int64_t, int64_t, float*, int);
template cudaError_t LayerNormBackward(cudaStream_t, BFloat16*, float*, float*, const BFloat16*,
                                       const BFloat16*, const float*, const float*, const BFloat16*,
                                       int64_t, int64_t, float*, int);

}  // namespace zerobox::cuda
