// The Python type Engine: serves a step over pools of blocks; dhlo/serve/requests.py hands on its events.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "dhlo/serve.h"
#include "store_hooks.hpp"

namespace dhlo::python {
namespace {

struct EngineObject {
  PyObject_HEAD dhlo_engine* engine;
  PyObject* store;  // of the engine's hooks; null: none
  PyObject* communicator;
};

dhlo_engine* handle(PyObject* self) { return reinterpret_cast<EngineObject*>(self)->engine; }

PyObject* raise_last(dhlo_status status) { return raise(status, dhlo_serve_last_error()); }

// Buffers of one call, given back at its end.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (Py_buffer& buffer : buffers_)
      if (buffer.obj != nullptr) PyBuffer_Release(&buffer);
  }
  Py_buffer* next() { return &buffers_[count_++]; }
  // The elements of a buffer of T.
  template <class T>
  static const T* data(const Py_buffer& buffer) {
    return static_cast<const T*>(buffer.buf);
  }
  template <class T>
  static int64_t count(const Py_buffer& buffer) {
    return static_cast<int64_t>(buffer.len) / static_cast<int64_t>(sizeof(T));
  }

 private:
  Py_buffer buffers_[8] = {};
  size_t count_ = 0;
};

int64_t nanoseconds(double seconds) {
  constexpr double kMost = 9e18;
  return seconds < 0 ? -1 : seconds * 1e9 < kMost ? static_cast<int64_t>(seconds * 1e9) : -1;
}

// A tuple of what `item` returns (new references) for each index.
template <class Item>
PyObject* make_tuple(int64_t count, Item item) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (int64_t i = 0; tuple && i < count; ++i) {
    PyObject* object = item(i);
    if (object == nullptr) return nullptr;
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), object);
  }
  return tuple.release();
}

// dhlo_constrain_fn: `user` is the request's callable. On the engine's thread.
int32_t constrain(void*, uint64_t, void* user, int32_t choice, const int32_t* tokens, int64_t num_tokens,
                  uint32_t* allowed, int64_t num_words) {
  const WithGil locked;
  PyObject* const function = static_cast<PyObject*>(user);
  Ref so_far(make_tuple(num_tokens, [tokens](int64_t i) { return PyLong_FromLong(tokens[i]); }));
  // A copy, which the callable may keep.
  const auto num_bytes = static_cast<Py_ssize_t>(static_cast<size_t>(num_words) * sizeof(uint32_t));
  Ref bytes(so_far ? PyByteArray_FromStringAndSize(reinterpret_cast<char*>(allowed), num_bytes) : nullptr);
  Ref view(bytes ? PyMemoryView_FromObject(bytes.get()) : nullptr);
  Ref words(view ? PyObject_CallMethod(view.get(), "cast", "s", "I") : nullptr);
  Ref result(holding_on(
      [&] { return words ? PyObject_CallFunction(function, "iOO", choice, so_far.get(), words.get()) : nullptr; }));
  const bool ok = static_cast<bool>(result);
  if (ok)
    std::memcpy(allowed, PyByteArray_AsString(bytes.get()), static_cast<size_t>(num_bytes));
  else
    holding_on([function] { PyErr_WriteUnraisable(function); });
  return ok ? 0 : 1;
}

bool check_communicator(PyObject* object) {
  if (object == Py_None || PyObject_TypeCheck(object, communicator_type()) != 0) return true;
  PyErr_SetString(PyExc_TypeError, "communicator: expected a Communicator or None");
  return false;
}

PyObject* create_unfenced(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"model",
                                      "cache_bytes",
                                      "max_step_tokens",
                                      "max_sequences",
                                      "max_waiting",
                                      "max_positions",
                                      "eos_tokens",
                                      "vocabulary",
                                      "vocabulary_offsets",
                                      "prefix_cache",
                                      "prompt_lookup",
                                      "cache_folder",
                                      "cache_folder_bytes",
                                      "model_digest",
                                      "draft_model",
                                      "draft_tokens",
                                      "draft_branches",
                                      "draft_cache_bytes",
                                      "draft_max_positions",
                                      "cache_store",
                                      "cache_store_threads",
                                      "preemption",
                                      "swap_bytes",
                                      "communicator",
                                      "peer_timeout",
                                      "evict_to",
                                      "evict_sinks",
                                      "evict_recent",
                                      "evict_by",
                                      "encoder",
                                      "max_source_positions",
                                      nullptr};
  PyObject *model = nullptr, *folder = nullptr, *draft_model = nullptr, *store = nullptr, *communicator = nullptr;
  PyObject* encoder = nullptr;
  long long source_positions = 0;
  double peer_timeout = 0;
  long long draft_tokens = 0, draft_branches = 0, draft_bytes = 0, draft_positions = 0, threads = 0, swap_bytes = 0;
  long long evict_to = 0, evict_sinks = 0, evict_recent = 0;
  int preemption = 0, evict_by = 0;
  long long cache_bytes = 0, step_tokens = 0, sequences = 0, waiting = 0, positions = 0, lookup = 0, folder_bytes = 0;
  int prefix = 1;
  Buffers buffers;
  Py_buffer &eos = *buffers.next(), &bytes = *buffers.next(), &offsets = *buffers.next(), &digest = *buffers.next();
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O!LLLLLy*y*y*pLOLy*OLLLLOLiLOdLLLiOL", const_cast<char**>(names),
                                  model_type(), &model, &cache_bytes, &step_tokens, &sequences, &waiting, &positions,
                                  &eos, &bytes, &offsets, &prefix, &lookup, &folder, &folder_bytes, &digest,
                                  &draft_model, &draft_tokens, &draft_branches, &draft_bytes, &draft_positions, &store,
                                  &threads, &preemption, &swap_bytes, &communicator, &peer_timeout, &evict_to,
                                  &evict_sinks, &evict_recent, &evict_by, &encoder, &source_positions) == 0)
    return nullptr;
  for (const auto& [object, name] : {std::pair{draft_model, "draft_model"}, std::pair{encoder, "encoder"}})
    if (object != Py_None && PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(model_type())) == 0) {
      PyErr_Format(PyExc_TypeError, "%s is a Model or None", name);
      return nullptr;
    }
  if (!check_communicator(communicator)) return nullptr;
  dhlo_engine_options options;
  dhlo_engine_options_init(&options);
  options.cache_bytes = cache_bytes;
  options.max_step_tokens = step_tokens;
  options.max_sequences = sequences;
  options.max_waiting = waiting;
  options.max_positions = positions;
  options.eos_tokens = Buffers::data<int32_t>(eos);
  options.num_eos_tokens = Buffers::count<int32_t>(eos);
  if (offsets.len > 0) {
    options.vocabulary = Buffers::data<char>(bytes);
    options.vocabulary_offsets = Buffers::data<int64_t>(offsets);
    options.num_vocabulary = Buffers::count<int64_t>(offsets) - 1;
  }
  options.prefix_cache = prefix;
  options.prompt_lookup = lookup;
  PyObject* encoded = nullptr;
  if (folder != Py_None && PyUnicode_FSConverter(folder, &encoded) == 0) return nullptr;
  const Ref path(encoded);
  if (path) {
    options.cache_folder = PyBytes_AsString(path.get());
    options.cache_folder_bytes = folder_bytes;
  }
  options.constrain = constrain;
  if (draft_model != Py_None) options.draft_model = reinterpret_cast<ModelObject*>(draft_model)->model;
  options.max_source_positions = source_positions;
  if (encoder != Py_None) options.encoder = reinterpret_cast<ModelObject*>(encoder)->model;
  options.draft_tokens = draft_tokens;
  options.draft_branches = static_cast<int32_t>(std::clamp<long long>(draft_branches, 0, INT32_MAX));
  options.draft_cache_bytes = draft_bytes;
  options.draft_max_positions = draft_positions;
  options.preemption = preemption;
  options.swap_bytes = swap_bytes;
  options.evict_to = evict_to;
  options.evict_sinks = evict_sinks;
  options.evict_recent = evict_recent;
  options.evict_by = evict_by;
  if (digest.len == 32) options.model_digest = Buffers::data<uint8_t>(digest);
  const dhlo_store hooks = store_hooks(store, threads);
  if (store != Py_None) options.cache_store = &hooks;
  const dhlo_communicator peers = communicator_of(communicator);
  if (communicator != Py_None) options.communicator = &peers;
  options.peer_timeout_ns = nanoseconds(peer_timeout);

  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref self(allocate(type, 0));
  if (!self) return nullptr;
  if (store != Py_None) {
    Py_INCREF(store);
    reinterpret_cast<EngineObject*>(self.get())->store = store;
  }
  if (communicator != Py_None) {
    Py_INCREF(communicator);
    reinterpret_cast<EngineObject*>(self.get())->communicator = communicator;
  }
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_create(reinterpret_cast<ModelObject*>(model)->model, &options,
                                &reinterpret_cast<EngineObject*>(self.get())->engine);
  }
  if (status == DHLO_OK) return self.release();
  return communicator == Py_None ? raise_last(status) : raise_from_hook(status, dhlo_serve_last_error());
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return fenced([&] { return create_unfenced(type, args, kwargs); });
}

// Lets go of the callables of requests that have ended.
void drop_constraints(const dhlo_event* const* events, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (events[i]->last != 0) drop(static_cast<PyObject*>(events[i]->user));
}

void dealloc(PyObject* self) {
  if (dhlo_engine* engine = handle(self); engine != nullptr) {
    const dhlo_event* const* events = nullptr;
    int64_t count = 0;
    dhlo_status status = DHLO_OK;
    {
      WithoutGil others_run;
      dhlo_engine_close(engine);
      status = dhlo_engine_poll(engine, 0, &events, &count);
    }
    if (status == DHLO_OK) drop_constraints(events, count);
    dhlo_engine_destroy(engine);
    if (!forget_hook_error()) PyErr_WriteUnraisable(nullptr);
  }
  drop(reinterpret_cast<EngineObject*>(self)->store);
  drop(reinterpret_cast<EngineObject*>(self)->communicator);
  free_object(self);
}

// The inputs of a request, of (name, dtype, sizes, buffer).
struct Inputs {
  std::vector<const char*> names;
  std::vector<std::vector<int64_t>> sizes;
  std::vector<dhlo_tensor> tensors;
  std::vector<Buffers> buffers;

  bool read(PyObject* given) {
    const auto count = static_cast<size_t>(PyTuple_Size(given));
    buffers = std::vector<Buffers>(count);
    sizes.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      int dtype = 0;
      PyObject* shape = nullptr;
      Py_buffer& data = *buffers[i].next();
      PyObject* item = PyTuple_GetItem(given, static_cast<Py_ssize_t>(i));
      if (PyTuple_Check(item) == 0) {
        PyErr_SetString(PyExc_TypeError, "submit: an input is a tuple");
        return false;
      }
      if (PyArg_ParseTuple(item, "siO!y*:submit", &name, &dtype, &PyTuple_Type, &shape, &data) == 0) return false;
      int64_t bytes = dhlo_dtype_bytes(dtype);
      bool fits = true;
      for (Py_ssize_t d = 0; d < PyTuple_Size(shape); ++d) {
        sizes[i].push_back(PyLong_AsLongLong(PyTuple_GetItem(shape, d)));
        fits = fits && !__builtin_mul_overflow(bytes, sizes[i].back(), &bytes);
      }
      if (PyErr_Occurred() != nullptr) return false;
      if (!fits || bytes != data.len) {
        PyErr_Format(PyExc_ValueError, "inputs: '%s' has another size than it says", name);
        return false;
      }
      names.push_back(name);
      tensors.push_back({data.buf, sizes[i].data(), nullptr, dtype, static_cast<int32_t>(sizes[i].size()), 0});
    }
    return true;
  }
};

PyObject* submit_unfenced(PyObject* self, PyObject* args) {
  dhlo_sampling how;
  dhlo_sampling_init(&how);
  Buffers buffers;
  Py_buffer &prompt = *buffers.next(), &bias_tokens = *buffers.next(), &bias = *buffers.next(),
            &stop_tokens = *buffers.next(), &salt = *buffers.next();
  PyObject *seed = nullptr, *stops = nullptr, *constraint = nullptr, *given = nullptr;
  const char* adapter = nullptr;
  long long max_tokens = 0, top_k = 0;
  double timeout = 0;
  if (PyArg_ParseTuple(args, "y*iLdLddddd(y*y*)OiipOdy*p(y*)OzidiO!:submit", &prompt, &how.priority, &max_tokens,
                       &how.temperature, &top_k, &how.top_p, &how.min_p, &how.presence_penalty, &how.frequency_penalty,
                       &how.repetition_penalty, &bias_tokens, &bias, &seed, &how.n, &how.logprobs, &how.ignore_eos,
                       &stops, &timeout, &salt, &how.speculate, &stop_tokens, &constraint, &adapter, &how.beam_width,
                       &how.length_penalty, &how.early_stopping, &PyTuple_Type, &given) == 0)
    return nullptr;
  Inputs inputs;
  if (!inputs.read(given)) return nullptr;
  how.input_names = inputs.names.data();
  how.inputs = inputs.tensors.data();
  how.num_inputs = static_cast<int64_t>(inputs.tensors.size());
  how.adapter = adapter;
  how.max_tokens = max_tokens;
  how.top_k = top_k;
  how.bias_tokens = Buffers::data<int32_t>(bias_tokens);
  how.bias = Buffers::data<float>(bias);
  how.num_bias = Buffers::count<int32_t>(bias_tokens);
  how.stop_tokens = Buffers::data<int32_t>(stop_tokens);
  how.num_stop_tokens = Buffers::count<int32_t>(stop_tokens);
  how.salt = Buffers::data<char>(salt);
  how.salt_bytes = salt.len;
  if (seed != Py_None) {
    how.has_seed = 1;
    how.seed = PyLong_AsUnsignedLongLongMask(seed);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  // 0 seconds are over at once, which isn't no limit.
  if (timeout >= 0) how.timeout_ns = nanoseconds(timeout) < 0 ? 0 : nanoseconds(timeout) + 1;
  std::vector<const char*> texts;
  std::vector<int64_t> lengths;
  for (Py_ssize_t i = 0; i < PyTuple_Size(stops); ++i) {
    char* text = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(stops, i), &text, &length) != 0) return nullptr;
    texts.push_back(text);
    lengths.push_back(length);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  how.stops = texts.data();
  how.stop_bytes = lengths.data();
  how.num_stops = static_cast<int64_t>(texts.size());
  if (constraint != Py_None) {
    how.constrained = 1;
    how.user = constraint;
    Py_INCREF(constraint);  // until the request's last event
  }
  uint64_t id = 0;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status =
        dhlo_engine_submit(handle(self), Buffers::data<int32_t>(prompt), Buffers::count<int32_t>(prompt), &how, &id);
  }
  if (status == DHLO_OK) return PyLong_FromUnsignedLongLong(id);
  if (how.user != nullptr) drop(constraint);
  return raise_last(status);
}

PyObject* submit(PyObject* self, PyObject* args) {
  return fenced([&] { return submit_unfenced(self, args); });
}

// Of (module, dtype, rank, inputs, outputs, a, b, scale), with buffers of bytes.
PyObject* load_adapter_unfenced(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  PyObject* given = nullptr;
  if (PyArg_ParseTuple(args, "sO!:load_adapter", &name, &PyTuple_Type, &given) == 0) return nullptr;
  const Py_ssize_t count = PyTuple_Size(given);
  std::vector<dhlo_lora_pair> pairs(static_cast<size_t>(count));
  std::vector<Buffers> buffers(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    dhlo_lora_pair& pair = pairs[static_cast<size_t>(i)];
    dhlo_lora_pair_init(&pair);
    Py_buffer &a = *buffers[static_cast<size_t>(i)].next(), &b = *buffers[static_cast<size_t>(i)].next();
    long long rank = 0, inputs = 0, outputs = 0;
    PyObject* item = PyTuple_GetItem(given, i);
    if (PyTuple_Check(item) == 0) {
      PyErr_SetString(PyExc_TypeError, "load_adapter: a pair is a tuple");
      return nullptr;
    }
    if (PyArg_ParseTuple(item, "siLLLy*y*d:load_adapter", &pair.module, &pair.dtype, &rank, &inputs, &outputs, &a, &b,
                         &pair.scale) == 0)
      return nullptr;
    pair.rank = rank;
    pair.inputs = inputs;
    pair.outputs = outputs;
    pair.a = a.buf;
    pair.b = b.buf;
    int64_t row = 0, of_a = 0, of_b = 0;
    if (std::min({rank, inputs, outputs}) < 0 || __builtin_mul_overflow(rank, pair.dtype == DHLO_F32 ? 4 : 2, &row) ||
        __builtin_mul_overflow(row, inputs, &of_a) || __builtin_mul_overflow(row, outputs, &of_b) || of_a != a.len ||
        of_b != b.len) {
      PyErr_Format(PyExc_ValueError, "module '%s': matrices have other sizes than they say", pair.module);
      return nullptr;
    }
  }
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_load_adapter(handle(self), name, pairs.data(), static_cast<int64_t>(count));
  }
  if (status != DHLO_OK) return raise_last(status);
  Py_RETURN_NONE;
}

PyObject* load_adapter(PyObject* self, PyObject* args) {
  return fenced([&] { return load_adapter_unfenced(self, args); });
}

PyObject* unload_adapter(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  if (PyArg_ParseTuple(args, "s:unload_adapter", &name) == 0) return nullptr;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_unload_adapter(handle(self), name);
  }
  if (status != DHLO_OK) return raise_last(status);
  Py_RETURN_NONE;
}

PyObject* cancel(PyObject* self, PyObject* args) {
  unsigned long long id = 0;
  if (PyArg_ParseTuple(args, "K:cancel", &id) == 0) return nullptr;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_cancel(handle(self), id);
  }
  if (status != DHLO_OK) return raise_last(status);
  Py_RETURN_NONE;
}

PyObject* logprobs_of(const dhlo_event& event) {
  if (event.logprobs == nullptr) return make_tuple(0, [](int64_t) -> PyObject* { return nullptr; });
  return make_tuple(event.num_tokens, [&event](int64_t i) -> PyObject* {
    Ref top(make_tuple(event.num_top, [&event, i](int64_t j) {
      const int64_t at = i * event.num_top + j;
      return Py_BuildValue("(id)", event.top_tokens[at], static_cast<double>(event.top_logprobs[at]));
    }));
    return top ? Py_BuildValue("(dO)", static_cast<double>(event.logprobs[i]), top.get()) : nullptr;
  });
}

PyObject* event_of(const dhlo_event& event) {
  Ref tokens(make_tuple(event.num_tokens, [&event](int64_t i) { return PyLong_FromLong(event.tokens[i]); }));
  Ref logprobs(tokens ? logprobs_of(event) : nullptr);
  if (!logprobs) return nullptr;
  return Py_BuildValue("(KiiOOOisLLd)", static_cast<unsigned long long>(event.request), event.choice, event.finish,
                       event.last != 0 ? Py_True : Py_False, tokens.get(), logprobs.get(), event.stop, event.error,
                       static_cast<long long>(event.prompt_tokens), static_cast<long long>(event.cached_tokens),
                       event.score);
}

PyObject* poll(PyObject* self, PyObject* args) {
  double timeout = -1;
  if (PyArg_ParseTuple(args, "|d:poll", &timeout) == 0) return nullptr;
  const dhlo_event* const* events = nullptr;
  int64_t count = 0;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_poll(handle(self), nanoseconds(timeout), &events, &count);
  }
  if (status == DHLO_CANCELLED) Py_RETURN_NONE;
  if (status != DHLO_OK) return raise_last(status);
  PyObject* made = make_tuple(count, [events](int64_t i) { return event_of(*events[i]); });
  drop_constraints(events, count);
  return made;
}

PyObject* drain(PyObject* self, PyObject* args) {
  double timeout = -1;
  if (PyArg_ParseTuple(args, "d:drain", &timeout) == 0) return nullptr;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_drain(handle(self), nanoseconds(timeout));
  }
  if (status != DHLO_OK && status != DHLO_DEADLINE) return raise_last(status);
  return PyBool_FromLong(status == DHLO_OK);
}

PyObject* close(PyObject* self, PyObject*) {
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_close(handle(self));
  }
  if (!forget_hook_error()) return nullptr;  // of telling other processes
  if (status != DHLO_OK) return raise_last(status);
  Py_RETURN_NONE;
}

PyObject* tier_stats(const dhlo_tier_stats& s) {
  auto number = [](int64_t n) { return static_cast<long long>(n); };
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L}", "bytes", number(s.bytes), "blocks", number(s.blocks), "hits",
                       number(s.hits), "failures", number(s.failures), "dropped", number(s.dropped));
}

PyObject* stats(PyObject* self, PyObject*) {
  dhlo_engine_stats s{};
  s.struct_bytes = sizeof s;
  if (const dhlo_status status = dhlo_engine_get_stats(handle(self), &s); status != DHLO_OK) return raise_last(status);
  const bool failed = dhlo_engine_check_health(handle(self)) == DHLO_HOST;
  auto number = [](int64_t n) { return static_cast<long long>(n); };
  Ref finished(make_tuple(DHLO_FINISH_ERROR + 1, [&s](int64_t i) { return PyLong_FromLongLong(s.finished[i]); }));
  Ref folder(tier_stats(s.folder));
  Ref store(tier_stats(s.store));
  Ref accepted(make_tuple(DHLO_DRAFT_POSITIONS, [&s](int64_t i) { return PyLong_FromLongLong(s.accepted_at[i]); }));
  if (!finished || !folder || !store || !accepted) return nullptr;
  return Py_BuildValue(
      "{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:O,s:L,s:L,s:L,s:L,s:d,s:d,s:d,s:O,s:L,s:O,s:L,s:L,s:d,s:O,s:L,s:L,s:L,s:"
      "L,s:d,s:s}",
      "running", number(s.running), "waiting", number(s.waiting), "steps", number(s.steps), "prompt_tokens",
      number(s.prompt_tokens), "cached_tokens", number(s.cached_tokens), "generated_tokens", number(s.generated_tokens),
      "preemptions", number(s.preemptions), "drafted_tokens", number(s.drafted_tokens), "accepted_tokens",
      number(s.accepted_tokens), "finished", finished.get(), "blocks", number(s.blocks), "blocks_used",
      number(s.blocks_used), "blocks_cached", number(s.blocks_cached), "unused_slots", number(s.unused_slots),
      "step_seconds", static_cast<double>(s.step_ns) * 1e-9, "host_seconds", static_cast<double>(s.host_ns) * 1e-9,
      "schedule_seconds", static_cast<double>(s.schedule_ns) * 1e-9, "folder", folder.get(), "drafts", number(s.drafts),
      "accepted_at", accepted.get(), "draft_steps", number(s.draft_steps), "draft_failures", number(s.draft_failures),
      "draft_seconds", static_cast<double>(s.draft_ns) * 1e-9, "store", store.get(), "swaps", number(s.swaps),
      "swapped_bytes", number(s.swapped_bytes), "evicted_blocks", number(s.evicted_blocks), "encoded",
      number(s.encoded), "encoder_seconds", static_cast<double>(s.encoder_ns) * 1e-9, "failure",
      failed ? dhlo_serve_last_error() : "");
}

}  // namespace

PyObject* follow(PyObject*, PyObject* args) {
  PyObject *model = nullptr, *communicator = nullptr;
  double timeout = 0;
  if (PyArg_ParseTuple(args, "O!O!d:follow", model_type(), &model, communicator_type(), &communicator, &timeout) == 0)
    return nullptr;
  const dhlo_communicator peers = communicator_of(communicator);
  dhlo_engine_options options;
  dhlo_engine_options_init(&options);
  options.communicator = &peers;
  options.peer_timeout_ns = nanoseconds(timeout);
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    status = dhlo_engine_follow(reinterpret_cast<ModelObject*>(model)->model, &options);
  }
  if (status == DHLO_OK) Py_RETURN_NONE;
  return fenced([&] { return raise_from_hook(status, dhlo_serve_last_error()); });
}

bool add_engine_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"submit", submit, METH_VARARGS, "Takes a request; its id."},
      {"cancel", cancel, METH_VARARGS, "Ends a request."},
      {"load_adapter", load_adapter, METH_VARARGS, "Gives the step an adapter."},
      {"unload_adapter", unload_adapter, METH_VARARGS, "Takes an adapter away."},
      {"poll", poll, METH_VARARGS, "Waits for events, at most so many seconds; None once the engine is closed."},
      {"drain", drain, METH_VARARGS, "Takes no more requests; whether all ended within so many seconds."},
      {"close", close, METH_NOARGS, "Ends all requests, and the engine's thread."},
      {"stats", stats, METH_NOARGS, "What the engine has done and holds."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods},
      {Py_tp_doc, const_cast<char*>("Serves a step whose caches are pools of blocks: see dhlo.serve.engine.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"dhlo._runtime.Engine", sizeof(EngineObject), 0, Py_TPFLAGS_DEFAULT, slots};
  return add_type(module, spec) != nullptr;
}

}  // namespace dhlo::python
