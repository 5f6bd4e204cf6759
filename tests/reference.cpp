// SPDX-License-Identifier: Apache-2.0
#include "tests/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "ops/philox.h"

namespace zerobox::reference {
namespace {

int64_t Size(const Array& x) { return static_cast<int64_t>(x.size()); }

constexpr double kCubic = 0.044715;

}  // namespace

Array DropoutFactors(float p, uint64_t seed, std::span<const int64_t> samples, int layer,
                     DropoutSite site, int64_t sample_size) {
  Array factors;
  for (const int64_t sample : samples) {
    for (int64_t i = 0; i < sample_size; ++i) {
      // The counter, field by field, as ops/philox.h documents it.
      const uint64_t block = static_cast<uint64_t>(i) / 4;
      const PhiloxBlock counter = {
          static_cast<uint32_t>(block),
          static_cast<uint32_t>(block >> 32) | static_cast<uint32_t>(site) << 12 |
              static_cast<uint32_t>(layer) << 16,
          static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32) | uint32_t{3} << 24};
      const double u = Philox(counter, seed)[static_cast<size_t>(i % 4)] * 0x1p-32;
      factors.push_back(p > 0 && u < p ? 0 : 1 / (1 - static_cast<double>(p)));
    }
  }
  return factors;
}

Array Gelu(const Array& x) {
  Array out;
  for (const double v : x) {
    const double u = std::sqrt(2 / std::numbers::pi) * (v + kCubic * v * v * v);
    out.push_back(0.5 * v * (1 + std::tanh(u)));
  }
  return out;
}

Array GeluGradient(const Array& x, const Array& dout) {
  Array dx;
  for (int64_t i = 0; i < Size(x); ++i) {
    const double v = x[i], root = std::sqrt(2 / std::numbers::pi);
    const double t = std::tanh(root * (v + kCubic * v * v * v));
    const double du = root * (1 + 3 * kCubic * v * v);
    dx.push_back(dout[i] * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * du));
  }
  return dx;
}

LayerNormOut LayerNorm(const Array& x, const Array& weight, const Array& bias, int64_t rows) {
  const int64_t C = Size(weight);
  LayerNormOut result{Array(x.size()), Array(rows), Array(rows)};
  for (int64_t row = 0; row < rows; ++row) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) mean += x[row * C + c] / C;
    for (int64_t c = 0; c < C; ++c) variance += std::pow(x[row * C + c] - mean, 2) / C;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (int64_t c = 0; c < C; ++c) {
      result.out[row * C + c] = (x[row * C + c] - mean) * rstd * weight[c] + bias[c];
    }
    result.mean[row] = mean;
    result.rstd[row] = rstd;
  }
  return result;
}

LayerNormGradients LayerNormGradient(const Array& dout, const Array& x, const Array& weight,
                                     int64_t rows) {
  const int64_t C = Size(weight);
  const LayerNormOut forward = LayerNorm(x, weight, Array(C), rows);
  LayerNormGradients result{Array(x.size()), Array(C), Array(C)};
  for (int64_t row = 0; row < rows; ++row) {
    const double mean = forward.mean[row], rstd = forward.rstd[row];
    double mean_dn = 0, mean_dn_n = 0;
    for (int64_t c = 0; c < C; ++c) {
      const double n = (x[row * C + c] - mean) * rstd;
      const double dn = dout[row * C + c] * weight[c];
      mean_dn += dn / C;
      mean_dn_n += dn * n / C;
      result.dweight[c] += dout[row * C + c] * n;
      result.dbias[c] += dout[row * C + c];
    }
    for (int64_t c = 0; c < C; ++c) {
      const double n = (x[row * C + c] - mean) * rstd;
      result.dx[row * C + c] = rstd * (dout[row * C + c] * weight[c] - mean_dn - n * mean_dn_n);
    }
  }
  return result;
}

Array Product(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
              int64_t n, int64_t k) {
  Array result(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        result[i * n + j] +=
            a[transpose_a ? l * m + i : i * k + l] * b[transpose_b ? j * k + l : l * n + j];
      }
    }
  }
  return result;
}

Array ColumnSums(const Array& x, int64_t rows) {
  const int64_t columns = Size(x) / rows;
  Array sums(columns);
  for (int64_t i = 0; i < Size(x); ++i) sums[i % columns] += x[i];
  return sums;
}

Array Linear(const Array& x, const Array& w, const Array& bias, int64_t rows) {
  const int64_t in = Size(x) / rows, out = Size(bias);
  Array y = Product(x, false, w, false, rows, out, in);
  for (int64_t i = 0; i < Size(y); ++i) y[i] += bias[i % out];
  return y;
}

namespace {

// Names the elements of one head of one sequence.
struct HeadView {
  SequenceShape shape;
  int64_t heads, b, h;
  int64_t d() const { return shape.channels / heads; }
  // which: 0 query, 1 key, 2 value.
  int64_t qkv(int which, int64_t t, int64_t i) const {
    return ((b * shape.positions + t) * 3 + which) * shape.channels + h * d() + i;
  }
  int64_t out(int64_t t, int64_t i) const {
    return (b * shape.positions + t) * shape.channels + h * d() + i;
  }
  int64_t row(int64_t t) const { return (b * heads + h) * shape.positions + t; }
  int64_t pair(int64_t query, int64_t key) const { return row(query) * shape.positions + key; }
};

template <typename Body>
void ForHeads(SequenceShape shape, int64_t heads, const Body& body) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) body(HeadView{shape, heads, b, h});
  }
}

// log sum e^scores, and the probabilities, of a query over keys [0, query].
double Probabilities(const Array& qkv, const HeadView& v, int64_t query, Array& p) {
  p.assign(query + 1, 0);
  double sum = 0;
  for (int64_t key = 0; key <= query; ++key) {
    double score = 0;
    for (int64_t i = 0; i < v.d(); ++i) score += qkv[v.qkv(0, query, i)] * qkv[v.qkv(1, key, i)];
    p[key] = std::exp(score / std::sqrt(static_cast<double>(v.d())));
    sum += p[key];
  }
  for (double& value : p) value /= sum;
  return std::log(sum);
}

}  // namespace

AttentionOut Attention(const Array& qkv, SequenceShape shape, int64_t heads, const Array& factors) {
  AttentionOut result{Array(shape.elements()), Array(shape.rows() * heads)};
  ForHeads(shape, heads, [&](const HeadView& v) {
    Array p;
    for (int64_t query = 0; query < shape.positions; ++query) {
      result.logsumexp[v.row(query)] = Probabilities(qkv, v, query, p);
      for (int64_t key = 0; key <= query; ++key) {
        const double weight = p[key] * factors[v.pair(query, key)];
        for (int64_t i = 0; i < v.d(); ++i) {
          result.out[v.out(query, i)] += weight * qkv[v.qkv(2, key, i)];
        }
      }
    }
  });
  return result;
}

Array AttentionGradient(const Array& dout, const Array& qkv, SequenceShape shape, int64_t heads,
                        const Array& factors) {
  Array dqkv(qkv.size());
  ForHeads(shape, heads, [&](const HeadView& v) {
    const double scale = 1 / std::sqrt(static_cast<double>(v.d()));
    Array p;
    for (int64_t query = 0; query < shape.positions; ++query) {
      Probabilities(qkv, v, query, p);
      Array dp(query + 1);
      double inner = 0;  // sum over the keys of p dp
      for (int64_t key = 0; key <= query; ++key) {
        const double factor = factors[v.pair(query, key)];
        for (int64_t i = 0; i < v.d(); ++i) {
          dp[key] += factor * dout[v.out(query, i)] * qkv[v.qkv(2, key, i)];
          dqkv[v.qkv(2, key, i)] += p[key] * factor * dout[v.out(query, i)];
        }
        inner += p[key] * dp[key];
      }
      for (int64_t key = 0; key <= query; ++key) {
        const double dscore = p[key] * (dp[key] - inner) * scale;
        for (int64_t i = 0; i < v.d(); ++i) {
          dqkv[v.qkv(0, query, i)] += dscore * qkv[v.qkv(1, key, i)];
          dqkv[v.qkv(1, key, i)] += dscore * qkv[v.qkv(0, query, i)];
        }
      }
    }
  });
  return dqkv;
}

namespace {

// softmax of a row, and log sum e^z.
double Softmax(const double* z, int64_t n, Array& p) {
  const double maximum = *std::max_element(z, z + n);
  double sum = 0;
  p.assign(n, 0);
  for (int64_t i = 0; i < n; ++i) sum += p[i] = std::exp(z[i] - maximum);
  for (double& value : p) value /= sum;
  return std::log(sum) + maximum;
}

}  // namespace

Array CrossEntropy(const Array& logits, const Tokens& targets) {
  const int64_t rows = static_cast<int64_t>(targets.size()), V = Size(logits) / rows;
  Array losses(rows), p;
  for (int64_t row = 0; row < rows; ++row) {
    if (targets[row] == -1) continue;
    losses[row] = Softmax(&logits[row * V], V, p) - logits[row * V + targets[row]];
  }
  return losses;
}

Array CrossEntropyGradient(const Array& logits, const Tokens& targets, double scale) {
  const int64_t rows = static_cast<int64_t>(targets.size()), V = Size(logits) / rows;
  Array gradient(logits.size()), p;
  for (int64_t row = 0; row < rows; ++row) {
    if (targets[row] == -1) continue;
    Softmax(&logits[row * V], V, p);
    for (int64_t i = 0; i < V; ++i) {
      gradient[row * V + i] = scale * (p[i] - (i == targets[row] ? 1 : 0));
    }
  }
  return gradient;
}

Array Embedding(const Tokens& tokens, const Array& wte, const Array& wpe, SequenceShape shape,
                const Array& factors) {
  const int64_t C = shape.channels;
  Array out(shape.elements());
  for (int64_t row = 0; row < shape.rows(); ++row) {
    for (int64_t c = 0; c < C; ++c) {
      out[row * C + c] =
          factors[row * C + c] * (wte[tokens[row] * C + c] + wpe[row % shape.positions * C + c]);
    }
  }
  return out;
}

EmbeddingGradients EmbeddingGradient(const Array& dout, const Tokens& tokens, int64_t vocabulary,
                                     SequenceShape shape, const Array& factors) {
  const int64_t C = shape.channels;
  EmbeddingGradients result{Array(vocabulary * C), Array(shape.positions * C)};
  for (int64_t row = 0; row < shape.rows(); ++row) {
    for (int64_t c = 0; c < C; ++c) {
      const double gradient = factors[row * C + c] * dout[row * C + c];
      result.dwte[tokens[row] * C + c] += gradient;
      result.dwpe[row % shape.positions * C + c] += gradient;
    }
  }
  return result;
}

}  // namespace zerobox::reference
