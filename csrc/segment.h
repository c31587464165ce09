// One searchable piece of remembered text: tokens, the order of their suffixes, and what of it is erased.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text.h"

namespace sssd {

// Half-open range of places in a segment's suffix array.
struct Interval {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t size() const { return last - first; }
};

// Views arrays that others own and keep alive through `owner`; they may lie in a mapped file larger than memory, and
// the file may be damaged after it was opened: every suffix entry is held against the text's length before use.
//
// Hints: a lossy table of where intervals were last found. A hint is verified against the suffix array on every use,
// so a wrong, stale or torn one costs time only; threads share the table without locks.
//
// Ties: occurrences of equal suffixes stand in the array's order.
// Memory of its own: the hints, 4 to 8 bytes a token but 8 KB to 2 MB, and 16 bytes a dead range.
// Cost: find() four probes with a good hint, else O(log m) more for each token not hinted.
class Segment {
 public:
  struct Range {
    std::int64_t start;
    std::int64_t stop;
  };

  // `dead` is sorted and disjoint. Throws std::invalid_argument saying what is wrong with the arrays' frame.
  Segment(std::span<const Token> tokens, std::span<const std::int32_t> suffixes, std::vector<Range> dead, Source source,
          std::shared_ptr<const void> owner);

  std::size_t size() const { return suffixes_.size(); }
  Source source() const { return source_; }

  // The suffixes that begin with the `n` tokens of the query, all of them real.
  Interval find(const Token* query, std::size_t n) const;

  // The occurrence behind the `n` matched tokens of the i-th suffix; false when it is erased or its entry is damaged.
  // `match` is counted backwards up to `cap` tokens before `end`.
  bool occurrence(std::size_t i, const Token* end, std::size_t n, std::size_t cap, Occurrence& out) const;

  // Hints for the memory system: the i-th suffix entry, then, once that came, the text behind its `n` matched tokens.
  void fetch_suffix(std::size_t i) const { __builtin_prefetch(suffixes_.data() + i); }
  void fetch_text(std::size_t i, std::size_t n) const {
    __builtin_prefetch(tokens_.data() + static_cast<std::uint32_t>(suffixes_[i]) + n);
  }

  std::size_t memory() const;
  void check(std::vector<std::string>& problems) const;

 private:
  static constexpr std::size_t kFewestHints = std::size_t{1} << 10;
  static constexpr std::size_t kMostHints = std::size_t{1} << 18;

  Token token(std::size_t i, std::size_t offset) const;
  int compare(std::size_t i, const Token* query, std::size_t n) const;
  bool holds(Interval interval, const Token* query, std::size_t n) const;
  Interval narrow(Interval within, std::size_t offset, Token wanted) const;
  bool is_dead(std::int64_t position) const;

  std::span<const Token> tokens_;
  std::span<const std::int32_t> suffixes_;
  std::vector<Range> dead_;
  Source source_;
  std::shared_ptr<const void> owner_;
  std::size_t n_hints_;  // a power of two
  std::unique_ptr<std::atomic<std::uint64_t>[]> hints_;  // first in the upper half, last in the lower; 0 = none
};

using Segments = std::vector<std::shared_ptr<const Segment>>;

}  // namespace sssd
