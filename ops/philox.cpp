// SPDX-License-Identifier: Apache-2.0
#include "ops/philox.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace zerobox {

std::array<double, 2> NormalPairAt(uint64_t seed, uint64_t stream, uint64_t pair) {
  const PhiloxBlock words = Philox(RandomCounter(RandomUse::kNormal, stream, pair), seed);
  const double radius = std::sqrt(-2 * std::log(ToUniformAboveZero(words[0], words[1])));
  const double angle = 2 * std::numbers::pi * ToUniform(words[2], words[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double NormalAt(uint64_t seed, uint64_t stream, uint64_t index) {
  return NormalPairAt(seed, stream, index / 2)[index % 2];
}

}  // namespace zerobox
