// How far a rule's probabilities can be believed: learned from verdicts, apart for every source.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "text.h"

namespace sssd {

// Corrects the chance of a token given that its parent was accepted.
//
// Chances fall into bins. A bin remembers, decaying, how many of its tokens were tried, how many were right and the
// chances they were given. The correction passes through every bin's (mean chance, share that was right), pulled to the
// identity by kPrior imagined trials and made monotone by pooling neighbours that violate the order; between cells of a
// table of it, it is linear.
//
// Memory: under 3 KB. Cost: `corrected` one table look-up, `learn` O(1), with a refit of O(cells) every kRefit calls.
class Curve {
 public:
  static constexpr std::size_t kBins = 27;
  static constexpr std::size_t kState = 3 * kBins;

  // A bin remembers about its last 1 / (1 - kept) trials.
  explicit Curve(double kept);
  double corrected(double chance) const {
    const double at = chance * kCells;
    const std::size_t i = std::min(static_cast<std::size_t>(at), kCells - 1);
    return table_[i] + (table_[i + 1] - table_[i]) * (at - static_cast<double>(i));
  }
  void learn(double chance, bool right);

  // kState numbers: trials, hits and chances of each bin. `restore` takes what `state` gave.
  void state(double* out) const;
  void restore(const double* state);
  void check(std::vector<std::string>& problems) const;
  // Damages the curve so that tests can see check() find it.
  void plant_fault();

 private:
  struct Bin {
    double trials = 0, hits = 0, chances = 0;
  };

  struct Knots {  // of the correction, from chance 0 to chance 1, both rising
    std::array<double, kBins + 2> x, y;
  };
  static constexpr std::size_t kCells = 256;

  void refit();
  void fit(Knots& knots) const;

  double kept_;
  std::array<Bin, kBins> bins_;
  std::array<double, kCells + 1> table_;  // the correction at i / kCells
  std::uint32_t learned_ = 0;
};

// Which of the longest matches is right most often where they differ: text that is being written goes on as it did
// last, a document that is being copied as it did first, or behind the place copied last. Begins on the newest's side.
// Three numbers, decaying.
class Leaning {
 public:
  struct Parts {
    double newest = 1;
    double oldest = 0;
    double onward = 0;
  };
  // They sum to 1: shares of squares, so that the best one takes most of it.
  Parts parts() const;
  void learn(bool newest_right, bool oldest_right, bool onward_right);

 private:
  Parts hits_{4, 1, 1};
};

// What one namespace has learned.
//
// `curves` correct the chance of a node given its parent, apart for every source. Chances that follow one another err
// together, so `paths` corrects their product once more: it is what is handed out. Rising, it changes no order.
struct Learned {
  std::array<Curve, kSources> curves{Curve(0.999), Curve(0.999), Curve(0.999), Curve(0.999)};
  Curve paths{0.998};
  Leaning leaning;

  double corrected(Source source, double chance) const {
    return curves[static_cast<std::size_t>(source)].corrected(chance);
  }
};

// Predicted against observed acceptance of whole paths, in bins of equal width; never decays.
struct Reliability {
  static constexpr std::size_t kBins = 20;
  std::array<double, kBins> nodes{}, predicted{}, observed{};

  void add(double score, bool accepted);
};

}  // namespace sssd
