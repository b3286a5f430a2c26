// A store of blocks in Python, for the engine's cache.
#pragma once

#include "binding.hpp"
#include "dhlo/store.h"

namespace dhlo::python {

// Hooks that call methods of `store`, which must outlive them: put(name, bytes), get(name) -> bytes or None,
// remove(name). What these raise is a failure of the store's; dhlo/serve/stores.py tells of it.
dhlo_store store_hooks(PyObject* store, int64_t threads);

}  // namespace dhlo::python
