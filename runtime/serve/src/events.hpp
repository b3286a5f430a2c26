// Events as hosts get them, many in one piece of memory that is used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "request.hpp"

namespace dhlo::serve {

class Events {
 public:
  bool empty() const { return made_.empty(); }
  void clear();
  // The choice's tokens from those that it has given up to `end`, and its end, if it has one. All or nothing.
  void add(const Choice& choice, int64_t end, const char* error, bool last);
  // The choice's end alone; there is room for it.
  void add_end(const Choice& choice, const char* error, bool last) noexcept;
  // Appends those of `other`, and clears it.
  void take(Events& other);
  // Of all of them, valid until the next change.
  const std::vector<const dhlo_event*>& pointers();
  // Room for so many more, so that adding ends can't fail.
  void reserve(size_t more) { made_.reserve(made_.size() + more); }

 private:
  static constexpr size_t kErrorBytes = 256;
  struct Made {
    dhlo_event event;
    size_t tokens, logprobs, top;  // where its arrays begin
    bool with_logprobs;
    char error[kErrorBytes];
  };

  static Made made_of(const Choice& choice, int64_t end, const char* error, bool last) noexcept;

  std::vector<Made> made_;
  std::vector<int32_t> tokens_, top_tokens_;
  std::vector<float> logprobs_, top_logprobs_;
  std::vector<const dhlo_event*> pointers_;
};

}  // namespace dhlo::serve
