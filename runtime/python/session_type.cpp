// The Python type Session: runs a model on tensors and returns fresh torch tensors, or DLPack capsules.
#include <new>

#include "../src/session.hpp"
#include "session_object.hpp"

namespace dhlo::python {
namespace {

constexpr const char* kCapsuleName = "dltensor_versioned";

void note_error(void* context, const char*, const char* message) {
  try {
    static_cast<Session*>(context)->error = message != nullptr ? message : "";
  } catch (const std::bad_alloc&) {
    // The status alone will say it.
  }
}

// dhlo_output_fn: a new torch tensor's memory. Runs without the GIL.
void* allocate_output(void* context, int64_t index, int32_t dtype, int64_t rank, const int64_t* sizes) {
  auto& session = *static_cast<Session*>(context);
  dlpack::ManagedTensorVersioned*& slot = session.outputs[static_cast<size_t>(index)];
  dlpack::Tensor prototype{
      nullptr, {dlpack::kCPU, 0}, static_cast<int32_t>(rank), dlpack_dtype(dtype), const_cast<int64_t*>(sizes), nullptr,
      0};
  int64_t bytes = dhlo_dtype_bytes(dtype);
  for (int64_t d = 0; d < rank; ++d) bytes *= sizes[d];
  // Under a cap nothing is kept for later.
  if (session.capsules || (bytes >= OutputPool::kSmallest && session.options.max_bytes == 0)) {
    slot = session.pool->take(prototype, bytes);
    return slot != nullptr ? slot->tensor.data : nullptr;
  }
  if (session.torch->allocate(&prototype, &slot, context, note_error) != 0) {
    slot = nullptr;
    return nullptr;
  }
  return static_cast<uint8_t*>(slot->tensor.data) + slot->tensor.byte_offset;
}

void drop_outputs(Session& session) {
  for (dlpack::ManagedTensorVersioned*& output : session.outputs) {
    if (output != nullptr && output->deleter != nullptr) output->deleter(output);
    output = nullptr;
  }
}

void drop_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsuleName) == 0) return;  // a consumer took it, and renamed it
  auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  if (managed->deleter != nullptr) managed->deleter(managed);
}

// The outputs of a successful run as a list of DLPack capsules.
PyObject* take_capsules(Session& session) {
  const auto count = static_cast<Py_ssize_t>(session.outputs.size());
  Ref list(PyList_New(count));
  for (Py_ssize_t i = 0; list && i < count; ++i) {
    dlpack::ManagedTensorVersioned*& output = session.outputs[static_cast<size_t>(i)];
    PyObject* capsule = PyCapsule_New(output, kCapsuleName, drop_capsule);
    if (capsule == nullptr) {
      drop_outputs(session);
      return nullptr;
    }
    output = nullptr;
    PyList_SetItem(list.get(), i, capsule);
  }
  if (!list) drop_outputs(session);
  if (session.options.max_bytes != 0) session.pool->trim();
  return list.release();
}

// The outputs of a successful run as a list of torch tensors.
PyObject* take_outputs(Session& session) {
  const auto count = static_cast<Py_ssize_t>(session.outputs.size());
  Ref list(PyList_New(count));
  for (Py_ssize_t i = 0; list && i < count; ++i) {
    void* object = nullptr;
    dlpack::ManagedTensorVersioned* managed = session.outputs[static_cast<size_t>(i)];
    session.outputs[static_cast<size_t>(i)] = nullptr;  // ownership passes whether or not it succeeds
    if (holding_on([&] { return session.torch->object_from_managed(managed, &object); }) != 0) {
      drop_outputs(session);
      return nullptr;
    }
    PyList_SetItem(list.get(), i, static_cast<PyObject*>(object));
  }
  if (!list) drop_outputs(session);
  return list.release();
}

PyObject* run(Session& session, PyObject* objects, const dhlo_run_options* how = nullptr) {
  Claim claim(session);
  if (!claim) return nullptr;
  if (!session.capsules && session.torch == nullptr && (session.torch = torch_api()) == nullptr) return nullptr;
  if (!session.inputs.convert(dhlo_session_model(session.session), objects, false)) {
    session.inputs.clear();
    return nullptr;
  }
  if (session.recorder != nullptr) session.recorder->begin_run(session.inputs.tensors(), session.inputs.count());
  dhlo_status status = DHLO_OK;
  if (session.release_gil) {
    WithoutGil others_run;
    status = dhlo_session_run_with(session.session, session.inputs.tensors(), session.inputs.count(), how);
  } else {
    status = dhlo_session_run_with(session.session, session.inputs.tensors(), session.inputs.count(), how);
  }
  session.inputs.clear();
  if (status == DHLO_OK) return session.capsules ? take_capsules(session) : take_outputs(session);
  drop_outputs(session);
  std::string text = dhlo_session_error(session.session);
  if (!session.error.empty()) text += ": " + session.error.substr(0, session.error.find('\n'));
  session.error.clear();
  return raise_from_hook(status, text);
}

PyObject* call_unfenced(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (kwargs != nullptr && PyDict_Size(kwargs) != 0) {
    PyErr_SetString(PyExc_TypeError, "a session takes positional inputs only");
    return nullptr;
  }
  Ref objects(flat_arguments(args));
  return objects ? run(body_of(self), objects.get()) : nullptr;
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return call_unfenced(self, args, kwargs); });
}

// A run's number that another thread sets to stop it, in memory of a Python object.
class Flag {
 public:
  Flag() = default;
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  ~Flag() {
    if (held_) PyBuffer_Release(&buffer_);
  }
  // False with an exception.
  bool take(PyObject* object) {
    if (object == nullptr || object == Py_None) return true;
    if (PyObject_GetBuffer(object, &buffer_, PyBUF_SIMPLE) != 0) return false;
    held_ = true;
    if (buffer_.len == sizeof(int32_t) && reinterpret_cast<uintptr_t>(buffer_.buf) % alignof(int32_t) == 0) return true;
    PyErr_SetString(PyExc_ValueError, "cancel: expected a buffer of one aligned 32-bit number");
    return false;
  }
  const volatile int32_t* data() const { return held_ ? static_cast<const int32_t*>(buffer_.buf) : nullptr; }

 private:
  Py_buffer buffer_{};
  bool held_ = false;
};

PyObject* run_with_unfenced(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"inputs", "timeout_ns", "cancel", nullptr};
  PyObject *inputs = nullptr, *cancel = nullptr;
  dhlo_run_options how;
  dhlo_run_options_init(&how);
  long long timeout_ns = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O|LO:run", const_cast<char**>(names), &inputs, &timeout_ns, &cancel) ==
      0)
    return nullptr;
  Flag flag;
  if (!flag.take(cancel)) return nullptr;
  how.timeout_ns = timeout_ns;
  how.cancel = flag.data();
  Ref tuple(PyTuple_Pack(1, inputs));
  Ref objects(tuple ? flat_arguments(tuple.get()) : nullptr);
  return objects ? run(body_of(self), objects.get(), &how) : nullptr;
}

PyObject* run_with(PyObject* self, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return run_with_unfenced(self, args, kwargs); });
}

// Of whatever thread's run is in progress.
PyObject* cancel_run(PyObject* self, PyObject*) {
  dhlo_session_cancel(body_of(self).session);
  Py_RETURN_NONE;
}

// How a session meets Python.
struct Manners {
  bool release_gil, capsules;
};

// A session object of the type, with a native session of the given options, which `create` makes.
template <class Create>
PyObject* make(PyTypeObject* type, PyObject* model, PyObject* communicator, dhlo_session_options options,
               Manners manners, Create create) {
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref self(allocate(type, 0));
  if (!self) return nullptr;
  auto* object = reinterpret_cast<SessionObject*>(self.get());
  object->body = new (std::nothrow) Session;
  if (object->body == nullptr) return PyErr_NoMemory();
  Session& session = *object->body;
  session.release_gil = manners.release_gil;
  session.capsules = manners.capsules;
  Py_INCREF(model);
  session.model = model;
  dhlo_communicator hooks;
  if (communicator != nullptr) {
    Py_INCREF(communicator);
    session.communicator = communicator;
    hooks = communicator_of(communicator);
    options.communicator = &hooks;
  }
  options.output = allocate_output;
  options.output_ctx = &session;
  session.options = options;
  session.options.communicator = nullptr;  // of this call; copies get their own
  dhlo_model* handle = reinterpret_cast<ModelObject*>(model)->model;
  const dhlo_status status = create(handle, &options, &session.session);
  if (status != DHLO_OK) return raise_from_hook(status, dhlo_last_error());
  session.session->trusts_output_hook = true;
  session.inputs.reserve(handle);
  session.outputs.resize(static_cast<size_t>(dhlo_model_num_outputs(handle)));
  return self.release();
}

PyObject* create_unfenced(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"model",    "max_bytes",    "profile", "release_gil",
                                      "capsules", "communicator", nullptr};
  PyObject *model = nullptr, *communicator = nullptr;
  long long max_bytes = 0;
  int profile = 0, release_gil = 1, capsules = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$LpppO:Session", const_cast<char**>(names), model_type(), &model,
                                  &max_bytes, &profile, &release_gil, &capsules, &communicator) == 0)
    return nullptr;
  if (communicator == Py_None) communicator = nullptr;
  if (communicator != nullptr &&
      PyObject_IsInstance(communicator, reinterpret_cast<PyObject*>(communicator_type())) != 1) {
    PyErr_SetString(PyExc_TypeError, "communicator: expected a Communicator");
    return nullptr;
  }
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.profile = profile;
  options.max_bytes = max_bytes;
  return make(type, model, communicator, options, {release_gil != 0, capsules != 0}, dhlo_session_create);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return create_unfenced(type, args, kwargs); });
}

PyObject* copy_unfenced(PyObject* self, PyObject*) {
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  return make(Py_TYPE(self), session.model, session.communicator, session.options,
              {session.release_gil, session.capsules},
              [&session](dhlo_model*, const dhlo_session_options* options, dhlo_session** out) {
                return dhlo_session_copy(session.session, options, out);
              });
}

PyObject* sharing_unfenced(PyObject* self, PyObject* args) {
  PyObject* entry = nullptr;
  if (PyArg_ParseTuple(args, "O!:sharing", model_type(), &entry) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  return make(Py_TYPE(self), entry, session.communicator, session.options, {session.release_gil, session.capsules},
              [&session](dhlo_model* model, const dhlo_session_options* options, dhlo_session** out) {
                return dhlo_session_create_sharing(session.session, model, options, out);
              });
}

PyObject* sharing(PyObject* self, PyObject* args) {
  return fenced([&] { return sharing_unfenced(self, args); });
}

PyObject* copy(PyObject* self, PyObject*) {
  return fenced([&] { return copy_unfenced(self, nullptr); });
}

void dealloc(PyObject* self) {
  delete reinterpret_cast<SessionObject*>(self)->body;
  free_object(self);
}

PyObject* get_model(PyObject* self, void*) {
  PyObject* model = body_of(self).model;
  Py_INCREF(model);
  return model;
}

}  // namespace

bool add_session_type(PyObject* module) {
  using namespace session_methods;
  static PyMethodDef methods[] = {
      {"set_profile", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(set_profile)),
       METH_VARARGS | METH_KEYWORDS, "Switches timing of launches on or off."},
      {"start_trace", start_trace, METH_VARARGS, "Records what runs spend their time on."},
      {"stop_trace", stop_trace, METH_NOARGS, "Ends that: (spans, sizes of inputs by run, spans left out)."},
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_with)), METH_VARARGS | METH_KEYWORDS,
       "Runs the model; fails after timeout_ns, or once the number in the buffer `cancel` isn't 0."},
      {"cancel", cancel_run, METH_NOARGS, "Stops the run in progress, if there is one, from any thread."},
      {"read_state", read_state, METH_VARARGS, "Bytes of a mutable state."},
      {"write_state", write_state, METH_VARARGS, "Sets a mutable state from a buffer of its size."},
      {"reset_state", reset_state, METH_NOARGS, "Puts every state back to its initial value."},
      {"sharing", sharing, METH_VARARGS, "A session of another entry that shares this one's state."},
      {"copy", copy, METH_NOARGS, "A new session with the same options, state and random generator."},
      {"snapshot", snapshot, METH_NOARGS, "State and random generator as bytes."},
      {"restore", restore, METH_VARARGS, "Takes over a snapshot of a session whose model has the same states."},
      {"seed", seed, METH_VARARGS, "Random numbers of later runs follow from this number (64 bits)."},
      {"trim", trim, METH_NOARGS, "Frees arena, scratch and memory kept for outputs."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef getters[] = {
      {"model", get_model, nullptr, "The model.", nullptr},
      {"counters", get_counters, nullptr, "Runs, launches and bytes held.", nullptr},
      {"profile", get_profile, nullptr, "(kernel, count, nanoseconds) of each launch site.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_call, reinterpret_cast<void*>(call)},
      {Py_tp_methods, methods},
      {Py_tp_getset, getters},
      {Py_tp_doc, const_cast<char*>("Session(model, *, max_bytes=0, profile=False, release_gil=True)\n\nRuns a model; "
                                    "for one thread at a time.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dhlo._runtime.Session", sizeof(SessionObject), 0, Py_TPFLAGS_DEFAULT, slots};
  return add_type(module, spec) != nullptr;
}

}  // namespace dhlo::python
