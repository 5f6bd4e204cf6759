// SPDX-License-Identifier: Apache-2.0
#include "tests/ops_network.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "ops/optimizer.h"

namespace zerobox {
namespace {

std::vector<double> Widen(const Buffer& buffer, const std::vector<std::byte>& bytes) {
  std::vector<double> values;
  const void* data = bytes.data();
  for (int64_t i = 0; i < buffer.elements; ++i) {
    if (buffer.dtype == DType::kFloat32) {
      values.push_back(static_cast<const float*>(data)[i]);
    } else if (buffer.dtype == DType::kBFloat16) {
      values.push_back(ToFloat(static_cast<const BFloat16*>(data)[i]));
    } else if (buffer.dtype == DType::kFloat64) {
      values.push_back(static_cast<const double*>(data)[i]);
    }
  }
  return values;
}

}  // namespace

std::string NameOf(const NetworkShape& shape) {
  const SequenceShape& s = shape.sequence;
  return absl::StrCat(s.batch, " x ", s.positions, " x ", s.channels, ", ", shape.heads,
                      " heads, MLP ", shape.wide, ", vocabulary ", shape.vocabulary);
}

std::string NameOf(const NetworkTypes& types) {
  return std::string(Name(types.t)) + "_" + std::string(Name(types.g));
}

int64_t NetworkBytes(const NetworkShape& shape) {
  const SequenceShape& s = shape.sequence;
  const int64_t activations = s.rows() * (36 * s.channels + 8 * shape.wide + shape.vocabulary);
  const int64_t parameters =
      s.channels * (5 * shape.vocabulary + 2 * s.positions + 6 * shape.wide + 8 * s.channels + 60);
  return 4 * (activations + parameters) + (256 << 10);
}

Buffer OpsNetwork::Make(const std::string& name, DType dtype, int64_t elements) {
  const Buffer buffer =
      device_.Allocate(Region::kPersistent, Category::kWorkspace, dtype, elements, name);
  buffers_[name] = buffer;
  return buffer;
}

// The deviation keeps what is computed at about 1, whatever the width.
Buffer OpsNetwork::Random(const std::string& name, DType dtype, int64_t elements, float scale) {
  const Buffer buffer = Make(name, dtype, elements);
  const auto width = static_cast<float>(shape_.sequence.channels);
  device_.ops().FillNormal(buffer, /*seed=*/5, /*stream=*/buffers_.size(), 0,
                           scale * 0.5f * std::sqrt(24.0f / width));
  return buffer;
}

Buffer OpsNetwork::Gradient(const std::string& name, int64_t elements) {
  return Random(name, types_.g, elements);  // what is added to
}

Buffer OpsNetwork::Ints(const std::string& name, const std::vector<int32_t>& values) {
  const Buffer buffer = Make(name, DType::kInt32, static_cast<int64_t>(values.size()));
  uploads_.push_back(values);
  device_.CopyFromHost(StreamId::kCompute, buffer, uploads_.back().data());
  return buffer;
}

Buffer OpsNetwork::Activation(const std::string& name, int64_t channels) {
  return Make(name, types_.t, shape_.sequence.rows() * channels);
}

void OpsNetwork::Run() {
  const int64_t rows = shape_.sequence.rows();
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i * i % shape_.vocabulary);
  }
  Ints("tokens", tokens);
  std::vector<int32_t> targets(tokens.rbegin(), tokens.rend());
  targets[3] = -1;
  Ints("targets", targets);
  for (int64_t i = 0; i < shape_.sequence.batch; ++i) samples_.push_back(12 - 9 * i % 11);
  const Buffer samples = Make("samples", DType::kInt64, shape_.sequence.batch);
  device_.CopyFromHost(StreamId::kCompute, samples, samples_.data());
  dropout_ = {.p = 0.2f, .seed = 7, .samples = samples, .layer = 3};

  Forward();
  Head();
  Backward();
  Update();
}

void OpsNetwork::Forward() {
  Ops& ops = device_.ops();
  const DType t = types_.t;
  const int64_t rows = shape_.sequence.rows(), C = shape_.sequence.channels, W = shape_.wide;
  // Large logits, rounded to bf16, would make the softmax of two devices differ as it likes.
  const Buffer wte = Random("wte", t, shape_.vocabulary * C, /*scale=*/0.5f);
  const Buffer wpe = Random("wpe", t, shape_.sequence.positions * C);
  const Buffer x = Activation("x", C);
  ops.EmbeddingForward(x, Named("tokens"), wte, wpe, shape_.sequence, dropout_);
  const Buffer weight = Random("weight", t, C), bias = Random("bias", t, C);
  const Buffer mean = Make("mean", DType::kFloat32, rows);
  const Buffer rstd = Make("rstd", DType::kFloat32, rows);
  const Buffer normal = Activation("normal", C);
  ops.LayerNormForward(normal, mean, rstd, x, weight, bias, rows, C);
  const Buffer qkv = Activation("qkv", 3 * C), attention = Activation("attention", C);
  ops.LinearForward(qkv, normal, Random("w_qkv", t, 3 * C * C), Random("b_qkv", t, 3 * C), rows, C,
                    3 * C);
  ops.AttentionForward(attention, Make("logsumexp", DType::kFloat32, rows * shape_.heads), qkv,
                       shape_.sequence, shape_.heads, dropout_);
  const Buffer wide = Activation("wide", W), active = Activation("active", W);
  ops.LinearForward(wide, attention, Random("w1", t, C * W), Random("b1", t, W), rows, C, W);
  ops.GeluForward(active, wide);
  const Buffer branch = Activation("branch", C);
  ops.LinearForward(branch, active, Random("w2", t, W * C), Random("b2", t, C), rows, W, C);
  const Buffer out = Activation("out", C);
  ops.ResidualForward(out, x, branch, shape_.sequence, dropout_);
  ForwardInOne();
}

// The ops that do two steps at once, beside those that do one.
void OpsNetwork::ForwardInOne() {
  Ops& ops = device_.ops();
  const int64_t rows = shape_.sequence.rows(), C = shape_.sequence.channels, W = shape_.wide;
  const Buffer normal = Activation("normal2", C), before = Activation("before", W);
  const Buffer mean = Make("mean2", DType::kFloat32, rows);
  const Buffer rstd = Make("rstd2", DType::kFloat32, rows);
  ops.ResidualLayerNormForward(Activation("sum", C), normal, mean, rstd, Named("x"),
                               Named("branch"), Named("weight"), Named("bias"), shape_.sequence,
                               dropout_);
  ops.LinearGeluForward(Activation("active2", W), before, normal, Named("w1"), Named("b1"), rows, C,
                        W);
}

void OpsNetwork::Head() {
  Ops& ops = device_.ops();
  const int64_t rows = shape_.sequence.rows(), C = shape_.sequence.channels, V = shape_.vocabulary;
  const Buffer logits = Activation("logits", V);
  ops.HeadForward(logits, Named("out"), Named("wte"), rows, C, V);
  const Buffer losses = Make("losses", DType::kFloat32, rows);
  ops.CrossEntropyForward(losses, logits, Named("targets"), rows, V);
  ops.CrossEntropyBackward(logits, Named("targets"), rows, V, 0.25f);
  ops.HeadBackward(Activation("dout", C), Gradient("dwte", V * C), logits, Named("out"),
                   Named("wte"), rows, C, V);
}

void OpsNetwork::Backward() {
  Ops& ops = device_.ops();
  const int64_t rows = shape_.sequence.rows(), C = shape_.sequence.channels, W = shape_.wide;
  const Buffer dout = Named("dout"), dbranch = Activation("dbranch", C);
  ops.DropoutBackward(dbranch, dout, shape_.sequence, dropout_);
  const Buffer dwide = Activation("dwide", W);
  ops.LinearBackward(dwide, Gradient("dw2", W * C), Gradient("db2", C), dbranch, Named("active"),
                     Named("w2"), rows, W, C);
  ops.GeluBackward(dwide, Named("wide"), dwide);
  ops.GeluLinearBackward(Activation("dbefore", W), Gradient("dw3", W * C), Gradient("db3", C),
                         dbranch, Named("before"), Named("active2"), Named("w2"), rows, W, C);
  const Buffer dattention = Activation("dattention", C);
  ops.LinearBackward(dattention, Gradient("dw1", C * W), Gradient("db1", W), dwide,
                     Named("attention"), Named("w1"), rows, C, W);
  const Buffer dqkv = Activation("dqkv", 3 * C), dnormal = Activation("dnormal", C);
  ops.AttentionBackward(dqkv, dattention, Named("qkv"), Named("attention"), Named("logsumexp"),
                        shape_.sequence, shape_.heads, dropout_);
  ops.LinearBackward(dnormal, Gradient("dw_qkv", 3 * C * C), Gradient("db_qkv", 3 * C), dqkv,
                     Named("normal"), Named("w_qkv"), rows, C, 3 * C);
  ops.LayerNormBackward(dout, Gradient("dweight", C), Gradient("dbias", C), dnormal, Named("x"),
                        Named("mean"), Named("rstd"), Named("weight"), rows, C);
  const Buffer dwpe = Gradient("dwpe", shape_.sequence.positions * C);
  ops.EmbeddingBackward(Named("dwte"), dwpe, dout, Named("tokens"), shape_.sequence, dropout_);
  ops.Add(dwpe, dwpe);
}

void OpsNetwork::Update() {
  Ops& ops = device_.ops();
  const int64_t n = shape_.vocabulary * shape_.sequence.channels;
  const Buffer sums = Make("sums", DType::kFloat64, 3);
  ops.Fill(sums, 1.5f);
  ops.AccumulateSum(sums.Slice(0, 1), Named("losses"));
  ops.AccumulateSquares(sums.Slice(1, 1), Named("dwte"));
  const Buffer state = Make("state", DType::kInt64, sizeof(StepState) / 8);
  device_.Zero(StreamId::kCompute, state);
  const OptimizerSettings settings;
  ops.PrepareStep(state, sums, settings);
  const bool own_master = types_.t == DType::kFloat32;
  const Buffer master = own_master ? Buffer{} : Random("master", DType::kFloat32, n);
  const Buffer m = Random("m", DType::kFloat32, n), v = Make("v", DType::kFloat32, n);
  ops.Fill(v, 0.25f);
  ops.AdamW(Named("wte"), master, Named("dwte"), m, v, /*decay=*/true, state, settings);
}

absl::StatusOr<OpsNetwork::Values> OpsNetwork::Read() {
  std::map<std::string, std::vector<std::byte>> bytes;
  const std::unique_ptr<Event> computed = device_.MakeEvent("computed");
  device_.Record(*computed, StreamId::kCompute);
  device_.Wait(StreamId::kToHost, *computed);
  for (const auto& [name, buffer] : buffers_) {
    bytes[name].resize(static_cast<size_t>(buffer.bytes()));
    device_.CopyToHost(StreamId::kToHost, bytes[name].data(), buffer);
  }
  device_.Record(*computed, StreamId::kToHost);
  if (absl::Status status = device_.HostWait(*computed); !status.ok()) {
    device_.StopStreams();  // which write to `bytes`
    return status;
  }
  Values values;
  for (const auto& [name, buffer] : buffers_) values[name] = Widen(buffer, bytes[name]);
  return values;
}

NetworkDifference Difference(const OpsNetwork::Values& found, const OpsNetwork::Values& expected) {
  NetworkDifference largest;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const auto& [name, values] : expected) {
    const auto same = found.find(name);
    if (same == found.end() || same->second.size() != values.size()) {
      return {kInfinite, absl::StrCat(name, ": missing, or of another size")};
    }
    double size = 1;
    for (const double value : values) size = std::max(size, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      double difference = std::abs(same->second[i] - values[i]) / size;
      if (!(difference <= kInfinite)) difference = kInfinite;
      if (difference <= largest.value) continue;
      largest = {difference,
                 absl::StrCat(name, " ", i, ": ", same->second[i], " is not ", values[i])};
    }
  }
  return largest;
}

}  // namespace zerobox
