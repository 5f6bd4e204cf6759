# SPDX-License-Identifier: Apache-2.0
# The sources of trainer/, one a line, sorted.
trainer_sources := \
	trainer/batch_feed.cpp \
	trainer/board.cpp \
	trainer/gpt.cpp \
	trainer/model_file.cpp \
	trainer/plan.cpp \
	trainer/replica.cpp \
	trainer/sampler.cpp \
	trainer/step_programs.cpp \
	trainer/train.cpp \
	trainer/worker.cpp
