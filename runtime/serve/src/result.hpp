// A value, or why there is none.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "dhlo/runtime.h"

namespace dhlo::serve {

template <class T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(dhlo_status status, std::string text) : status_(status), text_(std::move(text)) {}
  bool ok() const { return value_.has_value(); }
  T& value() { return *value_; }
  dhlo_status status() const { return status_; }
  const std::string& text() const { return text_; }

 private:
  std::optional<T> value_;
  dhlo_status status_ = DHLO_OK;
  std::string text_;
};

}  // namespace dhlo::serve
