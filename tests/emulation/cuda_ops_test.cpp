// SPDX-License-Identifier: Apache-2.0
//
// The ops of the CUDA device against the host's, which tests/ops_test.cpp compares with double: one
// layer of everything, forward and backward, under every order of the device's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/cuda/cuda.h"
#include "ops/device/host_device.h"
#include "ops/ops.h"
#include "ops/optimizer.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr SequenceShape kShape = {.batch = 2, .positions = 7, .channels = 24};
constexpr int64_t kRows = kShape.batch * kShape.positions;
constexpr int64_t kChannels = kShape.channels;
constexpr int64_t kWide = 40;
constexpr int64_t kVocabulary = 19;

struct Types {
  DType t, g;
};
std::string NameOf(const Types& types) {
  return std::string(Name(types.t)) + "_" + std::string(Name(types.g));
}

// A device's buffers by name, filled by its own ops.
class Network {
 public:
  Network(Device& device, const Types& types) : device_(device), types_(types) {}

  Buffer Make(const std::string& name, DType dtype, int64_t elements) {
    const Buffer buffer =
        device_.Allocate(Region::kPersistent, Category::kWorkspace, dtype, elements, "test");
    names_.push_back(name);
    buffers_[name] = buffer;
    return buffer;
  }
  Buffer Random(const std::string& name, DType dtype, int64_t elements) {
    const Buffer buffer = Make(name, dtype, elements);
    device_.ops().FillNormal(buffer, 5, names_.size(), 0, 0.5f);
    return buffer;
  }
  Buffer Gradient(const std::string& name, int64_t elements) {
    return Random(name, types_.g, elements);  // what is added to
  }
  Buffer Ints(const std::string& name, const std::vector<int32_t>& values) {
    const Buffer buffer = Make(name, DType::kInt32, static_cast<int64_t>(values.size()));
    uploads_.push_back(values);  // which stay until the copy is done
    device_.CopyFromHost(StreamId::kCompute, buffer, uploads_.back().data());
    return buffer;
  }

  void Run() {
    Ops& ops = device_.ops();
    const DType t = types_.t;
    std::vector<int32_t> tokens(kRows);
    for (int64_t i = 0; i < kRows; ++i) tokens[i] = static_cast<int32_t>(i * i % kVocabulary);
    const Buffer token_buffer = Ints("tokens", tokens);
    samples_ = {12, 3};
    const Buffer samples = Make("samples", DType::kInt64, kShape.batch);
    device_.CopyFromHost(StreamId::kCompute, samples, samples_.data());
    const Dropout dropout = {.p = 0.2f, .seed = 7, .samples = samples, .layer = 3};

    const Buffer wte = Random("wte", t, kVocabulary * kChannels);
    const Buffer wpe = Random("wpe", t, kShape.positions * kChannels);
    const Buffer x = Make("x", t, kRows * kChannels);
    ops.EmbeddingForward(x, token_buffer, wte, wpe, kShape, dropout);
    const Buffer weight = Random("weight", t, kChannels), bias = Random("bias", t, kChannels);
    const Buffer mean = Make("mean", DType::kFloat32, kRows);
    const Buffer rstd = Make("rstd", DType::kFloat32, kRows);
    const Buffer normal = Make("normal", t, kRows * kChannels);
    ops.LayerNormForward(normal, mean, rstd, x, weight, bias, kRows, kChannels);
    const Buffer w1 = Random("w1", t, kChannels * kWide), b1 = Random("b1", t, kWide);
    const Buffer w2 = Random("w2", t, kWide * kChannels), b2 = Random("b2", t, kChannels);
    const Buffer wide = Make("wide", t, kRows * kWide), active = Make("active", t, kRows * kWide);
    ops.LinearForward(wide, normal, w1, b1, kRows, kChannels, kWide);
    ops.GeluForward(active, wide);
    const Buffer branch = Make("branch", t, kRows * kChannels);
    ops.LinearForward(branch, active, w2, b2, kRows, kWide, kChannels);
    const Buffer out = Make("out", t, kRows * kChannels);
    ops.ResidualForward(out, x, branch, kShape, dropout);
    const Buffer sum = Make("sum", t, kRows * kChannels);
    const Buffer normal2 = Make("normal2", t, kRows * kChannels);
    const Buffer mean2 = Make("mean2", DType::kFloat32, kRows);
    const Buffer rstd2 = Make("rstd2", DType::kFloat32, kRows);
    ops.ResidualLayerNormForward(sum, normal2, mean2, rstd2, x, branch, weight, bias, kShape,
                                 dropout);
    const Buffer before = Make("before", t, kRows * kWide);
    const Buffer active2 = Make("active2", t, kRows * kWide);
    ops.LinearGeluForward(active2, before, normal2, w1, b1, kRows, kChannels, kWide);
    const Buffer logits = Make("logits", t, kRows * kVocabulary);
    ops.HeadForward(logits, out, wte, kRows, kChannels, kVocabulary);

    std::vector<int32_t> targets(tokens.rbegin(), tokens.rend());
    targets[3] = -1;
    const Buffer target_buffer = Ints("targets", targets);
    const Buffer losses = Make("losses", DType::kFloat32, kRows);
    ops.CrossEntropyForward(losses, logits, target_buffer, kRows, kVocabulary);
    ops.CrossEntropyBackward(logits, target_buffer, kRows, kVocabulary, 0.25f);
    const Buffer dout = Make("dout", t, kRows * kChannels);
    const Buffer dwte = Gradient("dwte", kVocabulary * kChannels);
    const Buffer dwpe = Gradient("dwpe", kShape.positions * kChannels);
    ops.HeadBackward(dout, dwte, logits, out, wte, kRows, kChannels, kVocabulary);
    const Buffer dbranch = Make("dbranch", t, kRows * kChannels);
    ops.DropoutBackward(dbranch, dout, kShape, dropout);
    const Buffer dwide = Make("dwide", t, kRows * kWide);
    ops.LinearBackward(dwide, Gradient("dw2", kWide * kChannels), Gradient("db2", kChannels),
                       dbranch, active, w2, kRows, kWide, kChannels);
    ops.GeluBackward(dwide, wide, dwide);
    ops.GeluLinearBackward(Make("dbefore", t, kRows * kWide), Gradient("dw3", kWide * kChannels),
                           Gradient("db3", kChannels), dbranch, before, active2, w2, kRows, kWide,
                           kChannels);
    const Buffer dnormal = Make("dnormal", t, kRows * kChannels);
    ops.LinearBackward(dnormal, Gradient("dw1", kChannels * kWide), Gradient("db1", kWide), dwide,
                       normal, w1, kRows, kChannels, kWide);
    ops.LayerNormBackward(dout, Gradient("dweight", kChannels), Gradient("dbias", kChannels),
                          dnormal, x, mean, rstd, weight, kRows, kChannels);
    ops.EmbeddingBackward(dwte, dwpe, dout, token_buffer, kShape, dropout);
    ops.Add(dwpe, dwpe);

    const Buffer sums = Make("sums", DType::kFloat64, 3);
    ops.Fill(sums, 1.5f);
    ops.AccumulateSum(sums.Slice(0, 1), losses);
    ops.AccumulateSquares(sums.Slice(1, 1), dwte);
    const Buffer state = Make("state", DType::kInt64, sizeof(StepState) / 8);
    device_.Zero(StreamId::kCompute, state);
    const OptimizerSettings settings;
    ops.PrepareStep(state, sums, settings);
    const bool own_master = t == DType::kFloat32;
    const Buffer master =
        own_master ? Buffer{} : Random("master", DType::kFloat32, kVocabulary * kChannels);
    const Buffer m = Random("m", DType::kFloat32, kVocabulary * kChannels);
    const Buffer v = Make("v", DType::kFloat32, kVocabulary * kChannels);
    ops.Fill(v, 0.25f);
    ops.AdamW(wte, master, dwte, m, v, /*decay=*/true, state, settings);
  }

  // All buffers of floats, on the host.
  std::map<std::string, std::vector<double>> Values() {
    std::map<std::string, std::vector<std::byte>> bytes;
    const auto done = device_.MakeEvent("computed");
    device_.Record(*done, StreamId::kCompute);
    device_.Wait(StreamId::kToHost, *done);
    for (const auto& [name, buffer] : buffers_) {
      bytes[name].resize(static_cast<size_t>(buffer.bytes()));
      device_.CopyToHost(StreamId::kToHost, bytes[name].data(), buffer);
    }
    device_.Record(*done, StreamId::kToHost);
    EXPECT_TRUE(device_.HostWait(*done).ok()) << device_.status();
    std::map<std::string, std::vector<double>> values;
    for (const auto& [name, buffer] : buffers_) {
      for (int64_t i = 0; i < buffer.elements; ++i) {
        const void* data = bytes[name].data();
        if (buffer.dtype == DType::kFloat32) {
          values[name].push_back(static_cast<const float*>(data)[i]);
        } else if (buffer.dtype == DType::kBFloat16) {
          values[name].push_back(ToFloat(static_cast<const BFloat16*>(data)[i]));
        } else if (buffer.dtype == DType::kFloat64) {
          values[name].push_back(static_cast<const double*>(data)[i]);
        }
      }
    }
    return values;
  }

 private:
  Device& device_;
  const Types types_;
  std::vector<std::string> names_;
  std::list<std::vector<int32_t>> uploads_;
  std::vector<int64_t> samples_;
  std::map<std::string, Buffer> buffers_;
};

constexpr RegionBytes kRegions = {256 << 10, 0, 0, 0};

class CudaOpsTest : public testing::TestWithParam<std::tuple<fake_cuda::Policy, Types>> {};
INSTANTIATE_TEST_SUITE_P(, CudaOpsTest,
                         testing::Combine(testing::ValuesIn(fake_cuda::kPolicies),
                                          testing::Values(Types{DType::kFloat32, DType::kFloat32},
                                                          Types{DType::kBFloat16, DType::kFloat32},
                                                          Types{DType::kBFloat16,
                                                                DType::kBFloat16})),
                         [](const testing::TestParamInfo<CudaOpsTest::ParamType>& info) {
                           std::string name = fake_cuda::Name(std::get<0>(info.param));
                           std::erase(name, ' ');
                           return name + "_" + NameOf(std::get<1>(info.param));
                         });

TEST_P(CudaOpsTest, AgreeWithTheHosts) {
  const auto& [policy, types] = GetParam();
  Abort host_abort;
  auto host = HostDevice::Make({.regions = kRegions}, host_abort);
  ASSERT_TRUE(host.ok()) << host.status();
  Network on_host(**host, types);
  on_host.Run();
  const auto expected = on_host.Values();

  fake_cuda::Reset({.policy = policy});
  Abort abort;
  auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 1 << 20}, abort);
  ASSERT_TRUE(device.ok()) << device.status();
  Network on_gpu(**device, types);
  on_gpu.Run();
  EXPECT_EQ(fake_cuda::OperationsRun(), 0);
  const auto actual = on_gpu.Values();

  const double tolerance = types.t == DType::kFloat32 ? 2e-5 : 0.06;
  for (const auto& [name, values] : expected) {
    double size = 1;
    for (const double value : values) size = std::max(size, std::abs(value));
    const std::vector<double>& found = actual.at(name);
    ASSERT_EQ(found.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::abs(found[i] - values[i]) <= tolerance * size)
          << name << " " << i << ": " << found[i] << " is not " << values[i];
    }
  }
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(CudaOps, AFailedLaunchIsTheDevicesFailureAndNamesTheOp) {
  std::map<std::string, int> calls;
  for (int nth = 0; nth <= calls["cudaLaunchKernelExC"]; ++nth) {
    fake_cuda::Reset({});
    if (nth > 0) fake_cuda::FailCall("cudaLaunchKernelExC", nth);
    Abort abort;
    auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 1 << 20}, abort);
    ASSERT_TRUE(device.ok()) << device.status();
    Network network(**device, {DType::kFloat32, DType::kFloat32});
    network.Run();
    (*device)->StopStreams();
    if (nth == 0) {
      EXPECT_TRUE((*device)->status().ok()) << (*device)->status();
      calls = fake_cuda::Calls();
      EXPECT_GE(calls["cudaLaunchKernelExC"], 20);
    } else {
      EXPECT_THAT(std::string((*device)->status().message()), HasSubstr("cudaLaunchKernelExC: "));
      EXPECT_THAT(std::string((*device)->status().message()), HasSubstr(" on stream compute"));
    }
  }
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
}

TEST(CudaOps, AWorkspaceThatIsTooSmallIsTheDevicesFailure) {
  fake_cuda::Reset({});
  Abort abort;
  auto device = MakeCudaDevice({.regions = kRegions, .workspace_bytes = 256}, abort);
  ASSERT_TRUE(device.ok()) << device.status();
  Network network(**device, {DType::kFloat32, DType::kFloat32});
  network.Run();
  EXPECT_EQ((*device)->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string((*device)->status().message()), HasSubstr("wanted a workspace of "));
}

}  // namespace
}  // namespace zerobox
