# SPDX-License-Identifier: Apache-2.0
# The sources of ops/, one a line, sorted.
ops_sources := \
  ops/host/adamw.cpp \
  ops/host/attention.cpp \
  ops/host/cross_entropy.cpp \
  ops/host/embedding.cpp \
  ops/host/fill.cpp \
  ops/host/gelu.cpp \
  ops/host/host_ops.cpp \
  ops/host/layernorm.cpp \
  ops/host/linear.cpp \
  ops/host/matmul.cpp \
  ops/host/openblas.cpp \
  ops/host/residual.cpp \
  ops/host/sums.cpp \
  ops/optimizer.cpp \
  ops/philox.cpp \
  ops/plan_ops.cpp \

