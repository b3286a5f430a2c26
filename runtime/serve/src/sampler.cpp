// Chooses a token from a row of logits.
#include "sampler.hpp"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "dhlo/runtime.h"
#include "philox.hpp"

namespace dhlo::serve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kBarred = -kInfinity;
constexpr int64_t kFew = 64;                // that are sorted rather than looked for
constexpr double kLeastTemperature = 1e-5;  // below, differences of logits say nothing but which is the largest

}  // namespace

Sampler::Sampler(int64_t vocabulary, int32_t dtype, const Lanes& by)
    : lanes_(by), vocabulary_(vocabulary), padded_((vocabulary + kLanes - 1) / kLanes * kLanes), dtype_(dtype) {
  x_.assign(static_cast<size_t>(padded_), kBarred);
  w_.resize(static_cast<size_t>(padded_));
  sums_.resize(static_cast<size_t>((padded_ + kBlock - 1) / kBlock));
  near_.resize(padded_);
  kept_.resize(padded_);
  places_.resize(static_cast<size_t>(padded_));
  order_.reserve(static_cast<size_t>(kFew));
  top_.reserve(32);
}

void Sampler::Gathered::resize(int64_t padded) {
  x.resize(static_cast<size_t>(padded));
  w.resize(static_cast<size_t>(padded));
  ids.resize(static_cast<size_t>(padded));
}

// What vectors read behind the last.
void Sampler::Gathered::pad() {
  std::fill(x.begin() + count, x.begin() + row().padded(), kBarred);
  std::fill(w.begin() + count, w.begin() + row().padded(), 0.f);
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
void Sampler::change(const Rules& rules, const TokenCounts* counts, const uint32_t* allowed) {
  if (counts != nullptr && rules.counts()) {
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
}

int32_t Sampler::first(const float* x, float value) const {
  int64_t begin = 0;
  while (begin + kBlock < vocabulary_ && lanes_.peak(x + begin, kBlock).value != value) begin += kBlock;
  return static_cast<int32_t>(std::find(x + begin, x + vocabulary_, value) - x);
}

Draw Sampler::draw(const void* row, const Rules& rules, const TokenCounts* counts, const uint32_t* allowed,
                   int32_t choice, int64_t index) {
  const bool greedy = rules.temperature < kLeastTemperature;
  const bool changes = rules.counts() || !rules.bias.empty() || allowed != nullptr;
  const bool in_place = !changes && dtype_ == DHLO_F32 && vocabulary_ == padded_;
  const float* x = in_place ? static_cast<const float*>(row) : widened(row);
  // A number that isn't one must be seen before anything changes it.
  Peak peak = lanes_.peak(x, padded_);
  if (peak.nan) return Draw::kNan;
  if (changes) {
    change(rules, counts, allowed);
    peak = lanes_.peak(x, padded_);
  }
  if (peak.nan) return Draw::kNan;
  if (peak.value == kBarred) return Draw::kNothing;
  if (rules.logprobs >= 0) note_logprobs(x, peak.value, rules.logprobs);
  if (greedy || std::isinf(peak.value)) {
    token_ = first(x, peak.value);
  } else {
    const double u = uniform(rules.seed, choice, index);
    token_ = pick(truncate(x, rules, peak.value), u);
  }
  if (rules.logprobs >= 0) logprob_ = less(x[token_]);
  return Draw::kDone;
}

// What is selected of a row; `to` may be where it comes from.
void Sampler::take(const Row& from, int64_t count, Gathered& to) const {
  to.count = count;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const int32_t place = places_[at];
    to.x[at] = from.x[place];
    to.w[at] = from.w != nullptr ? from.w[place] : 1;
    to.ids[at] = from.id(place);
  }
  to.pad();
}

// The shortest beginning of the tokens in falling order of logits whose weights reach the target. It is looked for
// below the peak at several distances in each pass: `span`, and so often that, or twice as far each time.
Sampler::Cut Sampler::cut_after(const Row& from, double target, float peak, double span, bool even) {
  const Cut all{-FLT_MAX, vocabulary_};
  std::array<float, kWays> limits;
  std::array<double, kWays> masses;
  // What lies from `high` on weighs `over`, less than the target; with that from `low` on it reaches it.
  float high = std::nextafter(peak, kInfinity), low = -FLT_MAX;
  double over = 0;
  auto place = [&](size_t reached, double base) {
    if (reached < kWays) low = limits[reached];
    if (reached > 0) high = limits[reached - 1], over = base + masses[reached - 1];
  };
  auto reached = [&](double base) {
    size_t k = 0;
    while (k < kWays && base + masses[k] < target) ++k;
    return k;
  };
  for (double top = peak; from.count > kFew; top = limits.back()) {
    for (size_t k = 0; k < kWays; ++k, span *= even ? 1 : 2)
      limits[k] = static_cast<float>(std::max<double>(top - span * static_cast<double>(even ? k + 1 : 1), -FLT_MAX));
    lanes_.masses(from.x, from.w, from.padded(), limits.data(), masses.data());
    const size_t k = reached(0);
    place(k, 0);
    if (k < kWays) break;
    if (low == high) return all;
    even = false;
  }
  take(from, lanes_.select(from.x, from.padded(), low, high, places_.data()), near_);
  while (near_.count > kFew) {
    for (size_t k = 0; k < kWays; ++k)
      limits[k] = static_cast<float>(high - (double{high} - low) * static_cast<double>(k + 1) / (kWays + 1));
    lanes_.masses(near_.x.data(), near_.w.data(), near_.row().padded(), limits.data(), masses.data());
    const float before_high = high, before_low = low;
    place(reached(over), over);
    if (low == before_low && high == before_high) break;  // all that is left is equal
    const Row left = near_.row();
    const int64_t count = lanes_.select(left.x, left.padded(), low, high, places_.data());
    if (count < left.count) take(left, count, near_);
  }
  order_.clear();
  for (int64_t i = 0; near_.count <= kFew && i < near_.count; ++i)
    order_.emplace_back(near_.x[static_cast<size_t>(i)], static_cast<int32_t>(i));
  std::sort(order_.begin(), order_.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  Cut last = all;  // where none reaches it: sums in another order differ a little
  for (int64_t i = 0; i < near_.count; ++i) {
    const auto at =
        static_cast<size_t>(order_.empty() ? static_cast<int32_t>(i) : order_[static_cast<size_t>(i)].second);
    last = {near_.x[at], near_.ids[at]};
    over += near_.w[at];
    if (over >= target) break;
  }
  return last;
}

// How far below the peak the cut can be that leaves such a part of what weighs `total`: all that is further away
// together can't weigh what is left out. More than 0, as steps towards the cut begin with a part of it.
double Sampler::reach(const Row& from, double total, const Rules& rules) const {
  const double most = static_cast<double>(from.count) / std::max((1 - rules.top_p) * total, 1e-9);
  return std::max(rules.temperature / 4, rules.temperature * std::log(most));
}

Sampler::Cut Sampler::cut_after_mass(const Row& from, double total, float peak, const Rules& rules) {
  return cut_after(from, rules.top_p * total, peak, reach(from, total, rules) / kWays, true);
}

// A logit that so many tokens have at least, and not many more: the `count`-th of maxima of some at a time.
float Sampler::bound(const float* x, int64_t count) {
  const int64_t maxima = lanes_.maxima(x, padded_, near_.x.data());
  if (count > maxima / 2) return -FLT_MAX;
  const auto begin = near_.x.begin(), nth = begin + count - 1;
  std::nth_element(begin, nth, begin + maxima, std::greater<>());
  return std::max(*nth, -FLT_MAX);
}

double Sampler::total() const {
  double total = 0;
  for (const float sum : sums_) total += sum;
  return total;
}

// What is left by top_k, then top_p of that, and min_p, with its weights; sums_ are what they are among all tokens.
Sampler::Row Sampler::truncate(const float* x, const Rules& rules, float peak) {
  const bool by_count = rules.top_k > 0 && rules.top_k < vocabulary_, by_mass = rules.top_p < 1;
  Row all{x, nullptr, nullptr, vocabulary_};
  auto weigh_all = [&] {
    lanes_.weights(x, padded_, peak, static_cast<float>(rules.temperature), w_.data(), sums_.data());
    all.w = w_.data();
  };
  // What is below this is left out: where that is most, nothing else is looked at.
  float least = -FLT_MAX;
  if (by_count) {
    least = bound(x, rules.top_k);
  } else if (by_mass) {
    weigh_all();
    least = static_cast<float>(std::max<double>(peak - reach(all, total(), rules), -FLT_MAX));
  } else {
    least = least_of(rules, peak).logit;
  }
  if (least > -FLT_MAX) {
    const int64_t count = lanes_.select(x, padded_, least, kInfinity, places_.data());
    if (count <= vocabulary_ / 8) return truncate_few(all, count, rules, peak);
  }
  const Row unweighed{x, nullptr, nullptr, vocabulary_};
  if (all.w == nullptr) weigh_all();
  if (by_count) drop(x, cut_after(unweighed, static_cast<double>(rules.top_k), peak, rules.temperature / 4, false));
  if (by_mass) drop(x, cut_after_mass(all, total(), peak, rules));
  if (rules.min_p > 0) drop(x, least_of(rules, peak));
  return all;
}

// The same of the first `count` that are selected, among which is all that is left.
Sampler::Row Sampler::truncate_few(const Row& all, int64_t count, const Rules& rules, float peak) {
  const double all_weigh = all.w != nullptr ? total() : 0;
  take(all, count, kept_);
  if (all.w == nullptr) {
    if (rules.top_k > 0 && rules.top_k < count)
      keep(cut_after(kept_.row(), static_cast<double>(rules.top_k), peak, rules.temperature / 4, false));
    const auto temperature = static_cast<float>(rules.temperature);
    lanes_.weights(kept_.x.data(), kept_.row().padded(), peak, temperature, kept_.w.data(), sums_.data());
  }
  if (rules.top_p < 1) {
    double weigh = all_weigh;
    for (int64_t i = 0; all.w == nullptr && i < kept_.count; ++i) weigh += kept_.w[static_cast<size_t>(i)];
    keep(cut_after_mass(kept_.row(), weigh, peak, rules));
  }
  if (rules.min_p > 0) keep(least_of(rules, peak));
  sum_kept();
  return kept_.row();
}

// What min_p leaves.
Sampler::Cut Sampler::least_of(const Rules& rules, float peak) const {
  if (rules.min_p <= 0) return {-FLT_MAX, vocabulary_};
  const double least = peak + rules.temperature * std::log(rules.min_p);
  return {std::min(static_cast<float>(std::max<double>(least, -FLT_MAX)), peak), vocabulary_};
}

// Takes the weights of what isn't kept away.
void Sampler::drop(const float* x, const Cut& last) {
  const int64_t equal = lanes_.drop(x, padded_, last.logit, w_.data(), sums_.data());
  if (equal < 2 || last.token >= vocabulary_ - 1) return;
  const int64_t count = lanes_.select(x, padded_, last.logit, std::nextafter(last.logit, kInfinity), places_.data());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = places_[static_cast<size_t>(i)];
    if (token <= last.token) continue;
    sums_[static_cast<size_t>(token / kBlock)] -= w_[static_cast<size_t>(token)];
    w_[static_cast<size_t>(token)] = 0;
  }
}

// Of kept_.
void Sampler::keep(const Cut& last) {
  int64_t count = 0;
  for (int64_t i = 0; i < kept_.count; ++i) {
    const auto from = static_cast<size_t>(i), to = static_cast<size_t>(count);
    kept_.x[to] = kept_.x[from];
    kept_.w[to] = kept_.w[from];
    kept_.ids[to] = kept_.ids[from];
    count += last.keeps(kept_.x[from], kept_.ids[from]) ? 1 : 0;
  }
  kept_.count = count;
  kept_.pad();
}

// The sums of kept_ that all tokens would have, were the others' weights 0.
void Sampler::sum_kept() {
  int64_t i = 0;
  for (size_t block = 0; block < sums_.size(); ++block) {
    const int64_t end = static_cast<int64_t>(block + 1) * kBlock;
    float lanes[kLanes] = {};
    sums_[block] = 0;
    if (i == kept_.count || kept_.ids[static_cast<size_t>(i)] >= end) continue;
    for (; i < kept_.count && kept_.ids[static_cast<size_t>(i)] < end; ++i)
      lanes[kept_.ids[static_cast<size_t>(i)] % kLanes] += kept_.w[static_cast<size_t>(i)];
    for (const float lane : lanes) sums_[block] += lane;
  }
}

// The token at `u` of the sum of the weights, in order of tokens.
int32_t Sampler::pick(const Row& from, double u) const {
  double rest = u * total();
  // The first of those from a token on.
  auto place = [&](int64_t token) {
    if (from.ids == nullptr) return std::min(token, from.count);
    return std::lower_bound(from.ids, from.ids + from.count, token) - from.ids;
  };
  for (size_t block = 0; block < sums_.size(); ++block) {
    if (rest >= sums_[block]) {
      rest -= sums_[block];
      continue;
    }
    const int64_t begin = static_cast<int64_t>(block) * kBlock, end = place(begin + kBlock);
    int64_t chosen = -1;
    for (int64_t i = place(begin); i < end && rest >= 0; ++i) {
      if (from.w[i] == 0) continue;
      chosen = i;
      rest -= from.w[i];
    }
    if (chosen >= 0) return from.id(chosen);
  }
  // Rounding has led behind the end: the last that has a weight.
  int64_t last = from.count - 1;
  while (last > 0 && from.w[last] == 0) --last;
  return from.id(last);
}

Draw Sampler::weigh(const void* row, const Rules& rules, const TokenCounts* counts, int32_t wanted) {
  const bool plain = !rules.counts() && rules.bias.empty();
  weighed_ = plain && dtype_ == DHLO_F32 && vocabulary_ == padded_ ? static_cast<const float*>(row) : widened(row);
  const Peak peak = lanes_.peak(weighed_, padded_);
  if (peak.nan) return Draw::kNan;
  if (peak.value == kBarred) return Draw::kNothing;
  note_total(weighed_, peak.value);
  if (!plain) {
    for (float& x : x_) x = less(x);
    log_total_ = 0;
    change(rules, counts, nullptr);
  }
  note_top(weighed_, wanted);
  return Draw::kDone;
}

// The sum of all probabilities' numerators, and the most likely tokens.
void Sampler::note_logprobs(const float* x, float peak, int32_t wanted) {
  note_total(x, peak);
  note_top(x, wanted);
}

void Sampler::note_total(const float* x, float peak) {
  if (std::isinf(peak)) {
    log_total_ = peak;
  } else {
    lanes_.weights(x, padded_, peak, 1, w_.data(), sums_.data());
    log_total_ = peak + static_cast<float>(std::log(total()));
  }
}

void Sampler::note_top(const float* x, int32_t wanted) {
  top_.clear();
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
