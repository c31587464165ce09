#include "branches.h"

#include <bit>

namespace sssd {
namespace {

constexpr std::uint32_t kEnded = UINT32_MAX;

}  // namespace

Branches::Branches() : slots_(512) {}

std::uint32_t Branches::branch_of(Token token) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = (static_cast<std::uint32_t>(token) * 0x9E3779B1U >> 7) & mask;
  while (slots_[i].stamp == stamp_ && slots_[i].token != token) i = (i + 1) & mask;
  if (slots_[i].stamp != stamp_) {
    slots_[i] = {stamp_, token, static_cast<std::uint32_t>(branches_.size())};
    branches_.push_back({token, {0, 0}});
  }
  return slots_[i].branch;
}

const std::vector<Branch>& Branches::split(Stretch stretch) {
  branches_.clear();
  if (stretch.size == 1) {  // most nodes of a long copy
    const Occurrence only = pool_[stretch.first];
    if (only.continues()) {
      branches_.push_back({*only.next, {static_cast<std::uint32_t>(pool_.size()), 1}});
      pool_.push_back(only.advanced());
    }
    return branches_;
  }
  if (2 * std::size_t{stretch.size} > slots_.size()) slots_.assign(std::bit_ceil(2 * std::size_t{stretch.size}), {});
  if (++stamp_ == 0) {  // wrapped: old stamps would look new
    slots_.assign(slots_.size(), {});
    stamp_ = 1;
  }
  branch_of_occurrence_.resize(stretch.size);
  for (std::uint32_t i = 0; i < stretch.size; ++i) {
    const Occurrence& at = pool_[stretch.first + i];
    const std::uint32_t branch = at.continues() ? branch_of(*at.next) : kEnded;
    branch_of_occurrence_[i] = branch;
    if (branch != kEnded) ++branches_[branch].occurrences.size;
  }
  auto next = static_cast<std::uint32_t>(pool_.size());
  for (Branch& branch : branches_) {
    branch.occurrences.first = next;
    next += branch.occurrences.size;
    branch.occurrences.size = 0;  // counted again while they are laid down
  }
  pool_.resize(next);
  for (std::uint32_t i = 0; i < stretch.size; ++i) {
    const std::uint32_t branch = branch_of_occurrence_[i];
    if (branch == kEnded) continue;
    Stretch& to = branches_[branch].occurrences;
    pool_[to.first + to.size++] = pool_[stretch.first + i].advanced();
  }
  return branches_;
}

}  // namespace sssd
