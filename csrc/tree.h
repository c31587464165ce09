// A draft tree while it grows, and the order it is handed over in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.h"

namespace sssd {

inline constexpr std::int32_t kRoot = -1;

struct Node {
  Token token = 0;
  std::int32_t parent = kRoot;      // index of an earlier node, or kRoot
  Source source = Source::context;  // where its strongest evidence lies
  double chance = 0;                // probability of the token once its parent is accepted, as the rule says it
  double path = 0;                  // product of the corrected chances down to it: its rank
  double score = 0;     // probability that the whole path is accepted: what is handed out; set once the tree stands
};

// Rearranges nodes, given parents first, into depth-first order: the likeliest child first, so that an accepted path
// is most often the first nodes. Ties: the child with the taller subtree, then the one given earlier.
// Cost: O(n) and the ties. Keeps its memory.
class Layout {
 public:
  void arrange(std::vector<Node>& nodes);

 private:
  void link(const std::vector<Node>& nodes);

  std::vector<std::int32_t> height_, child_, sibling_, stack_, place_;
  std::vector<Node> arranged_;
};

}  // namespace sssd
