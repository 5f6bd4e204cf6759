# SPDX-License-Identifier: Apache-2.0
# The sources of ops/, one a line, sorted.
ops_sources := \
  ops/collectives/communicator.cpp \
  ops/collectives/host_communicator.cpp \
  ops/collectives/plan_communicator.cpp \
  ops/collectives/reduce.cpp \
  ops/device/abort.cpp \
  ops/device/device.cpp \
  ops/device/host_device.cpp \
  ops/device/host_memory.cpp \
  ops/device/host_stream.cpp \
  ops/device/memory.cpp \
  ops/device/plan_device.cpp \
  ops/device/thread_team.cpp \
  ops/plan_ops.cpp \

