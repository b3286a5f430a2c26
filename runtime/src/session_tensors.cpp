// What a run may be given: tensors that lie where their caller says, and share no memory that the run writes.
#include <algorithm>

#include "session.hpp"
#include "support.hpp"

using dhlo::Error;
using dhlo::Output;

namespace {

// Throws Error unless all of a tensor lies in the memory that the caller says it has.
void check_capacity(const dhlo_abi_entry& entry, const dhlo_tensor& input, int64_t index) {
  auto fail = [&](const std::string& text) {
    throw Error(DHLO_INVALID_ARGUMENT, dhlo::describe_value("input", index, &entry.inputs[index]) + ": " + text);
  };
  const auto begin = reinterpret_cast<uintptr_t>(input.data);
  if (input.capacity < 0) fail("its capacity is negative");
  if (static_cast<uintptr_t>(input.capacity) > UINTPTR_MAX - begin)
    fail("its capacity reaches beyond what can be addressed");
  dhlo::Region region;
  dhlo::find_region(input, dhlo_dtype_bytes(input.dtype), &region);
  if (region.empty()) return;
  const auto first = reinterpret_cast<uintptr_t>(region.begin), last = reinterpret_cast<uintptr_t>(region.end);
  if (first < begin || last - begin > static_cast<uintptr_t>(input.capacity))
    fail("its sizes and strides reach beyond its capacity of " + std::to_string(input.capacity) + " bytes");
}

void check_addressable(const dhlo_abi_entry& entry, const dhlo_tensor& input, int64_t index) {
  // Sizes and strides below 2^20 reach no further than 2^47 bytes: nearly all tensors.
  uint64_t bits = 0;
  for (int32_t d = 0; input.strides != nullptr && d < input.rank; ++d)
    bits |= static_cast<uint64_t>(input.sizes[d]) | static_cast<uint64_t>(input.strides[d]);
  if (bits >> 20 == 0) return;
  if (!dhlo::addressable(input, dhlo_dtype_bytes(input.dtype)))
    throw Error(DHLO_INVALID_ARGUMENT, dhlo::describe_value("input", index, &entry.inputs[index]) +
                                           ": its strides reach beyond what can be addressed");
}

}  // namespace

std::string dhlo_session::describe(const dhlo::Given& g) const {
  if (g.kind == dhlo::Given::kState) return "the session's state";
  const bool output = g.kind == dhlo::Given::kOutput;
  const dhlo_abi_value* values = output ? model->entry->outputs : model->entry->inputs;
  return dhlo::describe_value(output ? "output" : "input", g.index, &values[g.index]);
}

// Memory that the run writes must be nobody else's: kernels read and write in any order. Throws Error.
void dhlo_session::check_sharing(const dhlo_tensor* inputs) {
  const dhlo_abi_entry& entry = *model->entry;
  given.clear();
  for (int64_t i = 0; i < entry.num_inputs; ++i) {
    const int64_t grows = writes.empty() ? dhlo::kReads : writes[static_cast<size_t>(i)];
    given.push_back({{}, i, dhlo::Given::kInput, grows != dhlo::kReads});
    dhlo::Given& g = given.back();
    dhlo_tensor all = inputs[i];
    int64_t sizes[DHLO_ABI_MAX_RANK];
    if (grows > 0 && grows < all.rank && all.strides != nullptr) {
      // The whole of the buffer whose first part is given.
      std::copy_n(all.sizes, all.rank, sizes);
      sizes[grows] = std::max(sizes[grows], all.strides[grows - 1] / std::max<int64_t>(all.strides[grows], 1));
      all.sizes = sizes;
      check_addressable(entry, all, i);
      if (all.capacity != 0) check_capacity(entry, all, i);
    }
    dhlo::find_region(all, dhlo_dtype_bytes(all.dtype), &g.region);
    if (g.written && g.region.folded)
      throw Error(DHLO_INVALID_ARGUMENT,
                  describe(g) + " is updated by the model, but several of its elements share memory, by its strides");
  }
  if (counters.state_bytes > 0)
    given.push_back({dhlo::whole_region(state, counters.state_bytes), -1, dhlo::Given::kState, true});
  // What the session holds for an output is written, too, and may move: an output of the last run is no input of this
  // one.
  for (int64_t i = 0; i < entry.num_outputs; ++i) {
    const Output& out = outputs[static_cast<size_t>(i)];
    const bool bound = out.bound != nullptr;
    if (!bound && out.owned.data() == nullptr) continue;
    given.push_back({dhlo::whole_region(bound ? out.bound : out.owned.data(), bound ? out.capacity : out.owned.bytes()),
                     i, dhlo::Given::kOutput, true});
  }
  // In the order of their addresses, so that only neighbours are compared.
  std::sort(given.begin(), given.end(),
            [](const dhlo::Given& a, const dhlo::Given& b) { return a.region.begin < b.region.begin; });
  for (size_t i = 0; i < given.size(); ++i) {
    for (size_t j = i + 1; j < given.size() && given[j].region.begin < given[i].region.end; ++j) {
      const dhlo::Given &a = given[i], &b = given[j];
      if ((!a.written && !b.written) || !dhlo::share_bytes(a.region, b.region)) continue;
      const dhlo::Given &written = a.written ? a : b, &other = a.written ? b : a;
      throw Error(DHLO_INVALID_ARGUMENT, describe(written) + " is written by the model, but shares memory with " +
                                             describe(other) + (other.written ? ", which is written, too" : ""));
    }
  }
}

// Whether an input lies among what the session holds for states and outputs: the first look, where nothing else is
// written.
bool dhlo_session::reaches_own_memory(const dhlo_tensor* inputs) const {
  const uint8_t *first = nullptr, *last = nullptr;
  if (counters.state_bytes > 0) {
    first = state;
    last = state + counters.state_bytes;
  }
  for (const Output& out : outputs) {
    if (out.owned.data() == nullptr) continue;
    first = first == nullptr ? out.owned.data() : std::min<const uint8_t*>(first, out.owned.data());
    last = std::max<const uint8_t*>(last, out.owned.data() + out.owned.bytes());
  }
  for (int64_t i = 0; i < model->entry->num_inputs; ++i) {
    dhlo::Region region;
    dhlo::find_region(inputs[i], dhlo_dtype_bytes(inputs[i].dtype), &region);
    if (region.begin < last && first < region.end) return true;
  }
  return false;
}

// Whether memory that the host gave for an output is used by nothing else of the run; records an error if not.
bool dhlo_session::is_free(int64_t index, const void* data, int64_t bytes) {
  const dhlo::Given output{dhlo::whole_region(data, bytes), index, dhlo::Given::kOutput, true};
  for (const dhlo::Given& other : given) {
    if ((other.kind == dhlo::Given::kOutput && other.index == index) || !dhlo::share_bytes(output.region, other.region))
      continue;
    record(DHLO_HOST,
           [&] { return describe(output) + ": the host gave memory that it shares with " + describe(other); });
    return false;
  }
  given.push_back(output);
  return true;
}

void dhlo_session::check_memory(const dhlo_tensor* inputs) {
  const dhlo_abi_entry& entry = *model->entry;
  for (int64_t i = 0; i < entry.num_inputs; ++i) {
    check_addressable(entry, inputs[i], i);
    if (inputs[i].capacity != 0) check_capacity(entry, inputs[i], i);
  }
  const bool hooked = options.output != nullptr && !trusts_output_hook;
  const bool written = !writes.empty() || num_bound > 0 || hooked;
  const bool holds = counters.output_bytes > 0 || counters.state_bytes > 0;
  if (written || (holds && reaches_own_memory(inputs))) check_sharing(inputs);
}
