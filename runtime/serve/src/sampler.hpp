// Chooses a token from a row of logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "counts.hpp"
#include "lanes.hpp"

namespace dhlo::serve {

// What a request says of it, in range.
struct Rules {
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  double presence = 0, frequency = 0, repetition = 1;
  std::vector<std::pair<int32_t, float>> bias;
  uint64_t seed = 0;
  int32_t logprobs = -1;

  bool greedy() const { return temperature == 0; }
  bool counts() const { return presence != 0 || frequency != 0 || repetition != 1; }
};

enum class Draw {
  kDone,
  kNan,     // there is a logit that is no number
  kNothing  // all tokens are barred
};

class Sampler {
 public:
  // Of rows of `vocabulary` logits of dtype f32, bf16 or f16.
  Sampler(int64_t vocabulary, int32_t dtype);

  // Token `index` of a choice. `counts`: what penalties are by, or null. `allowed`: a bit for each token that may come,
  // or null. The token is the same for the same arguments whatever was drawn before.
  Draw draw(const void* row, const Rules& rules, const TokenCounts* counts, const uint32_t* allowed, int32_t choice,
            int64_t index);

  int32_t token() const { return token_; }
  // If rules.logprobs isn't -1: of the token, and those of the rules.logprobs most likely ones, in falling order.
  float logprob() const { return logprob_; }
  const std::vector<std::pair<int32_t, float>>& top() const { return top_; }
  int64_t vocabulary() const { return vocabulary_; }

 private:
  // The last token in the order of falling logits, then rising numbers, that is kept.
  struct Cut {
    float logit;
    int64_t token;
    bool keeps(float x, int64_t i) const { return x > logit || (x == logit && i <= token); }
  };

  const float* widened(const void* row);
  bool change(const Rules& rules, const TokenCounts* counts, const uint32_t* allowed);
  int32_t first(const float* x, float value) const;
  Cut cut_after(double target, bool by_mass, float peak, float step);
  Cut cut(const Rules& rules, float peak);
  void drop(const Cut& last);
  int32_t pick(double u) const;
  // The logarithm of a probability; where logits are infinite, those have all of it.
  float less(float x) const { return x == log_total_ ? 0 : x - log_total_; }
  void note_logprobs(const float* x, float peak, int32_t wanted);

  const Lanes& lanes_ = lanes();
  int64_t vocabulary_;
  int64_t padded_;  // to a multiple of kLanes; logits behind the vocabulary are -infinity
  int32_t dtype_;
  std::vector<float> x_, w_, sums_;
  std::vector<std::pair<float, int64_t>> near_;  // those among which a cut is
  int32_t token_ = 0;
  float logprob_ = 0;
  float log_total_ = 0;
  std::vector<std::pair<int32_t, float>> top_;
};

}  // namespace dhlo::serve
