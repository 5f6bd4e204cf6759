# SPDX-License-Identifier: Apache-2.0
# The sources of zero/, one a line, sorted.
zero_sources := \
  zero/formulas.cpp \
  zero/layout.cpp \
  zero/offloaded_states.cpp \
  zero/optimizer_states.cpp \
  zero/stage0.cpp \
  zero/stage1.cpp \
  zero/stage2.cpp \
  zero/stage3.cpp \
  zero/stages.cpp \

