# SPDX-License-Identifier: Apache-2.0
# Each source is a program of its own, build/release/bench/<name>.
bench_sources := \
  bench/collectives.cpp \
  bench/kernels.cpp \
  bench/training.cpp \

