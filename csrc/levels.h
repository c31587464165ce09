// What an occurrence weighs: the back-off mixture over match lengths and kinds of evidence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.h"

namespace sssd {

struct Doubts {
  std::size_t max_match;  // longest match there is
  double context;         // beta of the context's levels
  double store;           // beta of the stored texts' levels
  std::size_t sure_from;  // beyond this match length beta halves with every token
};

// Occurrences that match at least m tokens vote at level m, stored texts below the context at equal length,
//     p_m(x) = (c_m(x) + beta_m * p_(m-1)(x)) / (C_m + beta_m).
// Every p_m is linear in the counts: an occurrence of match length l weighs the sum of its levels' shares. Levels are
// left out once longer ones hold all but kNegligible of the mass.
//
// A rung is a kind of evidence and a match length at the root; `depth` tokens further down every match is that much
// longer.
//
// Memory: 8 bytes a rung and depth up to 40 beyond `sure_from`: 54 KB by default, of which little is ever touched.
// Cost: count O(1); weigh O(levels until little mass is left); lone O(1) but for the first time.
class Levels {
 public:
  explicit Levels(const Doubts& doubts);

  std::uint16_t rung(Source source, std::size_t match) const {
    return static_cast<std::uint16_t>(match + (is_stored(source) ? rungs_ : 0));
  }

  // Begins a node with nothing counted.
  void clear();
  void count(std::uint16_t rung) {
    ++counts_[rung];
    const std::size_t match = rung < rungs_ ? rung : rung - rungs_;
    if (match > longest_) longest_ = match;
  }
  // Weights of everything counted.
  void weigh(std::size_t depth);
  double weight(std::uint16_t rung) const { return weights_[rung]; }

  // The weight that one occurrence has alone. Between nodes: it counts too.
  double lone(std::uint16_t rung, std::size_t depth);

 private:
  enum Kind : std::uint8_t { kContext, kStored };

  std::size_t rungs_;    // of one kind
  std::size_t longest_ = 0;  // match counted
  std::size_t depths_;       // from this depth on every level is as sure as it gets
  std::array<std::vector<double>, 2> beta_;  // by match length; the last holds for all longer ones
  std::vector<std::uint32_t> counts_;        // by rung
  std::vector<double> weights_;              // by rung
  std::vector<double> lone_;                 // by rung and depth; 0 = not asked yet
};

}  // namespace sssd
