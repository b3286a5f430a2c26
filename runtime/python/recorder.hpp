// What a traced session did: spans of time, and the sizes of each run's inputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "binding.hpp"

namespace dhlo::python {

// Room for a number of spans is set aside at once: threads record without waiting for each other, and what comes when
// it is full is counted and left out.
class Recorder {
 public:
  explicit Recorder(size_t capacity) : capacity_(capacity), spans_(new dhlo_trace_event[capacity]) {}

  // dhlo_trace_fn
  static void tell(void* recorder, const dhlo_trace_event* event);
  // The inputs of the run that begins on this thread.
  void begin_run(const dhlo_tensor* inputs, int64_t count);
  // (spans, sizes, lost): spans as tuples of the event's fields from `kind` on but for the session; for each run the
  // sizes of its inputs; and how many spans there was no room for. Between runs only.
  PyObject* take() const;

 private:
  using Run = std::vector<std::vector<int64_t>>;  // sizes by input

  const size_t capacity_;
  const std::unique_ptr<dhlo_trace_event[]> spans_;
  std::atomic<size_t> count_{0};
  std::vector<Run> sizes_;
  Run pending_;  // of the run in progress
};

}  // namespace dhlo::python
