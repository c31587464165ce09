#include "segment.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

namespace sssd {
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
  n_hints_ = std::clamp(std::bit_ceil(suffixes_.size() / 4), kFewestHints, kMostHints);
  hints_ = std::make_unique<Hint[]>(n_hints_);
}

std::uint64_t Segment::query_hash(const Token* query, std::size_t n) {
  std::uint64_t hash = n * 0xD6E8FEB86659FD93ULL;  // far from every token: equal ends of unequal queries must differ
  for (std::size_t j = 0; j < n; ++j) {
    hash = (hash ^ static_cast<std::uint32_t>(query[j])) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

// The token at `offset` of the i-th suffix; below every real token where the text, or a damaged entry, ends it.
Token Segment::token(std::size_t i, std::size_t offset) const {
  const std::size_t position = std::size_t{static_cast<std::uint32_t>(suffixes_[i])} + offset;
  return position < tokens_.size() ? tokens_[position] : kSeparator;
}

// Order of the i-th suffix against the query, both cut to [from, to).
int Segment::compare(std::size_t i, const Token* query, std::size_t from, std::size_t to) const {
  for (std::size_t j = from; j < to; ++j) {
    const Token at = token(i, j);
    if (at != query[j]) return at < query[j] ? -1 : 1;
    if (at < 0) break;  // both ended
  }
  return 0;
}

// The first suffix of a sorted range that is not `under`. Three probes wait for memory together.
template <typename Under>
std::size_t Segment::bound(Interval range, const Under& under) {
  std::size_t first = range.first;
  std::size_t n = range.size();
  while (n > 3) {
    const std::size_t part = n / 4;
    const std::size_t parts = std::size_t{under(first + part)} + under(first + 2 * part) + under(first + 3 * part);
    first += parts == 0 ? 0 : parts * part + 1;
    n = parts == 0 ? part : parts == 3 ? n - 3 * part - 1 : part - 1;
  }
  while (n > 0 && under(first)) {
    ++first;
    --n;
  }
  return first;
}

// The part of `within`, whose suffixes begin with the first `from` tokens of the query, that begins with `to` of them.
Interval Segment::narrow(Interval within, std::size_t from, const Token* query, std::size_t to) const {
  const std::size_t first = bound(within, [&](std::size_t i) { return compare(i, query, from, to) < 0; });
  const auto matches = [&](std::size_t i) { return compare(i, query, from, to) == 0; };
  if (first == within.last || !matches(first)) return {first, first};
  // The end is most often near: the range is doubled before it is searched.
  std::size_t reach = 1;
  while (reach < within.last - first && matches(first + reach)) reach *= 2;
  return {first, bound({first + reach / 2, std::min(first + reach, within.last)}, matches)};
}

// A suffix of today's text without its last tokens is a suffix of yesterday's: its interval is most often hinted.
Interval Segment::find(const Token* query, std::size_t n) const {
  if (n == 0) return {0, suffixes_.size()};
  const std::uint64_t hash = query_hash(query, n);
  Hint& known = hint(hash);
  const std::uint64_t packed = known.interval.load(std::memory_order_relaxed);
  const Interval guess{packed >> 32, packed & 0xFFFFFFFFU};
  const bool fits = (known.check.load(std::memory_order_relaxed) ^ packed) == hash;
  if (packed != 0 && fits && guess.first <= guess.last && guess.last <= suffixes_.size()) return guess;
  const std::size_t shorter = std::bit_floor(n - 1);  // prefixes of 1, 2, 4 and 8 tokens serve other queries too
  const Interval found = narrow(find(query, shorter), shorter, query, n);
  const std::uint64_t packs = static_cast<std::uint64_t>(found.first) << 32 | found.last;
  known.interval.store(packs, std::memory_order_relaxed);
  known.check.store(hash ^ packs, std::memory_order_relaxed);
  return found;
}

bool Segment::is_dead(std::int64_t position) const {
  const auto after = std::upper_bound(dead_.begin(), dead_.end(), position,
                                      [](std::int64_t p, const Range& range) { return p < range.start; });
  return after != dead_.begin() && position < std::prev(after)->stop;
}

bool Segment::occurrence(std::size_t i, Suffix text, std::size_t n, std::size_t cap, Occurrence& out) const {
  const std::size_t behind = std::size_t{static_cast<std::uint32_t>(suffixes_[i])} + n;
  if (behind >= tokens_.size() || (!dead_.empty() && is_dead(static_cast<std::int64_t>(behind - n)))) return false;
  const std::size_t match = agreeing(text.end, tokens_.data() + behind, std::min({cap, behind, text.size}));
  if (match < n) return false;
  out = {tokens_.data() + behind, static_cast<std::uint32_t>(tokens_.size() - behind), static_cast<std::uint16_t>(match),
         source_};
  return true;
}

std::size_t Segment::memory() const {
  return sizeof(Segment) + dead_.capacity() * sizeof(Range) + n_hints_ * sizeof(Hint);
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
      if (compare(i - 1, query, 0, n) > 0) say(i, "is out of order");
    }
  }
}

}  // namespace sssd
