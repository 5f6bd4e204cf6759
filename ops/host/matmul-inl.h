// SPDX-License-Identifier: Apache-2.0
//
// The parts of a matrix product in vector code: operands packed into panels, and the tile of a
// product that lives in registers (K. Goto, R. van de Geijn: Anatomy of High-Performance Matrix
// Multiplication, ACM TOMS 34(3), 2008). Included once per target, inside foreach_target.
#if defined(ZEROBOX_OPS_HOST_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROBOX_OPS_HOST_MATMUL_INL_H_
#undef ZEROBOX_OPS_HOST_MATMUL_INL_H_
#else
#define ZEROBOX_OPS_HOST_MATMUL_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "ops/bfloat16.h"
#include "ops/host/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerobox::host {
namespace HWY_NAMESPACE {

using Lane = hn::ScalableTag<float>;

// A tile has up to kTileRows rows of two vectors: with 32 registers, 28 sums beside 2 vectors of B
// and 1 element of A; with 16 registers, 12.
constexpr size_t kTileRows = hn::MaxLanes(Lane()) >= 16 ? 14 : 6;
constexpr size_t kTileVectors = 2;
HWY_INLINE size_t TileColumns() { return kTileVectors * hn::Lanes(Lane()); }

// How many rows the panels of `rows` rows have: about equally many, so that the last is not a stub.
HWY_INLINE size_t PanelRows(size_t rows) {
  const size_t panels = (rows + kTileRows - 1) / kTileRows;
  return (rows + panels - 1) / panels;
}

HWY_INLINE size_t RoundUp(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Packed operands hold floats, one for each k; or pairs of bf16, one for each two. A pair is 32
// bits that are passed around as a float: the even k's element in the upper half, the odd one's (0
// behind the last) in the lower. x86's VDPBF16PS adds the product of the upper halves first, then
// that of the lower ones, and rounds after each, so pairs give the sums that floats give, but for
// numbers below 2^-126, which it takes for 0.
enum class Packed { kFloats, kPairs };

// Whether this target has instructions for pairs. (Whether the CPU has: CpuMultipliesPairs.)
constexpr bool kCanMultiplyPairs = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;  // or a better one

template <Packed kPacked>
constexpr size_t kElements = kPacked == Packed::kPairs ? 2 : 1;  // of a k

// An operand of a tile: what belongs to k begins at data + k step.
struct Strided {
  const float* data;
  size_t step;
};

// How many floats of what comes next a tile fetches with each k.
constexpr size_t kAheadStep = 4;

// out (rows, vectors) = [out +] the sum over k < depth of a(k) b(k), where a(k) are `rows` floats
// and b(k) `vectors` vectors. Each element is summed by itself, from 0, in the order of k, whatever
// the tile's size. Fetches kAheadStep depth floats from `ahead` on: the next operand may lie beyond
// the L2 cache, far enough to stall a tile.
using TileFunction = void (*)(size_t depth, Strided a, Strided b, const float* ahead, float* out,
                              size_t out_stride, bool add);

// The tile of 1 <= rows <= kTileRows and 1 <= vectors <= kTileVectors over floats. (In matmul.cpp.)
TileFunction TileOf(size_t rows, size_t vectors);

// Packing. A matrix (count, depth) becomes panels of `width` rows: element (i, k), or the pair of
// elements (i, 2 k) and (i, 2 k + 1), lies at panel + k width + i. Rows that fill up the last panel
// are 0. Writes up to kPackSlack floats more.
constexpr size_t kPackSlack = std::max<size_t>(4, hn::MaxLanes(Lane()));

// A matrix in memory as the packing sees it: element (i, k) at data + i stride + k, or at
// data + k stride + i.
template <typename T>
struct Unpacked {
  const T* data;
  size_t stride;
  bool contiguous_over_k;
};

// From memory that is contiguous over i.
template <Packed kPacked, typename T>
void PackByCopy(float* to, const Unpacked<T>& from, size_t count, size_t depth, size_t width) {
  const Lane d;
  const hn::RebindToUnsigned<Lane> bits;
  for (size_t begin = 0; begin < count; begin += width) {
    const size_t rows = std::min(width, count - begin);
    const T* row = from.data + begin;
    for (size_t k = 0; k < depth; k += kElements<kPacked>, to += width) {
      const bool second = kPacked == Packed::kPairs && k + 1 < depth;
      ForLanes(d, rows, [&](size_t i, auto memory) HWY_ATTR {
        auto unit = memory.Load(d, row + i);
        if (second) {
          const auto next = hn::BitCast(bits, memory.Load(d, row + from.stride + i));
          unit = hn::Or(unit, hn::BitCast(d, hn::ShiftRight<16>(next)));
        }
        hn::StoreU(unit, d, to + i);  // a whole vector: what is behind comes next
      });
      for (size_t i = rows; i < width; ++i) to[i] = 0;
      row += kElements<kPacked> * from.stride;
    }
  }
}

// A k of a row that is contiguous over k, of whose elements `left` are left.
template <Packed kPacked>
HWY_INLINE float PackedUnit(const float* p, size_t) {
  return *p;
}
template <Packed kPacked>
HWY_INLINE float PackedUnit(const BFloat16* p, size_t left) {
  const float first = ToFloat(p[0]);
  if (kPacked == Packed::kFloats || left < 2) return first;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(first) | p[1].bits);
}

#if HWY_TARGET != HWY_SCALAR
// Stores the blocks of 4 floats in v at to, to + step, ...
template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, float* to, size_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), to, step);
    StoreBlocks(half, hn::UpperHalf(half, v), to + hn::MaxLanes(half) / 4 * step, step);
  }
}

// A vector of k of such a row.
template <Packed kPacked, class D, typename T>
HWY_INLINE hn::Vec<D> LoadUnits(D d, const T* p) {
  if constexpr (kPacked == Packed::kPairs) {
    const hn::RebindToUnsigned<D> pairs;
    const auto elements = hn::LoadU(hn::Repartition<uint16_t, D>(), Bits(p));
    return hn::BitCast(d, hn::RotateRight<16>(hn::BitCast(pairs, elements)));
  } else {
    return Whole().Load(d, p);
  }
}

// `rows` (up to 4) rows at `from`, a vector of k each, to 4 elements of each k at to + k width.
template <Packed kPacked, class D, typename T>
HWY_INLINE void TransposeRows(D d, float* to, const T* from, size_t stride, size_t rows,
                              size_t width) {
  const hn::Repartition<double, D> pairs;
  auto row0 = hn::Zero(d), row1 = row0, row2 = row0, row3 = row0;
  if (rows > 0) row0 = LoadUnits<kPacked>(d, from);
  if (rows > 1) row1 = LoadUnits<kPacked>(d, from + stride);
  if (rows > 2) row2 = LoadUnits<kPacked>(d, from + 2 * stride);
  if (rows > 3) row3 = LoadUnits<kPacked>(d, from + 3 * stride);
  // Within each block of 4 lanes; block b of the j-th result is of k = 4 b + j.
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
  const size_t step = 4 * width;
  StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), to, step);
  StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), to + width, step);
  StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), to + 2 * width, step);
  StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), to + 3 * width, step);
}

// From k on, as many whole vectors of k as there are; returns the first k that is left. In a panel
// whose width is no multiple of 4, the stores of the last rows reach into the next k, which is why
// rows are taken from the last to the first.
template <Packed kPacked, class D, typename T>
HWY_INLINE size_t TransposePanel(D d, float* to, const T* from, size_t stride, size_t rows,
                                 size_t k, size_t depth, size_t width) {
  for (; k + hn::Lanes(d) <= depth; k += hn::Lanes(d)) {
    for (size_t i = RoundUp(width, 4); i != 0;) {
      i -= 4;
      const size_t valid = i < rows ? std::min<size_t>(4, rows - i) : 0;
      TransposeRows<kPacked>(d, to + k * width + i, from + i * stride + k * kElements<kPacked>,
                             stride, valid, width);
    }
  }
  return k;
}
#endif

// From memory that is contiguous over k.
template <Packed kPacked, typename T>
void PackByTransposition(float* to, const Unpacked<T>& from, size_t count, size_t depth,
                         size_t width) {
  constexpr size_t kStep = kElements<kPacked>;
  const size_t units = (depth + kStep - 1) / kStep;
  for (size_t begin = 0; begin < count; begin += width, to += width * units) {
    const size_t rows = std::min(width, count - begin);
    const T* const data = from.data + begin * from.stride;
    size_t k = 0;
#if HWY_TARGET != HWY_SCALAR
    const size_t whole = depth / kStep;
    // In a panel of fewer than 4 rows the stores must go on in the order of k.
    if (width >= 4) {
      k = TransposePanel<kPacked>(Lane(), to, data, from.stride, rows, k, whole, width);
    }
    k = TransposePanel<kPacked>(hn::FixedTag<float, 4>(), to, data, from.stride, rows, k, whole,
                                width);
#endif
    for (; k < units; ++k) {
      for (size_t i = 0; i < width; ++i) {
        const size_t at = k * kStep;
        to[k * width + i] =
            i < rows ? PackedUnit<kPacked>(data + i * from.stride + at, depth - at) : 0;
      }
    }
  }
}

template <typename T, Packed kPacked = Packed::kFloats>
HWY_INLINE void Pack(float* to, const Unpacked<T>& from, size_t count, size_t depth, size_t width) {
  if (from.contiguous_over_k) {
    PackByTransposition<kPacked>(to, from, count, depth, width);
  } else {
    PackByCopy<kPacked>(to, from, count, depth, width);
  }
}

// x *= factor.
HWY_INLINE void Scale(float* x, size_t n, float factor) {
  const Lane d;
  const auto f = hn::Set(d, factor);
  ForLanes(d, n, [&](size_t i, auto memory) HWY_ATTR {
    memory.Store(d, hn::Mul(memory.Load(d, x + i), f), x + i);
  });
}

// to (rows, columns) = tile [+ factor * from], where the tile has rows of TileColumns().
template <typename From, typename To>
void StoreTile(const float* tile, size_t rows, size_t columns, const From* from, size_t from_stride,
               float factor, To* to, size_t to_stride) {
  const Lane d;
  const auto f = hn::Set(d, factor);
  for (size_t i = 0; i < rows; ++i, tile += TileColumns(), to += to_stride) {
    ForLanes(d, columns, [&](size_t j, auto memory) HWY_ATTR {
      auto sum = hn::LoadU(d, tile + j);
      if (from != nullptr) sum = hn::MulAdd(f, memory.Load(d, from + i * from_stride + j), sum);
      memory.Store(d, sum, to + j);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerobox::host
HWY_AFTER_NAMESPACE();

#endif  // ZEROBOX_OPS_HOST_MATMUL_INL_H_
