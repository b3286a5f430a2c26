// Conversion of Python tensors and numbers to the views that compiled code takes.
#include <cstring>

#include "binding.hpp"

namespace dhlo::python {
namespace {

using dlpack::ExchangeApi;

std::string describe(const dhlo_abi_value* value, int64_t index) {
  std::string text = "input " + std::to_string(index);
  if (value != nullptr && value->name != nullptr && *value->name != 0) text += " '" + std::string(value->name) + "'";
  return text;
}

const char* device_name(int32_t type) {
  switch (type) {
    case 2:
    case 13: return "CUDA";
    case 4: return "OpenCL";
    case 7: return "Vulkan";
    case 8: return "Metal";
    case 10:
    case 11: return "ROCm";
    case 14: return "oneAPI";
    case 15: return "WebGPU";
    default: return "another device";
  }
}

int32_t from_dlpack(dlpack::DataType type) {
  if (type.lanes != 1) return -1;
  switch (type.code << 8 | type.bits) {
    case dlpack::kBool << 8 | 8: return DHLO_BOOL;
    case dlpack::kUInt << 8 | 8: return DHLO_U8;
    case dlpack::kUInt << 8 | 64: return DHLO_U64;
    case dlpack::kInt << 8 | 8: return DHLO_I8;
    case dlpack::kInt << 8 | 16: return DHLO_I16;
    case dlpack::kInt << 8 | 32: return DHLO_I32;
    case dlpack::kInt << 8 | 64: return DHLO_I64;
    case dlpack::kFloat << 8 | 16: return DHLO_F16;
    case dlpack::kBfloat << 8 | 16: return DHLO_BF16;
    case dlpack::kFloat << 8 | 32: return DHLO_F32;
    case dlpack::kFloat << 8 | 64: return DHLO_F64;
    case dlpack::kComplex << 8 | 32: return DHLO_C32;
    case dlpack::kComplex << 8 | 64: return DHLO_C64;
    case dlpack::kComplex << 8 | 128: return DHLO_C128;
    case dlpack::kFloat8E4M3fn << 8 | 8: return DHLO_F8E4M3FN;
    case dlpack::kFloat8E5M2 << 8 | 8: return DHLO_F8E5M2;
    default: return -1;
  }
}

// Turns the pending exception into a ValueError that names the input.
bool reraise(const dhlo_abi_value* value, int64_t index) {
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  holding_on([&] { PyErr_NormalizeException(&type, &error, &trace); });
  // Interruptions, and what the runtime raised already, go on as they are.
  const bool is_own = error != nullptr && holding_on([&] { return PyObject_HasAttrString(error, "status"); }) != 0;
  if (is_own || PyErr_GivenExceptionMatches(type, PyExc_Exception) == 0 ||
      PyErr_GivenExceptionMatches(type, PyExc_MemoryError) != 0) {
    PyErr_Restore(type, error, trace);
    return false;
  }
  Ref text(holding_on([&] { return PyObject_Str(error != nullptr ? error : Py_None); }));
  Ref end(PyUnicode_FromString("\n"));
  Ref lines(text && end ? PyUnicode_Partition(text.get(), end.get()) : nullptr);  // torch appends a C++ stack trace
  if (lines)
    PyErr_Format(PyExc_ValueError, "%s: cannot be read as a dense CPU tensor: %S", describe(value, index).c_str(),
                 PyTuple_GetItem(lines.get(), 0));
  drop(type);
  drop(error);
  drop(trace);
  return false;
}

const ExchangeApi* look_up(PyTypeObject* type) {
  Ref capsule(holding_on(
      [&] { return PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"); }));
  if (!capsule || PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api") == 0) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* header =
      static_cast<const ExchangeApi::Header*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != dlpack::kMajorVersion) header = header->previous;
  const auto* api = reinterpret_cast<const ExchangeApi*>(header);
  return api != nullptr && api->tensor_from_object != nullptr ? api : nullptr;
}

// True if torch may have put off a conjugation or negation of the elements, which DLPack cannot express. Negation is
// put off for imaginary parts of conjugates only: real tensors whose strides are not dense, or single elements.
bool may_be_lazy(const dlpack::Tensor& tensor) {
  if (tensor.dtype.code == dlpack::kComplex) return true;
  if (tensor.dtype.code != dlpack::kFloat) return false;
  int64_t dense = 1;
  for (int32_t dim = tensor.rank - 1; dim >= 0; --dim) {
    if (tensor.strides != nullptr && tensor.strides[dim] != dense) return true;
    dense *= tensor.sizes[dim];
  }
  return dense == 1;
}

// The tensor itself, or a copy with put-off operations done. New reference; null with an exception on failure.
PyObject* resolve_lazy(PyObject* object) {
  Ref conjugated(holding_on([&] { return PyObject_CallMethod(object, "resolve_conj", nullptr); }));
  if (conjugated) return holding_on([&] { return PyObject_CallMethod(conjugated.get(), "resolve_neg", nullptr); });
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return nullptr;
  PyErr_Clear();  // not a torch tensor: nothing is put off
  Py_INCREF(object);
  return object;
}

// Where an empty torch tensor stands in its storage: torch gives no address, but a program may write behind it.
bool find_empty(PyObject* object, int64_t item_bytes, void** data) {
  Ref storage(holding_on([&] { return PyObject_CallMethod(object, "untyped_storage", nullptr); }));
  if (!storage) {
    PyErr_Clear();  // not a torch tensor
    return true;
  }
  Ref address(holding_on([&] { return PyObject_CallMethod(storage.get(), "data_ptr", nullptr); }));
  if (!address) return false;
  Ref offset(holding_on([&] { return PyObject_CallMethod(object, "storage_offset", nullptr); }));
  if (!offset) return false;
  auto* base = static_cast<uint8_t*>(PyLong_AsVoidPtr(address.get()));
  if (base != nullptr) *data = base + PyLong_AsLongLong(offset.get()) * item_bytes;
  return PyErr_Occurred() == nullptr;
}

}  // namespace

const ExchangeApi* exchange_api(PyTypeObject* type) {
  // A few types are enough for real programs; others push out the oldest.
  struct Known {
    PyTypeObject* type;
    const ExchangeApi* api;
  };
  static Known known[8];
  static size_t next = 0;
  for (const Known& entry : known)
    if (entry.type == type) return entry.api;
  const ExchangeApi* api = look_up(type);
  Known& entry = known[next];
  next = (next + 1) % 8;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  PyTypeObject* old = entry.type;
  entry = {type, api};
  Py_XDECREF(reinterpret_cast<PyObject*>(old));
  return api;
}

const ExchangeApi* torch_api() {
  static const ExchangeApi* api = nullptr;
  if (api != nullptr) return api;
  Ref torch(holding_on([] { return PyImport_ImportModule("torch"); }));
  if (!torch) return nullptr;
  Ref type(PyObject_GetAttrString(torch.get(), "Tensor"));
  if (!type) return nullptr;
  api = look_up(reinterpret_cast<PyTypeObject*>(type.get()));
  if (api == nullptr)
    PyErr_SetString(PyExc_RuntimeError,
                    "this torch has no DLPack C exchange interface (torch.Tensor.__dlpack_c_exchange_api__)");
  return api;
}

dlpack::DataType dlpack_dtype(int32_t dtype) {
  static constexpr dlpack::DataType types[DHLO_DTYPE_COUNT] = {
      {dlpack::kBool, 8, 1},         {dlpack::kUInt, 8, 1},       {dlpack::kInt, 8, 1},      {dlpack::kInt, 16, 1},
      {dlpack::kInt, 32, 1},         {dlpack::kInt, 64, 1},       {dlpack::kFloat, 16, 1},   {dlpack::kBfloat, 16, 1},
      {dlpack::kFloat, 32, 1},       {dlpack::kFloat, 64, 1},     {dlpack::kComplex, 64, 1}, {dlpack::kComplex, 128, 1},
      {dlpack::kFloat8E4M3fn, 8, 1}, {dlpack::kFloat8E5M2, 8, 1}, {dlpack::kComplex, 32, 1}, {dlpack::kUInt, 64, 1},
  };
  return types[dtype];
}

int32_t dtype_from_name(const char* name) {
  for (int32_t dtype = 0; dtype < DHLO_DTYPE_COUNT; ++dtype)
    if (std::strcmp(dhlo_dtype_name(dtype), name) == 0) return dtype;
  return -1;
}

PyObject* flat_arguments(PyObject* args) {
  if (PyTuple_Size(args) == 1) {
    PyObject* only = PyTuple_GetItem(args, 0);
    if (PyTuple_Check(only) || PyList_Check(only)) return PySequence_Tuple(only);
  }
  Py_INCREF(args);
  return args;
}

void Inputs::reserve(const dhlo_model* model) {
  const auto count = static_cast<size_t>(dhlo_model_num_inputs(model));
  tensors_.resize(count);
  scalars_.resize(count);
  updated_.resize(count);
  for (size_t i = 0; i < count; ++i) updated_[i] = dhlo_model_input_is_updated(model, static_cast<int64_t>(i)) != 0;
}

bool Inputs::convert(const dhlo_model* model, PyObject* objects, bool shapes) {
  count_ = PyTuple_Size(objects);
  if (count_ != dhlo_model_num_inputs(model)) {
    PyErr_Format(PyExc_ValueError, "expected %lld input(s), got %lld",
                 static_cast<long long>(dhlo_model_num_inputs(model)), static_cast<long long>(count_));
    return false;
  }
  for (int64_t i = 0; i < count_; ++i)
    if (!convert_one(dhlo_model_input(model, i), i, PyTuple_GetItem(objects, i), shapes)) return false;
  return true;
}

void Inputs::clear() {
  for (PyObject* object : kept_) drop(object);
  kept_.clear();
  sizes_.clear();
}

bool Inputs::convert_one(const dhlo_abi_value* value, int64_t index, PyObject* object, bool shapes) {
  if (const ExchangeApi* api = exchange_api(Py_TYPE(object))) return convert_exchanged(value, index, object, api);
  if (updated_[static_cast<size_t>(index)] && !shapes) return convert_capsule(value, index, object);
  bool done = false;
  if (!convert_scalar(value, index, object, &done)) return false;
  if (done) return true;
  if (shapes && (PyTuple_Check(object) || PyList_Check(object))) return convert_shape(value, index, object);
  return convert_capsule(value, index, object);
}

bool Inputs::convert_exchanged(const dhlo_abi_value* value, int64_t index, PyObject* object, const ExchangeApi* api) {
  const bool updated = updated_[static_cast<size_t>(index)];
  dlpack::Tensor tensor;
  if (api->tensor_from_object(object, &tensor) != 0) return reraise(value, index);
  if (may_be_lazy(tensor)) {
    Ref resolved(resolve_lazy(object));
    if (!resolved) return reraise(value, index);
    if (resolved.get() != object) {
      if (updated) return accept_flags(value, index, dlpack::kIsCopy);
      if (api->tensor_from_object(resolved.get(), &tensor) != 0) return reraise(value, index);
      kept_.push_back(resolved.release());
    }
  }
  const ExchangeApi* torch = updated ? torch_api() : nullptr;
  if (updated && torch == nullptr) PyErr_Clear();  // there is no torch
  if (updated && api != torch) {                   // tensors of torch are never read-only, and this way tells no flags
    dlpack::ManagedTensorVersioned* managed = nullptr;
    if (api->managed_from_object == nullptr || api->managed_from_object(object, &managed) != 0)
      return reraise(value, index);
    const uint64_t flags = managed->flags;
    if (managed->deleter != nullptr) managed->deleter(managed);
    if (!accept_flags(value, index, flags)) return false;
  }
  if (updated && tensor.data == nullptr && !find_empty(object, tensor.dtype.bits / 8, &tensor.data))
    return reraise(value, index);
  return accept(value, index, tensor);
}

// Whether memory with these flags can take what a run writes; with an exception if not.
bool Inputs::accept_flags(const dhlo_abi_value* value, int64_t index, uint64_t flags) {
  if (!updated_[static_cast<size_t>(index)] || (flags & (dlpack::kReadOnly | dlpack::kIsCopy)) == 0) return true;
  PyErr_Format(
      PyExc_ValueError, "%s is updated by the model: expected memory that can be written to, got %s",
      describe(value, index).c_str(),
      (flags & dlpack::kReadOnly) != 0 ? "a read-only tensor" : "a tensor whose elements are computed when it is read");
  return false;
}

bool Inputs::convert_scalar(const dhlo_abi_value* value, int64_t index, PyObject* object, bool* done) {
  auto store = [&](const auto& number, int32_t dtype) {
    Scalar& scalar = scalars_[static_cast<size_t>(index)];
    std::memcpy(scalar.bytes, &number, sizeof number);
    tensors_[static_cast<size_t>(index)] = {scalar.bytes, nullptr, nullptr, dtype, 0, 0};
    *done = true;
  };
  if (PyBool_Check(object)) {
    store(static_cast<uint8_t>(object == Py_True), DHLO_BOOL);
  } else if (PyLong_Check(object)) {
    *done = true;
    return store_int(value, index, object);
  } else if (PyFloat_Check(object)) {
    store(PyFloat_AsDouble(object), DHLO_F64);
  }
  return true;
}

bool Inputs::store_int(const dhlo_abi_value* value, int64_t index, PyObject* integer) {
  const int64_t number = PyLong_AsLongLong(integer);
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s: expected an integer of 64 bits, got a larger one",
                 describe(value, index).c_str());
    return false;
  }
  Scalar& scalar = scalars_[static_cast<size_t>(index)];
  std::memcpy(scalar.bytes, &number, sizeof number);
  tensors_[static_cast<size_t>(index)] = {scalar.bytes, nullptr, nullptr, DHLO_I64, 0, 0};
  return true;
}

bool Inputs::convert_shape(const dhlo_abi_value* value, int64_t index, PyObject* object) {
  const Py_ssize_t rank = holding_on([&] { return PySequence_Size(object); });
  if (rank < 0) return reraise(value, index);
  if (rank > DHLO_ABI_MAX_RANK) {
    PyErr_Format(PyExc_ValueError, "%s: rank %zd is outside 0..%d", describe(value, index).c_str(), rank,
                 DHLO_ABI_MAX_RANK);
    return false;
  }
  if (sizes_.empty()) sizes_.resize(tensors_.size());
  std::vector<int64_t>& sizes = sizes_[static_cast<size_t>(index)];
  sizes.assign(static_cast<size_t>(rank), 0);
  for (Py_ssize_t dim = 0; dim < rank; ++dim) {
    Ref item(holding_on([&] { return PySequence_GetItem(object, dim); }));
    if (!item) return false;
    sizes[static_cast<size_t>(dim)] = holding_on([&] { return PyLong_AsLongLong(item.get()); });
    if (PyErr_Occurred() != nullptr) return reraise(value, index);
  }
  tensors_[static_cast<size_t>(index)] = {
      nullptr, sizes.data(), nullptr, static_cast<int32_t>(value->dtype), static_cast<int32_t>(rank), 0};
  return true;
}

bool Inputs::convert_capsule(const dhlo_abi_value* value, int64_t index, PyObject* object) {
  Ref method(holding_on([&] { return PyObject_GetAttrString(object, "__dlpack__"); }));
  if (!method) {
    PyErr_Clear();
    if (updated_[static_cast<size_t>(index)]) {
      Ref type(PyType_GetName(Py_TYPE(object)));
      PyErr_Format(PyExc_TypeError, "%s is updated by the model: expected a tensor, got %S",
                   describe(value, index).c_str(), type.get());
      return false;
    }
    if (PyIndex_Check(object) != 0) {  // such as numpy's integer scalars
      Ref integer(holding_on([&] { return PyNumber_Index(object); }));
      return integer && store_int(value, index, integer.get());
    }
    Ref type(PyType_GetName(Py_TYPE(object)));
    PyErr_Format(PyExc_TypeError, "%s: expected a tensor or a number, got %S", describe(value, index).c_str(),
                 type.get());
    return false;
  }
  Ref none(PyTuple_New(0)),
      versioned(Py_BuildValue("{s:(II)}", "max_version", dlpack::kMajorVersion, dlpack::kMinorVersion));
  if (!none || !versioned) return false;
  Ref capsule(holding_on([&] { return PyObject_Call(method.get(), none.get(), versioned.get()); }));
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    // A producer from before DLPack 1.0 does not know the keyword.
    PyErr_Clear();
    Ref old(holding_on([&] { return PyObject_Call(method.get(), none.get(), nullptr); }));
    if (!old) return reraise(value, index);
    const auto* managed = static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(old.get(), "dltensor"));
    if (managed == nullptr) return reraise(value, index);
    kept_.push_back(old.release());
    return accept(value, index, managed->tensor);
  }
  if (!capsule) return reraise(value, index);
  // An unconsumed capsule frees its tensor, so keeping the capsule is all there is to do.
  if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<const dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajorVersion) {
      PyErr_Format(PyExc_ValueError, "%s: DLPack version %u is not supported", describe(value, index).c_str(),
                   managed->version.major);
      return false;
    }
    if (!accept_flags(value, index, managed->flags)) return false;
    kept_.push_back(capsule.release());
    return accept(value, index, managed->tensor);
  }
  const auto* managed = static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
  if (managed == nullptr) return reraise(value, index);
  kept_.push_back(capsule.release());
  return accept(value, index, managed->tensor);
}

bool Inputs::accept(const dhlo_abi_value* value, int64_t index, const dlpack::Tensor& tensor) {
  if (tensor.device.type != dlpack::kCPU && tensor.device.type != dlpack::kCUDAHost) {
    PyErr_Format(PyExc_ValueError, "%s: expected a CPU tensor, got one on %s (DLPack device %d:%d)",
                 describe(value, index).c_str(), device_name(tensor.device.type), tensor.device.type, tensor.device.id);
    return false;
  }
  const int32_t dtype = from_dlpack(tensor.dtype);
  if (dtype < 0) {
    PyErr_Format(PyExc_ValueError, "%s: expected %s, got an unsupported dtype (DLPack code %d, %d bits, %d lanes)",
                 describe(value, index).c_str(), dhlo_dtype_name(static_cast<int32_t>(value->dtype)), tensor.dtype.code,
                 tensor.dtype.bits, tensor.dtype.lanes);
    return false;
  }
  void* data = tensor.data == nullptr ? nullptr : static_cast<uint8_t*>(tensor.data) + tensor.byte_offset;
  tensors_[static_cast<size_t>(index)] = {data, tensor.sizes, tensor.strides, dtype, tensor.rank, 0};
  return true;
}

}  // namespace dhlo::python
