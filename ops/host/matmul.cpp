// SPDX-License-Identifier: Apache-2.0
//
// The blocks of a product, after Goto and van de Geijn. C goes by blocks of columns, k by steps of
// up to kDepth: B's part of such a step is packed, converted to fp32. Then kRowsInCache rows of A
// at a time are packed (for the L2 cache) and meet one panel of B after the other (in L1).
//
// Every element is ((s0 + s1) + s2) + ..., where s0 is the sum over the first step of k, in order,
// plus beta C or the bias, and the others those over the next ones. Partial sums stay in C where it
// is fp32, else in a block of fp32 beside it. Where A and B are bf16 and the CPU has instructions
// for it, they are packed and multiplied as they are, in pairs: the same sums in half the
// instructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/host/matmul.cpp"
#include "ops/host/matmul.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/host/matmul-inl.h"
#include "ops/host/scratch.h"

#ifndef ZEROBOX_OPS_HOST_MATMUL_ONCE
#define ZEROBOX_OPS_HOST_MATMUL_ONCE
namespace zerobox::host {

inline float* MatmulScratch(size_t n) {
  static thread_local Scratch scratch;
  return scratch.Floats(n);
}

inline bool CpuMultipliesPairs() {
#if HWY_ARCH_X86
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace zerobox::host
#endif

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

// sum + a b, or for pairs (sum + a's first b's first) + a's second b's second.
template <Packed kPacked, class V>
HWY_INLINE V MultiplyAdd(V a, V b, V sum) {
#if HWY_ARCH_X86
  if constexpr (kPacked == Packed::kPairs) {
    // In assembler, as this Highway has no target with the instruction.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
#endif
  return hn::MulAdd(a, b, sum);
}

// A tile, whose sums stay in registers: the loops over it are unrolled.
template <Packed kPacked, size_t kRows, size_t kVectors>
void MultiplyTile(size_t depth, Strided a, Strided b, const float* ahead, float* HWY_RESTRICT out,
                  size_t out_stride, bool add) {
  const Lane d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < kRows; ++i) {
    hwy::Prefetch(out + i * out_stride);
    hwy::Prefetch(out + i * out_stride + (kVectors - 1) * lanes);
  }
  hn::Vec<Lane> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (size_t j = 0; j < kVectors; ++j) sum[i][j] = hn::Zero(d);
  }
  for (; depth != 0; --depth, a.data += a.step, b.data += b.step, ahead += kAheadStep) {
    hwy::Prefetch(ahead);
    hn::Vec<Lane> row[kVectors];
#pragma GCC unroll 2
    for (size_t j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b.data + j * lanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const auto element = hn::Set(d, a.data[i]);
#pragma GCC unroll 2
      for (size_t j = 0; j < kVectors; ++j) {
        sum[i][j] = MultiplyAdd<kPacked>(element, row[j], sum[i][j]);
      }
    }
  }
  if (add) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (size_t j = 0; j < kVectors; ++j) {
        sum[i][j] = hn::Add(hn::LoadU(d, out + i * out_stride + j * lanes), sum[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i, out += out_stride) {
#pragma GCC unroll 2
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, out + j * lanes);
  }
}

template <Packed kPacked, size_t... kIndex>
constexpr std::array<TileFunction, sizeof...(kIndex)> MakeTileFunctions(
    std::index_sequence<kIndex...>) {
  return {&MultiplyTile<kPacked, kIndex / kTileVectors + 1, kIndex % kTileVectors + 1>...};
}

template <Packed kPacked>
TileFunction TileOver(size_t rows, size_t vectors) {
  static constexpr auto kFunctions =
      MakeTileFunctions<kPacked>(std::make_index_sequence<kTileRows * kTileVectors>());
  return kFunctions[(rows - 1) * kTileVectors + vectors - 1];
}

TileFunction TileOf(size_t rows, size_t vectors) {
  return TileOver<Packed::kFloats>(rows, vectors);
}

constexpr size_t kDepth = 384;
constexpr size_t kRowsInCache = 168;
constexpr size_t kBlockColumns = 4096;
// Of a block with partial sums beside it.
constexpr size_t kPartialRows = 1024, kPartialColumns = 1024;

// The length of equal blocks of at most `most` that n falls into, as a multiple of `multiple`.
HWY_INLINE size_t EqualBlocks(size_t n, size_t most, size_t multiple) {
  const size_t blocks = std::max<size_t>(1, (n + most - 1) / most);
  return std::max<size_t>(1, RoundUp((n + blocks - 1) / blocks, multiple));
}

// Packs op(M)'s rows [row, row + rows) over [k, k + depth), where M is A, or B with its columns as
// rows.
template <typename T, Packed kPacked>
HWY_INLINE void PackPart(float* to, const MatmulCall::Matrix& matrix, bool contiguous_over_k,
                         size_t row, size_t rows, size_t k, size_t depth, size_t width) {
  const size_t stride = static_cast<size_t>(matrix.stride);
  const size_t offset = contiguous_over_k ? row * stride + k : k * stride + row;
  Pack<T, kPacked>(to, {static_cast<const T*>(matrix.data) + offset, stride, contiguous_over_k},
                   rows, depth, width);
}

template <Packed kPacked>
HWY_INLINE void PackMatrix(float* to, const MatmulCall::Matrix& matrix, bool contiguous_over_k,
                           size_t row, size_t rows, size_t k, size_t depth, size_t width) {
  if (matrix.is_bfloat16) {
    PackPart<BFloat16, kPacked>(to, matrix, contiguous_over_k, row, rows, k, depth, width);
  } else if constexpr (kPacked == Packed::kFloats) {
    PackPart<float, kPacked>(to, matrix, contiguous_over_k, row, rows, k, depth, width);
  }
}

// A step over k of a block of C.
template <Packed kPacked, typename C>
struct Step {
  size_t rows, columns;
  size_t depth;  // in floats or pairs
  size_t panel_rows;
  const float* b;    // packed
  bool first, last;  // of k
  C* c;              // of the block; so are bias and partial
  size_t ldc;
  float beta;
  const C* bias;
  float* partial;  // sums so far (rows, partial_stride), where C is bf16 and k takes several steps
  size_t partial_stride;
};

// The tile at (row, column), of which `rows` and `columns` are in C; packed_a is its panel of A.
template <Packed kPacked, typename C>
HWY_INLINE void ComputeTile(const Step<kPacked, C>& step, const float* packed_a, size_t row,
                            size_t column, size_t rows, size_t columns, const float* ahead) {
  constexpr bool kIsFloat = std::is_same_v<C, float>;
  const size_t lanes = hn::Lanes(Lane());
  const size_t vectors = (columns + lanes - 1) / lanes;
  const TileFunction multiply = TileOver<kPacked>(rows, vectors);
  const Strided a{packed_a, step.panel_rows};
  const Strided b{step.b + column * step.depth, TileColumns()};
  C* const c = step.c + row * step.ldc + column;
  // What the first step adds to.
  const C* const from = !step.first            ? nullptr
                        : step.bias != nullptr ? step.bias + column
                        : step.beta != 0       ? c
                                               : nullptr;
  const size_t from_stride = from == c ? step.ldc : 0;
  const float factor = from == c ? step.beta : 1;
  // Where sums wait for the next step, in rows of whole vectors or not.
  float* sums = nullptr;
  if constexpr (kIsFloat) {
    sums = c;
  } else if (step.partial != nullptr) {
    sums = step.partial + row * step.partial_stride + column;
  }
  const size_t sums_stride = kIsFloat ? step.ldc : step.partial_stride;
  const bool whole = !kIsFloat || vectors * lanes == columns;
  const bool adds_sums = !step.first || (kIsFloat && from == c && factor == 1);
  if ((kIsFloat || !step.last) && whole && (from == nullptr || adds_sums)) {
    return multiply(step.depth, a, b, ahead, sums, sums_stride, adds_sums);
  }
  HWY_ALIGN float tile[kTileRows * kTileVectors * hn::MaxLanes(Lane())];
  multiply(step.depth, a, b, ahead, tile, TileColumns(), false);
  const auto store = [&](auto* to, size_t to_stride) HWY_ATTR {
    if (step.first) {
      StoreTile(tile, rows, columns, from, from_stride, factor, to, to_stride);
    } else {
      StoreTile(tile, rows, columns, sums, sums_stride, 1.0f, to, to_stride);
    }
  };
  if (kIsFloat || step.last) {
    store(c, step.ldc);
  } else {
    store(sums, sums_stride);
  }
}

// The packed rows [begin, end) of A against all of the packed B.
template <Packed kPacked, typename C>
HWY_INLINE void ComputeRows(const Step<kPacked, C>& step, const float* a, size_t begin,
                            size_t end) {
  for (size_t column = 0; column < step.columns; column += TileColumns()) {
    const size_t columns = std::min(TileColumns(), step.columns - column);
    const float* ahead = step.b + (column + TileColumns()) * step.depth;
    for (size_t row = begin; row < end; row += step.panel_rows) {
      ComputeTile(step, a + (row - begin) * step.depth, row, column,
                  std::min(step.panel_rows, end - row), columns, ahead);
      ahead += kAheadStep * step.depth;
    }
  }
}

template <Packed kPacked, typename C>
HWY_INLINE void Multiply(const MatmulCall& call) {
  const size_t m = static_cast<size_t>(call.m), n = static_cast<size_t>(call.n);
  const size_t k = static_cast<size_t>(call.k), ldc = static_cast<size_t>(call.ldc);
  const size_t depth =
      EqualBlocks(k, kDepth, 1);  // the same for every packing: it decides the bits
  const auto packed = [](size_t elements) {
    return (elements + kElements<kPacked> - 1) / kElements<kPacked>;
  };
  const bool keeps_partial = k > depth && !std::is_same_v<C, float>;
  const size_t block_rows = keeps_partial ? EqualBlocks(m, kPartialRows, 1) : m;
  const size_t block_columns =
      EqualBlocks(n, keeps_partial ? kPartialColumns : kBlockColumns, TileColumns());
  const size_t panel_rows = PanelRows(block_rows);
  const size_t rows_in_cache = EqualBlocks(block_rows, kRowsInCache, panel_rows);
  const size_t a_floats = RoundUp(rows_in_cache * packed(depth) + kPackSlack, 64);
  const size_t b_floats = RoundUp(block_columns * packed(depth) + kPackSlack, 64);
  float* const a = MatmulScratch(a_floats + b_floats + keeps_partial * block_rows * block_columns);
  float* const b = a + a_floats;
  for (size_t column = 0; column < n; column += block_columns) {
    for (size_t row = 0; row < m; row += block_rows) {
      Step<kPacked, C> step{.rows = std::min(block_rows, m - row),
                            .columns = std::min(block_columns, n - column),
                            .panel_rows = panel_rows,
                            .b = b,
                            .c = static_cast<C*>(call.c) + row * ldc + column,
                            .ldc = ldc,
                            .beta = call.beta,
                            .partial = keeps_partial ? b + b_floats : nullptr,
                            .partial_stride = block_columns};
      if (call.bias != nullptr) step.bias = static_cast<const C*>(call.bias) + column;
      size_t at = 0;
      do {  // once, even where k is 0
        const size_t elements = std::min(depth, k - at);
        step.depth = packed(elements);
        step.first = at == 0;
        step.last = at + elements == k;
        PackMatrix<kPacked>(b, call.b, call.b.transpose, column, step.columns, at, elements,
                            TileColumns());
        for (size_t begin = 0; begin < step.rows; begin += rows_in_cache) {
          const size_t end = std::min(step.rows, begin + rows_in_cache);
          PackMatrix<kPacked>(a, call.a, !call.a.transpose, row + begin, end - begin, at, elements,
                              panel_rows);
          if (call.alpha != 1) {
            Scale(a, RoundUp(end - begin, panel_rows) * step.depth, call.alpha);
          }
          ComputeRows(step, a, begin, end);
        }
        at += elements;
      } while (at < k);
    }
  }
}

template <typename C>
HWY_INLINE void MultiplyPacked(const MatmulCall& call) {
  if constexpr (kCanMultiplyPairs) {
    if (CpuMultipliesPairs() && call.a.is_bfloat16 && call.b.is_bfloat16 && call.alpha == 1) {
      return Multiply<Packed::kPairs, C>(call);
    }
  }
  Multiply<Packed::kFloats, C>(call);
}

bool MultipliesPairsForTarget() { return kCanMultiplyPairs && CpuMultipliesPairs(); }

void RunForTarget(const MatmulCall& call) {
  if (call.c_is_bfloat16) {
    MultiplyPacked<BFloat16>(call);
  } else {
    MultiplyPacked<float>(call);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerobox::host {

HWY_EXPORT(RunForTarget);
HWY_EXPORT(MultipliesPairsForTarget);

void Run(const MatmulCall& call) {
  assert(call.m >= 0 && call.n >= 0 && call.k >= 0);
  if (call.m > 0 && call.n > 0) HWY_DYNAMIC_DISPATCH(RunForTarget)(call);
}

bool MultipliesBFloat16InPairs() { return HWY_DYNAMIC_DISPATCH(MultipliesPairsForTarget)(); }

}  // namespace zerobox::host
#endif  // HWY_ONCE
