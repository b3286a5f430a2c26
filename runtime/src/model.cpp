// The immutable part of a loaded program, and the C interface to it.
#include "model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "levels.hpp"
#include "machine.hpp"
#include "model_file.hpp"
#include "support.hpp"

using dhlo::Error;

namespace dhlo {
namespace {

void check_value(const char* what, int64_t index, const dhlo_abi_value& value, const std::string& label) {
  const bool ok = value.rank >= 0 && value.rank <= DHLO_ABI_MAX_RANK && value.dtype >= 0 &&
                  value.dtype < DHLO_DTYPE_COUNT && (value.rank == 0 || value.sizes != nullptr);
  if (!ok)
    throw Error(DHLO_FORMAT, label + ": its description of " + describe_value(what, index, &value) + " is malformed");
}

const char* text_or_empty(const char* text) { return text != nullptr ? text : ""; }

// Everything the runtime relies on in a descriptor that came with the code. Returns the level that this machine takes.
const dhlo_abi_level* check_descriptor(const dhlo_abi_model& abi, int64_t constants_bytes, const std::string& label) {
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
  const dhlo_abi_level* level = abi.levels + choose_level(levels_of(abi), label);
  if (abi.constants_bytes != constants_bytes)
    throw Error(DHLO_FORMAT, label + ": expected " + std::to_string(abi.constants_bytes) + " bytes of constants, got " +
                                 std::to_string(constants_bytes));
  if (level->run == nullptr) throw Error(DHLO_FORMAT, label + ": its descriptor has no entry points");
  const bool counts = std::min({abi.num_inputs, abi.num_outputs, abi.num_checks, level->num_launches, abi.num_states,
                                abi.state_bytes, level->num_segments}) >= 0;
  if (!counts) throw Error(DHLO_FORMAT, label + ": its descriptor has a negative count");
  for (int64_t i = 0; i < abi.num_inputs; ++i) check_value("input", i, abi.inputs[i], label);
  for (int64_t i = 0; i < abi.num_outputs; ++i) check_value("output", i, abi.outputs[i], label);
  if (abi.num_updated < 0 || (abi.num_updated > 0 && (abi.updated == nullptr || abi.grows == nullptr)))
    throw Error(DHLO_FORMAT, label + ": its descriptor doesn't say which inputs it writes to");
  for (int64_t i = 0; i < abi.num_updated; ++i) {
    if (abi.updated[i] < 0 || abi.updated[i] >= abi.num_inputs)
      throw Error(DHLO_FORMAT, label + ": it writes to an input that it doesn't have");
    if (abi.grows[i] != -1 && (abi.grows[i] < 1 || abi.grows[i] >= abi.inputs[abi.updated[i]].rank))
      throw Error(DHLO_FORMAT, label + ": it writes behind a dim that an input doesn't have");
  }
  for (int64_t i = 0; i < abi.num_states; ++i) {
    const dhlo_abi_state& state = abi.states[i];
    const bool ok = state.bytes >= 0 && state.offset >= 0 && state.init_offset >= 0 &&
                    state.offset <= abi.state_bytes - state.bytes && state.init_offset <= constants_bytes - state.bytes;
    if (!ok) throw Error(DHLO_FORMAT, label + ": state " + std::to_string(i) + " lies outside its block");
  }
  return level;
}

dhlo_model_options read_options(const dhlo_model_options* given) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  if (given == nullptr) return options;
  if (given->struct_bytes < offsetof(dhlo_model_options, allocator))
    throw Error(DHLO_INVALID_ARGUMENT, "model options: struct_bytes is not set; use dhlo_model_options_init");
  std::memcpy(&options, given, std::min<size_t>(given->struct_bytes, sizeof options));
  if ((options.allocator.alloc == nullptr) != (options.allocator.free == nullptr))
    throw Error(DHLO_INVALID_ARGUMENT, "model options: an allocator needs both alloc and free");
  return options;
}

void apply_options(dhlo_model* model, const dhlo_model_options& options) {
  check_machine_settings();
  model->allocator = options.allocator;
  model->parallel = options.parallel;
  if (options.parallel.run != nullptr) {
    if (options.parallel.num_threads < 1 || options.parallel.num_threads > Pool::kMaxThreads)
      throw Error(DHLO_INVALID_ARGUMENT, "model options: parallel.num_threads: expected 1 to 1024, got " +
                                             std::to_string(options.parallel.num_threads));
    model->num_threads = options.parallel.num_threads;
  } else {
    model->num_threads = Pool::resolve_threads(options.num_threads);
    if (model->num_threads > 1) model->pool = Pool::get(model->num_threads);
  }
  machine_facts(model->pool.get());  // here rather than in a session's first call
}

void authorize(const dhlo_model_options& options, const Digest& digest, const std::string& label) {
  if (options.authorize == nullptr) return;
  int32_t refused = 1;
  try {
    refused = options.authorize(options.authorize_ctx, digest.data(), digest.size());
  } catch (...) {
    throw Error(DHLO_UNTRUSTED, label + ": the host's authorize function threw");
  }
  if (refused != 0)
    throw Error(DHLO_UNTRUSTED,
                label + ": the host doesn't authorize the file with SHA-256 " + to_hex(digest.data(), digest.size()));
}

// Nothing of the file is executed before all of it is verified.
std::unique_ptr<dhlo_model> load(const Source& source, const dhlo_model_options* given) {
  const dhlo_model_options options = read_options(given);
  const std::string& label = source.label();
  auto model = std::make_unique<dhlo_model>();
  const Sections sections(source);
  authorize(options, sections.file_digest(), label);
  sections.check_padding();
  const std::string features = sections.text(DHLO_SECTION_FEATURES), metadata = sections.text(DHLO_SECTION_METADATA);
  choose_level(read_levels(features, label), label);
  Block image;
  sections.read(DHLO_SECTION_CODE, 1, true, &image);
  check_elf(image.data(), sections.bytes(DHLO_SECTION_CODE), label);
  // A host that brings its own threads expects none of ours.
  const int64_t readers = options.parallel.run != nullptr ? 1 : Pool::resolve_threads(options.num_threads);
  sections.read(DHLO_SECTION_CONSTANTS, readers, options.verify_constants != 0 || options.authorize != nullptr,
                &model->owned_constants);
  model->abi = model->code.load(image.data(), sections.bytes(DHLO_SECTION_CODE), label);
  model->level = check_descriptor(*model->abi, sections.bytes(DHLO_SECTION_CONSTANTS), label);
  if (features != write_levels(levels_of(*model->abi)) || metadata != text_or_empty(model->abi->metadata))
    throw Error(DHLO_FORMAT, label + ": damaged: code and sections describe different models");
  model->constants = model->owned_constants.data();
  apply_options(model.get(), options);
  return model;
}

// A field of the descriptor; empty or 0 for no model.
const char* text_of(const dhlo_model* model, const char* dhlo_abi_model::* field) {
  return model != nullptr ? text_or_empty(model->abi->*field) : "";
}
int64_t number_of(const dhlo_model* model, int64_t dhlo_abi_model::* field) {
  return model != nullptr ? model->abi->*field : 0;
}

}  // namespace
}  // namespace dhlo

dhlo_model::~dhlo_model() {
  if (release != nullptr) dhlo::fenced([this] { return release(release_ctx), true; }, false);
}

void dhlo_model_options_init(dhlo_model_options* options) {
  if (options == nullptr) return;
  *options = dhlo_model_options{};
  options->struct_bytes = sizeof *options;
  options->verify_constants = 1;
}

dhlo_status dhlo_model_load_file(const char* path, const dhlo_model_options* options, dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (path == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_load_file: path or out is null");
        *out = dhlo::load(dhlo::FileSource(path), options).release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_model_load_memory(const void* data, size_t bytes, const dhlo_model_options* options,
                                   dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (data == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_load_memory: data or out is null");
        *out = dhlo::load(dhlo::MemorySource(data, static_cast<int64_t>(bytes)), options).release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_model_from_descriptor(const dhlo_abi_model* descriptor, const void* constants, size_t constants_bytes,
                                       void (*release)(void* ctx), void* ctx, const dhlo_model_options* options,
                                       dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (descriptor == nullptr || out == nullptr || (constants == nullptr && constants_bytes != 0))
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_from_descriptor: descriptor, constants or out is null");
        if (reinterpret_cast<uintptr_t>(constants) % 64 != 0)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_from_descriptor: constants are not 64-byte aligned");
        const dhlo_model_options read = dhlo::read_options(options);
        auto model = std::make_unique<dhlo_model>();
        model->level = dhlo::check_descriptor(*descriptor, static_cast<int64_t>(constants_bytes), "model descriptor");
        dhlo::apply_options(model.get(), read);
        model->abi = descriptor;
        model->constants = static_cast<const uint8_t*>(constants);
        model->release = release;
        model->release_ctx = ctx;
        *out = model.release();
      },
      dhlo::set_last_error);
}

void dhlo_model_retain(dhlo_model* model) {
  if (model != nullptr) model->references.fetch_add(1, std::memory_order_relaxed);
}

void dhlo_model_release(dhlo_model* model) {
  if (model != nullptr && model->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete model;
}

const char* dhlo_model_name(const dhlo_model* model) { return dhlo::text_of(model, &dhlo_abi_model::name); }
const char* dhlo_model_producer(const dhlo_model* model) { return dhlo::text_of(model, &dhlo_abi_model::producer); }
const char* dhlo_model_metadata(const dhlo_model* model) { return dhlo::text_of(model, &dhlo_abi_model::metadata); }
const char* dhlo_model_cpu_features(const dhlo_model* model) {
  return model != nullptr ? dhlo::text_or_empty(model->level->cpu_features) : "";
}
const char* dhlo_model_level(const dhlo_model* model) {
  return model != nullptr ? dhlo::text_or_empty(model->level->name) : "";
}
int64_t dhlo_model_num_threads(const dhlo_model* model) { return model != nullptr ? model->num_threads : 0; }
int64_t dhlo_model_constants_bytes(const dhlo_model* model) {
  return dhlo::number_of(model, &dhlo_abi_model::constants_bytes);
}
int64_t dhlo_model_state_bytes(const dhlo_model* model) { return dhlo::number_of(model, &dhlo_abi_model::state_bytes); }
int64_t dhlo_model_num_inputs(const dhlo_model* model) { return dhlo::number_of(model, &dhlo_abi_model::num_inputs); }
int64_t dhlo_model_num_outputs(const dhlo_model* model) { return dhlo::number_of(model, &dhlo_abi_model::num_outputs); }
int64_t dhlo_model_num_states(const dhlo_model* model) { return dhlo::number_of(model, &dhlo_abi_model::num_states); }
int64_t dhlo_model_num_launches(const dhlo_model* model) { return model != nullptr ? model->level->num_launches : 0; }

const dhlo_abi_value* dhlo_model_input(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_inputs(model) ? &model->abi->inputs[index] : nullptr;
}

int32_t dhlo_model_input_is_updated(const dhlo_model* model, int64_t index) {
  for (int64_t i = 0; i < dhlo::number_of(model, &dhlo_abi_model::num_updated); ++i)
    if (model->abi->updated[i] == index) return 1;
  return 0;
}

const dhlo_abi_value* dhlo_model_output(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_outputs(model) ? &model->abi->outputs[index] : nullptr;
}

const dhlo_abi_state* dhlo_model_state(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_states(model) ? &model->abi->states[index] : nullptr;
}

const char* dhlo_model_launch(const dhlo_model* model, int64_t index) {
  const bool known = index >= 0 && index < dhlo_model_num_launches(model);
  return known ? dhlo::text_or_empty(model->level->launches[index]) : nullptr;
}
