// The Python type Session as its files share it: the object, and its methods beside runs.
#pragma once

#include <atomic>
#include <memory>

#include "binding.hpp"
#include "output_pool.hpp"
#include "recorder.hpp"

namespace dhlo::python {

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

inline Session& body_of(PyObject* self) { return *reinterpret_cast<SessionObject*>(self)->body; }

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

// What there is beside runs: figures, traces, state.
namespace session_methods {
PyObject* get_counters(PyObject* self, void*);
PyObject* get_profile(PyObject* self, void*);
PyObject* set_profile(PyObject* self, PyObject* args, PyObject* kwargs);
PyObject* start_trace(PyObject* self, PyObject* args);
PyObject* stop_trace(PyObject* self, PyObject* args);
PyObject* read_state(PyObject* self, PyObject* args);
PyObject* write_state(PyObject* self, PyObject* args);
PyObject* reset_state(PyObject* self, PyObject* args);
PyObject* snapshot(PyObject* self, PyObject* args);
PyObject* restore(PyObject* self, PyObject* args);
PyObject* seed(PyObject* self, PyObject* args);
PyObject* trim(PyObject* self, PyObject* args);
}  // namespace session_methods

}  // namespace dhlo::python
