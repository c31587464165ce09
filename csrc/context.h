// The context index: every earlier place of a growing text where its end, or another text's end, occurred before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text.h"

namespace sssd {

// How far a look-up goes.
struct ContextLimits {
  std::size_t max_match;  // longer matches count as this long
  std::size_t most;       // occurrences visited for one n-gram order, and found in all
  std::size_t enough;     // no shorter order is asked once so many were found
  std::size_t sure;       // ... or once a match of this length was
};

// Positions of every n-gram of 1, 2, 4 and 8 tokens, chained newest first from one hash table.
//
// Position p stands between tokens p-1 and p; an n-gram is filed under the position behind it. An n-gram with a
// separator in it is not filed. N-grams of equal tag share a chain: a look-up compares the tokens, so a collision
// costs time only. A token is searchable as soon as `append` returns.
//
// Ties: within an order the newest occurrence comes first; longer orders come before shorter ones.
// Memory: 20 bytes a token and 8 bytes a table slot, 8 to 16 slots a reserved token: at most 148 bytes a token, and
// 276 for a moment after the table doubled.
// Cost: append amortised O(4) a token; find O(4 * most * max_match) at worst, typically one cache line an occurrence.
// Not safe to append and find at the same time.
class ContextIndex {
 public:
  static constexpr std::array<std::uint32_t, 4> kOrders{8, 4, 2, 1};

  ContextIndex();

  // Room for `n_tokens` without growing later.
  void reserve(std::size_t n_tokens);
  void append(std::span<const Token> tokens);

  std::size_t size() const { return tokens_.size() - 2; }
  // The text, closed by a separator; valid until the next append.
  const Token* tokens() const { return tokens_.data() + 1; }
  Suffix suffix() const { return {tokens_.data() + tokens_.size() - 1, size()}; }

  // Adds the occurrences of the suffix, longest order first; the end of the text itself has no continuation and is
  // not one. Returns the longest match.
  std::size_t find(Suffix suffix, const ContextLimits& limits, Source source, std::vector<Occurrence>& out) const;

  // Every occurrence of the last token, newest first, with its match length up to `max_match`; no other limit.
  void find_all(std::size_t max_match, Source source, std::vector<Occurrence>& out) const;

  std::size_t memory() const;
  // Adds one line for every violated invariant. O(size * chain), slow.
  void check(std::vector<std::string>& problems) const;
  // Damages the index so that tests can see check() find it.
  void plant_fault();

 private:
  struct Slot {
    std::uint32_t tag;  // hash of an n-gram; alone decides where its slot is
    std::int32_t head;  // newest position filed under it; 0 = empty slot
  };
  using Links = std::array<std::int32_t, kOrders.size()>;  // one step back in each order's chain; 0 = chain ends

  Suffix end_at(std::size_t position) const { return {tokens() + position, position}; }
  void file(std::size_t position);
  void grow(std::size_t n_tokens);
  std::size_t slot_index(std::uint32_t tag) const;
  Occurrence occurrence(std::int32_t position, std::size_t match, Source source) const;
  // A hint for the memory system: the place will be visited.
  void fetch(std::int32_t position) const {
    __builtin_prefetch(back_.data() + position);
    __builtin_prefetch(tokens() + position - 1);
  }

  std::vector<Token> tokens_;  // separator, text, separator
  std::vector<Links> back_;    // by position
  std::vector<Slot> slots_;    // open addressing, a power of two, at most half full
  std::size_t used_ = 0;
};

}  // namespace sssd
