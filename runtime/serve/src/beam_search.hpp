// Beam search: which continuations of a request's beams go on, which have ended, and when nothing better can come; the
// rules are those of transformers' generate(num_beams=...).
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "dhlo/serve.h"
#include "sampler.hpp"

namespace dhlo::serve {

// A beam, and the token that it goes on with.
struct Continuation {
  double sum;  // of the log-probabilities of its tokens
  int32_t beam, token;
  float logprob;  // of the token

  bool operator<(const Continuation& other) const {  // the better ones first
    if (sum != other.sum) return sum > other.sum;
    return beam != other.beam ? beam < other.beam : token < other.token;
  }
};

// The best of those that are offered.
class BestContinuations {
 public:
  void start(size_t most);
  // What others must be above.
  double least() const { return best_.size() < most_ ? -INFINITY : best_.front().sum; }
  void offer(const Continuation& one);
  // In order; none may be offered any more.
  const std::vector<Continuation>& sorted();

 private:
  size_t most_ = 0;
  std::vector<Continuation> best_;  // a heap, the worst in front
};

// A text that has ended.
struct Hypothesis {
  double score = 0;
  dhlo_finish finish = DHLO_FINISH_NONE;
  std::vector<int32_t> tokens;  // those of the prompt first
  std::vector<float> logprobs, top_logprobs;
  std::vector<int32_t> top_tokens;
};

struct Beam {
  bool live = false;                           // it goes on
  double sum = 0;                              // of the log-probabilities of its tokens
  int64_t row = -1;                            // of its logits, in the step in work
  std::vector<std::pair<int32_t, float>> top;  // tokens that are the most likely next, if they are asked for
};

class BeamSearch {
 public:
  // `ends`, ascending: tokens that end a text. `most`: tokens that one may have, without the prompt.
  BeamSearch(int64_t width, double length_penalty, int32_t early_stopping, int64_t most);

  // By the number of the request's choice that computes it. At first the first one alone is live.
  std::vector<Beam>& beams() { return beams_; }
  int64_t live() const { return live_; }

  // A row of a step was computed; whether it was the last one of its beams.
  bool take_row(int32_t beam, int64_t row);
  // What may follow a beam: all tokens of the row that was weighed last.
  void offer(int32_t beam, const Sampler& sampler, const std::vector<int32_t>& ends);
  // Once all beams' rows were offered, from which texts of `made` tokens come: what goes on, in order of sums, and what
  // ends.
  void choose(int64_t made);
  const std::vector<Continuation>& next() const { return *next_; }
  const std::vector<Continuation>& ended() const { return ended_; }
  // Lets these go on; by which choices: the first of a beam's by its own, the others by those of beams that end here.
  const std::vector<int32_t>& go_on();
  // Whether the search is over, when what ended is kept.
  bool over(int64_t made) const;

  double score(double sum, int64_t made) const { return sum / std::pow(static_cast<double>(made), length_penalty_); }
  // Where a text of that score is kept, in order; null: there are as many better ones as are wanted.
  Hypothesis* keep(double score);
  std::vector<Hypothesis>& hypotheses() { return kept_; }

 private:
  size_t width_;
  double length_penalty_;
  int32_t early_stopping_;
  int64_t most_;
  std::vector<Beam> beams_;
  int64_t live_ = 1, rows_ = 0;
  BestContinuations on_, off_;  // of this step, by whether the token ends the text
  const std::vector<Continuation>* next_ = nullptr;
  std::vector<Continuation> ended_;
  std::vector<int32_t> places_;
  std::vector<Hypothesis> kept_;  // the best first
};

}  // namespace dhlo::serve
