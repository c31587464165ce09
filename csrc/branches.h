// Grouping occurrences by the token that follows: how every rule walks one node deeper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.h"

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
// Memory: 16 bytes an occurrence, summed over expanded nodes, plus a hash table of twice the largest stretch.
// Cost: split O(size of the stretch).
class Branches {
 public:
  Branches();
  void clear() { pool_.clear(); }

  std::vector<Occurrence>& pool() { return pool_; }
  const Occurrence* begin(Stretch s) const { return pool_.data() + s.first; }
  const Occurrence* end(Stretch s) const { return pool_.data() + s.first + s.size; }

  // The branches of a stretch; occurrences that end there are in none. Valid until the next split.
  const std::vector<Branch>& split(Stretch stretch);

 private:
  struct Slot {
    std::uint32_t stamp;  // the split that wrote it
    Token token;
    std::uint32_t branch;
  };

  std::uint32_t branch_of(Token token);

  std::vector<Occurrence> pool_;
  std::vector<Branch> branches_;
  std::vector<std::uint32_t> branch_of_occurrence_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::uint32_t stamp_ = 0;
};

}  // namespace sssd
