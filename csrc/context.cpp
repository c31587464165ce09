#include "context.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace sssd {
namespace {

constexpr std::size_t kOrderCount = ContextIndex::kOrders.size();
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL + (b ^ 0xC2B2AE3D27D4EB4FULL) * 0x94D049BB133111EBULL;
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ULL;
  return x ^ (x >> 29);
}

std::uint64_t pair_hash(const Token* end) {
  return mix(static_cast<std::uint32_t>(end[-1]), static_cast<std::uint32_t>(end[-2]));
}

std::uint64_t quad_hash(const Token* end) { return mix(pair_hash(end), pair_hash(end - 2)); }

// Tag of the last kOrders[k] tokens before `end`; its low bits tell the order, so that orders never share a chain.
std::uint32_t tag_of(const Token* end, std::size_t k) {
  const auto hash = [&] {
    switch (ContextIndex::kOrders[k]) {
      case 1: return mix(static_cast<std::uint32_t>(end[-1]), 0);
      case 2: return pair_hash(end);
      case 4: return quad_hash(end);
      default: return mix(quad_hash(end), quad_hash(end - 4));
    }
  };
  static_assert(kOrderCount == 4);
  return (static_cast<std::uint32_t>(hash() >> 32) & ~3U) | static_cast<std::uint32_t>(k);
}

// Tokens before `end` up to the first separator, counted to `cap`.
std::size_t run_length(Suffix suffix, std::size_t cap) {
  std::size_t n = 0;
  while (n < cap && n < suffix.size && suffix.end[-1 - static_cast<std::ptrdiff_t>(n)] >= 0) ++n;
  return n;
}

}  // namespace

ContextIndex::ContextIndex() : tokens_{kSeparator, kSeparator}, back_(1), slots_(64) {}

void ContextIndex::reserve(std::size_t n_tokens) {
  tokens_.reserve(n_tokens + 2);
  back_.reserve(n_tokens + 1);
  grow(n_tokens);
}

void ContextIndex::grow(std::size_t n_tokens) {
  const std::size_t wanted = std::bit_ceil(2 * kOrderCount * std::max<std::size_t>(n_tokens, 8));
  if (wanted <= slots_.size()) return;
  std::vector<Slot> old(wanted);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.head != 0) slots_[slot_index(slot.tag)] = slot;
  }
}

std::size_t ContextIndex::slot_index(std::uint32_t tag) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = tag & mask;
  while (slots_[i].head != 0 && slots_[i].tag != tag) i = (i + 1) & mask;
  return i;
}

void ContextIndex::append(std::span<const Token> tokens) {
  for (const Token token : tokens) {
    tokens_.back() = token < 0 ? kSeparator : token;
    tokens_.push_back(kSeparator);
    back_.push_back({});
    if (2 * (used_ + kOrderCount) > slots_.size()) grow(2 * size());
    file(size());
  }
}

void ContextIndex::file(std::size_t position) {
  const Suffix at = end_at(position);
  const std::size_t run = run_length(at, kOrders.front());
  for (std::size_t k = 0; k < kOrderCount; ++k) {
    if (run < kOrders[k]) continue;
    const std::uint32_t tag = tag_of(at.end, k);
    Slot& slot = slots_[slot_index(tag)];
    used_ += slot.head == 0;
    back_[position][k] = slot.head;
    slot = {tag, static_cast<std::int32_t>(position)};
  }
}

Occurrence ContextIndex::occurrence(std::int32_t position, std::size_t match, Source source) const {
  const auto left = static_cast<std::uint32_t>(size() - static_cast<std::size_t>(position));
  return {tokens() + position, left, static_cast<std::uint16_t>(match), source};
}

std::size_t ContextIndex::find(Suffix suffix, const ContextLimits& limits, Source source,
                               std::vector<Occurrence>& out) const {
  const std::size_t run = run_length(suffix, kOrders.front());
  const std::size_t before = out.size();
  std::size_t longest = 0;
  std::size_t longer = std::numeric_limits<std::size_t>::max();  // matches this long were found in an earlier chain
  for (std::size_t k = 0; k < kOrderCount; ++k) {
    if (run < kOrders[k]) continue;
    const std::size_t cap = std::min({limits.max_match, longer, suffix.size});
    std::size_t visits = 0;
    std::int32_t older = 0;
    for (std::int32_t p = slots_[slot_index(tag_of(suffix.end, k))].head; p != 0; p = older) {
      older = back_[static_cast<std::size_t>(p)][k];
      fetch(older);
      if (++visits > limits.most || out.size() - before >= limits.most) break;
      if (static_cast<std::size_t>(p) == size()) continue;
      const std::size_t match = agreeing(suffix.end, tokens() + p, std::min(cap, static_cast<std::size_t>(p)));
      if (match < kOrders[k] || match >= longer) continue;
      out.push_back(occurrence(p, match, source));
      longest = std::max(longest, match);
    }
    if (out.size() - before >= limits.enough || longest >= limits.sure) break;
    longer = kOrders[k];
  }
  return longest;
}

void ContextIndex::find_all(std::size_t max_match, Source source, std::vector<Occurrence>& out) const {
  const std::size_t unigram = kOrderCount - 1;
  if (size() == 0 || suffix().end[-1] < 0) return;
  for (std::int32_t p = back_[size()][unigram]; p != 0; p = back_[static_cast<std::size_t>(p)][unigram]) {
    const std::size_t match = agreeing(suffix().end, tokens() + p, std::min(max_match, static_cast<std::size_t>(p)));
    if (match > 0) out.push_back(occurrence(p, match, source));
  }
}

std::size_t ContextIndex::memory() const {
  return tokens_.capacity() * sizeof(Token) + back_.capacity() * sizeof(Links) + slots_.capacity() * sizeof(Slot);
}

void ContextIndex::check(std::vector<std::string>& problems) const {
  const auto say = [&](std::size_t position, const char* what) {
    problems.push_back("context position " + std::to_string(position) + ": " + what);
  };
  if (back_.size() != size() + 1) problems.emplace_back("context: one link a position is missing");
  if (tokens_.front() != kSeparator || tokens_.back() != kSeparator) problems.emplace_back("context: text not closed");
  for (std::size_t p = 1; p < back_.size(); ++p) {
    for (const std::int32_t link : back_[p]) {
      if (link >= 0 && static_cast<std::size_t>(link) < p) continue;
      say(p, "its chain does not lead backwards");
      return;  // following chains might never end
    }
  }
  for (std::size_t p = 1; p < back_.size(); ++p) {
    const Suffix at = end_at(p);
    const std::size_t run = run_length(at, kOrders.front());
    for (std::size_t k = 0; k < kOrderCount; ++k) {
      if (run < kOrders[k]) continue;
      std::int32_t seen = slots_[slot_index(tag_of(at.end, k))].head;
      while (seen > static_cast<std::int32_t>(p)) seen = back_[static_cast<std::size_t>(seen)][k];
      if (seen != static_cast<std::int32_t>(p)) say(p, "its n-gram is not found in its chain");
    }
  }
}

void ContextIndex::plant_fault() { back_.back()[kOrderCount - 1] = static_cast<std::int32_t>(back_.size()); }

}  // namespace sssd
