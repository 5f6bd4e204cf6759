// SPDX-License-Identifier: Apache-2.0
//
// How fast the host's collectives move bytes: an all-gather and a reduce-scatter of 256 MB over 4
// ranks, beside memcpy by as many threads. All three take turns, so that a change of the machine's
// clock meets all of them; a ratio is the median of the rounds' ratios.
//
// Counted are bytes sent in a collective (each rank sends 3/4 of 256 MB) and bytes copied by
// memcpy.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ops/collectives/host_communicator.h"
#include "ops/device/host_device.h"

namespace zerobox {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kBytes = 256 << 20;
constexpr int kRounds = 9;
constexpr CallLabel kLabel{Purpose::kParameters};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  absl::Status Prepare() {
    for (int r = 0; r < kRanks; ++r) {
      HostDeviceOptions options;
      options.rank = r;
      options.regions = {kBytes, 0, 0, 0};
      absl::StatusOr<std::unique_ptr<HostDevice>> device = HostDevice::Make(options, abort_);
      if (!device.ok()) return device.status();
      devices_.push_back(*std::move(device));
      ranks_.push_back(group_.Join(r, *devices_.back()));
      buffers_.push_back(devices_.back()->Allocate(Region::kPersistent, Category::kParameters,
                                                   DType::kFloat32, kBytes / 4, "whole"));
    }
    return absl::OkStatus();
  }

  // Runs `call` on every rank; bytes a second in `bytes` of the whole.
  absl::StatusOr<double> Time(int64_t bytes, const std::function<void(int rank)>& call) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Event>> ends;
    for (int r = 0; r < kRanks; ++r) {
      call(r);
      ends.push_back(Device(r).MakeEvent("end"));
      Device(r).Record(*ends.back(), StreamId::kCommunication);
    }
    for (int r = 0; r < kRanks; ++r) {
      absl::Status status = Device(r).HostWait(*ends[static_cast<size_t>(r)]);
      if (!status.ok()) return status;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(bytes) / seconds.count();
  }

  absl::Status Run() {
    // Copies half of each rank's memory to the other half, in the thread that communicates.
    const auto copy = [this](int r) {
      const Buffer& buffer = buffers_[static_cast<size_t>(r)];
      const int64_t half = buffer.elements / 2;
      Device(r).Copy(StreamId::kCommunication, buffer.Slice(half, half), buffer.Slice(0, half));
    };
    const auto gather = [this](int r) {
      ranks_[static_cast<size_t>(r)]->AllGather(buffers_[static_cast<size_t>(r)], kLabel);
    };
    const auto reduce = [this](int r) {
      ranks_[static_cast<size_t>(r)]->ReduceScatterSum(buffers_[static_cast<size_t>(r)], kLabel);
    };
    constexpr int64_t kSent = (kRanks - 1) * kBytes;
    std::array<std::vector<double>, 3> speeds;
    std::array<std::vector<double>, 3> ratios;
    for (int round = -1; round < kRounds; ++round) {  // the first warms up
      std::array<absl::StatusOr<double>, 3> speed = {Time(kRanks * kBytes / 2, copy),
                                                     Time(kSent, gather), Time(kSent, reduce)};
      for (size_t i = 0; i < speed.size(); ++i) {
        if (!speed[i].ok()) return speed[i].status();
        if (round < 0) continue;
        speeds[i].push_back(*speed[i]);
        ratios[i].push_back(*speed[i] / *speed[0]);
      }
    }
    std::printf("256 MB on %d ranks, medians of %d rounds\n", kRanks, kRounds);
    constexpr std::array kNames = {"memcpy by 4 threads", "all-gather", "reduce-scatter"};
    for (size_t i = 0; i < kNames.size(); ++i) {
      std::printf("  %-20s %6.2f GB/s   %4.0f%% of memcpy\n", kNames[i], Median(speeds[i]) / 1e9,
                  100 * Median(ratios[i]));
    }
    return absl::OkStatus();
  }

 private:
  HostDevice& Device(int r) { return *devices_[static_cast<size_t>(r)]; }

  Abort abort_;
  HostGroup group_{kRanks, abort_};
  std::vector<std::unique_ptr<HostDevice>> devices_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<Buffer> buffers_;
};

}  // namespace
}  // namespace zerobox

int main() {
  zerobox::Bench bench;
  absl::Status status = bench.Prepare();
  if (status.ok()) status = bench.Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "collectives: %s\n", std::string(status.message()).c_str());
  return 1;
}
