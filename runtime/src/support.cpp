// Errors inside the runtime, their text for the caller, and the helpers of the C interface that need no model.
#include "support.hpp"

#include <algorithm>
#include <system_error>

namespace dhlo {
namespace {

thread_local std::string last_error;

struct DtypeInfo {
  const char* name;
  int64_t bytes;
};
constexpr DtypeInfo kDtypes[DHLO_DTYPE_COUNT] = {
    {"bool", 1},          {"uint8", 1},       {"int8", 1},      {"int16", 2},   {"int32", 4},     {"int64", 8},
    {"float16", 2},       {"bfloat16", 2},    {"float32", 4},   {"float64", 8}, {"complex64", 8}, {"complex128", 16},
    {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"complex32", 4}, {"uint64", 8},
};

bool is_dtype(int64_t dtype) { return dtype >= 0 && dtype < DHLO_DTYPE_COUNT; }

// Programs may go through the rows of a tensor before they find that each has nothing in it: that mustn't take hours.
bool has_few_rows(const dhlo_tensor& input) {
  int64_t rows = 1;
  for (int32_t dim = 0; dim < input.rank; ++dim) {
    if (__builtin_mul_overflow(rows, std::max<int64_t>(input.sizes[dim], 1), &rows)) return false;
  }
  return rows <= DHLO_ABI_MAX_EMPTY;
}

void check_input(const dhlo_abi_entry& entry, const dhlo_tensor& input, int64_t index, bool need_data) {
  auto fail = [&](const std::string& text) {
    throw Error(DHLO_INVALID_ARGUMENT, describe_value("input", index, &entry.inputs[index]) + ": " + text);
  };
  if (input.rank < 0 || input.rank > DHLO_ABI_MAX_RANK)
    fail("rank " + std::to_string(input.rank) + " is outside 0.." + std::to_string(DHLO_ABI_MAX_RANK));
  if (!is_dtype(input.dtype)) fail("unknown dtype code " + std::to_string(input.dtype));
  if (input.rank > 0 && input.sizes == nullptr) fail("sizes are missing");
  for (int32_t dim = 0; dim < input.rank; ++dim)
    if (static_cast<uint64_t>(input.sizes[dim]) > static_cast<uint64_t>(DHLO_ABI_MAX_DIM))
      fail("size " + std::to_string(input.sizes[dim]) + " of dim " + std::to_string(dim) +
           (input.sizes[dim] < 0 ? " is negative" : " is above the largest possible, 2^48 - 1"));
  const int64_t elements = count_elements(input.rank, input.sizes);
  if (elements < 0) fail("its number of elements does not fit in 62 bits");
  if (elements == 0 && !has_few_rows(input))
    fail("it has no elements, but its other sizes multiply to more than the largest possible then, 2^31");
  if (input.data == nullptr && elements != 0 && need_data)
    fail("data is null, but the tensor has " + std::to_string(elements) + " element(s)");
}

}  // namespace

std::string system_text(int error) { return std::generic_category().message(error); }

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
}

std::string describe_check(const dhlo_abi_check& check, int64_t expected, int64_t got) {
  std::string text = check.text != nullptr ? check.text : "a check of the model failed";
  const std::string e = std::to_string(expected), g = std::to_string(got);
  switch (check.kind) {
    case DHLO_CHECK_RANK: return text + ": expected rank " + e + ", got rank " + g;
    case DHLO_CHECK_DTYPE:
      return text + ": expected " + dhlo_dtype_name(static_cast<int32_t>(expected)) + ", got " +
             dhlo_dtype_name(static_cast<int32_t>(got));
    case DHLO_CHECK_EQUAL: return text + ": expected " + e + ", got " + g;
    case DHLO_CHECK_MIN: return text + ": expected at least " + e + ", got " + g;
    case DHLO_CHECK_MAX: return text + ": expected at most " + e + ", got " + g;
    case DHLO_CHECK_INDEX: return text + ": index " + g + " is out of range for size " + e;
    default: return text;
  }
}

std::string describe_value(const char* what, int64_t index, const dhlo_abi_value* value) {
  std::string text = std::string(what) + " " + std::to_string(index);
  if (value != nullptr && value->name != nullptr && *value->name != 0) text += " '" + std::string(value->name) + "'";
  return text;
}

int64_t count_elements(int64_t rank, const int64_t* sizes) noexcept {
  int64_t elements = 1;
  bool overflow = false;
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (sizes[dim] == 0) return 0;
    overflow |= __builtin_mul_overflow(elements, sizes[dim], &elements) || elements >= (int64_t{1} << 58);
  }
  return overflow ? -1 : elements;  // 2^58 elements of 16 bytes are 2^62 bytes
}

void check_count(const dhlo_abi_entry& entry, int64_t num_inputs) {
  if (num_inputs != entry.num_inputs)
    throw Error(DHLO_INVALID_ARGUMENT,
                "expected " + std::to_string(entry.num_inputs) + " input(s), got " + std::to_string(num_inputs));
}

void check_inputs(const dhlo_abi_entry& entry, const dhlo_tensor* inputs, int64_t num_inputs, bool need_data) {
  check_count(entry, num_inputs);
  if (num_inputs > 0 && inputs == nullptr) throw Error(DHLO_INVALID_ARGUMENT, "inputs are null");
  for (int64_t i = 0; i < num_inputs; ++i) check_input(entry, inputs[i], i, need_data);
}

}  // namespace dhlo

uint32_t dhlo_runtime_version(void) {
  return (DHLO_RUNTIME_VERSION_MAJOR << 16) | (DHLO_RUNTIME_VERSION_MINOR << 8) | DHLO_RUNTIME_VERSION_PATCH;
}

uint32_t dhlo_runtime_abi_version(void) { return DHLO_ABI_VERSION; }

const char* dhlo_status_name(dhlo_status status) {
  static const char* const names[] = {"ok",     "invalid argument", "contract",  "out of memory", "input/output",
                                      "format", "version",          "cpu",       "busy",          "internal",
                                      "host",   "untrusted",        "cancelled", "deadline"};
  return status >= 0 && status <= DHLO_DEADLINE ? names[status] : "unknown";
}

int64_t dhlo_dtype_bytes(int32_t dtype) { return dhlo::is_dtype(dtype) ? dhlo::kDtypes[dtype].bytes : 0; }

const char* dhlo_dtype_name(int32_t dtype) { return dhlo::is_dtype(dtype) ? dhlo::kDtypes[dtype].name : "unknown"; }

const char* dhlo_last_error(void) { return dhlo::last_error.c_str(); }
