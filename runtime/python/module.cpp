// The CPython extension dhlo._runtime (limited API, CPython 3.11 and later).
#include "binding.hpp"

namespace dhlo::python {

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

PyObject* hash64(PyObject*, PyObject* args) {
  Py_buffer data;
  if (PyArg_ParseTuple(args, "y*:hash64", &data) == 0) return nullptr;
  uint64_t hash = 0;
  {
    WithoutGil others_run;
    hash = dhlo_hash64(data.buf, static_cast<uint64_t>(data.len));
  }
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLongLong(hash);
}

PyObject* cpu_supports(PyObject*, PyObject* args) {
  const char* feature = nullptr;
  if (PyArg_ParseTuple(args, "s:cpu_supports", &feature) == 0) return nullptr;
  return PyBool_FromLong(dhlo_cpu_supports(feature));
}

int exec(PyObject* module) {
  const bool ok = add_model_type(module) && add_session_type(module) && add_buffer_type(module) &&
                  PyModule_AddIntConstant(module, "ABI_VERSION", static_cast<long>(dhlo_runtime_abi_version())) == 0;
  if (!ok) return -1;
  const uint32_t version = dhlo_runtime_version();
  Ref text(PyUnicode_FromFormat("%u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff));
  return text ? PyModule_AddObjectRef(module, "__version__", text.get()) : -1;
}

PyModuleDef* definition() {
  static PyMethodDef methods[] = {
      {"hash64", hash64, METH_VARARGS, "The hash of a model file's trailer over a buffer."},
      {"cpu_supports", cpu_supports, METH_VARARGS, "Whether this machine has a processor feature, by LLVM's name."},
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
