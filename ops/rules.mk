# SPDX-License-Identifier: Apache-2.0
# The sources of ops/, one a line, sorted.
ops_sources := \

