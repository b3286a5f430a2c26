// What a traced session did: spans of time, and the sizes of each run's inputs.
#include "recorder.hpp"

#include <algorithm>

namespace dhlo::python {
namespace {

PyObject* span(const dhlo_trace_event& event) {
  auto n = [](int64_t number) { return static_cast<long long>(number); };
  return Py_BuildValue("(isLLLLLiii)", static_cast<int>(event.kind), event.name, n(event.begin_ns), n(event.end_ns),
                       n(event.run), n(event.launch), n(event.items), static_cast<int>(event.worker),
                       static_cast<int>(event.thread), static_cast<int>(event.status));
}

PyObject* sizes_of(const std::vector<int64_t>& sizes) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
  for (size_t d = 0; tuple && d < sizes.size(); ++d) {
    PyObject* size = PyLong_FromLongLong(sizes[d]);
    if (size == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(d), size);
  }
  return tuple.release();
}

// A list with what `make` gives for each item.
template <class Items, class Make>
PyObject* list_of(const Items& items, size_t count, Make make) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; list && i < count; ++i) {
    PyObject* item = make(items[i]);
    if (item == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list.release();
}

}  // namespace

void Recorder::tell(void* recorder, const dhlo_trace_event* event) {
  auto& self = *static_cast<Recorder*>(recorder);
  const size_t at = self.count_.fetch_add(1, std::memory_order_relaxed);
  if (at >= self.capacity_) return;
  self.spans_[at] = *event;
  if (event->kind == DHLO_TRACE_RUN) self.sizes_.push_back(std::move(self.pending_));  // on the run's thread
}

void Recorder::begin_run(const dhlo_tensor* inputs, int64_t count) {
  pending_.clear();
  for (int64_t i = 0; i < count; ++i) pending_.emplace_back(inputs[i].sizes, inputs[i].sizes + inputs[i].rank);
}

PyObject* Recorder::take() const {
  const size_t told = count_.load(std::memory_order_acquire), kept = std::min(told, capacity_);
  Ref spans(list_of(spans_, kept, span));
  if (!spans) return nullptr;
  Ref sizes(list_of(sizes_, sizes_.size(), [](const Run& run) { return list_of(run, run.size(), sizes_of); }));
  if (!sizes) return nullptr;
  return Py_BuildValue("(OOn)", spans.get(), sizes.get(), static_cast<Py_ssize_t>(told - kept));
}

}  // namespace dhlo::python
