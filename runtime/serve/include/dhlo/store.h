/* A store of objects of the host's, for what the pools of serving have no room for. */
#ifndef DHLO_STORE_H
#define DHLO_STORE_H

#include "dhlo/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All are called on threads of the cache's, `threads` of them at once, and never on those that compute. They may take
 * their time, but must come back: closing the cache waits for calls in work. What they throw counts as a failure. A
 * store that fails costs time only, as what it gives is verified; where calls fail one after the other there are none
 * for a while, up to 32 seconds. Names are of letters, digits, points and dashes, at most 100, and say nothing of what
 * was asked to whoever doesn't know its salt. */
typedef struct dhlo_store {
  void* ctx;
  /* Keeps a copy of the bytes under the name, in place of what had it. Returns 0, another number if it can't. */
  int32_t (*put)(void* ctx, const char* name, const void* data, int64_t bytes);
  /* Writes the object to `data`, which has room for `bytes`. Returns its size; -1 if there is no such object,
   * less if it can't be had. */
  int64_t (*get)(void* ctx, const char* name, void* data, int64_t bytes);
  /* Removes an object that was found to be damaged. May be NULL. */
  void (*remove)(void* ctx, const char* name);
  int64_t threads; /* 1 to 64; others are taken for the nearest of these */
} dhlo_store;

#ifdef __cplusplus
}
#endif
#endif
