// The CPython extension dhlo._runtime (limited API, CPython 3.11 and later).
#include "../src/levels.hpp"
#include "../src/model_file.hpp"
#include "../src/pool.hpp"
#include "../src/sha256.hpp"
#include "../src/support.hpp"
#include "binding.hpp"

namespace dhlo::python {

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
  Ref type(PyType_FromModuleAndSpec(module, &spec, nullptr));
  if (!type || PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) != 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type.release());
}

PyObject* raise(dhlo_status status, const char* text) {
  const bool mendable = status == DHLO_INVALID_ARGUMENT || status == DHLO_CONTRACT;
  PyObject* type = mendable ? PyExc_ValueError : status == DHLO_OUT_OF_MEMORY ? PyExc_MemoryError : PyExc_RuntimeError;
  Ref message(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::char_traits<char>::length(text)), "replace"));
  Ref error(message ? PyObject_CallFunctionObjArgs(type, message.get(), nullptr) : nullptr);
  Ref name(error ? PyUnicode_FromString(dhlo_status_name(status)) : nullptr);
  if (name && PyObject_SetAttrString(error.get(), "status", name.get()) == 0) PyErr_SetObject(type, error.get());
  return nullptr;
}

namespace {

PyObject* sha256_of(PyObject*, PyObject* args) {
  Py_buffer data;
  int portable = 0;
  if (PyArg_ParseTuple(args, "y*|p:sha256", &data, &portable) == 0) return nullptr;
  dhlo::Digest digest;
  {
    WithoutGil others_run;
    digest = dhlo::sha256(data.buf, static_cast<size_t>(data.len), portable != 0);
  }
  PyBuffer_Release(&data);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(digest.data()),
                                   static_cast<Py_ssize_t>(digest.size()));
}

// The digest of a section with this content, by as many threads as the process may use; with a descriptor the content
// is first read from there. Gives the buffer back.
PyObject* digest_of(Py_buffer* data, int fd, long long offset) {
  auto* memory = static_cast<uint8_t*>(data->buf);
  dhlo::Digest digest;
  std::string failure;
  dhlo_status status = DHLO_OK;
  {
    WithoutGil others_run;
    auto get = [&](int64_t at, int64_t bytes) -> const uint8_t* {
      if (fd >= 0) dhlo::read_at(fd, memory + at, bytes, offset + at, "section");
      return memory + at;
    };
    status = dhlo::guard([&] { digest = dhlo::section_digest(data->len, dhlo::Pool::resolve_threads(0), get); },
                         [&failure](const char* text) { failure = text; });
  }
  PyBuffer_Release(data);
  if (status != DHLO_OK) {
    PyErr_SetString(status == DHLO_IO ? PyExc_OSError : PyExc_RuntimeError, failure.c_str());
    return nullptr;
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(digest.data()),
                                   static_cast<Py_ssize_t>(digest.size()));
}

PyObject* section_digest(PyObject*, PyObject* args) {
  Py_buffer data;
  if (PyArg_ParseTuple(args, "y*:section_digest", &data) == 0) return nullptr;
  return digest_of(&data, -1, 0);
}

PyObject* read_section(PyObject*, PyObject* args) {
  Py_buffer memory;
  int fd = -1;
  long long offset = 0;
  if (PyArg_ParseTuple(args, "iLw*:read_section", &fd, &offset, &memory) == 0) return nullptr;
  return digest_of(&memory, fd, offset);
}

PyObject* cpu_supports(PyObject*, PyObject* args) {
  const char* feature = nullptr;
  if (PyArg_ParseTuple(args, "s:cpu_supports", &feature) == 0) return nullptr;
  return PyBool_FromLong(dhlo_cpu_supports(feature));
}

PyObject* machine_facts(PyObject*, PyObject*) {
  Ref facts(PyDict_New());
  for (int32_t i = 0; facts && dhlo_machine_fact_name(i) != nullptr; ++i) {
    const Ref value(PyLong_FromLongLong(dhlo_machine_fact(i)));
    if (!value || PyDict_SetItemString(facts.get(), dhlo_machine_fact_name(i), value.get()) != 0) return nullptr;
  }
  return facts.release();
}

PyObject* choose(PyObject*, PyObject* args) {
  const char* text = nullptr;
  if (PyArg_ParseTuple(args, "s:choose_level", &text) == 0) return nullptr;
  size_t chosen = 0;
  std::string failure;
  const dhlo_status status = dhlo::guard([&] { chosen = choose_level(read_levels(text, "levels"), "levels"); },
                                         [&failure](const char* message) { failure = message; });
  return status == DHLO_OK ? PyLong_FromSize_t(chosen) : raise(status, failure.c_str());
}

int exec(PyObject* module) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(
        PyExc_ImportError,
        "dhlo's runtime runs in the main interpreter of a process: its types are not made for subinterpreters; use "
        "threads or processes");
    return -1;
  }
  const bool ok = add_model_type(module) && add_session_type(module) && add_buffer_type(module) &&
                  add_communicator_type(module) &&
#ifdef DHLO_PYTHON_ENGINE
                  add_engine_type(module) &&
#endif
                  PyModule_AddIntConstant(module, "ABI_VERSION", static_cast<long>(dhlo_runtime_abi_version())) == 0;
  if (!ok) return -1;
  const uint32_t version = dhlo_runtime_version();
  Ref text(PyUnicode_FromFormat("%u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff));
  return text ? PyModule_AddObjectRef(module, "__version__", text.get()) : -1;
}

PyModuleDef* definition() {
  static PyMethodDef methods[] = {
      {"sha256", sha256_of, METH_VARARGS,
       "The runtime's SHA-256 of a buffer; on request without the processor's instructions."},
      {"section_digest", section_digest, METH_VARARGS, "The digest of a file section with this content."},
      {"read_section", read_section, METH_VARARGS,
       "Fills memory from an open file and returns the digest of what it read."},
      {"cpu_supports", cpu_supports, METH_VARARGS, "Whether this machine has a processor feature, by LLVM's name."},
      {"machine_facts", machine_facts, METH_NOARGS, "What the machine is like, by name: found now if it hasn't been."},
#ifdef DHLO_PYTHON_ENGINE
      {"follow", follow, METH_VARARGS, "Runs the steps of another process's engine; see dhlo.serve.shards."},
#endif
      {"choose_level", choose, METH_VARARGS,
       "The number of the level, of a file's text of features, that this machine takes."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(exec)}, {0, nullptr}};
  static PyModuleDef def = {
      PyModuleDef_HEAD_INIT, "dhlo._runtime", "The dhlo runtime.", 0, methods, slots, nullptr, nullptr, nullptr};
  return &def;
}

}  // namespace
}  // namespace dhlo::python

PyMODINIT_FUNC PyInit__runtime(void) { return PyModuleDef_Init(dhlo::python::definition()); }
