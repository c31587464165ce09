// Tokens and occurrences: the two values every source and every rule speaks in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sssd {

using Token = std::int32_t;

// Stands before and after every text; no match and no continuation crosses it. Real ids are >= 0.
inline constexpr Token kSeparator = -1;

// Keep equal to sssd.types.Source.
enum class Source : std::uint8_t { context = 0, datastore = 1, live = 2, prediction = 3 };
inline constexpr std::size_t kSources = 4;

// Whether a source is text of other requests: such evidence ranks below the request's own at equal match length.
constexpr bool is_stored(Source source) { return source == Source::datastore || source == Source::live; }

// One place where the current suffix occurred. `next` points into a text that outlives the draft.
struct Occurrence {
  const Token* next;    // the token that followed
  std::uint32_t left;   // tokens that may be read from `next` on; a separator may end them earlier
  std::uint16_t match;  // how many tokens before `next` agree, at the draft's root; it does not grow with depth
  Source source;

  bool continues() const { return left > 0 && *next >= 0; }
  Occurrence advanced() const { return {next + 1, left - 1, match, source}; }
};

// The end of a text: `end[-1]` is its last token, `end[-size-1]` a separator.
struct Suffix {
  const Token* end;
  std::size_t size;
};

// Tokens before `a` and `b` that agree, at most `cap`; a separator before either ends the match. At least `cap` tokens
// stand before both. Two are compared at a time: long copies are common.
inline std::size_t agreeing(const Token* a, const Token* b, std::size_t cap) {
  constexpr std::uint64_t kSigns = 0x80000000'80000000U;
  std::size_t n = 0;
  while (n + 2 <= cap) {
    std::uint64_t two_a, two_b;
    std::memcpy(&two_a, a - n - 2, sizeof two_a);
    std::memcpy(&two_b, b - n - 2, sizeof two_b);
    if (two_a != two_b || (two_a & kSigns) != 0) break;
    n += 2;
  }
  while (n < cap && *(a - n - 1) == *(b - n - 1) && *(a - n - 1) >= 0) ++n;
  return n;
}

}  // namespace sssd
