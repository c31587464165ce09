#include "gather.h"

#include <algorithm>
#include <array>

namespace sssd {
namespace {

// Match lengths asked of stored texts. The search begins at kFirstAsked and doubles while too much matches.
constexpr std::array<std::size_t, 6> kStoredOrders{16, 8, 4, 3, 2, 1};
constexpr std::size_t kFirstAsked = 2;

std::size_t tokens_before(const Token* end, std::size_t cap) {
  std::size_t n = 0;
  while (n < cap && end[-1 - static_cast<std::ptrdiff_t>(n)] >= 0) ++n;
  return n;
}

}  // namespace

void Gather::find(const Sources& sources, std::vector<Occurrence>& out) {
  const ContextLimits limits{limits_.max_match, limits_.context_most, limits_.enough, limits_.sure};
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      for (std::size_t k = kFirstAsked; k < kStoredOrders.size(); ++k) {
        const std::size_t n = kStoredOrders[k];
        if (n <= sources.suffix.size) segment->fetch_hint(sources.suffix.end - n, n);
      }
    }
  }
  if (sources.prediction != nullptr) find_predicted(sources, out);
  const std::size_t own = sources.context.find(sources.suffix, limits, Source::context, out);
  if (own < limits_.sure) find_stored(sources, out);
}

void Gather::find_predicted(const Sources& sources, std::vector<Occurrence>& out) const {
  const ContextIndex& guess = *sources.prediction;
  guess.find(sources.suffix, {limits_.max_match, limits_.context_most, limits_.enough, limits_.sure}, Source::prediction, out);
  const std::size_t written = sources.context.size() - sources.prompt_size;
  if (!sources.on_prediction || written >= guess.size()) return;
  const Token* next = guess.tokens() + written;
  std::erase_if(out, [&](const Occurrence& at) { return at.next == next; });
  const std::size_t match = std::min(limits_.max_match, written + limits_.head_start);
  out.push_back({next, static_cast<std::uint32_t>(guess.size() - written), static_cast<std::uint16_t>(match),
                 Source::prediction});
}

void Gather::find_stored(const Sources& sources, std::vector<Occurrence>& out) {
  const Suffix suffix = sources.suffix;
  const std::size_t longest = tokens_before(suffix.end, kStoredOrders.front());
  std::size_t asked = 0;  // the match length that `intervals_` and `occurrences` are of
  std::size_t occurrences = 0;
  const auto total = [&](std::size_t n) {
    if (n != asked) occurrences = ask(sources, n);
    asked = n;
    return occurrences;
  };
  std::size_t k = kFirstAsked;
  while (k > 0 && kStoredOrders[k - 1] <= longest && total(kStoredOrders[k]) > limits_.store_most) --k;
  std::size_t found = 0;
  std::size_t cap = limits_.max_match;
  for (; k < kStoredOrders.size() && found < limits_.enough; ++k) {
    const std::size_t n = kStoredOrders[k];
    if (n > longest || total(n) == 0) continue;
    pick(sources, occurrences);
    found += sample(suffix, n, cap, out);
    cap = n;
  }
}

// How often the last `n` tokens are stored; fills `intervals_`.
std::size_t Gather::ask(const Sources& sources, std::size_t n) {
  std::size_t occurrences = 0;
  intervals_.clear();
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      intervals_.push_back(segment->find(sources.suffix.end - n, n));
      occurrences += intervals_.back().size();
    }
  }
  return occurrences;
}

// Evenly strided places out of the `total` in `intervals_`.
void Gather::pick(const Sources& sources, std::size_t total) {
  const std::size_t wanted = std::min(total, limits_.store_most);
  picks_.clear();
  std::size_t next = 0;    // place of the next pick
  std::size_t before = 0;  // places in earlier intervals
  const Interval* interval = intervals_.data();
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      while (picks_.size() < wanted && next < before + interval->size()) {
        picks_.push_back({segment.get(), interval->first + (next - before)});
        segment->fetch_suffix(picks_.back().suffix);
        next = wanted == total ? picks_.size() : picks_.size() * total / wanted;
      }
      before += interval->size();
      ++interval;
    }
  }
}

// Adds the picked occurrences of the last `n` tokens; those that match `cap` tokens were taken by a longer length,
// unless `cap` is the bound itself. Each is two cache misses in a large store: all are asked for before one is read.
std::size_t Gather::sample(Suffix suffix, std::size_t n, std::size_t cap, std::vector<Occurrence>& out) const {
  for (const Pick& pick : picks_) pick.segment->fetch_text(pick.suffix, n);
  const std::size_t before = out.size();
  for (const Pick& pick : picks_) {
    Occurrence at;
    if (!pick.segment->occurrence(pick.suffix, suffix, n, cap, at)) continue;
    if (at.match < cap || cap == limits_.max_match) out.push_back(at);
  }
  return out.size() - before;
}

}  // namespace sssd
