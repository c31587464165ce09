#include "confidence.h"

#include <algorithm>
#include <cmath>

namespace sssd {
namespace {

constexpr double kPrior = 8;  // imagined trials that say a bin's chances are right
constexpr std::uint32_t kRefit = 64;

// Upper ends of the bins; finer near 0 and 1, where paths multiply small errors.
constexpr std::array<double, Curve::kBins> kEnds{0.01, 0.02, 0.04, 0.06, 0.09, 0.12, 0.16, 0.2,  0.25,
                                                0.3,  0.35, 0.4,  0.45, 0.5,  0.55, 0.6,  0.65, 0.7,
                                                0.75, 0.8,  0.84, 0.88, 0.91, 0.94, 0.97, 0.99, 1.0};

// All ends are whole hundredths: a chance's bin is that of the hundredth below it, or the next one.
constexpr auto kBinFrom = [] {
  std::array<std::uint8_t, 101> bins{};
  std::size_t bin = 0;
  for (std::size_t i = 0; i < bins.size(); ++i) {
    while (bin + 1 < kEnds.size() && kEnds[bin] < static_cast<double>(i) / 100) ++bin;
    bins[i] = static_cast<std::uint8_t>(bin);
  }
  return bins;
}();

std::size_t bin_of(double chance) {
  const std::size_t bin = kBinFrom[std::min(static_cast<std::size_t>(chance * 100), kBinFrom.size() - 1)];
  return bin + (bin + 1 < kEnds.size() && kEnds[bin] < chance ? 1 : 0);
}

double middle(std::size_t bin) { return (kEnds[bin] + (bin > 0 ? kEnds[bin - 1] : 0.0)) / 2; }

}  // namespace

Curve::Curve(double kept) : kept_(kept) { refit(); }

void Curve::learn(double chance, bool right) {
  Bin& bin = bins_[bin_of(chance)];
  bin.trials = bin.trials * kept_ + 1;
  bin.hits = bin.hits * kept_ + (right ? 1 : 0);
  bin.chances = bin.chances * kept_ + chance;
  if (++learned_ % kRefit == 0) refit();
}

void Curve::refit() {
  Knots knots;
  fit(knots);
  std::size_t i = 0;
  for (std::size_t k = 1; k < knots.x.size(); ++k) {
    const double from = knots.x[k - 1];
    const double width = knots.x[k] - from;
    const double rise = width > 0 ? (knots.y[k] - knots.y[k - 1]) / width : 0;
    const auto last = static_cast<std::size_t>(knots.x[k] * kCells);
    for (; i <= last; ++i) {
      table_[i] = std::min(knots.y[k - 1] + rise * (static_cast<double>(i) / kCells - from), knots.y[k]);
    }
  }
}

// Pools neighbouring bins whose shares fall where they should rise (pool adjacent violators).
void Curve::fit(Knots& knots) const {
  std::array<double, kBins> weight, value;
  std::array<std::size_t, kBins> pool_end;
  std::size_t pools = 0;
  for (std::size_t b = 0; b < kBins; ++b) {
    const Bin& bin = bins_[b];
    const double mean = bin.trials > 0 ? bin.chances / bin.trials : middle(b);
    knots.x[b + 1] = mean;
    weight[pools] = bin.trials + kPrior;
    value[pools] = (bin.hits + kPrior * mean) / weight[pools];
    pool_end[pools++] = b + 1;
    while (pools > 1 && value[pools - 2] > value[pools - 1]) {
      const double both = weight[pools - 2] + weight[pools - 1];
      value[pools - 2] = (value[pools - 2] * weight[pools - 2] + value[pools - 1] * weight[pools - 1]) / both;
      weight[pools - 2] = both;
      pool_end[pools - 2] = pool_end[pools - 1];
      --pools;
    }
  }
  std::size_t b = 0;
  for (std::size_t k = 0; k < pools; ++k) {
    for (; b < pool_end[k]; ++b) knots.y[b + 1] = std::min(value[k], 1.0);
  }
  knots.x.front() = knots.y.front() = 0;
  knots.x.back() = 1;
  knots.y.back() = std::min(1.0, knots.y[kBins] + (1 - knots.x[kBins]));
}

void Curve::state(double* out) const {
  for (const Bin& bin : bins_) {
    *out++ = bin.trials;
    *out++ = bin.hits;
    *out++ = bin.chances;
  }
}

void Curve::restore(const double* state) {
  for (Bin& bin : bins_) {
    bin = {state[0], state[1], state[2]};
    state += 3;
  }
  refit();
}

void Curve::check(std::vector<std::string>& problems) const {
  for (std::size_t b = 0; b < kBins; ++b) {
    const Bin& bin = bins_[b];
    const double most = bin.trials * (1 + 1e-9);
    if (!(bin.hits >= 0 && bin.hits <= most && bin.chances >= 0 && bin.chances <= most)) {
      problems.push_back("confidence bin " + std::to_string(b) + ": more hits or chances than trials");
    }
  }
  if (!std::is_sorted(table_.begin(), table_.end()) || table_.front() < 0 || table_.back() > 1) {
    problems.emplace_back("confidence: the correction does not rise");
  }
}

void Curve::plant_fault() { bins_[0].hits = bins_[0].trials + 1; }

Leaning::Parts Leaning::parts() const {
  const Parts squares{hits_.newest * hits_.newest, hits_.oldest * hits_.oldest, hits_.onward * hits_.onward};
  const double all = squares.newest + squares.oldest + squares.onward;
  return {squares.newest / all, squares.oldest / all, squares.onward / all};
}

void Leaning::learn(bool newest_right, bool oldest_right, bool onward_right) {
  constexpr double kKept = 0.98;  // remembers about the last fifty times they differed
  const auto learn_one = [](double& hits, bool right) { hits = hits * kKept + (right ? 1 : 0) + (1 - kKept); };
  learn_one(hits_.newest, newest_right);
  learn_one(hits_.oldest, oldest_right);
  learn_one(hits_.onward, onward_right);
}

void Reliability::add(double score, bool accepted) {
  const auto bin = std::min(static_cast<std::size_t>(score * kBins), kBins - 1);
  nodes[bin] += 1;
  predicted[bin] += score;
  observed[bin] += accepted ? 1 : 0;
}

}  // namespace sssd
