#include "segment.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

namespace sssd {
namespace {

std::uint64_t query_hash(const Token* query, std::size_t n) {
  std::uint64_t hash = n;
  for (std::size_t j = 0; j < n; ++j) {
    hash = (hash ^ static_cast<std::uint32_t>(query[j])) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

Segment::Segment(std::span<const Token> tokens, std::span<const std::int32_t> suffixes, std::vector<Range> dead,
                 Source source, std::shared_ptr<const void> owner)
    : tokens_(tokens), suffixes_(suffixes), dead_(std::move(dead)), source_(source), owner_(std::move(owner)) {
  if (!tokens_.empty() && tokens_.back() != kSeparator) throw std::invalid_argument("a segment must end in a separator");
  if (tokens_.size() > std::numeric_limits<std::int32_t>::max()) throw std::invalid_argument("a segment is too long");
  if (suffixes_.size() > tokens_.size()) throw std::invalid_argument("a segment has more suffixes than tokens");
  if (!is_stored(source_)) throw std::invalid_argument("a segment's source is DATASTORE or LIVE");
  for (std::size_t i = 0; i < dead_.size(); ++i) {
    if (dead_[i].start > dead_[i].stop || (i > 0 && dead_[i].start < dead_[i - 1].stop)) {
      throw std::invalid_argument("a segment's dead ranges must be sorted and disjoint");
    }
  }
  n_hints_ = std::clamp(std::bit_ceil(suffixes_.size() / 2), kFewestHints, kMostHints);
  hints_ = std::make_unique<std::atomic<std::uint64_t>[]>(n_hints_);
}

// The token at `offset` of the i-th suffix; below every real token where the text, or a damaged entry, ends it.
Token Segment::token(std::size_t i, std::size_t offset) const {
  const std::size_t position = std::size_t{static_cast<std::uint32_t>(suffixes_[i])} + offset;
  return position < tokens_.size() ? tokens_[position] : kSeparator;
}

// Order of the i-th suffix against the query, cut to the query's length.
int Segment::compare(std::size_t i, const Token* query, std::size_t n) const {
  for (std::size_t j = 0; j < n; ++j) {
    const Token at = token(i, j);
    if (at != query[j]) return at < query[j] ? -1 : 1;
    if (at < 0) break;  // both ended
  }
  return 0;
}

// The part of `within`, whose suffixes agree in their first `offset` tokens, where `wanted` comes next.
Interval Segment::narrow(Interval within, std::size_t offset, Token wanted) const {
  const auto bound = [&](std::size_t first, std::size_t last, std::int64_t below) {  // the first suffix not under `below`
    while (first < last) {
      const std::size_t middle = first + (last - first) / 2;
      fetch_suffix(first + (middle - first) / 2);
      fetch_suffix(middle + (last - middle) / 2);
      if (token(middle, offset) < below) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  };
  const std::size_t first = bound(within.first, within.last, wanted);
  if (first == within.last || token(first, offset) != wanted) return {first, first};
  // The end is most often near: the range is doubled before it is halved.
  std::size_t reach = 1;
  while (reach < within.last - first && token(first + reach, offset) == wanted) reach *= 2;
  return {first, bound(first + reach / 2, std::min(first + reach, within.last), std::int64_t{wanted} + 1)};
}

bool Segment::holds(Interval interval, const Token* query, std::size_t n) const {
  if (interval.first > interval.last || interval.last > suffixes_.size()) return false;
  if (interval.first > 0 && compare(interval.first - 1, query, n) >= 0) return false;
  if (interval.last < suffixes_.size() && compare(interval.last, query, n) <= 0) return false;
  return interval.size() == 0 ||
         (compare(interval.first, query, n) == 0 && compare(interval.last - 1, query, n) == 0);
}

// A suffix of today's text without its last tokens is a suffix of yesterday's: its interval is most often hinted.
Interval Segment::find(const Token* query, std::size_t n) const {
  if (n == 0) return {0, suffixes_.size()};
  std::atomic<std::uint64_t>& hint = hints_[query_hash(query, n) & (n_hints_ - 1)];
  const std::uint64_t packed = hint.load(std::memory_order_relaxed);
  const Interval guess{packed >> 32, packed & 0xFFFFFFFFU};
  if (packed != 0 && holds(guess, query, n)) return guess;
  const Interval found = narrow(find(query, n - 1), n - 1, query[n - 1]);
  hint.store(static_cast<std::uint64_t>(found.first) << 32 | found.last, std::memory_order_relaxed);
  return found;
}

bool Segment::is_dead(std::int64_t position) const {
  const auto after = std::upper_bound(dead_.begin(), dead_.end(), position,
                                      [](std::int64_t p, const Range& range) { return p < range.start; });
  return after != dead_.begin() && position < std::prev(after)->stop;
}

bool Segment::occurrence(std::size_t i, const Token* end, std::size_t n, std::size_t cap, Occurrence& out) const {
  const auto position = static_cast<std::uint32_t>(suffixes_[i]);
  if (position + n >= tokens_.size() || (!dead_.empty() && is_dead(position))) return false;
  // tokens_[position - 1], or the segment's own start, stops the count.
  const std::size_t match = n + agreeing(end - n, tokens_.data() + position, std::min(cap - n, std::size_t{position}));
  const std::size_t behind = position + n;
  out = {tokens_.data() + behind, static_cast<std::uint32_t>(tokens_.size() - behind), static_cast<std::uint16_t>(match),
         source_};
  return true;
}

std::size_t Segment::memory() const {
  return sizeof(Segment) + dead_.capacity() * sizeof(Range) + n_hints_ * sizeof(std::uint64_t);
}

void Segment::check(std::vector<std::string>& problems) const {
  const auto say = [&](std::size_t i, const char* what) {
    problems.push_back("segment suffix " + std::to_string(i) + ": " + what);
  };
  const auto beyond = [&](std::size_t i) { return static_cast<std::uint32_t>(suffixes_[i]) >= tokens_.size(); };
  for (std::size_t i = 0; i < suffixes_.size(); ++i) {
    if (beyond(i)) {
      say(i, "points outside the text");
    } else if (tokens_[static_cast<std::uint32_t>(suffixes_[i])] < 0) {
      say(i, "points at a separator");
    } else if (i > 0 && !beyond(i - 1)) {
      const Token* query = tokens_.data() + suffixes_[i];
      std::size_t n = 0;
      while (query[n] >= 0) ++n;
      if (compare(i - 1, query, n) > 0) say(i, "is out of order");
    }
  }
}

}  // namespace sssd
