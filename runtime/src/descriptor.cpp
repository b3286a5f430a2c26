// What the runtime relies on in what compiled code says of itself.
#include "descriptor.hpp"

#include <algorithm>
#include <set>

#include "levels.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

constexpr int64_t kMaxBlockSlots = 1 << 20;

void check_value(const char* what, int64_t index, const dhlo_abi_value& value, const std::string& label) {
  const bool ok = value.rank >= 0 && value.rank <= DHLO_ABI_MAX_RANK && value.dtype >= 0 &&
                  value.dtype < DHLO_DTYPE_COUNT && (value.rank == 0 || value.sizes != nullptr);
  if (!ok)
    throw Error(DHLO_FORMAT, label + ": its description of " + describe_value(what, index, &value) + " is malformed");
}

// Whether an input has this dtype and rank.
bool is_input(const dhlo_abi_entry& entry, int64_t index, int64_t dtype, int64_t rank) {
  return index >= 0 && index < entry.num_inputs && entry.inputs[index].dtype == dtype &&
         entry.inputs[index].rank == rank;
}

bool are_adapters(const dhlo_abi_entry& entry, const dhlo_abi_adapters& adapters) {
  if (!is_input(entry, adapters.chosen, DHLO_I32, 1) || adapters.weights < 0 || adapters.weights >= entry.num_inputs)
    return false;
  const dhlo_abi_value& weights = entry.inputs[adapters.weights];
  const bool floats = weights.dtype == DHLO_F32 || weights.dtype == DHLO_BF16 || weights.dtype == DHLO_F16;
  if (!floats || weights.rank != 2 || weights.sizes[0] < 1 || weights.sizes[1] < 1 || adapters.rank < 1 ||
      adapters.num_products < 1 || adapters.products == nullptr)
    return false;
  bool ok = true;
  for (int64_t i = 0; i < adapters.num_products; ++i) {
    const dhlo_abi_adapted& x = adapters.products[i];
    const int64_t most = weights.sizes[1] / adapters.rank;
    ok &= x.name != nullptr && x.offset >= 0 && x.inputs > 0 && x.outputs > 0 && x.inputs <= most &&
          x.outputs <= most - x.inputs && x.offset <= weights.sizes[1] - adapters.rank * (x.inputs + x.outputs);
  }
  return ok;
}

bool is_updated(const dhlo_abi_entry& entry, int64_t input) {
  return std::find(entry.updated, entry.updated + entry.num_updated, input) != entry.updated + entry.num_updated;
}

// Nothing here reads it; whoever feeds the program needn't look again.
bool is_paging(const dhlo_abi_entry& entry, const dhlo_abi_paging& paging) {
  const bool pools =
      paging.num_pools > 0 && paging.pools != nullptr && paging.num_groups > 0 && paging.groups != nullptr;
  const bool states = paging.num_states > 0 && paging.states != nullptr && is_input(entry, paging.cells, DHLO_I32, 1);
  bool ok = paging.block_slots > 0 && paging.block_slots <= kMaxBlockSlots &&
            (pools || (paging.num_pools == 0 && paging.num_groups == 0)) &&
            (states || (paging.num_states == 0 && paging.cells == -1)) && (pools || states) &&
            is_input(entry, paging.starts, DHLO_I32, 1) && is_input(entry, paging.lengths, DHLO_I32, 1) &&
            paging.max_positions >= 0 && (paging.positions == -1 || is_input(entry, paging.positions, DHLO_I64, 1)) &&
            (paging.hidden == -1 || is_input(entry, paging.hidden, DHLO_I32, 1));
  ok = ok && (paging.adapters == nullptr || are_adapters(entry, *paging.adapters));
  for (int64_t i = 0; ok && i < paging.num_groups; ++i) {
    const dhlo_abi_page_group& group = paging.groups[i];
    ok = is_input(entry, group.slots, DHLO_I64, 1) && is_input(entry, group.tables, DHLO_I32, 2) && group.window >= 0;
  }
  for (int64_t i = 0; ok && i < paging.num_pools; ++i) {
    const dhlo_abi_pool& pool = paging.pools[i];
    ok = pool.group >= 0 && pool.group < paging.num_groups && std::min(pool.keys, pool.scales) >= -1 &&
         std::max(pool.keys, pool.scales) < paging.num_pools && pool.input >= 0 && pool.input < entry.num_inputs &&
         entry.inputs[pool.input].rank == 3 && entry.inputs[pool.input].sizes[0] > 0 &&
         entry.inputs[pool.input].sizes[2] > 0 && is_updated(entry, pool.input);
  }
  for (int64_t i = 0; ok && i < paging.num_states; ++i) {
    const int64_t input = paging.states[i];
    ok = input >= 0 && input < entry.num_inputs && entry.inputs[input].rank > 1 && is_updated(entry, input);
    for (int64_t d = 1; ok && d < entry.inputs[input].rank; ++d) ok = entry.inputs[input].sizes[d] >= 0;
  }
  const bool cross = paging.num_cross > 0 && paging.cross != nullptr && pools &&
                     is_input(entry, paging.cross_tables, DHLO_I32, 2) &&
                     is_input(entry, paging.cross_lengths, DHLO_I32, 1);
  ok = ok && (cross || (paging.num_cross == 0 && paging.cross_tables == -1 && paging.cross_lengths == -1));
  for (int64_t i = 0; ok && i < paging.num_cross; ++i) {
    const int64_t input = paging.cross[i];
    ok = input >= 0 && input < entry.num_inputs && entry.inputs[input].rank == 3 && entry.inputs[input].sizes[0] > 0 &&
         entry.inputs[input].sizes[2] > 0 && !is_updated(entry, input);
  }
  return ok;
}

bool are_collectives(const dhlo_abi_entry& entry) {
  if (std::min(entry.num_process_groups, entry.num_collectives) < 0) return false;
  if (entry.num_process_groups > 0 && entry.process_groups == nullptr) return false;
  if (entry.num_collectives > 0 && entry.collectives == nullptr) return false;
  bool ok = true;
  for (int64_t i = 0; i < entry.num_process_groups; ++i)
    ok &= entry.process_groups[i].name != nullptr && entry.process_groups[i].size >= 0;
  for (int64_t i = 0; i < entry.num_collectives; ++i) {
    const dhlo_abi_collective& x = entry.collectives[i];
    const bool reduces = x.kind == DHLO_ALL_REDUCE || x.kind == DHLO_REDUCE_SCATTER;
    ok &= x.kind >= DHLO_ALL_REDUCE && x.kind <= DHLO_BROADCAST && x.group >= 0 && x.group < entry.num_process_groups &&
          x.dtype >= 0 && x.dtype < DHLO_DTYPE_COUNT &&
          (reduces ? x.reduction >= DHLO_SUM && x.reduction <= DHLO_MIN : x.reduction == -1) &&
          (x.kind == DHLO_BROADCAST ? x.root >= 0 : x.root == -1);
  }
  return ok;
}

// What the runtime relies on in an entry.
void check_entry(const dhlo_abi_entry& entry, int64_t num_levels, const std::string& label) {
  if (entry.code == nullptr) throw Error(DHLO_FORMAT, label + ": its descriptor has no entry points");
  int64_t least = std::min({entry.num_inputs, entry.num_outputs, entry.num_checks});
  for (int64_t level = 0; level < num_levels; ++level) {
    const dhlo_abi_code& code = entry.code[level];
    if (code.run == nullptr) throw Error(DHLO_FORMAT, label + ": its descriptor has no entry points");
    least = std::min({least, code.num_launches, code.num_segments});
  }
  if (least < 0) throw Error(DHLO_FORMAT, label + ": its descriptor has a negative count");
  for (int64_t i = 0; i < entry.num_inputs; ++i) check_value("input", i, entry.inputs[i], label);
  for (int64_t i = 0; i < entry.num_outputs; ++i) check_value("output", i, entry.outputs[i], label);
  if (entry.num_symbols < 0 || (entry.num_symbols > 0 && entry.symbols == nullptr))
    throw Error(DHLO_FORMAT, label + ": its descriptor has a negative count of symbols");
  if (entry.num_updated < 0 || (entry.num_updated > 0 && (entry.updated == nullptr || entry.grows == nullptr)))
    throw Error(DHLO_FORMAT, label + ": its descriptor doesn't say which inputs it writes to");
  for (int64_t i = 0; i < entry.num_updated; ++i) {
    if (entry.updated[i] < 0 || entry.updated[i] >= entry.num_inputs)
      throw Error(DHLO_FORMAT, label + ": it writes to an input that it doesn't have");
    if (entry.grows[i] != -1 && (entry.grows[i] < 1 || entry.grows[i] >= entry.inputs[entry.updated[i]].rank))
      throw Error(DHLO_FORMAT, label + ": it writes behind a dim that an input doesn't have");
  }
  if (entry.paging != nullptr && !is_paging(entry, *entry.paging))
    throw Error(DHLO_FORMAT, label + ": its description of pools of blocks is malformed");
  if (!are_collectives(entry))
    throw Error(DHLO_FORMAT, label + ": its description of collective operations is malformed");
}

void check_entries(const dhlo_abi_model& abi, const std::string& label) {
  if (abi.num_entries < 1 || abi.num_entries > DHLO_ABI_MAX_ENTRIES || abi.entries == nullptr)
    throw Error(DHLO_FORMAT, label + ": its descriptor has no entries, or too many");
  std::set<std::string> names;
  for (int64_t i = 0; i < abi.num_entries; ++i) {
    const std::string name = abi.entries[i].name != nullptr ? abi.entries[i].name : "";
    check_entry(abi.entries[i], abi.num_levels, abi.num_entries > 1 ? label + ", entry '" + name + "'" : label);
    if (!names.insert(name).second) throw Error(DHLO_FORMAT, label + ": two of its entries are called '" + name + "'");
  }
}

}  // namespace

int64_t check_descriptor(const dhlo_abi_model& abi, int64_t constants_bytes, const std::string& label) {
  if (abi.magic != DHLO_ABI_MAGIC) throw Error(DHLO_FORMAT, label + ": its descriptor has the wrong magic");
  if (abi.version != DHLO_ABI_VERSION)
    throw Error(DHLO_VERSION, label + ": code for ABI version " + std::to_string(abi.version) +
                                  "; this runtime hosts version " + std::to_string(DHLO_ABI_VERSION) +
                                  ": compile the model again");
  if (abi.struct_bytes < sizeof(dhlo_abi_model))
    throw Error(DHLO_FORMAT, label + ": its descriptor has " + std::to_string(abi.struct_bytes) +
                                 " bytes, expected at least " + std::to_string(sizeof(dhlo_abi_model)));
  if (abi.num_levels < 1 || abi.num_levels > DHLO_ABI_MAX_LEVELS || abi.levels == nullptr)
    throw Error(DHLO_FORMAT, label + ": its descriptor has no levels, or too many");
  const auto level = static_cast<int64_t>(choose_level(levels_of(abi), label));
  if (abi.constants_bytes != constants_bytes)
    throw Error(DHLO_FORMAT, label + ": expected " + std::to_string(abi.constants_bytes) + " bytes of constants, got " +
                                 std::to_string(constants_bytes));
  if (std::min(abi.num_states, abi.state_bytes) < 0)
    throw Error(DHLO_FORMAT, label + ": its descriptor has a negative count");
  for (int64_t i = 0; i < abi.num_states; ++i) {
    const dhlo_abi_state& state = abi.states[i];
    const bool ok = state.bytes >= 0 && state.offset >= 0 && state.init_offset >= 0 &&
                    state.offset <= abi.state_bytes - state.bytes && state.init_offset <= constants_bytes - state.bytes;
    if (!ok) throw Error(DHLO_FORMAT, label + ": state " + std::to_string(i) + " lies outside its block");
    const bool shaped =
        state.name != nullptr && state.rank >= 0 && (state.rank == 0 || state.sizes != nullptr) &&
        count_elements(state.rank, state.sizes) * dhlo_dtype_bytes(static_cast<int32_t>(state.dtype)) == state.bytes;
    if (!shaped) throw Error(DHLO_FORMAT, label + ": state " + std::to_string(i) + " has sizes of other bytes");
  }
  check_entries(abi, label);
  return level;
}

}  // namespace dhlo
