// Several processes that run a step together.
#include "shards.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "status.hpp"
#include "step.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kMagic = 0x6465726168736c64;  // also tells a process of another byte order
// Of a message, in one operation: whole steps of few sequences are as short.
constexpr int64_t kFirst = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 40;
constexpr int64_t kMostAlive = 5000000000;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

// Bytes of dense content; -1 if there are no so many.
int64_t bytes_of(const dhlo_tensor& tensor, const int64_t* sizes) {
  int64_t bytes = dhlo_dtype_bytes(tensor.dtype);
  for (int32_t d = 0; d < tensor.rank; ++d)
    if (sizes[d] < 0 || __builtin_mul_overflow(bytes, sizes[d], &bytes) || bytes > kMostBytes) return -1;
  return bytes;
}

int32_t goes_on(const void*) { return 0; }

}  // namespace

int32_t Shards::find_group(void* ctx, const char* group, int64_t* size, int64_t* rank) {
  auto& self = *static_cast<Shards*>(ctx);
  const int32_t failed = self.host_.find_group(self.host_.ctx, group, size, rank);
  if (failed != 0) return failed;
  self.group_ = group;
  self.size_ = *size;
  self.rank_ = *rank;
  ++self.groups_;
  return 0;
}

// The host's operation, with a timeout. Runs themselves have none: it would cut their launches into small parts.
template <dhlo_collective_fn dhlo_communicator::* hook>
int32_t Shards::run(void* ctx, const dhlo_collective* operation) {
  auto& self = *static_cast<Shards*>(ctx);
  dhlo_collective bounded = *operation;
  bounded.timeout_ns = operation->timeout_ns > 0 ? std::min(operation->timeout_ns, self.timeout_ns_) : self.timeout_ns_;
  return (self.host_.*hook)(self.host_.ctx, &bounded);
}

Shards::Shards(const dhlo_communicator& communicator, int64_t timeout_ns)
    : host_(dhlo::read_struct(&communicator, dhlo_communicator_init, sizeof(dhlo_communicator), "communicator")),
      timeout_ns_(timeout_ns) {
  if (host_.find_group == nullptr || host_.broadcast == nullptr || host_.all_reduce == nullptr)
    refuse("communicator: an engine needs find_group, broadcast and all_reduce");
  dhlo_communicator_init(&bounded_);
  bounded_.ctx = this;
  bounded_.find_group = find_group;
  bounded_.all_reduce = run<&dhlo_communicator::all_reduce>;
  bounded_.broadcast = run<&dhlo_communicator::broadcast>;
  if (host_.all_gather != nullptr) bounded_.all_gather = run<&dhlo_communicator::all_gather>;
  if (host_.reduce_scatter != nullptr) bounded_.reduce_scatter = run<&dhlo_communicator::reduce_scatter>;
  if (host_.all_to_all != nullptr) bounded_.all_to_all = run<&dhlo_communicator::all_to_all>;
}

void Shards::join(bool leads) {
  if (groups_ != 1)
    refuse("communicator: the step does collective operations in " + std::to_string(groups_) +
           " process groups; an engine over several processes needs one of a single group");
  if (leads != (rank_ == 0))
    refuse(leads ? "communicator: this is process " + std::to_string(rank_) + " of group '" + group_ +
                       "'; process 0 has the engine, and the others follow it (dhlo_engine_follow)"
                 : "communicator: this is process 0 of group '" + group_ + "', which is to have the engine");
  open_ = leads && size_ > 1;
}

// ---- messages -------------------------------------------------------------------------------------------------------

bool Shards::exchange(dhlo_collective what, const char* action) {
  what.struct_bytes = sizeof what;
  what.group = group_.c_str();
  what.group_size = size_;
  what.timeout_ns = timeout_ns_;
  what.stopped = goes_on;
  const dhlo_collective_fn hook = what.kind == DHLO_BROADCAST ? host_.broadcast : host_.all_reduce;
  const int32_t failed = fenced([&] { return hook(host_.ctx, &what); }, int32_t{-1});
  if (failed == 0) return true;
  shut(std::string(action) + " in process group '" + group_ + "': the communicator failed (" + std::to_string(failed) +
       ")");
  return false;
}

// Bytes of out_ of number 0 to in_ of all.
bool Shards::broadcast(int64_t first, int64_t bytes) {
  dhlo_collective what{};
  what.kind = DHLO_BROADCAST;
  what.dtype = DHLO_U8;
  what.reduction = -1;
  what.root = 0;
  what.input = out_.data() + first;
  what.output = in_.data() + first;
  what.input_count = what.output_count = bytes;
  return exchange(what, rank_ == 0 ? "telling the others of a step" : "waiting for process 0 to tell of a step");
}

void Shards::append(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  out_.insert(out_.end(), from, from + bytes);
  out_.resize(static_cast<size_t>(padded(static_cast<int64_t>(out_.size()))));
}

// What was appended to out_ behind room for a header.
bool Shards::send(Kind kind, int64_t copies) {
  const auto bytes = static_cast<int64_t>(out_.size());
  const Header header{kMagic, kind, bytes - static_cast<int64_t>(sizeof(Header)), copies};
  std::memcpy(out_.data(), &header, sizeof header);
  out_.resize(static_cast<size_t>(std::max(bytes, kFirst)));
  if (in_.size() < out_.size()) in_.resize(out_.size());
  if (!broadcast(0, kFirst) || (bytes > kFirst && !broadcast(kFirst, bytes - kFirst))) return false;
  next_ns_ = now_ns() + std::min(least_timeout_ns_ / 4, kMostAlive);
  return true;
}

void Shards::need_all(bool done) const {
  if (!done) throw Error(DHLO_HOST, error_);
}

Shards::Header Shards::receive() {
  for (std::vector<uint8_t>* each : {&in_, &out_}) each->resize(std::max(each->size(), static_cast<size_t>(kFirst)));
  need_all(broadcast(0, kFirst));
  Header header;
  std::memcpy(&header, in_.data(), sizeof header);
  if (header.magic != kMagic || header.bytes < 0 || header.bytes > kMostBytes || header.copies < 0 ||
      header.copies > header.bytes / static_cast<int64_t>(sizeof(SlotCopy)))
    throw Error(DHLO_HOST, "process 0 of group '" + group_ + "' says what isn't an engine's");
  const int64_t all = static_cast<int64_t>(sizeof header) + header.bytes;
  for (std::vector<uint8_t>* each : {&in_, &out_}) each->resize(std::max(each->size(), static_cast<size_t>(all)));
  if (all > kFirst) need_all(broadcast(kFirst, all - kFirst));
  return header;
}

ShardPlan Shards::plan(const ShardPlan& mine, const std::vector<int64_t>& step) {
  if (size_ == 1) return mine;
  const size_t bytes = step.size() * sizeof(int64_t);
  if (rank_ == 0) {
    out_.resize(sizeof(Header));
    append(&mine, sizeof mine);
    append(step.data(), bytes);
    need_all(send(kPlan, 0));
    return mine;
  }
  const Header header = receive();
  if (header.kind == kEnd)
    throw Error(DHLO_HOST, "process 0 of group '" + group_ + "' has made no engine: its own error says why");
  if (header.kind != kPlan) throw Error(DHLO_HOST, "process 0 of group '" + group_ + "' is out of step");
  ShardPlan plan{};
  const uint8_t* at = in_.data() + sizeof header;
  const bool whole = header.bytes == static_cast<int64_t>(sizeof plan + bytes);
  if (whole) std::memcpy(&plan, at, sizeof plan);
  if (!whole || std::memcmp(at + sizeof plan, step.data(), bytes) != 0) {
    decline();
    refuse("process 0 of group '" + group_ + "' has a step of another kind: all are to be shards of one model");
  }
  return plan;
}

bool Shards::agree(bool ready) {
  if (size_ == 1) return ready;
  const int64_t mine_ms = std::min<int64_t>(timeout_ns_ / 1000000, INT32_MAX);
  const int32_t mine[2] = {ready ? 0 : 1, -static_cast<int32_t>(mine_ms)};
  int32_t all[2] = {};
  dhlo_collective what{};
  what.kind = DHLO_ALL_REDUCE;
  what.dtype = DHLO_I32;
  what.reduction = DHLO_MAX;
  what.root = -1;
  what.input = mine;
  what.output = all;
  what.input_count = what.output_count = 2;
  need_all(exchange(what, "asking whether all processes are ready"));
  if (all[0] != 0) shut("another process isn't ready");
  least_timeout_ns_ = std::min(timeout_ns_, std::max<int64_t>(-int64_t{all[1]}, 1) * 1000000);
  return all[0] == 0;
}

void Shards::decline() noexcept {
  fenced([this] { return agree(false); }, false);
}

bool Shards::tell(Span<const SlotCopy> copies, Span<const dhlo_tensor> inputs, Span<const int64_t> told) {
  if (!error_.empty()) return false;
  if (size_ == 1) return true;
  static_assert(std::is_trivially_copyable_v<SlotCopy>);
  out_.resize(sizeof(Header));
  append(copies.data(), copies.size() * sizeof(SlotCopy));
  for (const int64_t i : told) {
    const dhlo_tensor& input = inputs[static_cast<size_t>(i)];
    append(input.sizes, static_cast<size_t>(input.rank) * sizeof(int64_t));
    append(input.data, static_cast<size_t>(bytes_of(input, input.sizes)));
  }
  return send(kStep, static_cast<int64_t>(copies.size()));
}

void Shards::fail(const std::string& why) {
  if (error_.empty())
    shut("an earlier step failed (" + why + "), and processes may be out of step: make another engine and followers");
}

// Nothing is told any more.
void Shards::shut(std::string why) noexcept {
  error_ = std::move(why);
  open_ = false;
  next_ns_ = INT64_MAX;
}

void Shards::keep_alive() {
  if (!open_ || now_ns() < next_ns_) return;
  out_.resize(sizeof(Header));
  send(kAlive, 0);
}

void Shards::end() noexcept {
  if (!open_) return;
  const auto tell_end = [this] {
    out_.resize(sizeof(Header));
    return send(kEnd, 0);
  };
  fenced(tell_end, false);
  shut("the engine is closed");
}

Shards::Heard Shards::hear() {
  for (;;) {
    const Header header = receive();
    if (header.kind == kEnd) return Heard::kEnd;
    if (header.kind == kStep) return Heard::kStep;
    if (header.kind != kAlive) throw Error(DHLO_HOST, "process 0 of group '" + group_ + "' is out of step");
  }
}

std::vector<SlotCopy> Shards::copies() const {
  Header header;
  std::memcpy(&header, in_.data(), sizeof header);
  std::vector<SlotCopy> copies(static_cast<size_t>(header.copies));
  if (!copies.empty()) std::memcpy(copies.data(), in_.data() + sizeof header, copies.size() * sizeof(SlotCopy));
  return copies;
}

void Shards::read(Span<dhlo_tensor> inputs, Span<int64_t* const> sizes, Span<const int64_t> told) const {
  Header header;
  std::memcpy(&header, in_.data(), sizeof header);
  const int64_t end = static_cast<int64_t>(sizeof header) + header.bytes;
  int64_t at = padded(static_cast<int64_t>(sizeof header) + header.copies * static_cast<int64_t>(sizeof(SlotCopy)));
  for (const int64_t i : told) {
    dhlo_tensor& input = inputs[static_cast<size_t>(i)];
    int64_t* own = sizes[static_cast<size_t>(i)];
    const int64_t of_sizes = int64_t{input.rank} * static_cast<int64_t>(sizeof(int64_t));
    int64_t bytes = -1;
    if (of_sizes <= end - at) {
      std::memcpy(own, in_.data() + at, static_cast<size_t>(of_sizes));
      bytes = bytes_of(input, own);
      at += of_sizes;
    }
    if (bytes < 0 || bytes > end - at) throw Error(DHLO_HOST, "process 0 of group '" + group_ + "' tells half a step");
    input.data = const_cast<uint8_t*>(in_.data() + at);
    at += padded(bytes);
  }
}

// ---- processes that follow ------------------------------------------------------------------------------------------

void follow(dhlo_model* model, const dhlo_communicator& communicator, int64_t timeout_ns) {
  Shards shards(communicator, timeout_ns);
  Step step(model);
  step.open(&shards);
  shards.join(false);
  const ShardPlan plan = shards.plan({}, step.kind());
  CacheOptions how = step.cache_options();
  how.num_blocks = plan.num_blocks;
  how.prefix = false;
  std::unique_ptr<Cache> cache;
  try {
    auto made = Cache::create(how);
    if (!made.ok()) throw Error(made.status(), made.text());
    cache = std::move(made.value());
    step.attach(*cache, plan.max_tokens, plan.max_sequences);
  } catch (...) {
    shards.decline();
    throw;
  }
  if (!shards.agree(true)) throw Error(DHLO_HOST, "another process can't take part: its own error says why");
  while (shards.hear() == Shards::Heard::kStep) {
    for (const SlotCopy& copy : shards.copies()) cache->copy(copy);
    if (const dhlo_status status = step.repeat(); status != DHLO_OK)
      throw Error(status, std::string("the step failed: ") + step.error());
  }
}

}  // namespace dhlo::serve
