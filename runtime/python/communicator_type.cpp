// The Python type Communicator: what does collective operations, as functions in Python.
#include <cstring>

#include "binding.hpp"

namespace dhlo::python {
namespace {

struct CommunicatorObject {
  PyObject_HEAD PyObject* find;
  PyObject* exchange;
};

constexpr const char* kOperation = "dhlo.operation";
const char* const kKinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};
const char* const kReductions[] = {"sum", "product", "max", "min"};
PyTypeObject* type_object = nullptr;

// The exception of this thread's last hook that failed, or null.
thread_local PyObject* hook_error = nullptr;

void keep_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  drop(hook_error);
  hook_error = value;
}

// Whether the run is to end. The operation is null once it is over.
PyObject* stopped(PyObject* self, PyObject*) {
  auto* place = static_cast<const dhlo_collective**>(PyCapsule_GetPointer(self, kOperation));
  if (place == nullptr) return nullptr;
  return PyBool_FromLong(*place == nullptr || (*place)->stopped((*place)->run) != 0);
}

void free_place(PyObject* capsule) {
  delete static_cast<const dhlo_collective**>(PyCapsule_GetPointer(capsule, kOperation));
}

// A tuple of counts, or None.
PyObject* counts(const int64_t* numbers, int64_t size) {
  if (numbers == nullptr) Py_RETURN_NONE;
  Ref tuple(PyTuple_New(size));
  for (int64_t i = 0; tuple && i < size; ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), i, number);
  }
  return tuple.release();
}

PyObject* view(const void* data, int64_t count, int32_t dtype) {
  static char none[1];  // a view has an address, even of nothing
  auto* at = static_cast<char*>(const_cast<void*>(data));
  return PyMemoryView_FromMemory(at != nullptr ? at : none, count * dhlo_dtype_bytes(dtype), PyBUF_WRITE);
}

// Calls the Python function; false with an exception.
bool exchange_locked(const CommunicatorObject& self, const dhlo_collective& what) {
  static PyMethodDef method = {"stopped", stopped, METH_NOARGS, "Whether the run is to end."};
  const dhlo_collective** place = new (std::nothrow) const dhlo_collective*(&what);
  if (place == nullptr) return PyErr_NoMemory() != nullptr;
  Ref capsule(PyCapsule_New(place, kOperation, free_place));
  if (!capsule) {
    delete place;
    return false;
  }
  Ref ask(PyCFunction_New(&method, capsule.get()));
  Ref input(view(what.input, what.input_count, what.dtype)), output(view(what.output, what.output_count, what.dtype));
  Ref sends(counts(what.sends, what.group_size)), receives(counts(what.receives, what.group_size));
  if (!ask || !input || !output || !sends || !receives) return false;
  Ref result(PyObject_CallFunction(self.exchange, "ssOOssLOOLO", kKinds[what.kind], what.group, input.get(),
                                   output.get(), dhlo_dtype_name(what.dtype),
                                   what.reduction < 0 ? "" : kReductions[what.reduction],
                                   static_cast<long long>(what.root), sends.get(), receives.get(),
                                   static_cast<long long>(what.timeout_ns), ask.get()));
  *place = nullptr;
  return static_cast<bool>(result);
}

// dhlo_collective_fn: on any thread, without Python's lock.
int32_t exchange(void* ctx, const dhlo_collective* what) {
  const WithGil locked;
  if (holding_on([&] { return exchange_locked(*static_cast<CommunicatorObject*>(ctx), *what); })) return 0;
  keep_error();
  return 1;
}

int32_t find_group(void* ctx, const char* group, int64_t* size, int64_t* rank) {
  const WithGil locked;
  Ref found(holding_on([&] { return PyObject_CallFunction(static_cast<CommunicatorObject*>(ctx)->find, "s", group); }));
  long long numbers[2] = {};
  if (found && PyArg_ParseTuple(found.get(), "LL", &numbers[0], &numbers[1]) != 0) {
    *size = numbers[0];
    *rank = numbers[1];
    return 0;
  }
  keep_error();
  return 1;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"find", "exchange", nullptr};
  PyObject *find = nullptr, *function = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Communicator", const_cast<char**>(names), &find, &function) == 0)
    return nullptr;
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  auto* self = reinterpret_cast<CommunicatorObject*>(allocate(type, 0));
  if (self == nullptr) return nullptr;
  Py_INCREF(find);
  Py_INCREF(function);
  self->find = find;
  self->exchange = function;
  return reinterpret_cast<PyObject*>(self);
}

void dealloc(PyObject* self) {
  auto* object = reinterpret_cast<CommunicatorObject*>(self);
  drop(object->find);
  drop(object->exchange);
  free_object(self);
}

}  // namespace

PyTypeObject* communicator_type() { return type_object; }

dhlo_communicator communicator_of(PyObject* object) {
  dhlo_communicator made;
  dhlo_communicator_init(&made);
  made.ctx = object;
  made.find_group = find_group;
  made.all_reduce = made.all_gather = made.reduce_scatter = made.all_to_all = made.broadcast = exchange;
  return made;
}

bool forget_hook_error() {
  Ref error(hook_error);
  hook_error = nullptr;
  if (!error || PyObject_IsInstance(error.get(), PyExc_Exception) == 1) return true;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return false;
}

PyObject* raise_from_hook(dhlo_status status, std::string text) {
  Ref cause(hook_error);
  hook_error = nullptr;
  if (!cause) return raise(status, text.c_str());
  if (PyObject_IsInstance(cause.get(), PyExc_Exception) != 1) {  // KeyboardInterrupt, say
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.get())), cause.get());
    return nullptr;
  }
  Ref said(PyObject_Str(cause.get()));
  Ref bytes(said ? PyUnicode_AsUTF8String(said.get()) : nullptr);
  if (bytes) text += std::string(": ") + PyBytes_AsString(bytes.get());
  PyErr_Clear();
  raise(status, text.c_str());
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr) PyException_SetCause(value, cause.release());
  PyErr_Restore(type, value, trace);
  return nullptr;
}

bool add_communicator_type(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_doc, const_cast<char*>("Communicator(find, exchange)\n\nDoes collective operations for sessions.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dhlo._runtime.Communicator", sizeof(CommunicatorObject), 0, Py_TPFLAGS_DEFAULT, slots};
  type_object = add_type(module, spec);
  return type_object != nullptr;
}

}  // namespace dhlo::python
