// Adapters (LoRA) by name: rows of an input of the step, of which each request holds one while it is there.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dhlo/serve.h"
#include "pages.hpp"
#include "sha256.hpp"
#include "step.hpp"

namespace dhlo::serve {

// All by any thread.
class Adapters {
 public:
  // What a request has of its adapter, which isn't overwritten meanwhile.
  class Hold {
   public:
    Hold() = default;
    Hold(Adapters* of, int32_t number, const Digest& content) : of_(of), number_(number), content_(content) {}
    Hold(Hold&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), number_(other.number_), content_(other.content_) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(number_, other.number_);
      std::swap(content_, other.content_);
      return *this;
    }
    ~Hold() {
      if (of_ != nullptr) of_->release(number_);
    }
    int32_t number() const { return number_; }  // -1: none
    const Digest& content() const { return content_; }

   private:
    Adapters* of_ = nullptr;
    int32_t number_ = -1;
    Digest content_{};
  };

  // Of a step that takes none, there is room for none. Throws Error.
  explicit Adapters(const Step& step);
  void* weights() const { return weights_.data(); }

  // Throw Error. A name that is given up can be loaded again at once; the memory is free when no request holds it.
  void load(const std::string& name, const dhlo_lora_pair* pairs, int64_t count);
  void unload(const std::string& name);
  Hold take(const std::string& name);

 private:
  struct Slot {
    std::string name;  // "" if it was given up
    bool used = false, ready = false;
    int64_t holds = 0;
    Digest content{};
  };

  Slot* find(const std::string& name);
  const dhlo_abi_adapted& product(const char* module) const;
  void check(const dhlo_lora_pair& pair) const;
  void write(const dhlo_lora_pair& pair, uint8_t* row) const;
  void release(int32_t number) noexcept;

  const dhlo_abi_adapters* layout_;
  int64_t row_bytes_ = 0;
  int32_t dtype_ = DHLO_F32;
  Pages weights_;
  std::mutex mutex_;  // guards the slots
  std::vector<Slot> slots_;
};

}  // namespace dhlo::serve
