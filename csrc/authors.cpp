#include "authors.h"

#include <algorithm>
#include <cmath>

namespace sssd {
namespace {

constexpr std::int32_t kDropped = -2;

// Continuation length by tree size, the root counted.
std::size_t branch_length(std::size_t tree_size) {
  if (tree_size <= 5) return tree_size - 1;
  if (tree_size <= 8) return 5;
  if (tree_size <= 32) return 6;
  return tree_size <= 48 ? 8 : 10;
}

}  // namespace

// A window that begins m tokens before the occurrence gives window - m tokens of continuation, and ends with the text
// it was inserted from.
void Authors::seed_context(const Sources& sources) {
  const ContextIndex& context = sources.context;
  found_.clear();
  context.find_all(rules_.prefix, Source::context, found_);
  const std::size_t prompt_starts = sources.prompt_size - std::min(rules_.bridge, sources.prompt_size);
  for (std::size_t m = rules_.prefix; m > 0; --m) {
    std::vector<Occurrence>& pool = branches_.pool();
    const Stretch stretch{static_cast<std::uint32_t>(pool.size()), 0};
    for (const Occurrence& at : found_) {
      if (at.match < m) continue;
      const std::size_t behind = static_cast<std::size_t>(at.next - context.tokens());
      const bool in_prompt = behind - m < prompt_starts;
      if (!in_prompt && behind - m + rules_.window > context.size()) continue;
      const std::size_t text_end = in_prompt ? sources.prompt_size : context.size();
      const std::size_t left = behind < text_end ? std::min(rules_.window - m, text_end - behind) : 0;
      if (behind > text_end) continue;  // the match itself runs out of its window
      pool.push_back({at.next, static_cast<std::uint32_t>(left), at.match, at.source});
    }
    const auto size = static_cast<std::uint32_t>(pool.size()) - stretch.first;
    const double discount = 0.6 + 0.1 * static_cast<double>(m);
    push_children({stretch.first, size}, rules_.context_weight, discount, 0, kRoot);
  }
}

void Authors::seed_stored(const Sources& sources, std::size_t branch) {
  const auto first = static_cast<std::uint32_t>(branches_.pool().size());
  const Suffix text = sources.context.suffix();
  std::size_t sampled = 0;
  for (std::size_t n = std::min(rules_.prefix, sources.context.size()); n > 0 && sampled < rules_.enough; --n) {
    sampled += sample(sources, text, n, branch);
  }
  push_children({first, static_cast<std::uint32_t>(sampled)}, 1.0, 1.0, 0, kRoot);
}

std::size_t Authors::sample(const Sources& sources, Suffix text, std::size_t n, std::size_t branch) {
  std::size_t total = 0;
  std::size_t leading = 0;  // size of the first segment
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      if (leading == 0) leading = segment->size();
      total += segment->size();
    }
  }
  std::size_t taken = 0;
  for (const auto& store : sources.stores) {
    for (const auto& segment : *store) {
      const Interval interval = segment->find(text.end - n, n);
      if (interval.size() == 0) continue;
      const double part = static_cast<double>(segment->size());
      const double cap = std::max(std::round(static_cast<double>(rules_.store_most) * part / static_cast<double>(total)),
                                  std::round(static_cast<double>(rules_.store_least) * part / static_cast<double>(leading)));
      const double step = std::max(1.0, static_cast<double>(interval.size() - 1) / std::max(cap, 1.0));
      const double most = static_cast<double>(interval.size() - 1) + 1e-9;
      for (double offset = 0; offset <= most; offset += step) {
        Occurrence at;
        if (!segment->occurrence(interval.first + static_cast<std::size_t>(std::lround(offset)), text, n, n, at)) continue;
        at.left = std::min(at.left, static_cast<std::uint32_t>(branch));
        branches_.pool().push_back(at);
        ++taken;
      }
    }
  }
  return taken;
}

void Authors::push_children(Stretch stretch, double factor, double discount, std::uint32_t depth, std::int32_t parent) {
  for (const Branch& branch : branches_.split(stretch)) {
    const double score = factor * (static_cast<double>(branch.occurrences.size) / static_cast<double>(stretch.size));
    queue_.push_back({score, depth + 1, static_cast<std::uint32_t>(entries_.size())});
    std::push_heap(queue_.begin(), queue_.end());
    entries_.push_back({branch.token, branch.occurrences, score, discount, depth + 1, parent,
                        branches_.begin(branch.occurrences)->source});
  }
}

// The tree node that stands for an entry: an equal sibling, a new node, or kDropped when the parent is full.
std::int32_t Authors::place(const Entry& entry, std::size_t budget, std::vector<Node>& out) const {
  std::size_t children = 0;
  for (std::size_t i = entry.parent == kRoot ? 0 : entry.parent + 1; i < out.size(); ++i) {
    if (out[i].parent != entry.parent) continue;
    if (out[i].token == entry.token) return static_cast<std::int32_t>(i);
    ++children;
  }
  if (children >= std::min(rules_.most_children, budget)) return kDropped;
  const double above = entry.parent == kRoot ? 1.0 : out[entry.parent].path;
  out.push_back({entry.token, entry.parent, entry.source, entry.score / above, entry.score});
  return static_cast<std::int32_t>(out.size() - 1);
}

void Authors::draft(const Sources& sources, const Learned* learned, std::size_t budget, std::vector<Node>& out) {
  out.clear();
  branches_.clear();
  entries_.clear();
  queue_.clear();
  if (budget == 0 || sources.context.size() == 0) return;
  seed_context(sources);
  seed_stored(sources, rules_.branch > 0 ? rules_.branch : branch_length(budget + 1));
  while (!queue_.empty() && out.size() < budget) {
    std::pop_heap(queue_.begin(), queue_.end());
    const Entry best = entries_[queue_.back().index];
    queue_.pop_back();
    const std::int32_t node = place(best, budget, out);
    if (node == kDropped || out.size() >= budget) continue;
    push_children(best.occurrences, best.score * best.discount, best.discount, best.depth, node);
  }
  if (learned == nullptr) return;
  for (Node& node : out) {
    const double above = node.parent == kRoot ? 1.0 : out[node.parent].path;
    node.path = above * learned->corrected(node.source, node.chance);
  }
}

}  // namespace sssd
