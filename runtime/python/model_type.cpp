// The Python type Model: a loaded program, shared by any number of sessions.
#include "binding.hpp"

namespace dhlo::python {
namespace {

PyTypeObject* the_type = nullptr;

dhlo_model* handle(PyObject* self) { return reinterpret_cast<ModelObject*>(self)->model; }

PyObject* wrap(PyTypeObject* type, dhlo_model* model) {
  auto* self = PyObject_New(ModelObject, type);
  if (self == nullptr) {
    dhlo_model_release(model);
    return nullptr;
  }
  self->model = model;
  return reinterpret_cast<PyObject*>(self);
}

// Asks a Python function whether a file may be loaded; keeps the exception that it raises.
struct Authorize {
  PyObject* function = nullptr;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;

  static int32_t ask(void* ctx, const uint8_t* digest, size_t bytes) noexcept {
    auto* self = static_cast<Authorize*>(ctx);
    const WithGil locked;
    int accepted = -1;
    Ref data(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(digest), static_cast<Py_ssize_t>(bytes)));
    Ref answer(data ? holding_on([&] { return PyObject_CallFunctionObjArgs(self->function, data.get(), nullptr); })
                    : nullptr);
    if (answer) accepted = holding_on([&] { return PyObject_IsTrue(answer.get()); });
    if (accepted < 0) PyErr_Fetch(&self->type, &self->value, &self->traceback);
    return accepted == 1 ? 0 : 1;
  }
};

// A weights file that the caller names, by its path, or has in memory: anything with a buffer.
class Weights {
 public:
  Weights() = default;
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  ~Weights() {
    if (data_.obj != nullptr) PyBuffer_Release(&data_);
    Py_XDECREF(path_);
  }
  // False with an exception.
  bool read(PyObject* given, dhlo_model_options* options) {
    if (given == nullptr || given == Py_None) return true;
    if (PyObject_CheckBuffer(given) != 0) {
      if (PyObject_GetBuffer(given, &data_, PyBUF_SIMPLE) != 0) return false;
      options->weights_data = data_.buf != nullptr ? data_.buf : &data_;  // what is empty is still what was given
      options->weights_bytes = static_cast<size_t>(data_.len);
      return true;
    }
    if (holding_on([&] { return PyUnicode_FSConverter(given, &path_); }) == 0) return false;
    options->weights_path = PyBytes_AsString(path_);
    return true;
  }

 private:
  Py_buffer data_{};
  PyObject* path_ = nullptr;
};

// What from_file and from_memory have in common. `load` is called without Python's lock.
template <class Load>
PyObject* load_with(PyObject* type, int verify, int memory, long long threads, PyObject* function, PyObject* apart,
                    Load load) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  Weights weights;
  if (!weights.read(apart, &options)) return nullptr;
  options.verify_constants = verify;
  options.constants_memory = memory;
  options.num_threads = threads;
  Authorize authorize;
  if (function != nullptr && function != Py_None) {
    authorize.function = function;
    options.authorize = Authorize::ask;
    options.authorize_ctx = &authorize;
  }
  dhlo_model* model = nullptr;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = load(&options, &model);
  }
  if (authorize.type != nullptr) {
    PyErr_Restore(authorize.type, authorize.value, authorize.traceback);
    return nullptr;
  }
  return status == DHLO_OK ? wrap(reinterpret_cast<PyTypeObject*>(type), model) : raise(status, dhlo_last_error());
}

PyObject* from_file_unfenced(PyObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"path", "verify", "memory", "num_threads", "authorize", "weights", nullptr};
  PyObject* path = nullptr;
  PyObject *authorize = nullptr, *weights = nullptr;
  int verify = DHLO_VERIFY_ONCE, memory = DHLO_CONSTANTS_AUTO;
  long long threads = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O&|$iiLOO:from_file", const_cast<char**>(names), PyUnicode_FSConverter,
                                  &path, &verify, &memory, &threads, &authorize, &weights) == 0)
    return nullptr;
  Ref bytes(path);
  const char* text = PyBytes_AsString(path);
  return load_with(type, verify, memory, threads, authorize, weights,
                   [text](const dhlo_model_options* options, dhlo_model** model) {
                     return dhlo_model_load_file(text, options, model);
                   });
}

PyObject* from_file(PyObject* type, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return from_file_unfenced(type, args, kwargs); });
}

PyObject* from_memory_unfenced(PyObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"data", "verify", "num_threads", "authorize", "weights", nullptr};
  Py_buffer data;
  PyObject *authorize = nullptr, *weights = nullptr;
  int verify = 1;
  long long threads = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "y*|$pLOO:from_memory", const_cast<char**>(names), &data, &verify,
                                  &threads, &authorize, &weights) == 0)
    return nullptr;
  PyObject* model = load_with(type, verify, DHLO_CONSTANTS_AUTO, threads, authorize, weights,
                              [&data](const dhlo_model_options* options, dhlo_model** out) {
                                return dhlo_model_load_memory(data.buf, static_cast<size_t>(data.len), options, out);
                              });
  PyBuffer_Release(&data);
  return model;
}

PyObject* from_memory(PyObject* type, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return from_memory_unfenced(type, args, kwargs); });
}

void release_owner(void* owner) {
  if (Py_IsInitialized() == 0) return;
  const WithGil locked;
  drop(static_cast<PyObject*>(owner));
}

PyObject* from_address(PyObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"descriptor_addr", "constants_addr", "constants_bytes",
                                      "owner",           "num_threads",    nullptr};
  unsigned long long descriptor = 0, constants = 0;
  Py_ssize_t bytes = 0;
  PyObject* owner = nullptr;
  long long threads = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "KKnO|$L:from_address", const_cast<char**>(names), &descriptor,
                                  &constants, &bytes, &owner, &threads) == 0)
    return nullptr;
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.num_threads = threads;
  dhlo_model* model = nullptr;
  const dhlo_status status = dhlo_model_from_descriptor(
      reinterpret_cast<const dhlo_abi_model*>(descriptor), reinterpret_cast<const void*>(constants),
      static_cast<size_t>(bytes), release_owner, owner, &options, &model);
  if (status != DHLO_OK) return raise(status, dhlo_last_error());
  Py_INCREF(owner);
  return wrap(reinterpret_cast<PyTypeObject*>(type), model);
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  dhlo_model_release(handle(self));
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* sizes_tuple(int64_t rank, const int64_t* sizes) {
  Ref tuple(PyTuple_New(rank));
  for (int64_t dim = 0; tuple && dim < rank; ++dim) {
    PyObject* size = PyLong_FromLongLong(sizes[dim]);
    if (size == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), dim, size);
  }
  return tuple.release();
}

PyObject* describe_value(const dhlo_abi_value& value) {
  Ref dims(PyTuple_New(value.rank));
  for (int64_t dim = 0; dims && dim < value.rank; ++dim) {
    PyObject* text = value.dims != nullptr ? PyUnicode_FromString(value.dims[dim])
                                           : PyUnicode_FromFormat("%lld", static_cast<long long>(value.sizes[dim]));
    if (text == nullptr) return nullptr;
    PyTuple_SetItem(dims.get(), dim, text);
  }
  Ref sizes(sizes_tuple(value.rank, value.sizes));
  if (!dims || !sizes) return nullptr;
  return Py_BuildValue("{s:s,s:s,s:O,s:O}", "name", value.name != nullptr ? value.name : "", "dtype",
                       dhlo_dtype_name(static_cast<int32_t>(value.dtype)), "sizes", sizes.get(), "dims", dims.get());
}

// A list of what `item` returns (new references) for each index.
template <class Item>
PyObject* make_list(int64_t count, Item item) {
  Ref list(PyList_New(count));
  for (int64_t i = 0; list && i < count; ++i) {
    PyObject* object = item(i);
    if (object == nullptr) return nullptr;
    PyList_SetItem(list.get(), i, object);
  }
  return list.release();
}

PyObject* get_inputs(PyObject* self, void*) {
  return make_list(dhlo_model_num_inputs(handle(self)),
                   [self](int64_t i) { return describe_value(*dhlo_model_input(handle(self), i)); });
}

PyObject* get_outputs(PyObject* self, void*) {
  return make_list(dhlo_model_num_outputs(handle(self)),
                   [self](int64_t i) { return describe_value(*dhlo_model_output(handle(self), i)); });
}

PyObject* get_states(PyObject* self, void*) {
  return make_list(dhlo_model_num_states(handle(self)), [self](int64_t i) {
    const dhlo_abi_state* state = dhlo_model_state(handle(self), i);
    return Py_BuildValue("{s:s,s:s,s:L}", "name", state->name, "dtype",
                         dhlo_dtype_name(static_cast<int32_t>(state->dtype)), "bytes",
                         static_cast<long long>(state->bytes));
  });
}

PyObject* get_launches(PyObject* self, void*) {
  return make_list(dhlo_model_num_launches(handle(self)),
                   [self](int64_t i) { return PyUnicode_FromString(dhlo_model_launch(handle(self), i)); });
}

PyObject* get_entries(PyObject* self, void*) {
  return make_list(dhlo_model_num_entries(handle(self)),
                   [self](int64_t i) { return PyUnicode_FromString(dhlo_model_entry_name(handle(self), i)); });
}

PyObject* find_entry(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  if (PyArg_ParseTuple(args, "s:entry", &name) == 0) return nullptr;
  dhlo_model* entry = nullptr;
  const dhlo_status status = dhlo_model_entry(handle(self), name, &entry);
  return status == DHLO_OK ? wrap(Py_TYPE(self), entry) : raise(status, dhlo_last_error());
}

template <const char* (*Get)(const dhlo_model*)>
PyObject* get_text(PyObject* self, void*) {
  return PyUnicode_FromString(Get(handle(self)));
}

template <int64_t (*Get)(const dhlo_model*)>
PyObject* get_number(PyObject* self, void*) {
  return PyLong_FromLongLong(Get(handle(self)));
}

PyObject* plan_unfenced(PyObject* self, PyObject* args) {
  const dhlo_model* model = handle(self);
  Ref objects(flat_arguments(args));
  if (!objects) return nullptr;
  Inputs inputs;
  inputs.reserve(model);
  std::vector<dhlo_shape> shapes(static_cast<size_t>(dhlo_model_num_outputs(model)));
  dhlo_plan figures{};
  figures.struct_bytes = sizeof figures;
  if (!inputs.convert(model, objects.get(), true)) {
    inputs.clear();
    return nullptr;
  }
  const dhlo_status status = dhlo_model_plan(model, inputs.tensors(), inputs.count(), shapes.data(), &figures);
  inputs.clear();
  if (status != DHLO_OK) return raise(status, dhlo_last_error());
  Ref outputs(make_list(static_cast<int64_t>(shapes.size()), [&shapes](int64_t i) -> PyObject* {
    const dhlo_shape& shape = shapes[static_cast<size_t>(i)];
    if (shape.rank < 0) return Py_BuildValue("(sO)", dhlo_dtype_name(shape.dtype), Py_None);
    Ref sizes(sizes_tuple(shape.rank, shape.sizes));
    return sizes ? Py_BuildValue("(sO)", dhlo_dtype_name(shape.dtype), sizes.get()) : nullptr;
  }));
  if (!outputs) return nullptr;
  auto number = [](int64_t n) { return static_cast<long long>(n); };
  return Py_BuildValue("{s:O,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:O,s:L}", "outputs", outputs.get(), "arena_bytes",
                       number(figures.arena_bytes), "scratch_bytes", number(figures.scratch_bytes), "output_bytes",
                       number(figures.output_bytes), "state_bytes", number(figures.state_bytes), "constants_bytes",
                       number(figures.constants_bytes), "total_bytes", number(figures.total_bytes), "peak_live_bytes",
                       number(figures.peak_live_bytes), "data_dependent",
                       figures.data_dependent != 0 ? Py_True : Py_False, "num_launches", number(figures.num_launches));
}

PyObject* plan(PyObject* self, PyObject* args) {
  return fenced([&] { return plan_unfenced(self, args); });
}

template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

PyTypeObject* model_type() { return the_type; }

bool add_model_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"from_file", as_method(from_file), METH_VARARGS | METH_KEYWORDS | METH_CLASS, "Loads a model file."},
      {"from_memory", as_method(from_memory), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
       "Loads a model file held in memory."},
      {"from_address", as_method(from_address), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
       "Makes a model of a descriptor and constants in this process; owner is kept alive with it."},
      {"entry", as_method(find_entry), METH_VARARGS, "Another entry of the same model, by name."},
      {"plan", as_method(plan), METH_VARARGS,
       "Output shapes and memory for inputs (tensors, numbers or shapes), without running."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef getters[] = {
      {"name", get_text<dhlo_model_name>, nullptr, "Name given at compile time.", nullptr},
      {"producer", get_text<dhlo_model_producer>, nullptr, "Compiler and version.", nullptr},
      {"metadata", get_text<dhlo_model_metadata>, nullptr, "JSON text.", nullptr},
      {"level", get_text<dhlo_model_level>, nullptr, "The target that the code in use was made for.", nullptr},
      {"cpu_features", get_text<dhlo_model_cpu_features>, nullptr, "Processor features needed, comma-separated.",
       nullptr},
      {"num_threads", get_number<dhlo_model_num_threads>, nullptr, "Threads a run may use.", nullptr},
      {"constants_bytes", get_number<dhlo_model_constants_bytes>, nullptr, "Bytes of constants.", nullptr},
      {"state_bytes", get_number<dhlo_model_state_bytes>, nullptr, "Bytes of mutable state a session.", nullptr},
      {"inputs", get_inputs, nullptr, "Name, dtype, sizes (-1: symbolic) and dim texts of each input.", nullptr},
      {"outputs", get_outputs, nullptr, "The same of each output.", nullptr},
      {"states", get_states, nullptr, "Name and bytes of each mutable state.", nullptr},
      {"entries", get_entries, nullptr, "Names of the model's entries.", nullptr},
      {"launches", get_launches, nullptr, "Kernel name of each launch site.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc, const_cast<char*>("A loaded program: immutable, shared by sessions and threads.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dhlo._runtime.Model", sizeof(ModelObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  the_type = add_type(module, spec);
  return the_type != nullptr;
}

}  // namespace dhlo::python
