// A store of blocks in Python, for the engine's cache.
#include "store_hooks.hpp"

#include <cstring>

namespace dhlo::python {
namespace {

constexpr int64_t kNone = -1, kFailed = -2;

PyObject* store_of(void* ctx) { return static_cast<PyObject*>(ctx); }

int32_t put(void* ctx, const char* name, const void* data, int64_t bytes) {
  const WithGil locked;
  // A copy, which the store may keep.
  const Ref object(PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(bytes)));
  const Ref result(holding_on(
      [&] { return object ? PyObject_CallMethod(store_of(ctx), "put", "sO", name, object.get()) : nullptr; }));
  if (!result) PyErr_Clear();
  return result ? 0 : 1;
}

int64_t get(void* ctx, const char* name, void* data, int64_t bytes) {
  const WithGil locked;
  const Ref result(holding_on([&] { return PyObject_CallMethod(store_of(ctx), "get", "s", name); }));
  if (result && result.get() == Py_None) return kNone;
  Py_buffer buffer{};
  if (!result || PyObject_GetBuffer(result.get(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return kFailed;
  }
  if (buffer.len <= bytes) std::memcpy(data, buffer.buf, static_cast<size_t>(buffer.len));
  const int64_t size = buffer.len;
  PyBuffer_Release(&buffer);
  return size;
}

void remove(void* ctx, const char* name) {
  const WithGil locked;
  const Ref result(holding_on([&] { return PyObject_CallMethod(store_of(ctx), "remove", "s", name); }));
  if (!result) PyErr_Clear();
}

}  // namespace

dhlo_store store_hooks(PyObject* store, int64_t threads) { return {store, put, get, remove, threads}; }

}  // namespace dhlo::python
