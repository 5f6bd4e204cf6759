// SPDX-License-Identifier: Apache-2.0
//
// Ranks on host devices, and numbers whose sums show their order.
#ifndef ZEROBOX_TESTS_COLLECTIVES_WORLD_H_
#define ZEROBOX_TESTS_COLLECTIVES_WORLD_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ops/collectives/host_communicator.h"
#include "ops/device/host_device.h"

namespace zerobox {

inline constexpr auto kCommunication = StreamId::kCommunication;
inline constexpr CallLabel kParameters{Purpose::kParameters, 3};
inline constexpr CallLabel kGradients{Purpose::kGradients, 1};
inline constexpr CallLabel kScalar{Purpose::kScalars};

inline const CollectiveCount& Of(const Traffic& traffic, Collective collective) {
  return traffic.collectives[static_cast<size_t>(collective)];
}

// Ranks 0 .. size-1 whose one worker is the test's thread: no call blocks it.
struct World {
  explicit World(int size, CallHook hook = nullptr)
      : group(std::make_unique<HostGroup>(size, abort)) {
    if (hook) group->set_call_hook(std::move(hook));
    for (int r = 0; r < size; ++r) {
      HostDeviceOptions options;
      options.rank = r;
      options.regions = {0, 0, 0, 4 << 20};
      absl::StatusOr<std::unique_ptr<HostDevice>> device = HostDevice::Make(options, abort);
      EXPECT_TRUE(device.ok()) << device.status();
      devices.push_back(*std::move(device));
      ranks.push_back(group->Join(r, *devices.back()));
    }
  }

  int size() const { return static_cast<int>(ranks.size()); }
  HostDevice& device(int r) { return *devices[static_cast<size_t>(r)]; }
  Communicator& rank(int r) { return *ranks[static_cast<size_t>(r)]; }

  // A buffer on each rank, with what `value` (of rank and element) says.
  template <typename T, typename Value>
  std::vector<Buffer> Make(DType dtype, int64_t elements, const Value& value) {
    std::vector<Buffer> buffers;
    for (int r = 0; r < size(); ++r) {
      buffers.push_back(
          device(r).Allocate(Region::kTransient, Category::kWorkspace, dtype, elements, "test"));
      for (int64_t i = 0; i < elements; ++i) buffers.back().template As<T>()[i] = value(r, i);
    }
    return buffers;
  }

  // The ranks' statuses once all calls have ended.
  std::vector<absl::Status> Finish() {
    std::vector<absl::Status> statuses;
    for (auto& device : devices) {
      const std::unique_ptr<Event> end = device->MakeEvent("end");
      device->Record(*end, kCommunication);
      statuses.push_back(device->HostWait(*end));
    }
    return statuses;
  }
  void FinishOk() {
    for (const absl::Status& status : Finish()) ASSERT_TRUE(status.ok()) << status;
  }

  Abort abort;
  std::unique_ptr<HostGroup> group;
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

template <typename T>
std::vector<T> Contents(const Buffer& buffer) {
  return std::vector<T>(buffer.As<T>(), buffer.As<T>() + buffer.elements);
}

// Numbers whose sums round, of both signs.
inline double RandomNumber(int rank, int64_t element) {
  std::minstd_rand random(static_cast<unsigned>(1 + element * 131 + rank * 7919));
  random.discard(3);
  const double uniform = static_cast<double>(random()) / 2147483647.0 - 0.5;
  return std::ldexp(uniform, static_cast<int>(random() % 9));
}
inline float RandomFloat(int rank, int64_t element) {
  return static_cast<float>(RandomNumber(rank, element));
}
inline uint16_t RandomBFloat16(int rank, int64_t element) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(RandomFloat(rank, element)) >> 16);
}
inline float Widened(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The sum of all ranks' elements, in rank order in T, as the contract says.
template <typename T, typename Value>
T SumInRankOrder(int size, int64_t element, const Value& value) {
  T sum = value(0, element);
  for (int r = 1; r < size; ++r) sum = sum + value(r, element);
  return sum;
}

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_COLLECTIVES_WORLD_H_
