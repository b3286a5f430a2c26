// Runs the linked model on ROWS rows of 0, 1, 2, ... by its typed call.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "encoder.hpp"

int main(int argc, char** argv) {
  try {
    const int64_t rows = argc == 2 ? std::stoll(argv[1]) : 1;
    std::vector<float> x(static_cast<size_t>(rows * 6));
    std::iota(x.begin(), x.end(), 0.0f);
    dhlo::Session session(encoder::load());
    const encoder::Outputs out = encoder::run(session, {x.data(), {rows, 6}});
    for (int64_t i = 0; i < out.tanh.sizes[0] * out.tanh.sizes[1]; ++i)
      std::printf("%.9g\n", static_cast<double>(out.tanh.data[i]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
