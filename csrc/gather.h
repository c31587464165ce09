// Where a draft's occurrences come from: every source, asked for the end of the request's text.
#pragma once

#include <cstddef>
#include <vector>

#include "sources.h"

namespace sssd {

struct GatherLimits {
  std::size_t max_match;     // longer matches count as this long
  std::size_t context_most;  // occurrences looked at in the context, and in the prediction
  std::size_t store_most;    // stored occurrences sampled for one match length
  std::size_t enough;        // shorter matches are not asked once so many occurrences were found
  std::size_t sure;          // once the context matches so much, nothing shorter and nothing stored is asked
  std::size_t head_start;    // match length that an output not yet begun has with its prediction
};

// Order: the prediction's, the context's, then the stored ones by the match length that was asked for, longest first.
// Memory: the picks of one match length.
// Cost: the sources' own; a stored occurrence is two cache misses, and those of one match length are waited for together.
class Gather {
 public:
  explicit Gather(const GatherLimits& limits) : limits_(limits) {}

  // Adds to `out`: at most 2 * context_most + 6 * store_most + 1.
  void find(const Sources& sources, std::vector<Occurrence>& out);

 private:
  struct Pick {
    const Segment* segment;
    std::size_t suffix;
  };

  void find_predicted(const Sources& sources, std::vector<Occurrence>& out) const;
  void find_stored(const Sources& sources, std::vector<Occurrence>& out);
  std::size_t ask(const Sources& sources, std::size_t n);
  void pick(const Sources& sources, std::size_t total);
  std::size_t sample(Suffix suffix, std::size_t n, std::size_t cap, std::vector<Occurrence>& out) const;

  GatherLimits limits_;
  std::vector<Interval> intervals_;  // of the match length asked last, by segment
  std::vector<Pick> picks_;
};

}  // namespace sssd
