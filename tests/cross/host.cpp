// Loads models and runs them for a test in another process: commands on the standard input, replies on the standard output,
// little-endian and without padding. tests/cross/remote.py is the other end.
//
//   L path:text threads:i64      loads a model file in place of the one before
//   R n:i64, n times tensor      runs it; replies with the number of tensors and these: outputs, then inputs that it updated
//   Z                            puts its state back
//
// A text is its length and its bytes. A tensor is dtype, rank, sizes, strides, how many elements lie before its first one, and its
// memory as a text; all numbers are i64. A reply is a status and, unless that is 0, the error's text. Outputs are dense.
//
// Tensors and the memory of the runtime end, inputs also begin by turns, at a page that can't be touched; what isn't written yet
// holds ones.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dhlo/runtime.h"

namespace {

// Memory between two pages that can't be touched; at its end there may be less than `alignment` bytes of slack.
class Guarded {
 public:
  Guarded(size_t bytes, size_t alignment, bool at_end) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t room = (bytes + page - 1) / page * page;
    total_ = room + 2 * page;
    void* all = mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::abort();
    base_ = static_cast<char*>(all);
    data_ = base_ + page;
    if (room > 0 && mprotect(data_, room, PROT_READ | PROT_WRITE) != 0) std::abort();
    std::memset(data_, 0xff, room);
    if (at_end) data_ += (room - bytes) / alignment * alignment;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, total_); }
  char* data() const { return data_; }

 private:
  char *base_ = nullptr, *data_ = nullptr;
  size_t total_ = 0;
};

// The runtime's memory.
class Heap {
 public:
  void* allocate(size_t bytes, size_t alignment) {
    auto block = std::make_unique<Guarded>(bytes, alignment, true);
    void* data = block->data();
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(data, std::move(block));
    return data;
  }
  void free(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(data);
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Guarded>> blocks_;
};

// ---- the wire

void read_bytes(void* data, size_t bytes) {
  if (bytes > 0 && std::fread(data, 1, bytes, stdin) != bytes) std::exit(0);  // the other end is gone
}

int64_t read_number() {
  int64_t number = 0;
  read_bytes(&number, sizeof number);
  return number;
}

std::string read_text() {
  std::string text(static_cast<size_t>(read_number()), '\0');
  read_bytes(text.data(), text.size());
  return text;
}

void write_number(int64_t number) { std::fwrite(&number, sizeof number, 1, stdout); }

void write_text(const char* data, size_t bytes) {
  write_number(static_cast<int64_t>(bytes));
  std::fwrite(data, 1, bytes, stdout);
}

bool reply(dhlo_status status, const char* error) {
  write_number(status);
  if (status != DHLO_OK) write_text(error, std::strlen(error));
  return status == DHLO_OK;
}

struct Input {
  std::vector<int64_t> sizes, strides;
  std::unique_ptr<Guarded> memory;
  size_t bytes = 0;
  dhlo_tensor tensor{};
};

Input read_input(bool at_end) {
  Input input;
  const int64_t dtype = read_number(), rank = read_number();
  for (int64_t d = 0; d < rank; ++d) input.sizes.push_back(read_number());
  for (int64_t d = 0; d < rank; ++d) input.strides.push_back(read_number());
  const int64_t before = read_number(), element = dhlo_dtype_bytes(static_cast<int32_t>(dtype));
  input.bytes = static_cast<size_t>(read_number());
  input.memory = std::make_unique<Guarded>(input.bytes, static_cast<size_t>(element), at_end);
  read_bytes(input.memory->data(), input.bytes);
  input.tensor = {input.memory->data() + before * element,
                  input.sizes.data(),
                  input.strides.data(),
                  static_cast<int32_t>(dtype),
                  static_cast<int32_t>(rank),
                  0};
  return input;
}

void write_output(const dhlo_tensor& tensor) {
  int64_t bytes = dhlo_dtype_bytes(tensor.dtype);
  write_number(tensor.dtype);
  write_number(tensor.rank);
  for (int32_t d = 0; d < tensor.rank; ++d) {
    write_number(tensor.sizes[d]);
    bytes *= tensor.sizes[d];
  }
  write_text(static_cast<const char*>(tensor.data), static_cast<size_t>(bytes));
}

// ---- commands

class Host {
 public:
  ~Host() { close(); }

  void load() {
    const std::string path = read_text();
    const int64_t threads = read_number();
    close();
    dhlo_model_options options;
    dhlo_model_options_init(&options);
    options.num_threads = threads;
    options.allocator = {
        &heap_,
        [](void* heap, size_t bytes, size_t alignment) { return static_cast<Heap*>(heap)->allocate(bytes, alignment); },
        [](void* heap, void* data, size_t, size_t) { static_cast<Heap*>(heap)->free(data); }};
    dhlo_status status = dhlo_model_load_file(path.c_str(), &options, &model_);
    dhlo_session_options session;
    dhlo_session_options_init(&session);
    session.output = [](void* host, int64_t, int32_t dtype, int64_t rank, const int64_t* sizes) -> void* {
      auto bytes = static_cast<size_t>(dhlo_dtype_bytes(dtype));
      const size_t alignment = bytes;
      for (int64_t d = 0; d < rank; ++d) bytes *= static_cast<size_t>(sizes[d]);
      auto& outputs = static_cast<Host*>(host)->outputs_;
      outputs.push_back(std::make_unique<Guarded>(bytes, alignment, true));
      return outputs.back()->data();
    };
    session.output_ctx = this;
    if (status == DHLO_OK) status = dhlo_session_create(model_, &session, &session_);
    reply(status, dhlo_last_error());
  }

  void run() {
    std::vector<Input> inputs(static_cast<size_t>(read_number()));
    ++turn_;
    for (Input& input : inputs) input = read_input(turn_ % 2 != 0);
    std::vector<dhlo_tensor> tensors;
    for (const Input& input : inputs) tensors.push_back(input.tensor);
    outputs_.clear();
    dhlo_session_trim(session_);  // so that arenas are exactly as large as this run needs
    const dhlo_status status = dhlo_session_run(session_, tensors.data(), static_cast<int64_t>(tensors.size()));
    if (!reply(status, dhlo_session_error(session_))) return;
    int64_t updated = 0;
    for (size_t i = 0; i < inputs.size(); ++i) updated += dhlo_model_input_is_updated(model_, static_cast<int64_t>(i));
    const int64_t count = dhlo_model_num_outputs(model_);
    write_number(count + updated);
    for (int64_t i = 0; i < count; ++i) {
      dhlo_tensor output;
      if (dhlo_session_output(session_, i, &output) != DHLO_OK) std::abort();
      write_output(output);
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      if (dhlo_model_input_is_updated(model_, static_cast<int64_t>(i)) != 0) {
        const int64_t elements = static_cast<int64_t>(inputs[i].bytes) / dhlo_dtype_bytes(inputs[i].tensor.dtype);
        write_output({inputs[i].memory->data(), &elements, nullptr, inputs[i].tensor.dtype, 1, 0});
      }
  }

  void reset() { reply(dhlo_session_reset_state(session_), dhlo_session_error(session_)); }

 private:
  void close() {
    dhlo_session_destroy(session_);
    dhlo_model_release(model_);
    session_ = nullptr, model_ = nullptr;
    outputs_.clear();
  }

  Heap heap_;
  dhlo_model* model_ = nullptr;
  dhlo_session* session_ = nullptr;
  std::vector<std::unique_ptr<Guarded>> outputs_;
  int64_t turn_ = 0;
};

}  // namespace

int main() {
  Host host;
  for (int command = 0; (command = std::getchar()) != EOF; std::fflush(stdout)) {
    if (command == 'L') host.load();
    if (command == 'R') host.run();
    if (command == 'Z') host.reset();
  }
  return 0;
}
