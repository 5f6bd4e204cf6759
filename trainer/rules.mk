# SPDX-License-Identifier: Apache-2.0
# The sources of trainer/, one a line, sorted.
trainer_sources := \
  trainer/command_help.cpp \
  trainer/command_line.cpp \
  trainer/command_sample.cpp \
  trainer/command_train.cpp \
  trainer/flags.cpp \
  trainer/help.cpp \
  trainer/main.cpp \
  trainer/resolve.cpp \
  trainer/run_folder.cpp \
  trainer/screen.cpp \
  trainer/signals.cpp \
  trainer/tables.cpp \
  trainer/text.cpp \
  trainer/train_stub.cpp
