// The default rules: one probability mixed over every match length and source, then the likeliest nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "confidence.h"
#include "gather.h"
#include "levels.h"
#include "sources.h"
#include "token_numbers.h"
#include "tree.h"

namespace sssd {

// The constants; sssd/drafting/rules.py holds their values and says where they come from.
struct MixtureRules {
  GatherLimits gather;
  Doubts doubts;
  double longest_share;  // mass given to the guides among the longest context matches
};

// What followed three of the longest matches in the request's own text; separators when there was none. `onward` is the
// nearest at or behind the cursor, where a copy goes on; without one there, the nearest before it.
struct Guides {
  Token newest = kSeparator;
  Token oldest = kSeparator;
  Token onward = kSeparator;
  const Token* onward_at = nullptr;  // its place in the context; null when only the prediction matched

  bool differ() const { return newest != oldest || newest != onward; }
};

// Every source gives occurrences of the current suffix. A child's chance is the sum of its occurrences' weights
// (levels.h), so that it is a probability with the mass of unseen tokens left out (PPM-like back-off), mixed with what
// the guides say. One node deeper every surviving occurrence matches one token more, and the rule is the same.
// The tree takes the likeliest paths first.
//
// Ties between paths: the deeper node first, then the one found earlier.
// Memory: 16 bytes an occurrence, 2 more for every expanded node it survives to, 56 bytes a candidate.
// Cost: O(occurrences of expanded nodes + candidates * budget), the latter a shift of a few cache lines. Where one
// occurrence is left, most nodes of a long copy, an expansion is a few look-ups.
class Mixture {
 public:
  explicit Mixture(const MixtureRules& rules);

  // The best `budget` nodes, parents first. `learned` corrects chances; null = not.
  void draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out);

  // Of the last draft's root.
  Guides guides() const { return root_guides_; }

 private:
  struct Stretch {  // of pool_
    std::uint32_t first;
    std::uint32_t size;
  };
  struct Candidate {
    Node node;
    Stretch occurrences;  // those that lead here
    std::uint32_t depth;  // tokens of the path
  };
  struct Rank {
    double path;
    std::uint32_t depth;
    std::uint32_t index;  // into candidates_
    bool before(const Rank& other) const {
      if (path != other.path) return path > other.path;
      if (depth != other.depth) return depth > other.depth;
      return index < other.index;
    }
  };
  struct Place {  // where children hang
    std::int32_t parent;
    double path;
    std::uint32_t depth;
  };
  struct Alive {  // an occurrence that goes on below the node looked at
    std::uint16_t occurrence;
    std::uint16_t branch;
    std::uint16_t rung;
    Source source;
  };
  struct Branch {
    Token token;
    std::uint32_t size;  // occurrences
    double chance;
    double strongest;  // weight among its occurrences
    Source source;     // of the strongest
  };

  void expand(Stretch stretch, const Place& place);
  void expand_lone(Stretch stretch, const Place& place);
  void tally(Stretch stretch, std::uint32_t depth);
  void guide(const Occurrence& at, Token token);
  void vote();
  std::uint32_t lay_down();
  void judge(const Place& place, const Branch& branch, double backed, Stretch occurrences);
  bool rank(const Rank& rank);

  MixtureRules rules_;
  Gather gather_;
  Levels levels_;
  TokenNumbers numbers_;
  std::vector<Occurrence> found_;     // at the root; deeper nodes count from these
  std::vector<std::uint16_t> pool_;   // indices of found_, node after node
  std::vector<Candidate> candidates_;
  std::vector<Rank> best_;  // at most budget, best first; those before the nodes taken so far are these nodes

  // Of the node looked at.
  std::vector<Alive> alive_;
  std::vector<Branch> branches_;
  Guides guides_;
  std::size_t longest_own_ = 0;  // match of the guides

  // Of the draft.
  const Learned* learned_ = nullptr;
  std::size_t budget_ = 0;
  std::size_t n_taken_ = 0;
  const Token* cursor_ = nullptr;
  Leaning::Parts parts_;  // of longest_share
  Guides root_guides_;
};

}  // namespace sssd
