// What requests are about (a recording, say): a program of its own computes of it, once, the keys and values that the
// cross attention of all steps reads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dhlo/runtime.h"
#include "pages.hpp"
#include "sha256.hpp"

namespace dhlo::serve {

// The inputs of a request, in the order of the encoder's.
struct Source {
  std::vector<std::vector<uint8_t>> data;
  std::vector<std::array<int64_t, DHLO_ABI_MAX_RANK>> sizes;
  Digest content{};
};

class Sources {
 public:
  // Retains the models. `cross`: the step's inputs that are pools [heads, slots, depth], as many as the encoder has
  // outputs [1, heads, positions, depth], in their order. `positions`: of a source at most, where the encoder gives any
  // number; else 0. Throws Error for what doesn't go together.
  Sources(dhlo_model* encoder, const dhlo_model* step, const int64_t* cross, int64_t num_cross, int64_t block_slots,
          int64_t positions);

  // A copy of what a caller gives; any thread. Throws Error for inputs that the encoder doesn't take, and for those of
  // which it would make more positions than there is room for, unless that depends on data: then encode() says so.
  std::unique_ptr<Source> read(const char* const* names, const dhlo_tensor* inputs, int64_t count) const;

  int64_t place_bytes() const;  // of what is kept of a source, at most
  int64_t most_places() const;  // that can be numbered
  // Makes the pools, with room for the keys and values of so many sources. Throws Error.
  void map(int64_t places);
  void* pool(int64_t index) const { return pools_[static_cast<size_t>(index)].pages.data(); }
  int64_t slots() const { return places_ * blocks_ * block_slots_; }                       // of a pool
  int64_t positions(int32_t place) const { return lengths_[static_cast<size_t>(place)]; }  // of what is there
  int64_t blocks() const { return blocks_; }  // of a place, which begins with such a multiple

  // A place, and back. -1: all are taken.
  int32_t take() noexcept;
  void give(int32_t place) noexcept;
  // Computes what belongs into a place. If it fails, error() says why.
  dhlo_status encode(const Source& source, int32_t place);
  const char* error() const { return error_.c_str(); }
  // Stops a call that is in progress, from any thread.
  void cancel() { dhlo_session_cancel(session_.get()); }

 private:
  struct Release {
    void operator()(dhlo_model* model) const { dhlo_model_release(model); }
    void operator()(dhlo_session* session) const { dhlo_session_destroy(session); }
  };
  struct Pool {
    Pages pages;
    int64_t heads, row_bytes;  // of a head, and a position
    int32_t dtype;
  };

  void need_room(const std::vector<dhlo_tensor>& inputs) const;
  const dhlo_abi_value& input(int64_t index) const { return *dhlo_model_input(model_.get(), index); }

  std::unique_ptr<dhlo_model, Release> model_;
  std::unique_ptr<dhlo_session, Release> session_;
  int64_t num_inputs_ = 0, block_slots_, positions_ = 0, blocks_ = 0, places_ = 0;
  std::vector<Pool> pools_;
  std::vector<int32_t> free_;
  std::vector<int64_t> lengths_;  // by place
  std::string error_;
};

}  // namespace dhlo::serve
