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
// Hints: a lossy table of where intervals were last found, each with 64 bits of its query and interval mixed. A hint
// that was overwritten, or torn between two threads that share the table without locks, does not fit its bits. Should
// one ever fit by chance, a draft is missed and no more: every occurrence's tokens are compared before use.
//
// Ties: occurrences of equal suffixes stand in the array's order.
// Memory of its own: the hints, 4 to 8 bytes a token but 8 KB to 2 MB, and 16 bytes a dead range.
// Cost: find() one cache miss with a hint, else O(log m) for the longest prefix of 0, 1, 2, 4 or 8 tokens that
// is hinted and each between it and n, three probes at a time.
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

  // The occurrence behind the `n` matched tokens of the i-th suffix; false when it is erased, its entry is
  // damaged, or it does not match after all.
  // `match` is counted backwards up to `cap` tokens before the end of `text`.
  bool occurrence(std::size_t i, Suffix text, std::size_t n, std::size_t cap, Occurrence& out) const;

  // Hints for the memory system: what find() will look at first; the i-th suffix entry, then, once that came, the text behind its `n` matched tokens.
  void fetch_hint(const Token* query, std::size_t n) const { __builtin_prefetch(&hint(query_hash(query, n))); }
  void fetch_suffix(std::size_t i) const { __builtin_prefetch(suffixes_.data() + i); }
  void fetch_text(std::size_t i, std::size_t n) const {
    __builtin_prefetch(tokens_.data() + static_cast<std::uint32_t>(suffixes_[i]) + n);
  }

  std::size_t memory() const;
  void check(std::vector<std::string>& problems) const;

 private:
  static constexpr std::size_t kFewestHints = std::size_t{1} << 9;
  static constexpr std::size_t kMostHints = std::size_t{1} << 17;

  struct Hint {
    std::atomic<std::uint64_t> check{0};     // the query's hash, exclusive-or the interval
    std::atomic<std::uint64_t> interval{0};  // first in the upper half, last in the lower; 0 = none
  };

  static std::uint64_t query_hash(const Token* query, std::size_t n);
  Hint& hint(std::uint64_t hash) const { return hints_[hash & (n_hints_ - 1)]; }
  Token token(std::size_t i, std::size_t offset) const;
  int compare(std::size_t i, const Token* query, std::size_t from, std::size_t to) const;
  template <typename Under>
  static std::size_t bound(Interval range, const Under& under);
  Interval narrow(Interval within, std::size_t from, const Token* query, std::size_t to) const;
  bool is_dead(std::int64_t position) const;

  std::span<const Token> tokens_;
  std::span<const std::int32_t> suffixes_;
  std::vector<Range> dead_;
  Source source_;
  std::shared_ptr<const void> owner_;
  std::size_t n_hints_;  // a power of two
  std::unique_ptr<Hint[]> hints_;
};

using Segments = std::vector<std::shared_ptr<const Segment>>;

}  // namespace sssd
