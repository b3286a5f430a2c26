// A view of elements that lie one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dhlo::serve {

template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};
using Tokens = Span<const int32_t>;

}  // namespace dhlo::serve
