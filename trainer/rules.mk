# SPDX-License-Identifier: Apache-2.0
# The sources of trainer/, one a line, sorted.
trainer_sources := \

