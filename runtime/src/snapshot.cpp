// State and random generator of a session as bytes: a header, then name, size, dtype and content of each state in the
// model's order, then the SHA-256 of all that. States go by their names, not by where they lie, so that a model that is
// compiled again can go on.
#include "snapshot.hpp"

#include <cstring>
#include <string>

#include "sha256.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

constexpr uint64_t kMagic = 0x33504e534f4c4844ull;  // "DHLOSNP3"

struct Header {
  uint64_t magic;
  int64_t bytes;  // of the whole
  int64_t random[2];
  int64_t num_states;
};

// A state's entry: two sizes and a dtype, then the name without its final zero, then the content.
struct Entry {
  int64_t name_bytes, bytes, dtype;
};

int64_t entry_bytes(const dhlo_abi_state& state) {
  return static_cast<int64_t>(sizeof(Entry)) + static_cast<int64_t>(std::strlen(state.name)) + state.bytes;
}

// Goes through a snapshot, and never beyond its end.
class Reader {
 public:
  Reader(const void* data, int64_t bytes) : data_(static_cast<const uint8_t*>(data)), left_(bytes) {}

  const uint8_t* take(int64_t bytes) {
    if (bytes < 0 || bytes > left_) throw Error(DHLO_FORMAT, "not a snapshot of a session: it is cut off or damaged");
    const uint8_t* at = data_;
    data_ += bytes;
    left_ -= bytes;
    return at;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  void check_end() const {
    if (left_ != 0) throw Error(DHLO_FORMAT, "not a snapshot of a session: it goes on behind its last state");
  }

 private:
  const uint8_t* data_;
  int64_t left_;
};

// The header, checked. Throws Error.
Header read_header(Reader* reader, int64_t bytes, int64_t num_states) {
  const Header header = reader->take<Header>();
  if (header.magic != kMagic) throw Error(DHLO_FORMAT, "not a snapshot of a session: it begins otherwise");
  if (header.bytes != bytes)
    throw Error(DHLO_FORMAT,
                "damaged snapshot: expected " + std::to_string(header.bytes) + " bytes, got " + std::to_string(bytes));
  if (header.num_states != num_states)
    throw Error(DHLO_INVALID_ARGUMENT, "the snapshot is of another model: it has " + std::to_string(header.num_states) +
                                           " states, this model has " + std::to_string(num_states));
  return header;
}

std::string described(const std::string& name, int64_t bytes, int64_t dtype) {
  return "'" + name + "' of " + std::to_string(bytes) + " bytes (" + dhlo_dtype_name(static_cast<int32_t>(dtype)) + ")";
}

// The content of one state. Throws Error if it isn't the one that the model has here.
const uint8_t* read_entry(Reader* reader, const dhlo_abi_state& state) {
  const Entry entry = reader->take<Entry>();
  const std::string name(reinterpret_cast<const char*>(reader->take(entry.name_bytes)),
                         static_cast<size_t>(entry.name_bytes));
  if (name != state.name || entry.bytes != state.bytes || entry.dtype != state.dtype)
    throw Error(DHLO_INVALID_ARGUMENT, "the snapshot is of another model: it has state " +
                                           described(name, entry.bytes, entry.dtype) + " where this model has " +
                                           described(state.name, state.bytes, state.dtype));
  return reader->take(entry.bytes);
}

}  // namespace

int64_t snapshot_bytes(const dhlo_abi_model& model) {
  int64_t bytes = sizeof(Header) + sizeof(Digest);
  for (int64_t i = 0; i < model.num_states; ++i) bytes += entry_bytes(model.states[i]);
  return bytes;
}

void write_snapshot(const dhlo_session& session, void* to, int64_t bytes) {
  const dhlo_abi_model& abi = *session.model->program->abi;
  if (bytes != snapshot_bytes(abi))
    throw Error(DHLO_INVALID_ARGUMENT, "a snapshot of this session takes " + std::to_string(snapshot_bytes(abi)) +
                                           " bytes, got room for " + std::to_string(bytes));
  auto* at = static_cast<uint8_t*>(to);
  auto put = [&at](const void* from, size_t count) {
    if (count > 0) std::memcpy(at, from, count);
    at += count;
  };
  const Header header{kMagic, bytes, {session.common->random[0], session.common->random[1]}, abi.num_states};
  put(&header, sizeof header);
  for (int64_t i = 0; i < abi.num_states; ++i) {
    const dhlo_abi_state& state = abi.states[i];
    const Entry entry{static_cast<int64_t>(std::strlen(state.name)), state.bytes, state.dtype};
    put(&entry, sizeof entry);
    put(state.name, static_cast<size_t>(entry.name_bytes));
    put(session.state + state.offset, static_cast<size_t>(state.bytes));
  }
  const Digest digest = sha256(to, static_cast<size_t>(bytes) - sizeof(Digest));
  put(digest.data(), digest.size());
}

void read_snapshot(dhlo_session* session, const void* from, int64_t bytes) {
  const dhlo_abi_model& abi = *session->model->program->abi;
  Reader check(from, bytes);
  read_header(&check, bytes, abi.num_states);
  for (int64_t i = 0; i < abi.num_states; ++i) read_entry(&check, abi.states[i]);
  const uint8_t* digest = check.take(sizeof(Digest));
  check.check_end();
  if (std::memcmp(sha256(from, static_cast<size_t>(bytes) - sizeof(Digest)).data(), digest, sizeof(Digest)) != 0)
    throw Error(DHLO_FORMAT, "damaged snapshot: its SHA-256 is another");
  Reader reader(from, bytes);
  const Header header = read_header(&reader, bytes, abi.num_states);
  for (int64_t i = 0; i < abi.num_states; ++i) {
    const uint8_t* content = read_entry(&reader, abi.states[i]);
    if (abi.states[i].bytes > 0)
      std::memcpy(session->state + abi.states[i].offset, content, static_cast<size_t>(abi.states[i].bytes));
  }
  session->common->random[0] = header.random[0];
  session->common->random[1] = header.random[1];
}

}  // namespace dhlo
