// The default rules: one probability mixed over every match length and source, then the likeliest nodes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "branches.h"
#include "confidence.h"
#include "sources.h"
#include "tree.h"

namespace sssd {

// The constants; sssd/drafting/rules.py holds their values and says where they come from.
struct MixtureRules {
  std::size_t max_match;     // longer matches count as this long
  std::size_t context_most;  // context occurrences looked at
  std::size_t store_most;    // stored occurrences sampled for one match length
  std::size_t enough;        // shorter matches are not asked once so many occurrences were found
  std::size_t head_start;    // match length that an output not yet begun has with its prediction
  double context_doubt;      // beta of the context's levels
  double store_doubt;        // beta of the stored texts' levels
  std::size_t sure_from;     // beyond this match length beta halves with every token
  double longest_share;      // mass given to the guides among the longest context matches
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

// Every source gives occurrences of the current suffix; those that match at least m tokens vote at level m. Levels are
// mixed from the shortest match up, stored texts below the context at equal length,
//     p_m(x) = (c_m(x) + beta_m * p_(m-1)(x)) / (C_m + beta_m),
// so that p is a probability with the mass of unseen tokens left out (PPM-like back-off). Every p_m is linear in the
// counts: an occurrence of match length l weighs the sum of its levels' shares, and a child's chance is the sum of its
// occurrences' weights. One node deeper every surviving occurrence matches one token more, and the rule is the same.
// The tree takes the likeliest paths first.
//
// Levels are left out once longer ones hold all but kNegligible of the mass.
//
// Ties between paths: the deeper node first, then the one found earlier.
// Memory: 16 bytes an occurrence of an expanded node, 56 bytes a candidate.
// Cost: O(occurrences of expanded nodes + candidates * budget), the latter a shift of a few cache lines.
class Mixture {
 public:
  explicit Mixture(const MixtureRules& rules);

  // The best `budget` nodes, parents first. `learned` corrects chances; null = not.
  void draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out);

  // Of the last draft's root.
  Guides guides() const { return root_guides_; }

 private:
  struct Candidate {
    Node node;
    Stretch occurrences;
    std::uint32_t depth;
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
  struct Pick {
    const Segment* segment;
    std::size_t suffix;
  };
  enum Evidence : std::uint8_t { kContext, kStored };

  void gather(const Sources& sources);
  void gather_stored(const Sources& sources, const Token* end, std::size_t longest);
  void pick(const Sources& sources, std::size_t total);
  std::size_t sample(const Token* end, std::size_t n, std::size_t cap);
  struct Place {  // where children hang
    std::int32_t parent;
    double path;
    std::uint32_t depth;
  };
  void expand(Stretch stretch, const Place& place, const Learned* learned, std::size_t n_taken, std::size_t budget);
  void weigh(Stretch stretch, std::uint32_t depth);
  void enter(const Candidate& candidate, std::size_t n_taken, std::size_t budget);

  MixtureRules rules_;
  Branches branches_;
  std::vector<Candidate> candidates_;
  std::vector<Rank> best_;  // at most budget, best first; those before the nodes taken so far are these nodes
  std::vector<double> beta_[2];    // by kind of evidence and match length; the last holds for all longer ones
  std::vector<double> weight_[2];  // of an occurrence, by kind of evidence and match length
  std::vector<std::uint32_t> count_[2];
  std::vector<Interval> intervals_;
  std::vector<Pick> picks_;
  Guides guides_;  // of the node looked at
  Guides root_guides_;
  const Token* cursor_ = nullptr;
  Leaning::Parts parts_;  // of longest_share
};

}  // namespace sssd
