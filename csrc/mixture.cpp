#include "mixture.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sssd {
namespace {

// Match lengths asked of stored texts. The search begins at kFirstAsked and doubles while too much matches.
constexpr std::array<std::size_t, 6> kStoredOrders{16, 8, 4, 3, 2, 1};
constexpr std::size_t kFirstAsked = 2;

constexpr double kNegligible = 1.0 / 1024;
constexpr std::size_t kMostHalvings = 40;

std::size_t tokens_before(const Token* end, std::size_t cap) {
  std::size_t n = 0;
  while (n < cap && end[-1 - static_cast<std::ptrdiff_t>(n)] >= 0) ++n;
  return n;
}

}  // namespace

Mixture::Mixture(const MixtureRules& rules) : rules_(rules) {
  for (const Evidence kind : {kContext, kStored}) {
    count_[kind].resize(rules.max_match + 1);
    weight_[kind].resize(rules.max_match + 1);
    const double doubt = kind == kContext ? rules.context_doubt : rules.store_doubt;
    beta_[kind].push_back(0);
    for (std::size_t m = 1; m <= rules.sure_from + kMostHalvings; ++m) {
      const std::size_t halvings = m > rules.sure_from ? m - rules.sure_from : 0;
      beta_[kind].push_back(std::ldexp(doubt, -static_cast<int>(halvings)));
    }
  }
}

void Mixture::gather(const Sources& sources) {
  const Suffix suffix = sources.context.suffix();
  std::vector<Occurrence>& pool = branches_.pool();
  const ContextLimits limits{rules_.max_match, rules_.context_most, rules_.enough};
  if (sources.prediction != nullptr) {
    const ContextIndex& guess = *sources.prediction;
    guess.find(suffix, limits, Source::prediction, pool);
    const std::size_t written = sources.context.size() - sources.prompt_size;
    if (sources.on_prediction && written < guess.size()) {
      const Token* next = guess.tokens() + written;
      std::erase_if(pool, [&](const Occurrence& at) { return at.next == next; });
      const std::size_t match = std::min(rules_.max_match, written + rules_.head_start);
      pool.push_back({next, static_cast<std::uint32_t>(guess.size() - written), static_cast<std::uint16_t>(match),
                      Source::prediction});
    }
  }
  sources.context.find(suffix, limits, Source::context, pool);
  gather_stored(sources, suffix.end, tokens_before(suffix.end, kStoredOrders.front()));
}

void Mixture::gather_stored(const Sources& sources, const Token* end, std::size_t longest) {
  std::size_t asked = 0;  // the match length that `intervals_` and `occurrences` are of
  std::size_t occurrences = 0;
  const auto total = [&](std::size_t n) {
    if (n == asked) return occurrences;
    asked = n;
    occurrences = 0;
    intervals_.clear();
    for (const auto& store : sources.stores) {
      for (const auto& segment : *store) {
        intervals_.push_back(segment->find(end - n, n));
        occurrences += intervals_.back().size();
      }
    }
    return occurrences;
  };
  std::size_t k = kFirstAsked;
  while (k > 0 && kStoredOrders[k - 1] <= longest && total(kStoredOrders[k]) > rules_.store_most) --k;
  std::size_t found = 0;
  std::size_t cap = rules_.max_match;
  for (; k < kStoredOrders.size() && found < rules_.enough; ++k) {
    const std::size_t n = kStoredOrders[k];
    if (n > longest || total(n) == 0) continue;
    pick(sources, occurrences);
    found += sample(end, n, cap);
    cap = n;
  }
}

// Evenly strided places out of the `total` in `intervals_`.
void Mixture::pick(const Sources& sources, std::size_t total) {
  const std::size_t wanted = std::min(total, rules_.store_most);
  picks_.clear();
  std::size_t next = 0;    // place of the next pick
  std::size_t before = 0;  // places in earlier intervals
  const Interval* interval = intervals_.data();
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      while (picks_.size() < wanted && next < before + interval->size()) {
        picks_.push_back({segment.get(), interval->first + (next - before)});
        segment->fetch_suffix(picks_.back().suffix);
        next = picks_.size() * total / wanted;
      }
      before += interval->size();
      ++interval;
    }
  }
}

// Adds the picked occurrences of the last `n` tokens; those that match `cap` tokens were taken by a longer length,
// unless `cap` is the bound itself. Each is two cache misses in a large store: all are asked for before one is read.
std::size_t Mixture::sample(const Token* end, std::size_t n, std::size_t cap) {
  for (const Pick& pick : picks_) pick.segment->fetch_text(pick.suffix, n);
  std::size_t taken = 0;
  for (const Pick& pick : picks_) {
    Occurrence at;
    if (!pick.segment->occurrence(pick.suffix, end, n, cap, at)) continue;
    if (at.match == cap && cap != rules_.max_match) continue;
    branches_.pool().push_back(at);
    ++taken;
  }
  return taken;
}

// Weights of occurrences by kind and match length, and `guides_`, for the node that holds `stretch`.
void Mixture::weigh(Stretch stretch, std::uint32_t depth) {
  std::size_t longest = 0;
  std::size_t longest_own = 0;
  guides_ = {};
  for (const Occurrence* at = branches_.begin(stretch); at != branches_.end(stretch); ++at) {
    if (!at->continues()) continue;
    const bool stored = is_stored(at->source);
    ++count_[stored ? kStored : kContext][at->match];
    longest = std::max<std::size_t>(longest, at->match);
    if (stored || at->match < longest_own) continue;
    if (at->match > longest_own) {
      guides_ = {};
      guides_.newest = *at->next;
    }
    longest_own = at->match;
    guides_.oldest = *at->next;
    // Newest first: the last one that is not before the cursor is the nearest behind it.
    if (at->source == Source::context && (guides_.onward_at == nullptr || at->next >= cursor_ + depth)) {
      guides_.onward = *at->next;
      guides_.onward_at = at->next;
    }
  }
  if (guides_.onward_at == nullptr) guides_.onward = guides_.newest;
  double left = 1;  // mass not yet given to a longer match
  std::uint32_t voters[2] = {0, 0};
  std::size_t shortest = longest + 1;
  while (shortest > 1 && left >= kNegligible) {
    --shortest;
    for (const Evidence kind : {kContext, kStored}) {
      voters[kind] += count_[kind][shortest];
      weight_[kind][shortest] = 0;
      if (voters[kind] == 0 || left < kNegligible) continue;
      const double beta = beta_[kind][std::min(shortest + depth, beta_[kind].size() - 1)];
      const double share = left / (voters[kind] + beta);
      weight_[kind][shortest] = share;
      left = share * beta;
    }
  }
  for (auto& weights : weight_) {
    for (std::size_t m = shortest + 1; m <= longest; ++m) weights[m] += weights[m - 1];
  }
  // Shorter matches weigh nothing; counts are cleared for the next node.
  for (const Occurrence* at = branches_.begin(stretch); at != branches_.end(stretch); ++at) {
    const Evidence kind = is_stored(at->source) ? kStored : kContext;
    count_[kind][at->match] = 0;
    if (at->match < shortest) weight_[kind][at->match] = 0;
  }
}

void Mixture::expand(Stretch stretch, const Place& place, const Learned* learned, std::size_t n_taken,
                     std::size_t budget) {
  weigh(stretch, place.depth);
  for (const Branch& branch : branches_.split(stretch)) {
    double chance = 0;
    double strongest = -1;
    Source source = Source::context;
    for (const Occurrence* at = branches_.begin(branch.occurrences); at != branches_.end(branch.occurrences); ++at) {
      const double weight = weight_[is_stored(at->source) ? kStored : kContext][at->match];
      chance += weight;
      if (weight > strongest) {
        strongest = weight;
        source = at->source;
      }
    }
    if (guides_.newest >= 0) {
      const double backed = (branch.token == guides_.newest ? parts_.newest : 0) +
                            (branch.token == guides_.oldest ? parts_.oldest : 0) +
                            (branch.token == guides_.onward ? parts_.onward : 0);
      chance = (1 - rules_.longest_share) * chance + rules_.longest_share * backed;
    }
    chance = std::min(chance, 1.0);
    const double believed = learned != nullptr ? learned->corrected(source, chance) : chance;
    enter({{branch.token, place.parent, source, chance, place.path * believed}, branch.occurrences, place.depth + 1},
          n_taken, budget);
  }
}

// Keeps the best `budget` candidates in order; the first `n_taken` are nodes of the tree already.
void Mixture::enter(const Candidate& candidate, std::size_t n_taken, std::size_t budget) {
  const Rank rank{candidate.node.path, candidate.depth, static_cast<std::uint32_t>(candidates_.size())};
  if (best_.size() == budget) {
    if (!rank.before(best_.back())) return;
    best_.pop_back();
  }
  candidates_.push_back(candidate);
  best_.push_back(rank);
  for (std::size_t i = best_.size() - 1; i > n_taken && rank.before(best_[i - 1]); --i) {
    std::swap(best_[i], best_[i - 1]);
  }
}

void Mixture::draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out) {
  root_guides_ = {};
  out.clear();
  branches_.clear();
  candidates_.clear();
  best_.clear();
  if (budget == 0 || sources.context.size() == 0) return;
  parts_ = learned != nullptr ? learned->leaning.parts() : Leaning::Parts{1, 0, 0};
  cursor_ = sources.context.tokens() + sources.cursor;
  gather(sources);
  expand({0, static_cast<std::uint32_t>(branches_.pool().size())}, {kRoot, 1.0, 0}, learned, 0, budget);
  root_guides_ = guides_;
  while (out.size() < best_.size()) {
    const Candidate taken = candidates_[best_[out.size()].index];
    out.push_back(taken.node);
    if (out.size() == budget) break;
    const Place below{static_cast<std::int32_t>(out.size() - 1), taken.node.path, taken.depth};
    expand(taken.occurrences, below, learned, out.size(), budget);
  }
}

}  // namespace sssd
