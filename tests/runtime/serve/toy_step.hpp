// A step over pools of blocks, written by hand: it keeps tokens where a decoder keeps keys, and its logits follow from all
// tokens of a sequence that its tables lead to, so that a wrong block shows.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "dhlo/runtime.hpp"

namespace toy {

constexpr int64_t kVocabulary = 50, kBlock = 16;
// What these tokens do to a step that computes them.
constexpr int32_t kFails = 49, kNan = 48;
inline std::atomic<int64_t> computed{0};  // tokens
inline std::atomic<int64_t> taken_us{0};  // that a step takes at least which says what is drafted
inline std::atomic<int64_t> turns{0};     // sequences of a step that don't begin with the block of the one before them

inline uint64_t mixed(uint64_t hash, uint64_t token) {
  uint64_t x = (hash ^ (token + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  return (x ^ x >> 29) * 0x94D049BB133111EBu;
}
inline float logit(uint64_t hash, int64_t token) {
  return static_cast<float>(mixed(hash, static_cast<uint64_t>(token)) >> 40) * 0x1p-21f;  // 0 to 8
}

enum Input { kIds, kKept, kPool, kSlots, kTables, kStarts, kLengths, kHidden, kChosen, kAdapters, kInputs };

// What a step says beside the one that it drafts for: the same, something else behind a third of all beginnings, the
// second likeliest token first behind these, or nothing where there is a certain token; or a step with adapters, whose logits follow from all their weights, too; or
// what several processes say together, the greatest logits of each.
enum class Kind { kSame, kOften, kSecond, kFails, kAdapted, kShared };
constexpr int64_t kRank = 2, kWidth = 3, kAdapterElements = 2 * kRank * 2 * kWidth;  // of two products
constexpr int32_t kUndrafted = 5;

template <Kind kind>
int32_t run(dhlo_abi_call* call, const dhlo_tensor* in) {
  const int64_t rows = in[kKept].sizes[0], sequences = in[kLengths].sizes[0], columns = in[kTables].sizes[1];
  const int64_t sizes[] = {1, rows, kVocabulary};
  auto* said = static_cast<float*>(call->output(call, 0, 3, sizes));
  if (said == nullptr) return 1;
  if (call->plan != nullptr) return 0;
  std::vector<float> own(kind == Kind::kShared ? static_cast<size_t>(rows * kVocabulary) : 0);
  float* logits = kind == Kind::kShared ? own.data() : said;
  const auto *ids = static_cast<const int64_t*>(in[kIds].data), *kept = static_cast<const int64_t*>(in[kKept].data),
             *slots = static_cast<const int64_t*>(in[kSlots].data);
  const auto *tables = static_cast<const int32_t*>(in[kTables].data),
             *starts = static_cast<const int32_t*>(in[kStarts].data),
             *lengths = static_cast<const int32_t*>(in[kLengths].data);
  auto* pool = static_cast<int64_t*>(in[kPool].data);
  if ((kind == Kind::kSame || kind == Kind::kShared) && taken_us > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(taken_us));
  const int64_t tokens = in[kIds].sizes[1];
  computed += tokens;
  for (int64_t s = 1; s < sequences; ++s) turns += tables[s * columns] != tables[(s - 1) * columns] ? 1 : 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (ids[t] == kFails || (kind == Kind::kFails && ids[t] == kUndrafted)) return call->fail(call, 0, 0, 0);
    pool[slots[t]] = ids[t];
  }
  for (int64_t r = 0; r < rows; ++r) {
    int64_t s = 0;
    while (s < sequences && starts[s + 1] <= kept[r]) ++s;
    const int64_t length = lengths[s] - (starts[s + 1] - 1 - kept[r]);
    const auto hidden = static_cast<uint32_t>(static_cast<const int32_t*>(in[kHidden].data)[kept[r]]);
    uint64_t hash = 1;
    bool nan = false;
    for (int64_t p = 0; p < length; ++p) {
      const int64_t before = length - 1 - p;
      if (before > 0 && before <= 32 && (hidden >> (32 - before) & 1) != 0) continue;
      const int64_t token = pool[tables[s * columns + p / kBlock] * kBlock + p % kBlock];
      hash = mixed(hash, static_cast<uint64_t>(token));
      nan |= token == kNan;
    }
    const int32_t chosen = kind == Kind::kAdapted ? static_cast<const int32_t*>(in[kChosen].data)[kept[r]] : -1;
    for (int64_t i = 0; chosen >= 0 && i < kAdapterElements; ++i) {
      const float weight = static_cast<const float*>(in[kAdapters].data)[chosen * kAdapterElements + i];
      hash = mixed(hash, static_cast<uint64_t>(static_cast<int64_t>(weight)));
    }
    if (kind == Kind::kOften && hash % 3 == 0) hash = ~hash;
    for (int64_t v = 0; v < kVocabulary; ++v) logits[r * kVocabulary + v] = v >= kNan ? -1 : logit(hash, v);
    if (kind == Kind::kSecond && hash % 3 == 0) {
      float* row = logits + r * kVocabulary;
      float* first = std::max_element(row, row + kVocabulary);
      const float most = std::exchange(*first, -1.f);
      float* second = std::max_element(row, row + kVocabulary);
      *first = std::exchange(*second, most);
    }
    if (nan) logits[r * kVocabulary + 7] = std::numeric_limits<float>::quiet_NaN();
  }
  if (kind == Kind::kShared)
    return call->collective(call, 0, logits, rows * kVocabulary, said, rows * kVocabulary, nullptr);
  return 0;
}

template <Kind kind = Kind::kSame, int32_t adapters_dtype = DHLO_F32>
dhlo::Model model() {
  static const int64_t ids[] = {1, -1}, one[] = {-1}, pool[] = {1, -1, 1}, two[] = {-1, -1},
                       logits[] = {1, -1, kVocabulary}, adapters[] = {2, kAdapterElements};
  static const dhlo_abi_value inputs[] = {
      {"input_ids", DHLO_I64, 2, ids, nullptr}, {"kept", DHLO_I64, 1, one, nullptr},
      {"keys", DHLO_I64, 3, pool, nullptr},     {"slots", DHLO_I64, 1, one, nullptr},
      {"tables", DHLO_I32, 2, two, nullptr},    {"starts", DHLO_I32, 1, one, nullptr},
      {"lengths", DHLO_I32, 1, one, nullptr},   {"hidden", DHLO_I32, 1, one, nullptr},
      {"chosen", DHLO_I32, 1, one, nullptr},    {"adapters", adapters_dtype, 2, adapters, nullptr}};
  static const dhlo_abi_value outputs[] = {{"logits", DHLO_F32, 3, logits, nullptr}};
  static const dhlo_abi_check checks[] = {{DHLO_CHECK_ASSERT, -1, "no token may be the one that fails"}};
  static const int64_t updated[] = {kPool}, grows[] = {-1};
  static const dhlo_abi_page_group groups[] = {{kSlots, kTables, 0}};
  static const dhlo_abi_pool pools[] = {{kPool, 0, -1, -1}};
  static const dhlo_abi_adapted products[] = {{"layers.0.up", 0, kWidth, kWidth},
                                              {"layers.0.down", kAdapterElements / 2, kWidth, kWidth}};
  static const dhlo_abi_adapters room = {kChosen, kAdapters, kRank, 2, products};
  constexpr bool adapted = kind == Kind::kAdapted;
  static const dhlo_abi_paging paging = {kBlock, -1, kStarts, kLengths, 1, groups, 1,  pools, adapted ? &room : nullptr,
                                         0,      -1, 0,       nullptr,  1, -1,     -1, 0,     nullptr,
                                         kHidden};
  static const dhlo_abi_level levels[] = {{"", ""}};
  static const dhlo_abi_code code[] = {{run<kind>, 0, nullptr, 0}};
  static const std::array<dhlo_abi_entry, 1> entries = [] {
    dhlo_abi_entry entry{};
    entry.name = "";
    entry.metadata = "{}";
    entry.code = code;
    entry.num_inputs = adapted ? kInputs : kChosen;
    entry.inputs = inputs;
    entry.num_outputs = 1;
    entry.outputs = outputs;
    entry.num_checks = 1;
    entry.checks = checks;
    entry.num_updated = 1;
    entry.updated = updated;
    entry.grows = grows;
    entry.paging = &paging;
    static const dhlo_abi_process_group processes[] = {{"tp", 2}};
    static const dhlo_abi_collective collectives[] = {{DHLO_ALL_REDUCE, 0, DHLO_F32, DHLO_MAX, -1, "toy.cpp:1"}};
    if (kind == Kind::kShared) {
      entry.num_process_groups = 1;
      entry.process_groups = processes;
      entry.num_collectives = 1;
      entry.collectives = collectives;
    }
    return std::array<dhlo_abi_entry, 1>{entry};
  }();
  static const dhlo_abi_model descriptor = {DHLO_ABI_MAGIC,
                                            DHLO_ABI_VERSION,
                                            sizeof(dhlo_abi_model),
                                            "toy step",
                                            "toy 1.0",
                                            1,
                                            levels,
                                            1,
                                            entries.data(),
                                            0,
                                            nullptr,
                                            0,
                                            0};
  alignas(64) static const char nothing[64] = {};
  return dhlo::Model::from(descriptor, nothing, 0);
}

// What greedy decoding says behind a prompt. `most`: so many blocks are kept, the first and the last ones (below 16); 0:
// all are.
inline std::vector<int32_t> greedy(std::vector<int32_t> tokens, int64_t count, int64_t most = 0) {
  const size_t prompt = tokens.size();
  std::vector<int32_t> kept;
  size_t taken = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (; taken < tokens.size(); ++taken) {
      if (most > 0 && static_cast<int64_t>(kept.size()) == most * kBlock)
        kept.erase(kept.begin() + kBlock, kept.begin() + 2 * kBlock);
      kept.push_back(tokens[taken]);
    }
    uint64_t hash = 1;
    for (const int32_t token : kept) hash = mixed(hash, static_cast<uint64_t>(token));
    int32_t best = 0;
    for (int32_t v = 1; v < kNan; ++v)
      if (logit(hash, v) > logit(hash, best)) best = v;
    tokens.push_back(best);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
}

}  // namespace toy
