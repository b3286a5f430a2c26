// The Python type Buffer: writable memory for constants, aligned and on huge pages as the runtime's own.
#include <new>

#include "../src/memory.hpp"
#include "binding.hpp"

namespace dhlo::python {
namespace {

struct BufferObject {
  PyObject_HEAD Block* block;
  Py_ssize_t bytes;
};

BufferObject& cast(PyObject* self) { return *reinterpret_cast<BufferObject*>(self); }

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"nbytes", nullptr};
  Py_ssize_t bytes = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "n:Buffer", const_cast<char**>(names), &bytes) == 0) return nullptr;
  if (bytes < 0) {
    PyErr_SetString(PyExc_ValueError, "nbytes is negative");
    return nullptr;
  }
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref self(allocate(type, 0));
  if (!self) return nullptr;
  BufferObject& buffer = cast(self.get());
  buffer.bytes = bytes;
  buffer.block = new (std::nothrow) Block;
  if (buffer.block == nullptr || !buffer.block->allocate(bytes, {})) return PyErr_NoMemory();
  return self.release();
}

void dealloc(PyObject* self) {
  delete cast(self).block;
  free_object(self);
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  return PyBuffer_FillInfo(view, self, cast(self).block->data(), cast(self).bytes, 0, flags);
}

PyObject* get_address(PyObject* self, void*) { return PyLong_FromVoidPtr(cast(self).block->data()); }
PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromSsize_t(cast(self).bytes); }

}  // namespace

bool add_buffer_type(PyObject* module) {
  static PyGetSetDef getters[] = {
      {"address", get_address, nullptr, "Address of the first byte.", nullptr},
      {"nbytes", get_nbytes, nullptr, "Size in bytes.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_getset, getters},
      {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
      {Py_tp_doc,
       const_cast<char*>(
           "Buffer(nbytes)\n\nUninitialised writable memory; large ones are 2 MB aligned with huge pages advised.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dhlo._runtime.Buffer", sizeof(BufferObject), 0, Py_TPFLAGS_DEFAULT, slots};
  return add_type(module, spec) != nullptr;
}

}  // namespace dhlo::python
