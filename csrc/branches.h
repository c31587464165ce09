// Grouping occurrences by the token that follows: how the authors' rules walk one node deeper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.h"
#include "token_numbers.h"

namespace sssd {

// A stretch of the pool.
struct Stretch {
  std::uint32_t first;
  std::uint32_t size;
};

struct Branch {
  Token token;
  Stretch occurrences;  // those that `token` followed, each advanced past it, in their former order
};

// All occurrences of one draft, node after node. Cleared for each draft; keeps its memory.
//
// Ties: branches stand in the order of their first occurrence.
// Memory: 16 bytes an occurrence, summed over expanded nodes, plus the numbers of the largest stretch.
// Cost: split O(size of the stretch).
class Branches {
 public:
  void clear() { pool_.clear(); }

  std::vector<Occurrence>& pool() { return pool_; }
  const Occurrence* begin(Stretch s) const { return pool_.data() + s.first; }

  // The branches of a stretch; occurrences that end there are in none. Valid until the next split.
  const std::vector<Branch>& split(Stretch stretch);

 private:
  std::vector<Occurrence> pool_;
  std::vector<Branch> branches_;
  std::vector<std::uint32_t> branch_of_occurrence_;
  TokenNumbers numbers_;
};

}  // namespace sssd
