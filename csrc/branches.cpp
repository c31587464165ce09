#include "branches.h"

namespace sssd {
namespace {

constexpr std::uint32_t kEnded = UINT32_MAX;

}  // namespace

const std::vector<Branch>& Branches::split(Stretch stretch) {
  branches_.clear();
  numbers_.start(stretch.size);
  branch_of_occurrence_.resize(stretch.size);
  for (std::uint32_t i = 0; i < stretch.size; ++i) {
    const Occurrence& at = pool_[stretch.first + i];
    const std::uint32_t branch = at.continues() ? numbers_.number(*at.next) : kEnded;
    branch_of_occurrence_[i] = branch;
    if (branch == kEnded) continue;
    if (branch == branches_.size()) branches_.push_back({*at.next, {0, 0}});
    ++branches_[branch].occurrences.size;
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
