// SPDX-License-Identifier: Apache-2.0
//
// What the thread sanitizer is told about streams. It takes every lock for an order between the
// threads that hold it one after the other, and so would overlook a missing event as often as the
// streams' queues happen to hand a lock over in between. A GPU's streams share no lock. So the
// queues' own locks order nothing for it, and only this does: an item comes after what its worker
// had done when it enqueued it, and what waits for an event comes after what was before its record.
// In other builds nothing of this exists.
#ifndef ZEROBOX_OPS_DEVICE_THREAD_SANITIZER_H_
#define ZEROBOX_OPS_DEVICE_THREAD_SANITIZER_H_

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace zerobox {

// While one lives, its thread's locks and atomics order nothing, and its reads and writes, which
// they guard, are not looked at.
class UnorderedScope {
 public:
  UnorderedScope(const UnorderedScope&) = delete;
  UnorderedScope& operator=(const UnorderedScope&) = delete;
#ifdef __SANITIZE_THREAD__
  UnorderedScope() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~UnorderedScope() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  UnorderedScope() {}   // NOLINT(modernize-use-equals-default): not an unused variable
  ~UnorderedScope() {}  // NOLINT(modernize-use-equals-default)
#endif
};

// What a thread did before it published `key` comes before what another does after it followed it.
inline void Publish([[maybe_unused]] void* key) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(key);
#endif
}
inline void Follow([[maybe_unused]] void* key) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(key);
#endif
}

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_THREAD_SANITIZER_H_
