// Zeroed memory of the system's, which takes room only where it was written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace dhlo::serve {

class Pages {
 public:
  Pages() = default;
  Pages(Pages&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)), bytes_(other.bytes_), data_(other.data_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Pages();

  // Once. With `huge`, memory of at least a huge page begins at one, and huge pages are advised; otherwise there are
  // none. False if there is no memory, or if it is more than the machine could ever give.
  bool map(int64_t bytes, bool huge) noexcept;
  uint8_t* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  size_t bytes_ = 0;
  uint8_t* data_ = nullptr;
};

// An array of T, for which zeros are a value, in such memory.
template <class T>
class PageArray {
 public:
  bool map(int64_t count) noexcept {
    int64_t bytes = 0;
    return !__builtin_mul_overflow(count, static_cast<int64_t>(sizeof(T)), &bytes) && pages_.map(bytes, false);
  }
  T& operator[](int64_t i) { return reinterpret_cast<T*>(pages_.data())[i]; }
  const T& operator[](int64_t i) const { return reinterpret_cast<const T*>(pages_.data())[i]; }

 private:
  Pages pages_;
};

}  // namespace dhlo::serve
