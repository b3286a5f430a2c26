// Chooses a token from a row of logits.
#include "sampler.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "dhlo/runtime.h"
#include "philox.hpp"

namespace dhlo::serve {
namespace {

constexpr float kBarred = -std::numeric_limits<float>::infinity();
constexpr int64_t kFew = 512;               // that are sorted rather than looked for
constexpr double kLeastTemperature = 1e-5;  // below, differences of logits say nothing but which is the largest

}  // namespace

Sampler::Sampler(int64_t vocabulary, int32_t dtype)
    : vocabulary_(vocabulary), padded_((vocabulary + kLanes - 1) / kLanes * kLanes), dtype_(dtype) {
  x_.assign(static_cast<size_t>(padded_), kBarred);
  w_.resize(static_cast<size_t>(padded_));
  sums_.resize(static_cast<size_t>((padded_ + kBlock - 1) / kBlock));
  near_.reserve(static_cast<size_t>(vocabulary));
  top_.reserve(32);
}

// The row as f32 in x_.
const float* Sampler::widened(const void* row) {
  const int64_t whole = vocabulary_ / kLanes * kLanes, rest = vocabulary_ - whole;
  if (dtype_ == DHLO_F32) {
    std::memcpy(x_.data(), row, static_cast<size_t>(vocabulary_) * sizeof(float));
    return x_.data();
  }
  const auto widen = dtype_ == DHLO_BF16 ? lanes_.widen_bf16 : lanes_.widen_f16;
  const auto* from = static_cast<const uint16_t*>(row);
  widen(from, whole, x_.data());
  uint16_t last[kLanes] = {};
  float to[kLanes];
  std::copy(from + whole, from + vocabulary_, last);
  widen(last, kLanes, to);
  std::copy(to, to + rest, x_.data() + whole);
  return x_.data();
}

// Penalties, bias and constraint, on x_.
bool Sampler::change(const Rules& rules, const TokenCounts* counts, const uint32_t* allowed) {
  bool changed = false;
  if (counts != nullptr && rules.counts()) {
    changed = true;
    const auto repetition = static_cast<float>(rules.repetition);
    for (const TokenCounts::Entry& entry : counts->entries()) {
      float& x = x_[static_cast<size_t>(entry.token)];
      x = x > 0 ? x / repetition : x * repetition;
      if (entry.made > 0) x -= static_cast<float>(rules.presence + rules.frequency * entry.made);
    }
  }
  for (const auto& [token, value] : rules.bias) x_[static_cast<size_t>(token)] += value;
  if (allowed != nullptr) {
    for (int64_t i = 0; i < vocabulary_; i += 32) {
      const uint32_t word = allowed[i / 32];
      if (word == ~uint32_t{0}) continue;
      for (int64_t bit = 0; bit < std::min<int64_t>(32, vocabulary_ - i); ++bit)
        if ((word >> bit & 1) == 0) x_[static_cast<size_t>(i + bit)] = kBarred;
    }
  }
  return changed || !rules.bias.empty() || allowed != nullptr;
}

int32_t Sampler::first(const float* x, float value) const {
  return static_cast<int32_t>(std::find(x, x + vocabulary_, value) - x);
}

Draw Sampler::draw(const void* row, const Rules& rules, const TokenCounts* counts, const uint32_t* allowed,
                   int32_t choice, int64_t index) {
  const bool greedy = rules.temperature < kLeastTemperature;
  const bool plain = greedy && rules.logprobs < 0 && !rules.counts() && rules.bias.empty() && allowed == nullptr;
  const bool in_place = plain && dtype_ == DHLO_F32 && vocabulary_ == padded_;
  const float* x = in_place ? static_cast<const float*>(row) : widened(row);
  // A number that isn't one must be seen before anything changes it.
  Peak peak = lanes_.peak(x, padded_);
  if (peak.nan) return Draw::kNan;
  if (!plain && change(rules, counts, allowed)) peak = lanes_.peak(x, padded_);
  if (peak.nan) return Draw::kNan;
  if (peak.value == kBarred) return Draw::kNothing;
  if (rules.logprobs >= 0) note_logprobs(x, peak.value, rules.logprobs);
  if (greedy || std::isinf(peak.value)) {
    token_ = first(x, peak.value);
  } else {
    const auto temperature = static_cast<float>(rules.temperature);
    lanes_.weights(x, padded_, peak.value, temperature, w_.data(), sums_.data());
    if (rules.top_k > 0 || rules.top_p < 1 || rules.min_p > 0) drop(cut(rules, peak.value));
    token_ = pick(uniform(rules.seed, choice, index));
  }
  if (rules.logprobs >= 0) logprob_ = less(x[token_]);
  return Draw::kDone;
}

// The shortest beginning of the tokens in falling order of logits whose weights, or whose number, reach the target.
// `step`: how far from the peak to look first.
Sampler::Cut Sampler::cut_after(double target, bool by_mass, float peak, float step) {
  const Cut all{-FLT_MAX, vocabulary_};
  auto measure = [&](const Above& above) { return by_mass ? above.mass : static_cast<double>(above.count); };
  // Those from `low` on reach it, those from `high` on don't: what lies between is halved until it is few.
  float high = std::nextafter(peak, std::numeric_limits<float>::infinity()), low = peak;
  Above over{0, 0}, under = lanes_.above(x_.data(), w_.data(), padded_, low);
  while (measure(under) < target) {
    if (low == -FLT_MAX) return all;
    high = low;
    over = under;
    low = std::max(peak - step, -FLT_MAX);
    if (low >= high) low = std::nextafter(high, kBarred);
    step *= 2;
    under = lanes_.above(x_.data(), w_.data(), padded_, low);
  }
  while (under.count - over.count > kFew) {
    const float middle = low / 2 + high / 2;
    if (!(middle > low && middle < high)) break;  // all the rest are equal
    const Above above = lanes_.above(x_.data(), w_.data(), padded_, middle);
    (measure(above) < target ? high : low) = middle;
    (measure(above) < target ? over : under) = above;
  }
  near_.clear();
  for (int64_t i = 0; i < vocabulary_; ++i) {
    const float x = x_[static_cast<size_t>(i)];
    if (x >= low && x < high) near_.emplace_back(x, i);
  }
  std::sort(near_.begin(), near_.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  double reached = measure(over);
  for (const auto& [x, i] : near_) {
    reached += by_mass ? w_[static_cast<size_t>(i)] : 1;
    if (reached >= target) return {x, i};
  }
  return near_.empty() ? all : Cut{near_.back().first, near_.back().second};  // sums in another order differ a little
}

Sampler::Cut Sampler::cut(const Rules& rules, float peak) {
  Cut last{-FLT_MAX, vocabulary_};
  auto tighten = [&last](const Cut& other) {
    if (other.logit > last.logit || (other.logit == last.logit && other.token < last.token)) last = other;
  };
  const auto temperature = static_cast<float>(rules.temperature);
  double total = 0;
  for (const float sum : sums_) total += sum;
  if (rules.top_k > 0 && rules.top_k < vocabulary_) {
    tighten(cut_after(static_cast<double>(rules.top_k), false, peak, temperature));
    total = 0;
    for (int64_t i = 0; i < vocabulary_; ++i)
      if (last.keeps(x_[static_cast<size_t>(i)], i)) total += w_[static_cast<size_t>(i)];
  }
  if (rules.top_p < 1) tighten(cut_after(rules.top_p * total, true, peak, temperature));
  if (rules.min_p > 0) {
    const double least = peak + rules.temperature * std::log(rules.min_p);
    tighten({std::min(static_cast<float>(least), peak), vocabulary_});
  }
  return last;
}

// Takes the weights of what isn't kept away.
void Sampler::drop(const Cut& last) {
  const int64_t equal = lanes_.drop(x_.data(), padded_, last.logit, w_.data(), sums_.data());
  if (equal < 2 || last.token >= vocabulary_ - 1) return;
  for (int64_t i = last.token + 1; i < vocabulary_; ++i) {
    const auto at = static_cast<size_t>(i);
    if (x_[at] != last.logit) continue;
    sums_[at / kBlock] -= w_[at];
    w_[at] = 0;
  }
}

// The token at `u` of the sum of the weights, in order of tokens.
int32_t Sampler::pick(double u) const {
  double total = 0;
  for (const float sum : sums_) total += sum;
  double rest = u * total;
  for (size_t block = 0; block < sums_.size(); ++block) {
    if (rest >= sums_[block]) {
      rest -= sums_[block];
      continue;
    }
    const int64_t begin = static_cast<int64_t>(block) * kBlock, end = std::min(begin + kBlock, vocabulary_);
    int64_t chosen = -1;
    for (int64_t i = begin; i < end && rest >= 0; ++i) {
      const float w = w_[static_cast<size_t>(i)];
      if (w == 0) continue;
      chosen = i;
      rest -= w;
    }
    if (chosen >= 0) return static_cast<int32_t>(chosen);
  }
  // Rounding has led behind the end: the last that has a weight.
  int64_t last = vocabulary_ - 1;
  while (last > 0 && w_[static_cast<size_t>(last)] == 0) --last;
  return static_cast<int32_t>(last);
}

// The sum of all probabilities' numerators, and the most likely tokens.
void Sampler::note_logprobs(const float* x, float peak, int32_t wanted) {
  top_.clear();
  if (std::isinf(peak)) {
    log_total_ = peak;
  } else {
    lanes_.weights(x, padded_, peak, 1, w_.data(), sums_.data());
    double total = 0;
    for (const float sum : sums_) total += sum;
    log_total_ = peak + static_cast<float>(std::log(total));
  }
  const auto most = static_cast<size_t>(std::min<int64_t>(wanted, vocabulary_));
  if (most == 0) return;
  for (int64_t i = 0; i < vocabulary_; ++i) {
    if (top_.size() == most && !(x[i] > top_.back().second)) continue;
    if (top_.size() == most) top_.pop_back();
    auto at = std::find_if(top_.begin(), top_.end(), [&](const auto& entry) { return x[i] > entry.second; });
    top_.insert(at, {static_cast<int32_t>(i), x[i]});
  }
  for (auto& [token, value] : top_) value = less(value);
}

}  // namespace dhlo::serve
