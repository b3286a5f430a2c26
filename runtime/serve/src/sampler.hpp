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
  Sampler(int64_t vocabulary, int32_t dtype, const Lanes& by = lanes());

  // Token `index` of a choice. `counts`: what penalties are by, or null. `allowed`: a bit for each token that may come,
  // or null. The token is the same for the same arguments whatever was drawn before.
  Draw draw(const void* row, const Rules& rules, const TokenCounts* counts, const uint32_t* allowed, int32_t choice,
            int64_t index);

  int32_t token() const { return token_; }
  // If rules.logprobs isn't -1: of the token, and those of the rules.logprobs most likely ones, in falling order.
  float logprob() const { return logprob_; }
  const std::vector<std::pair<int32_t, float>>& top() const { return top_; }
  int64_t vocabulary() const { return vocabulary_; }

  // For beam search: log-probabilities of a row, which penalties and bias change afterwards, as in transformers, where
  // they needn't sum to 1 then. The `wanted` most likely tokens are top().
  Draw weigh(const void* row, const Rules& rules, const TokenCounts* counts, int32_t wanted);
  // Of the row that was weighed last, while it lasts: what log-probabilities follow from, behind the vocabulary
  // -infinity up to padded().
  const float* weighed() const { return weighed_; }
  int64_t padded() const { return padded_; }
  float logprob_at(float x) const { return less(x); }
  float logprob_of(int32_t token) const { return less(weighed_[token]); }

 private:
  // The last token in the order of falling logits, then rising numbers, that is kept.
  struct Cut {
    float logit;
    int64_t token;
    bool keeps(float x, int64_t i) const { return x > logit || (x == logit && i <= token); }
  };

  // Logits with what they weigh, in order of tokens.
  struct Row {
    const float* x;
    const float* w;      // null: each weighs 1
    const int32_t* ids;  // null: the tokens are all
    int64_t count;       // behind them, up to a multiple of kLanes, are logits of -infinity that weigh 0
    int64_t padded() const { return (count + kLanes - 1) / kLanes * kLanes; }
    int32_t id(int64_t i) const { return ids != nullptr ? ids[i] : static_cast<int32_t>(i); }
  };
  // Such that are gathered.
  struct Gathered {
    std::vector<float> x, w;
    std::vector<int32_t> ids;
    int64_t count = 0;
    Row row() const { return {x.data(), w.data(), ids.data(), count}; }
    void resize(int64_t padded);
    void pad();
  };

  const float* widened(const void* row);
  void change(const Rules& rules, const TokenCounts* counts, const uint32_t* allowed);
  int32_t first(const float* x, float value) const;
  void take(const Row& from, int64_t count, Gathered& to) const;
  Cut cut_after(const Row& from, double target, float peak, double span, bool even);
  Cut cut_after_mass(const Row& from, double total, float peak, const Rules& rules);
  Cut least_of(const Rules& rules, float peak) const;
  double reach(const Row& from, double total, const Rules& rules) const;
  float bound(const float* x, int64_t count);
  double total() const;
  Row truncate(const float* x, const Rules& rules, float peak);
  Row truncate_few(const Row& all, int64_t count, const Rules& rules, float peak);
  void drop(const float* x, const Cut& last);
  void keep(const Cut& last);
  void sum_kept();
  int32_t pick(const Row& from, double u) const;
  // The logarithm of a probability; where logits are infinite, those have all of it.
  float less(float x) const { return x == log_total_ ? 0 : x - log_total_; }
  void note_logprobs(const float* x, float peak, int32_t wanted);
  void note_total(const float* x, float peak);
  void note_top(const float* x, int32_t wanted);

  const Lanes& lanes_;
  int64_t vocabulary_;
  int64_t padded_;  // to a multiple of kLanes; logits behind the vocabulary are -infinity
  int32_t dtype_;
  std::vector<float> x_, w_, sums_;
  Gathered near_;                // those among which a cut is
  Gathered kept_;                // what is left, where that is found before anything is weighed
  std::vector<int32_t> places_;  // of those that are selected
  std::vector<std::pair<float, int32_t>> order_;
  int32_t token_ = 0;
  float logprob_ = 0;
  float log_total_ = 0;
  std::vector<std::pair<int32_t, float>> top_;
  const float* weighed_ = nullptr;
};

}  // namespace dhlo::serve
