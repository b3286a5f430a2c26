// What the Python type Session has beside runs: figures, traces, state.
#include <cstring>

#include "session_object.hpp"

namespace dhlo::python {
namespace {

// None, or the exception of what went wrong.
PyObject* none_or_raise(Session& session, dhlo_status status) {
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

}  // namespace

namespace session_methods {

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

}  // namespace session_methods

}  // namespace dhlo::python
