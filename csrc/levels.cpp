#include "levels.h"

#include <algorithm>
#include <cmath>

namespace sssd {
namespace {

constexpr double kNegligible = 1.0 / 1024;
constexpr std::size_t kMostHalvings = 40;

}  // namespace

Levels::Levels(const Doubts& doubts)
    : rungs_(doubts.max_match + 1),
      depths_(doubts.sure_from + kMostHalvings),
      counts_(2 * rungs_),
      weights_(2 * rungs_),
      lone_(2 * rungs_ * depths_) {
  for (const Kind kind : {kContext, kStored}) {
    const double doubt = kind == kContext ? doubts.context : doubts.store;
    beta_[kind].push_back(0);
    for (std::size_t m = 1; m <= doubts.sure_from + kMostHalvings; ++m) {
      const std::size_t halvings = m > doubts.sure_from ? m - doubts.sure_from : 0;
      beta_[kind].push_back(std::ldexp(doubt, -static_cast<int>(halvings)));
    }
  }
}

void Levels::clear() {
  for (const Kind kind : {kContext, kStored}) {
    const auto first = static_cast<std::ptrdiff_t>(kind * rungs_);
    const auto n = static_cast<std::ptrdiff_t>(longest_ + 1);
    std::fill_n(counts_.begin() + first, n, 0);
    std::fill_n(weights_.begin() + first, n, 0.0);
  }
  longest_ = 0;
}

void Levels::weigh(std::size_t depth) {
  double left = 1;  // mass not yet given to a longer match
  std::uint32_t voters[2] = {0, 0};
  std::size_t shortest = longest_ + 1;
  while (shortest > 1 && left >= kNegligible) {
    --shortest;
    for (const Kind kind : {kContext, kStored}) {
      const std::size_t rung = kind * rungs_ + shortest;
      voters[kind] += counts_[rung];
      if (voters[kind] == 0 || left < kNegligible) continue;
      const double beta = beta_[kind][std::min(shortest + depth, beta_[kind].size() - 1)];
      const double share = left / (voters[kind] + beta);
      weights_[rung] = share;
      left = share * beta;
    }
  }
  for (const Kind kind : {kContext, kStored}) {
    double* weights = weights_.data() + kind * rungs_;
    for (std::size_t m = shortest + 1; m <= longest_; ++m) weights[m] += weights[m - 1];
  }
}

double Levels::lone(std::uint16_t rung, std::size_t depth) {
  double& known = lone_[rung * depths_ + std::min(depth, depths_ - 1)];
  if (known == 0) {
    clear();
    count(rung);
    weigh(depth);
    known = weight(rung);
  }
  return known;
}

}  // namespace sssd
