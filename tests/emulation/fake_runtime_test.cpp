// SPDX-License-Identifier: Apache-2.0
//
// What the fake CUDA runtime promises the tests that rest on it.
#include "tests/emulation/fake_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "ops/cuda/cuda.h"

namespace zerobox {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(FakeRuntime, ReportsWhatItsHeaderSays) {
  fake_cuda::Reset({});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  EXPECT_TRUE(std::isnan(static_cast<float*>(data)[3]));
  float pageable[4] = {};
  EXPECT_NE(cudaMemcpyAsync(data, pageable, 16, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), Contains(HasSubstr("pageable")));
  EXPECT_NE(cudaMemsetAsync(data, 0, 17, stream), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), Contains(HasSubstr("not all in one allocation")));
  EXPECT_NE(cudaMemsetAsync(data, 0, 16, nullptr), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), Contains(HasSubstr("default stream")));
  ASSERT_EQ(cudaMemsetAsync(data, 0, 16, stream), cudaSuccess);
  fake_cuda::HostAccess({data, 16, true});
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty()) << "not run yet";
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), IsEmpty());
  ASSERT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), Contains(HasSubstr("an event that takes times")));
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_THAT(fake_cuda::TakeReports(), Contains(HasSubstr("work is queued")));
  fake_cuda::Reset({});
}

// Two ranks on one device, each with streams of its own. `first` creates them first.
std::vector<std::string> OrderOfTwoThreads(int first) {
  fake_cuda::Reset({.seed = 5, .workers = 2});
  fake_cuda::Hold(true);
  std::vector<std::string> order;
  std::atomic<int> there{0};
  std::latch enqueued(2);
  std::array<int64_t, 2> ids = {};
  const auto work = [&](int rank) {
    ids[rank] = syscall(SYS_gettid);
    while (rank != first && there == 0) std::this_thread::yield();
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    cudaStream_t streams[2];
    for (cudaStream_t& stream : streams) {
      EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    }
    ++there;
    for (int i = 0; i < 20; ++i) {
      const std::string name = std::to_string(rank) + "/" + std::to_string(i % 2);
      EXPECT_EQ(fake_cuda::Enqueue(streams[i % 2], name, {}, [&, name] { order.push_back(name); }),
                cudaSuccess);
    }
    enqueued.arrive_and_wait();
    fake_cuda::Hold(false);
    for (const cudaStream_t stream : streams) {
      while (cudaStreamQuery(stream) == cudaErrorNotReady) std::this_thread::yield();
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  };
  std::thread zero(work, 0);
  std::thread one(work, 1);
  zero.join();
  one.join();
  // Streams are in the order of threads' numbers, which may have begun anew between the two.
  return ids[0] < ids[1] ? order : OrderOfTwoThreads(first);
}

TEST(FakeRuntime, RunsStreamsInAnOrderThatDoesNotDependOnWhichThreadCameFirst) {
  const std::vector<std::string> order = OrderOfTwoThreads(0);
  EXPECT_EQ(order.size(), 40u);
  EXPECT_EQ(OrderOfTwoThreads(1), order);
  EXPECT_EQ(OrderOfTwoThreads(0), order);
}

TEST(FakeRuntime, CountsAndFailsTheCallsOfOneDevice) {
  fake_cuda::Reset({.devices = 2});
  fake_cuda::FailCall("cudaMalloc", 2, cudaErrorMemoryAllocation, 1);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  EXPECT_EQ(fake_cuda::Calls(0)["cudaMalloc"], 2);
  EXPECT_EQ(fake_cuda::Calls(1)["cudaMalloc"], 3);
  EXPECT_EQ(fake_cuda::Calls(1)["cudaSetDevice"], 1);
  EXPECT_EQ(fake_cuda::Calls()["cudaMalloc"], 5);
  fake_cuda::Reset({});
}

// The error comes with the wait for what broke, and not with a later call.
TEST(FakeRuntime, TellsWhoWaitsForWorkThatItBroke) {
  fake_cuda::Reset({});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  fake_cuda::FailWork(1);
  ASSERT_EQ(fake_cuda::Enqueue(stream, "work", {}, [] {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady) error = cudaEventQuery(event);
  EXPECT_EQ(error, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  (void)cudaEventDestroy(event);
  fake_cuda::Reset({});
}

TEST(FakeRuntime, LinksGpusInPairs) {
  fake_cuda::Reset({.devices = 4});
  const GpuLinks links = FindGpuLinks(4).value();
  // 0-1 and 2-3 over NVLink; 0-2 and 1-3 over PCIe; 0-3 and 1-2 not at all.
  EXPECT_EQ(links.pairs, 6);
  EXPECT_EQ(links.peers, 4);
  EXPECT_EQ(links.nvlinks, 2);
}

}  // namespace
}  // namespace zerobox
