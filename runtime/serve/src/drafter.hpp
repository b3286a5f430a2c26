// A small model that drafts what a large one may say (Leviathan et al. 2023), with a cache of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache.hpp"
#include "draft_growth.hpp"
#include "populate.hpp"
#include "request.hpp"
#include "sampler.hpp"
#include "step.hpp"
#include "step_cost.hpp"

namespace dhlo::serve {

// What is wanted of it, and what came.
struct DraftJob {
  DraftJob(Choice* whose, int64_t wanted, Draft* room) : choice(whose), most(wanted), drafts(room) {}

  Choice* choice;      // all of its tokens are to be seen, then `most` are drafted
  int64_t most;        // at least 1; of a tree those are drafted that are worth their time
  Draft* drafts;       // room for `most`
  int64_t width = 1;   // so many at most follow a token; 1 where tokens are drawn by chance
  int64_t steps = 0;   // of the draft model, beside the one that sees the choice's tokens
  DraftGrowth growth;  // of the drafts: fewer than wanted where it hasn't seen all yet, or can't
};

// What drafts cost in the step that is planned.
struct DraftPrices {
  const StepCost& step;
  int64_t decoding;  // choices in it
  double times;      // how many times what is expected drafts have cost
  // Of verifying so many of a choice, as a part of the step.
  double verify(int64_t drafts) const { return times * step.of_more(decoding, drafts) * static_cast<double>(decoding); }
};

struct DrafterOptions {
  int64_t cache_bytes = 0;    // 0: as many blocks as the target has
  int64_t max_positions = 0;  // 0: as many as the target's
  int64_t max_step_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_branches = 1;  // drafts that follow a token
  bool prefix = true;
  int64_t target_blocks = 0;
};

class Drafter {
 public:
  // Throws Error, where the model doesn't fit to the target's.
  Drafter(dhlo_model* model, const Step& target, const DrafterOptions& options);

  // All in lock step: first what it hasn't seen, a step's worth of it, then what follows a draft of each at a time, or
  // several. Tokens that are drawn by chance are drawn as the target's would be, with the same random number.
  void draft(std::vector<DraftJob>& jobs, const DraftPrices& prices);
  // Of the drafts of a job that were verified behind `size` tokens, those of `path`, one behind the other, are now the
  // choice's.
  void verified(DraftJob& job, int64_t size, Span<const int32_t> path);
  // So many drafts at most may follow a token, where tokens are chosen so.
  int64_t branches(const Rules& rules) const { return rules.greedy() ? max_branches_ : 1; }
  // Positions behind which nothing is drafted.
  int64_t max_positions() const { return max_positions_; }
  // What so many drafts take that one of so many sequences has a share in, as a part of a step of the target's.
  double cost(int64_t sequences, int64_t drafts, const StepCost& target) const {
    const double step = cost_.known() && target.known() ? cost_.of(sequences) / target.of(sequences) : kGuess;
    return step * static_cast<double>(drafts) / static_cast<double>(sequences);
  }
  // The same of so many tokens that it hasn't seen, beside the last one.
  double cost_of_seeing(int64_t sequences, int64_t tokens, const StepCost& target) const {
    if (!cost_.known() || !target.known()) return kGuess * static_cast<double>(tokens) / kTokensGuess;
    return cost_.of(sequences) * cost_.of_more(sequences, tokens) / target.of(sequences);
  }
  int64_t steps() const { return steps_; }
  // Whether its memory has been touched: its first step says little of what others take.
  bool warm() const { return steps_ + failures_ > 1; }
  int64_t failures() const { return failures_; }
  // Stops a step that is in progress, from any thread.
  void cancel() { step_.cancel(); }

 private:
  static constexpr double kGuess = 0.125, kTokensGuess = 64;
  struct Row {
    DraftJob* job;
    int64_t end;    // tokens of the choice that are computed with this step
    int64_t row;    // of logits, -1: none
    int64_t first;  // the draft, of those that are computed, whose logits these are; -1: those of the choice's last
  };

  void see(std::vector<DraftJob>& jobs);
  bool run();
  void take();
  bool grow(const Row& row);
  bool draw(DraftJob& job, const void* logits, int64_t computed);
  bool pays(DraftJob& job, const DraftPrices& prices) const;

  Step step_;
  std::unique_ptr<Cache> cache_;
  Populator populator_;
  Sampler sampler_;
  int64_t max_positions_, max_step_tokens_, max_branches_, groups_;
  StepCost cost_;
  DraftOdds odds_;
  std::vector<Row> rows_;
  std::vector<int32_t> places_;
  int64_t steps_ = 0, failures_ = 0;
};

}  // namespace dhlo::serve
