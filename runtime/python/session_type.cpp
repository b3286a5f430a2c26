// The Python type Session: runs a model on tensors and returns fresh torch tensors, or DLPack capsules.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "../src/session.hpp"
#include "binding.hpp"
#include "output_pool.hpp"
#include "recorder.hpp"

namespace dhlo::python {
namespace {

constexpr const char* kCapsuleName = "dltensor_versioned";

struct Session {
  ~Session() {
    dhlo_session_destroy(session);
    drop(model);
    drop(communicator);
  }

  dhlo_session* session = nullptr;
  PyObject* model = nullptr;
  PyObject* communicator = nullptr;  // or null
  dhlo_session_options options{};
  bool release_gil = true;
  std::atomic<bool> busy{false};
  bool capsules = false;  // results are DLPack capsules, and torch isn't needed
  const dlpack::ExchangeApi* torch = nullptr;
  Inputs inputs;
  std::vector<dlpack::ManagedTensorVersioned*> outputs;  // of the run in progress
  std::string error;                                     // from the output allocator
  std::shared_ptr<OutputPool> pool = std::make_shared<OutputPool>();
  std::unique_ptr<Recorder> recorder;  // while traced
};

struct SessionObject {
  PyObject_HEAD Session* body;
};

Session& body_of(PyObject* self) { return *reinterpret_cast<SessionObject*>(self)->body; }

// Keeps a session to one user at a time; other threads and re-entrant calls get an exception.
class Claim {
 public:
  explicit Claim(Session& session) : session_(session), held_(!session.busy.exchange(true, std::memory_order_acquire)) {
    if (!held_) raise(DHLO_BUSY, "session is in use by another call; create one session a thread");
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (held_) session_.busy.store(false, std::memory_order_release);
  }
  explicit operator bool() const { return held_; }

 private:
  Session& session_;
  bool held_;
};

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

// As raise(), because of the exception that a hook in Python failed with, if one did. Returns null.
PyObject* raise_from_hook(dhlo_status status, std::string text) {
  Ref cause(take_hook_error());
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
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<SessionObject*>(self)->body;
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* get_model(PyObject* self, void*) {
  PyObject* model = body_of(self).model;
  Py_INCREF(model);
  return model;
}

PyObject* get_counters(PyObject* self, void*) {
  dhlo_counters c{};
  c.struct_bytes = sizeof c;
  dhlo_session_counters(body_of(self).session, &c);
  auto n = [](int64_t number) { return static_cast<long long>(number); };
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "runs", n(c.runs), "failed_runs",
                       n(c.failed_runs), "launches", n(c.launches), "arena_bytes", n(c.arena_bytes), "arena_used",
                       n(c.arena_used), "scratch_bytes", n(c.scratch_bytes), "output_bytes", n(c.output_bytes),
                       "growths", n(c.growths), "state_bytes", n(c.state_bytes), "scratch_used", n(c.scratch_used),
                       "output_used", n(c.output_used));
}

PyObject* get_profile(PyObject* self, void*) {
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  const dhlo_model* model = dhlo_session_model(session.session);
  const int64_t count = dhlo_model_num_launches(model);
  Ref list(PyList_New(count));
  for (int64_t i = 0; list && i < count; ++i) {
    dhlo_launch_profile figures{};
    figures.struct_bytes = sizeof figures;
    dhlo_session_profile(session.session, i, &figures);
    PyObject* entry = Py_BuildValue("(sLL)", dhlo_model_launch(model, i), static_cast<long long>(figures.count),
                                    static_cast<long long>(figures.nanoseconds));
    if (entry == nullptr) return nullptr;
    PyList_SetItem(list.get(), i, entry);
  }
  return list.release();
}

PyObject* set_profile(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"on", "reset", nullptr};
  int on = 0, reset = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "p|$p:set_profile", const_cast<char**>(names), &on, &reset) == 0)
    return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  dhlo_status status = DHLO_OK;
  if (reset != 0) status = dhlo_session_set_profile(session.session, 2);
  if (status == DHLO_OK) status = dhlo_session_set_profile(session.session, on);
  if (status != DHLO_OK) return raise(status, dhlo_session_error(session.session));
  Py_RETURN_NONE;
}

PyObject* start_trace_unfenced(PyObject* self, PyObject* args) {
  Py_ssize_t capacity = 0;
  if (PyArg_ParseTuple(args, "n:start_trace", &capacity) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  if (session.recorder != nullptr) return raise(DHLO_BUSY, "session is being traced already");
  if (capacity < 1 || capacity > (1 << 26)) {
    PyErr_Format(PyExc_ValueError, "a trace has room for 1 to %d spans, not %zd", 1 << 26, capacity);
    return nullptr;
  }
  auto recorder = std::make_unique<Recorder>(static_cast<size_t>(capacity));
  const dhlo_status status = dhlo_session_set_trace(session.session, Recorder::tell, recorder.get());
  if (status != DHLO_OK) return raise(status, dhlo_session_error(session.session));
  session.recorder = std::move(recorder);
  Py_RETURN_NONE;
}

PyObject* start_trace(PyObject* self, PyObject* args) {
  return fenced([&] { return start_trace_unfenced(self, args); });
}

PyObject* stop_trace(PyObject* self, PyObject*) {
  return fenced([&]() -> PyObject* {
    Session& session = body_of(self);
    Claim claim(session);
    if (!claim) return nullptr;
    if (session.recorder == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "session is not being traced");
      return nullptr;
    }
    dhlo_session_set_trace(session.session, nullptr, nullptr);
    const std::unique_ptr<Recorder> recorder = std::move(session.recorder);
    return recorder->take();
  });
}

PyObject* read_state(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  if (PyArg_ParseTuple(args, "s:read_state", &name) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  const dhlo_model* model = dhlo_session_model(session.session);
  int64_t bytes = 0;  // an unknown name is refused below
  for (int64_t i = 0; i < dhlo_model_num_states(model); ++i)
    if (std::strcmp(dhlo_model_state(model, i)->name, name) == 0) bytes = dhlo_model_state(model, i)->bytes;
  Ref result(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!result) return nullptr;
  const dhlo_status status = dhlo_session_read_state(session.session, name, PyBytes_AsString(result.get()), bytes);
  return status == DHLO_OK ? result.release() : raise(status, dhlo_session_error(session.session));
}

PyObject* write_state(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  Py_buffer data;
  if (PyArg_ParseTuple(args, "sy*:write_state", &name, &data) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  dhlo_status status = DHLO_OK;
  if (claim) status = dhlo_session_write_state(session.session, name, data.buf, data.len);
  PyBuffer_Release(&data);
  if (!claim) return nullptr;
  if (status != DHLO_OK) return raise(status, dhlo_session_error(session.session));
  Py_RETURN_NONE;
}

// None, or the exception of what went wrong.
PyObject* none_or_raise(Session& session, dhlo_status status) {
  if (status != DHLO_OK) return raise(status, dhlo_session_error(session.session));
  Py_RETURN_NONE;
}

PyObject* reset_state(PyObject* self, PyObject*) {
  Session& session = body_of(self);
  Claim claim(session);
  return claim ? none_or_raise(session, dhlo_session_reset_state(session.session)) : nullptr;
}

PyObject* snapshot(PyObject* self, PyObject*) {
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  const int64_t bytes = dhlo_session_snapshot_bytes(session.session);
  Ref result(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!result) return nullptr;
  const dhlo_status status = dhlo_session_snapshot(session.session, PyBytes_AsString(result.get()), bytes);
  return status == DHLO_OK ? result.release() : raise(status, dhlo_session_error(session.session));
}

PyObject* restore(PyObject* self, PyObject* args) {
  Py_buffer data;
  if (PyArg_ParseTuple(args, "y*:restore", &data) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  dhlo_status status = DHLO_OK;
  if (claim) status = dhlo_session_restore(session.session, data.len > 0 ? data.buf : "", data.len);
  PyBuffer_Release(&data);
  return claim ? none_or_raise(session, status) : nullptr;
}

PyObject* seed(PyObject* self, PyObject* args) {
  unsigned long long value = 0;
  if (PyArg_ParseTuple(args, "K:seed", &value) == 0) return nullptr;
  Session& session = body_of(self);
  Claim claim(session);
  return claim ? none_or_raise(session, dhlo_session_seed(session.session, value)) : nullptr;
}

PyObject* trim(PyObject* self, PyObject*) {
  Session& session = body_of(self);
  Claim claim(session);
  if (!claim) return nullptr;
  session.pool->trim();
  return none_or_raise(session, dhlo_session_trim(session.session));
}

}  // namespace

bool add_session_type(PyObject* module) {
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
  Ref type(PyType_FromModuleAndSpec(module, &spec, nullptr));
  return type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

}  // namespace dhlo::python
