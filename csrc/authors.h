// The rules of the authors' published library (arXiv 2411.05894), kept as the baseline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "branches.h"
#include "confidence.h"
#include "sources.h"
#include "tree.h"

namespace sssd {

// The constants; sssd/drafting/rules.py holds their values.
struct AuthorsRules {
  std::size_t prefix;           // longest match looked for
  std::size_t window;           // tokens of an inserted window: match and continuation together
  std::size_t bridge;           // prompt tokens that stand before the output in its own windows
  double context_weight;        // of the first token after a context match
  std::size_t store_most;       // stored occurrences sampled at one match length
  std::size_t store_least;      // ... and at least so many of a segment as large as the first
  std::size_t enough;           // shorter stored matches are not added once so many were sampled
  std::size_t branch;           // tokens of a stored continuation; 0 = by budget
  std::size_t most_children;    // of one node
};

// Context: windows of `window` tokens; one that begins in the output is there only when it is full, so the newest
// positions are not found. Every match length of 1..prefix seeds the search with context_weight * share and goes deeper
// with share * (0.6 + 0.1 m). Stored texts: strided samples of the longest match, shorter ones added until `enough`.
// Entries that name the same path are merged by the larger score. The tree takes the best scores first.
//
// Ties: the deeper entry first, then the earlier one.
// Cost: O(every occurrence of the last token in the context + samples + budget * log entries).
class Authors {
 public:
  explicit Authors(const AuthorsRules& rules) : rules_(rules) {}

  // The best `budget` nodes, parents first. Scores order the tree as they are; `learned` corrects what is handed over.
  void draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out);

 private:
  struct Entry {
    Token token;
    Stretch occurrences;
    double score;
    double discount;
    std::uint32_t depth;
    std::int32_t parent;  // in the tree
    Source source;
  };
  struct Rank {
    double score;
    std::uint32_t depth;
    std::uint32_t index;  // into entries_
    bool operator<(const Rank& other) const {
      if (score != other.score) return score < other.score;
      if (depth != other.depth) return depth < other.depth;
      return index > other.index;
    }
  };

  void seed_context(const Sources& sources);
  void seed_stored(const Sources& sources, std::size_t branch);
  std::size_t sample(const Sources& sources, Suffix text, std::size_t n, std::size_t branch);
  void push_children(Stretch stretch, double factor, double discount, std::uint32_t depth, std::int32_t parent);
  std::int32_t place(const Entry& entry, std::size_t budget, std::vector<Node>& out) const;

  AuthorsRules rules_;
  Branches branches_;
  std::vector<Occurrence> found_;
  std::vector<Entry> entries_;
  std::vector<Rank> queue_;
};

}  // namespace sssd
