#include "mixture.h"

#include <algorithm>
#include <numeric>

namespace sssd {

Mixture::Mixture(const MixtureRules& rules) : rules_(rules), gather_(rules.gather), levels_(rules.doubts) {}

// Own matches come newest first, and the longest of them are kept: the last one that is not before the cursor is the
// nearest behind it.
void Mixture::guide(const Occurrence& at, Token token) {
  if (at.match < longest_own_) return;
  if (at.match > longest_own_) {
    longest_own_ = at.match;
    guides_ = {};
    guides_.newest = token;
  }
  guides_.oldest = token;
  if (at.source == Source::context && (guides_.onward_at == nullptr || at.next >= cursor_)) {
    guides_.onward = token;
    guides_.onward_at = at.next;
  }
}

// Fills alive_, branches_ without their chances, the levels' counts and the guides.
void Mixture::tally(Stretch stretch, std::uint32_t depth) {
  alive_.clear();
  branches_.clear();
  levels_.clear();
  numbers_.start(stretch.size);
  guides_ = {};
  longest_own_ = 0;
  std::uint32_t branch = 0;
  for (std::uint32_t i = stretch.first; i < stretch.first + stretch.size; ++i) {
    const Occurrence& at = found_[pool_[i]];
    if (depth >= at.left || at.next[depth] < 0) continue;
    const Token token = at.next[depth];
    if (branches_.empty() || branches_[branch].token != token) {  // neighbours most often agree
      branch = numbers_.number(token);
      if (branch == branches_.size()) branches_.push_back({token, 0, 0, -1, Source::context});
    }
    ++branches_[branch].size;
    const std::uint16_t rung = levels_.rung(at.source, at.match);
    levels_.count(rung);
    alive_.push_back({pool_[i], static_cast<std::uint16_t>(branch), rung, at.source});
    if (!is_stored(at.source)) guide(at, token);
  }
  if (guides_.onward_at == nullptr) guides_.onward = guides_.newest;
}

void Mixture::vote() {
  for (const Alive& at : alive_) {
    Branch& branch = branches_[at.branch];
    const double weight = levels_.weight(at.rung);
    branch.chance += weight;
    if (weight > branch.strongest) {
      branch.strongest = weight;
      branch.source = at.source;
    }
  }
}

// Appends what is alive to the pool, branch after branch; returns where the first begins.
std::uint32_t Mixture::lay_down() {
  const auto first = static_cast<std::uint32_t>(pool_.size());
  pool_.resize(first + alive_.size());
  std::uint32_t next = first;
  for (Branch& branch : branches_) {
    next += branch.size;
    branch.size = next - branch.size;  // for now, the place of its next occurrence
  }
  for (const Alive& at : alive_) pool_[branches_[at.branch].size++] = at.occurrence;
  std::uint32_t end = first;
  for (Branch& branch : branches_) {
    branch.size -= end;
    end += branch.size;
  }
  return first;
}

void Mixture::expand(Stretch stretch, const Place& place) {
  tally(stretch, place.depth);
  levels_.weigh(place.depth);
  vote();
  std::uint32_t first = branches_.size() == 1 && alive_.size() == stretch.size ? stretch.first : lay_down();
  for (const Branch& branch : branches_) {
    const double backed = (branch.token == guides_.newest ? parts_.newest : 0) +
                          (branch.token == guides_.oldest ? parts_.oldest : 0) +
                          (branch.token == guides_.onward ? parts_.onward : 0);
    judge(place, branch, backed, {first, branch.size});
    first += branch.size;
  }
}

// As expand, for one occurrence: all guides are its own.
void Mixture::expand_lone(Stretch stretch, const Place& place) {
  const Occurrence& at = found_[pool_[stretch.first]];
  if (place.depth >= at.left || at.next[place.depth] < 0) return;
  const Token token = at.next[place.depth];
  const double chance = levels_.lone(levels_.rung(at.source, at.match), place.depth);
  guides_ = {};
  if (!is_stored(at.source)) guides_.newest = token;
  judge(place, {token, 1, chance, chance, at.source}, parts_.newest + parts_.oldest + parts_.onward, stretch);
}

// `backed` is what the guides give the branch; it counts where there are any.
void Mixture::judge(const Place& place, const Branch& branch, double backed, Stretch occurrences) {
  double chance = branch.chance;
  if (guides_.newest >= 0) chance = (1 - rules_.longest_share) * chance + rules_.longest_share * backed;
  chance = std::min(chance, 1.0);
  const double path = place.path * (learned_ != nullptr ? learned_->corrected(branch.source, chance) : chance);
  if (!rank({path, place.depth + 1, static_cast<std::uint32_t>(candidates_.size())})) return;
  Candidate& candidate = candidates_.emplace_back();  // filled in place: a copy would wait for these very stores
  candidate.node.token = branch.token;
  candidate.node.parent = place.parent;
  candidate.node.source = branch.source;
  candidate.node.chance = chance;
  candidate.node.path = path;
  candidate.occurrences = occurrences;
  candidate.depth = place.depth + 1;
}

// Takes a place among the best `budget_`, the first `n_taken_` of which are nodes of the tree already; false if it is
// none of them.
bool Mixture::rank(const Rank& rank) {
  if (best_.size() == budget_) {
    if (!rank.before(best_.back())) return false;
  } else {
    best_.emplace_back();
  }
  std::size_t i = best_.size() - 1;
  for (; i > n_taken_ && rank.before(best_[i - 1]); --i) best_[i] = best_[i - 1];
  best_[i] = rank;
  return true;
}

void Mixture::draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out) {
  root_guides_ = {};
  out.clear();
  found_.clear();
  candidates_.clear();
  best_.clear();
  if (budget == 0 || sources.context.size() == 0) return;
  learned_ = learned;
  budget_ = budget;
  n_taken_ = 0;
  parts_ = learned != nullptr ? learned->leaning.parts() : Leaning::Parts{1, 0, 0};
  cursor_ = sources.context.tokens() + sources.cursor;
  gather_.find(sources, found_);
  pool_.resize(found_.size());
  std::iota(pool_.begin(), pool_.end(), std::uint16_t{0});
  expand({0, static_cast<std::uint32_t>(found_.size())}, {kRoot, 1.0, 0});
  root_guides_ = guides_;
  while (out.size() < best_.size()) {
    const Candidate taken = candidates_[best_[out.size()].index];
    out.push_back(taken.node);
    if (out.size() == budget) break;
    n_taken_ = out.size();
    const Place below{static_cast<std::int32_t>(n_taken_ - 1), taken.node.path, taken.depth};
    if (taken.occurrences.size == 1) {
      expand_lone(taken.occurrences, below);
    } else {
      expand(taken.occurrences, below);
    }
  }
}

}  // namespace sssd
