// What the files of the Python binding share: types, error mapping, tensor conversion.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "dhlo/runtime.h"
#include "dlpack.hpp"

namespace dhlo::python {

// What `body` returns; null with a Python exception where it throws, since nothing may throw through CPython.
template <class Body>
PyObject* fenced(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// Calls what waits for Python's lock, or Python code, which gives it up now and then. Once the interpreter is ending,
// CPython before 3.14 ends a thread that wants it, by unwinding its stack, whose destructors need the lock: such a
// thread rests here instead, until the process is gone.
template <class Call>
auto holding_on(Call&& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    for (;;) pause();
  }
}

// Drops a reference, or null: a destructor may be Python code.
inline void drop(PyObject* object) {
  holding_on([object] { Py_XDECREF(object); });
}

// A new reference that is dropped at the end of its scope.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { drop(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Takes Python's lock during its scope, on any thread.
class WithGil {
 public:
  WithGil() : state_(holding_on(PyGILState_Ensure)) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Lets other Python threads run during its scope.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    holding_on([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

struct ModelObject {
  PyObject_HEAD dhlo_model* model;
};

// Sets the Python exception for a failed call: ValueError for what the caller can mend (arguments, contract),
// MemoryError, RuntimeError otherwise. Its `status` attribute is the status' name. Returns null.
PyObject* raise(dhlo_status status, const char* text);

// The exchange table of a type, or null (without an exception) if it has none. Remembers its answers.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);
// The table of torch.Tensor, for outputs; null with an exception if torch cannot be imported.
const dlpack::ExchangeApi* torch_api();

dlpack::DataType dlpack_dtype(int32_t dtype);
// The dhlo dtype with that name, or -1.
int32_t dtype_from_name(const char* name);

// The inputs of one call as compiled code wants them, borrowed from Python objects.
class Inputs {
 public:
  // Room for a model's inputs; convert() then allocates nothing on the usual path.
  void reserve(const dhlo_model* model);
  // Views `objects`, a tuple that must outlive the views. `shapes` also allows sequences of ints in place of tensors,
  // without data and with the dtype that the model expects. False with a Python exception on failure.
  bool convert(const dhlo_model* model, PyObject* objects, bool shapes);
  // Lets go of what convert() had to hold.
  void clear();

  const dhlo_tensor* tensors() const { return tensors_.data(); }
  int64_t count() const { return count_; }

 private:
  struct Scalar {
    alignas(16) unsigned char bytes[16];
  };
  bool convert_one(const dhlo_abi_value* value, int64_t index, PyObject* object, bool shapes);
  bool convert_exchanged(const dhlo_abi_value* value, int64_t index, PyObject* object, const dlpack::ExchangeApi* api);
  bool accept_flags(const dhlo_abi_value* value, int64_t index, uint64_t flags);
  bool convert_scalar(const dhlo_abi_value* value, int64_t index, PyObject* object, bool* done);
  bool store_int(const dhlo_abi_value* value, int64_t index, PyObject* integer);
  bool convert_shape(const dhlo_abi_value* value, int64_t index, PyObject* object);
  bool convert_capsule(const dhlo_abi_value* value, int64_t index, PyObject* object);
  bool accept(const dhlo_abi_value* value, int64_t index, const dlpack::Tensor& tensor);

  std::vector<dhlo_tensor> tensors_;
  std::vector<Scalar> scalars_;
  std::vector<std::vector<int64_t>> sizes_;  // of inputs given as shapes
  std::vector<PyObject*> kept_;              // capsules and resolved copies
  std::vector<bool> updated_;                // inputs whose memory a run writes to
  int64_t count_ = 0;
};

// tuple(objects), with a single list or tuple standing for its items. New reference, or null with an exception.
PyObject* flat_arguments(PyObject* args);

// Gives back the memory of an object of a type of this module, at the end of its dealloc.
void free_object(PyObject* self);
// Makes the type, which lives as long as the process, and adds it to the module. Null with an exception on failure.
PyTypeObject* add_type(PyObject* module, PyType_Spec& spec);

// Adds the type to the module. False with an exception on failure.
bool add_model_type(PyObject* module);
bool add_session_type(PyObject* module);
bool add_buffer_type(PyObject* module);
bool add_communicator_type(PyObject* module);
// Borrowed; set by add_communicator_type.
PyTypeObject* communicator_type();
// Hooks that call the functions of a Communicator, which must outlive them.
dhlo_communicator communicator_of(PyObject* object);
// As raise(), because of the exception that such a hook failed with on this thread, if one did since the last call of
// this. Returns null.
PyObject* raise_from_hook(dhlo_status status, std::string text);
// Lets go of such an exception where a call doesn't fail for it. False if it is to be raised all the same, and is:
// KeyboardInterrupt, say.
bool forget_hook_error();
bool add_engine_type(PyObject* module);
// The function `follow` of the module.
PyObject* follow(PyObject* self, PyObject* args);
// Borrowed; set by add_model_type.
PyTypeObject* model_type();

}  // namespace dhlo::python
