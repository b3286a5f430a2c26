// The parts of DLPack 1.3 that the binding uses: tensor description and the C exchange table.
// Layouts from dlpack.h of DLPack 1.3 (as in torch/include/ATen/dlpack.h), whose major version fixes them.
#pragma once

#include <cstdint>

namespace dhlo::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr uint32_t kMinorVersion = 3;

enum DeviceType : int32_t { kCPU = 1, kCUDAHost = 3 };
enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3fn = 10,
  kFloat8E5M2 = 12
};

// Bits of ManagedTensorVersioned::flags.
constexpr uint64_t kReadOnly = 1, kIsCopy = 2;

struct Version {
  uint32_t major, minor;
};

struct Device {
  int32_t type, id;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* sizes;
  int64_t* strides;  // in elements; may be null before DLPack 1.2, meaning dense row-major
  uint64_t byte_offset;
};

// What an unversioned "dltensor" capsule holds.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

// What a "dltensor_versioned" capsule and the exchange table hold.
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

// What the capsule "dlpack_exchange_api" in a type's __dlpack_c_exchange_api__ points to. Functions return 0 on
// success.
struct ExchangeApi {
  struct Header {
    Version version;
    Header* previous;
  } header;
  // Callable without the GIL; reports errors through the callback.
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*object_from_managed)(ManagedTensorVersioned* tensor, void** out);
  int (*tensor_from_object)(void* object, Tensor* out);  // borrowed; may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

static_assert(sizeof(Tensor) == 48, "DLTensor");
static_assert(sizeof(ManagedTensorVersioned) == 80, "DLManagedTensorVersioned");

}  // namespace dhlo::dlpack
