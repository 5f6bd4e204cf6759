# SPDX-License-Identifier: Apache-2.0
# The sources of checkpoints/, one a line, sorted.
checkpoints_sources := \
  checkpoints/new_file.cpp \
  checkpoints/safetensors_header.cpp \
  checkpoints/safetensors_reader.cpp \
  checkpoints/safetensors_writer.cpp \

