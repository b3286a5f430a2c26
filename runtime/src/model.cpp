// The immutable part of a loaded program, and the C interface to it.
#include "model.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>

#include "descriptor.hpp"
#include "levels.hpp"
#include "machine.hpp"
#include "model_file.hpp"
#include "support.hpp"
#include "verified.hpp"

using dhlo::Error;

namespace dhlo {
namespace {

const char* text_or_empty(const char* text) { return text != nullptr ? text : ""; }

// The section of metadata that belongs to a descriptor.
std::string write_metadata(const dhlo_abi_model& abi) {
  std::string text;
  for (int64_t i = 0; i < abi.num_entries; ++i) {
    if (i > 0) text += '\n';
    text += text_or_empty(abi.entries[i].metadata);
  }
  return text;
}

dhlo_model_options read_options(const dhlo_model_options* given) {
  const dhlo_model_options options =
      read_struct(given, dhlo_model_options_init, offsetof(dhlo_model_options, allocator), "model options");
  if (options.weights_path != nullptr && options.weights_data != nullptr)
    throw Error(DHLO_INVALID_ARGUMENT, "model options: weights_path and weights_data exclude each other");
  if (options.weights_data == nullptr && options.weights_bytes != 0)
    throw Error(DHLO_INVALID_ARGUMENT, "model options: weights_data is null, and has weights_bytes");
  if ((options.allocator.alloc == nullptr) != (options.allocator.free == nullptr))
    throw Error(DHLO_INVALID_ARGUMENT, "model options: an allocator needs both alloc and free");
  return options;
}

void apply_options(Program* model, const dhlo_model_options& options) {
  check_machine_settings();
  model->allocator = options.allocator;
  if (model->env != nullptr && options.allocator.alloc == nullptr) model->allocator = model->env->allocator;
  model->parallel = options.parallel;
  if (options.parallel.run != nullptr) {
    if (options.parallel.num_threads < 1 || options.parallel.num_threads > Pool::kMaxThreads)
      throw Error(DHLO_INVALID_ARGUMENT, "model options: parallel.num_threads: expected 1 to 1024, got " +
                                             std::to_string(options.parallel.num_threads));
    model->num_threads = options.parallel.num_threads;
  } else if (model->env != nullptr) {
    model->num_threads = model->env->num_threads;
    model->pool = model->env->pool;
  } else {
    model->num_threads = Pool::resolve_threads(options.num_threads);
    if (model->num_threads > 1) model->pool = Pool::get(model->num_threads);
  }
  machine_facts(model->pool.get());  // here rather than in a session's first call
}

// Takes the environment's share of what is loaded. Throws Error.
void join_environment(Program* model, const dhlo_model_options& options, int64_t constants_bytes,
                      const std::string& label) {
  if (options.env == nullptr) return;
  model->env = options.env->environment;
  Account& account = model->env->account;
  if (!account.take(constants_bytes))
    throw Error(DHLO_OUT_OF_MEMORY, label + ": constants: " + over_limit_text(constants_bytes, account));
  model->charged_bytes = constants_bytes;
}

void log_loaded(const Program& model, const std::string& label) {
  if (model.env == nullptr) return;
  model.env->log(DHLO_LOG_INFO, [&] {
    return "loaded " + label + ": " + text_or_empty(model.abi->name) + " by " + text_or_empty(model.abi->producer) +
           ", " + std::to_string(model.abi->constants_bytes) + " bytes of constants, " +
           std::to_string(model.num_threads) + " thread(s), level '" +
           text_or_empty(model.abi->levels[model.level].name) + "'";
  });
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

int32_t verification(const dhlo_model_options& options) {
  if (options.authorize != nullptr)
    return DHLO_VERIFY_ALWAYS;  // the host vouches for what it saw, not for what is kept
  if (options.verify_constants < DHLO_VERIFY_NEVER || options.verify_constants > DHLO_VERIFY_ALWAYS)
    throw Error(DHLO_INVALID_ARGUMENT, "model options: verify_constants: expected a dhlo_verify, 0 to 2, got " +
                                           std::to_string(options.verify_constants));
  return options.verify_constants;
}

// How many threads read and hash constants. A host that brings its own threads expects none of ours.
int64_t reading_threads(const dhlo_model_options& options) {
  if (options.parallel.run != nullptr) return 1;
  if (options.env == nullptr) return Pool::resolve_threads(options.num_threads);
  return options.env->environment->makes_threads ? 1 : options.env->environment->num_threads;
}

// Maps the constants, or reads them where that is asked for or there is nothing to map. What is authorized is read:
// whoever may write to the file could change it afterwards.
const uint8_t* map_constants(const Sections& sections, const Source& source, const dhlo_model_options& options,
                             Program* model) {
  const int32_t memory = options.constants_memory, verify = verification(options);
  if (memory < DHLO_CONSTANTS_AUTO || memory > DHLO_CONSTANTS_COPIED)
    throw Error(
        DHLO_INVALID_ARGUMENT,
        "model options: constants_memory: expected a dhlo_constants_memory, 0 to 4, got " + std::to_string(memory));
  const int64_t constants = sections.bytes(DHLO_SECTION_CONSTANTS);
  const int64_t readers = reading_threads(options);
  const FileMark before(source.descriptor());
  const bool verified =
      verify == DHLO_VERIFY_NEVER || (verify == DHLO_VERIFY_ONCE && is_verified(before, sections.file_digest()));
  const bool populated = memory == DHLO_CONSTANTS_LOCKED || memory == DHLO_CONSTANTS_POPULATED;
  const bool copied =
      memory == DHLO_CONSTANTS_COPIED || (memory == DHLO_CONSTANTS_AUTO && options.authorize != nullptr);
  Mapping* mapping = &model->mapped_constants;
  const bool mapped = !copied && sections.map(DHLO_SECTION_CONSTANTS, populated, mapping);
  if (!mapped && !copied && memory != DHLO_CONSTANTS_AUTO && source.descriptor() >= 0 && constants > 0)
    throw Error(DHLO_IO, source.label() + ": its constants can't be mapped: " + system_text(errno));
  if (mapped && memory == DHLO_CONSTANTS_LOCKED && !mapping->lock())
    throw Error(DHLO_OUT_OF_MEMORY, source.label() + ": " + std::to_string(constants) +
                                        " bytes of constants can't be locked in memory: " + system_text(errno) +
                                        "; raise the process's limit (ulimit -l, RLIMIT_MEMLOCK)");
  if (!mapped)
    sections.read(DHLO_SECTION_CONSTANTS, readers, !verified, &model->owned_constants);
  else if (!verified)
    sections.check(DHLO_SECTION_CONSTANTS, readers);
  if (!verified && before == FileMark(source.descriptor())) keep_verified(before, sections.file_digest());
  return mapped ? mapping->data() : model->owned_constants.data();
}

std::string beside(const std::string& path, const std::string& name) {
  const size_t end = path.rfind('/');
  return end == std::string::npos ? name : path.substr(0, end + 1) + name;
}

// Where the constants are, if not in the model file. `path` is the model file's, null for one in memory.
std::unique_ptr<Source> open_weights(const char* path, const std::string& label, const WeightsReference& own,
                                     const dhlo_model_options& options) {
  if (options.weights_data != nullptr)
    return std::make_unique<MemorySource>(options.weights_data, static_cast<int64_t>(options.weights_bytes),
                                          "weights in memory, for " + label);
  if (options.weights_path == nullptr && own.name.empty()) return nullptr;
  if (options.weights_path == nullptr && path == nullptr)
    throw Error(DHLO_INVALID_ARGUMENT, label + ": its constants are in the weights file '" + own.name +
                                           "': say where that is, by weights_path or weights_data of the options");
  const std::string weights = options.weights_path != nullptr ? options.weights_path : beside(path, own.name);
  return std::make_unique<FileSource>(weights, "weights file '" + weights + "' of " + label);
}

// That constants go with the model: they are those that it was written with, or the host brings others that were made
// for its code.
void check_weights(const Sections& weights, const std::string& label, const Sections& model,
                   const WeightsReference& own, const dhlo_model_options& options) {
  const Digest got = weights.digest(DHLO_SECTION_CONSTANTS);
  if (got == own.digest && static_cast<uint64_t>(weights.bytes(DHLO_SECTION_CONSTANTS)) == own.bytes) return;
  const bool brought = options.weights_path != nullptr || options.weights_data != nullptr;
  const bool fits = brought && weights.made_for(model.digest(DHLO_SECTION_CODE));
  if (fits && options.authorize == nullptr) return;
  if (fits) throw Error(DHLO_UNTRUSTED, label + ": other weights than those of the file that the host authorized");
  throw Error(DHLO_FORMAT, label + ": holds other constants than the model was written with" +
                               (brought ? ", and they weren't made for its code" : "") + ": expected SHA-256 " +
                               to_hex(own.digest.data(), own.digest.size()) + ", got " +
                               to_hex(got.data(), got.size()));
}

// Nothing of the file is executed before all of it is verified. `path` is the file's, null if it is in memory.
std::shared_ptr<const Program> load(const Source& source, const char* path, const dhlo_model_options* given) {
  const dhlo_model_options options = read_options(given);
  const std::string& label = source.label();
  auto model = std::make_shared<Program>();
  const Sections sections(source, Sections::Form::kModel);
  authorize(options, sections.file_digest(), label);
  sections.check_padding();
  const std::string features = sections.text(DHLO_SECTION_FEATURES), metadata = sections.text(DHLO_SECTION_METADATA);
  choose_level(read_levels(features, label), label);
  if (sections.has(DHLO_SECTION_SOURCE)) sections.check(DHLO_SECTION_SOURCE, 1);
  Block image;
  sections.read(DHLO_SECTION_CODE, 1, true, &image);
  check_elf(image.data(), sections.bytes(DHLO_SECTION_CODE), label);
  const WeightsReference own = sections.weights();
  const std::unique_ptr<Source> apart = open_weights(path, label, own, options);
  std::unique_ptr<Sections> weights;
  if (apart != nullptr) {
    weights = std::make_unique<Sections>(*apart, Sections::Form::kWeights);
    weights->check_padding();
    check_weights(*weights, apart->label(), sections, own, options);
  }
  const Sections& holder = weights != nullptr ? *weights : sections;
  const int64_t constants_bytes = holder.bytes(DHLO_SECTION_CONSTANTS);
  join_environment(model.get(), options, constants_bytes, label);
  model->constants = map_constants(holder, apart != nullptr ? *apart : source, options, model.get());
  const dhlo_abi_model* const abi = model->code.load(image.data(), sections.bytes(DHLO_SECTION_CODE), label);
  model->level = check_descriptor(*abi, constants_bytes, label);
  if (features != write_levels(levels_of(*abi)) || metadata != write_metadata(*abi))
    throw Error(DHLO_FORMAT, label + ": damaged: code and sections describe different models");
  apply_options(model.get(), options);
  model->abi = abi;  // it is loaded: its end is logged, too
  log_loaded(*model, label);
  return model;
}

const dhlo_abi_level& level_of(const dhlo_model& model) { return model.program->abi->levels[model.program->level]; }

// What `get` finds in a model that is there; `none` else.
template <class T, class Get>
T from(const dhlo_model* model, T none, Get get) {
  return model != nullptr ? get(*model) : none;
}

}  // namespace

Program::~Program() {
  if (env != nullptr) {
    env->account.give(charged_bytes);
    if (abi != nullptr) env->log(DHLO_LOG_INFO, [this] { return std::string("released ") + text_or_empty(abi->name); });
  }
  if (release != nullptr) fenced([this] { return release(release_ctx), true; }, false);
}

}  // namespace dhlo

void dhlo_model_options_init(dhlo_model_options* options) {
  if (options == nullptr) return;
  *options = dhlo_model_options{};
  options->struct_bytes = sizeof *options;
  options->verify_constants = DHLO_VERIFY_ONCE;
}

dhlo_status dhlo_model_load_file(const char* path, const dhlo_model_options* options, dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (path == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_load_file: path or out is null");
        *out = std::make_unique<dhlo_model>(
                   dhlo::load(dhlo::FileSource(path, "model file '" + std::string(path) + "'"), path, options), 0)
                   .release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_model_load_memory(const void* data, size_t bytes, const dhlo_model_options* options,
                                   dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (data == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_load_memory: data or out is null");
        const dhlo::MemorySource source(data, static_cast<int64_t>(bytes), "model in memory");
        *out = std::make_unique<dhlo_model>(dhlo::load(source, nullptr, options), 0).release();
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
        if (read.weights_path != nullptr || read.weights_data != nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_from_descriptor: takes constants, and no weights file");
        auto program = std::make_shared<dhlo::Program>();
        program->level = dhlo::check_descriptor(*descriptor, static_cast<int64_t>(constants_bytes), "model descriptor");
        dhlo::join_environment(program.get(), read, 0, "model descriptor");
        dhlo::apply_options(program.get(), read);
        program->abi = descriptor;
        program->constants = static_cast<const uint8_t*>(constants);
        auto model = std::make_unique<dhlo_model>(program, 0);
        dhlo::log_loaded(*program, "model descriptor");
        program->release = release;  // nothing fails from here on
        program->release_ctx = ctx;
        *out = model.release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_model_entry(const dhlo_model* model, const char* name, dhlo_model** out) {
  return dhlo::guard(
      [&] {
        if (model == nullptr || name == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_model_entry: model, name or out is null");
        std::string known;
        for (int64_t i = 0; i < dhlo_model_num_entries(model); ++i) {
          const std::string entry = dhlo_model_entry_name(model, i);
          if (entry == name) {
            *out = std::make_unique<dhlo_model>(model->program, i).release();
            return;
          }
          known += (i > 0 ? ", '" : "'") + entry + "'";
        }
        throw Error(DHLO_INVALID_ARGUMENT, "the model has no entry '" + std::string(name) + "'; it has " + known);
      },
      dhlo::set_last_error);
}

void dhlo_model_retain(dhlo_model* model) {
  if (model != nullptr) model->references.fetch_add(1, std::memory_order_relaxed);
}

void dhlo_model_release(dhlo_model* model) {
  if (model != nullptr && model->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete model;
}

const char* dhlo_model_name(const dhlo_model* model) {
  return dhlo::from(model, "", [](const dhlo_model& m) { return dhlo::text_or_empty(m.program->abi->name); });
}
const char* dhlo_model_producer(const dhlo_model* model) {
  return dhlo::from(model, "", [](const dhlo_model& m) { return dhlo::text_or_empty(m.program->abi->producer); });
}
const char* dhlo_model_metadata(const dhlo_model* model) {
  return dhlo::from(model, "", [](const dhlo_model& m) { return dhlo::text_or_empty(m.entry->metadata); });
}
const char* dhlo_model_cpu_features(const dhlo_model* model) {
  return dhlo::from(model, "", [](const dhlo_model& m) { return dhlo::text_or_empty(dhlo::level_of(m).cpu_features); });
}
const char* dhlo_model_level(const dhlo_model* model) {
  return dhlo::from(model, "", [](const dhlo_model& m) { return dhlo::text_or_empty(dhlo::level_of(m).name); });
}
int64_t dhlo_model_num_threads(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->num_threads; });
}
int64_t dhlo_model_constants_bytes(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->abi->constants_bytes; });
}
int64_t dhlo_model_state_bytes(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->abi->state_bytes; });
}
int64_t dhlo_model_num_entries(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->abi->num_entries; });
}
int64_t dhlo_model_num_inputs(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_inputs; });
}
int64_t dhlo_model_num_process_groups(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_process_groups; });
}
const dhlo_abi_process_group* dhlo_model_process_group(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_process_groups(model) ? &model->entry->process_groups[index] : nullptr;
}
int64_t dhlo_model_num_collectives(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_collectives; });
}
const dhlo_abi_collective* dhlo_model_collective(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_collectives(model) ? &model->entry->collectives[index] : nullptr;
}
const dhlo_abi_paging* dhlo_model_paging(const dhlo_model* model) {
  return dhlo::from(model, static_cast<const dhlo_abi_paging*>(nullptr),
                    [](const dhlo_model& m) { return m.entry->paging; });
}
int64_t dhlo_model_num_outputs(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_outputs; });
}
int64_t dhlo_model_num_states(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->abi->num_states; });
}
int64_t dhlo_model_num_launches(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.code->num_launches; });
}

const char* dhlo_model_entry_name(const dhlo_model* model, int64_t index) {
  const bool known = index >= 0 && index < dhlo_model_num_entries(model);
  return known ? dhlo::text_or_empty(model->program->abi->entries[index].name) : nullptr;
}

const dhlo_abi_value* dhlo_model_input(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_inputs(model) ? &model->entry->inputs[index] : nullptr;
}

int32_t dhlo_model_input_is_updated(const dhlo_model* model, int64_t index) {
  for (int64_t i = 0; model != nullptr && i < model->entry->num_updated; ++i)
    if (model->entry->updated[i] == index) return 1;
  return 0;
}

const dhlo_abi_value* dhlo_model_output(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_outputs(model) ? &model->entry->outputs[index] : nullptr;
}

const dhlo_abi_state* dhlo_model_state(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_states(model) ? &model->program->abi->states[index] : nullptr;
}

int64_t dhlo_model_num_symbols(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_symbols; });
}
int64_t dhlo_model_num_checks(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.entry->num_checks; });
}
int64_t dhlo_model_num_levels(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->abi->num_levels; });
}
int64_t dhlo_model_level_index(const dhlo_model* model) {
  return dhlo::from(model, int64_t{0}, [](const dhlo_model& m) { return m.program->level; });
}

const dhlo_abi_symbol* dhlo_model_symbol(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_symbols(model) ? &model->entry->symbols[index] : nullptr;
}

const dhlo_abi_check* dhlo_model_check(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_checks(model) ? &model->entry->checks[index] : nullptr;
}

const dhlo_abi_level* dhlo_model_level_at(const dhlo_model* model, int64_t index) {
  return index >= 0 && index < dhlo_model_num_levels(model) ? &model->program->abi->levels[index] : nullptr;
}

const char* dhlo_model_launch(const dhlo_model* model, int64_t index) {
  const bool known = index >= 0 && index < dhlo_model_num_launches(model);
  return known ? dhlo::text_or_empty(model->code->launches[index]) : nullptr;
}
