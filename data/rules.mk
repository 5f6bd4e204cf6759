# SPDX-License-Identifier: Apache-2.0
# The sources of data/, one a line, sorted.
data_sources := \
  data/count_model.cpp \
  data/dataset.cpp \
  data/permutation.cpp \
  data/token_file.cpp \

