// SPDX-License-Identifier: Apache-2.0
//
// One layer of everything that Ops can do, forward and backward, on any device: what two devices
// compute of it can be compared.
#ifndef ZEROBOX_TESTS_OPS_NETWORK_H_
#define ZEROBOX_TESTS_OPS_NETWORK_H_

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/device/device.h"
#include "ops/ops.h"

namespace zerobox {

struct NetworkShape {
  SequenceShape sequence;
  int64_t heads;  // that divide the channels
  int64_t wide;   // channels inside the MLP
  int64_t vocabulary;
};
// "2 x 7 x 24, 3 heads, MLP 40, vocabulary 19"
std::string NameOf(const NetworkShape& shape);

// Of parameters and activations, and of parameters' gradients.
struct NetworkTypes {
  DType t, g;
};
std::string NameOf(const NetworkTypes& types);
inline constexpr NetworkTypes kNetworkTypes[] = {{DType::kFloat32, DType::kFloat32},
                                                 {DType::kBFloat16, DType::kFloat32},
                                                 {DType::kBFloat16, DType::kBFloat16}};

// More than its buffers need.
int64_t NetworkBytes(const NetworkShape& shape);

// A device's buffers by name, filled by its own ops.
class OpsNetwork {
 public:
  OpsNetwork(Device& device, const NetworkShape& shape, const NetworkTypes& types)
      : device_(device), shape_(shape), types_(types) {}

  // Enqueues all of it, once.
  void Run();
  // All buffers of floats, on the host.
  using Values = std::map<std::string, std::vector<double>>;
  absl::StatusOr<Values> Read();

 private:
  Buffer Make(const std::string& name, DType dtype, int64_t elements);
  Buffer Random(const std::string& name, DType dtype, int64_t elements, float scale = 1);
  Buffer Gradient(const std::string& name, int64_t elements);
  Buffer Ints(const std::string& name, const std::vector<int32_t>& values);
  Buffer Activation(const std::string& name, int64_t channels);
  void Forward();
  void ForwardInOne();
  void Head();
  void Backward();
  void Update();
  Buffer Named(const std::string& name) const { return buffers_.at(name); }

  Device& device_;
  const NetworkShape shape_;
  const NetworkTypes types_;
  std::list<std::vector<int32_t>> uploads_;  // which stay until the copies are done
  std::vector<int64_t> samples_;
  Dropout dropout_;
  std::map<std::string, Buffer> buffers_;
};

// The largest difference between two devices' values, each relative to the largest in its buffer (1
// at least), and where it is. Infinite where a value is NaN, or a buffer is missing.
struct NetworkDifference {
  double value = 0;
  std::string where;  // "dwte 17: 0.25 is not 0.5"
};
NetworkDifference Difference(const OpsNetwork::Values& found, const OpsNetwork::Values& expected);
// What it may be at most: sums are taken in another order, and bf16 rounds.
constexpr double NetworkTolerance(DType t) { return t == DType::kFloat32 ? 2e-5 : 0.06; }

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_OPS_NETWORK_H_
