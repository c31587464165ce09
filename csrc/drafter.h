// The drafting core: requests, namespaces and one propose for a whole batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "authors.h"
#include "mixture.h"
#include "request.h"
#include "store.h"
#include "tree.h"
#include "workers.h"

namespace sssd {

// Arrays of the caller's, [rows, width], row by row; `counts` [rows] says how many nodes each row got.
struct TreeArrays {
  Token* tokens;
  std::int32_t* parents;
  float* scores;
  std::uint8_t* source;
  std::int32_t* counts;
  std::size_t width;
};

struct DrafterOptions {
  MixtureRules mixture;
  std::optional<AuthorsRules> authors;  // when set, they are used instead
  std::size_t n_threads;                // that draft, the caller's among them
  std::size_t rows_per_thread;          // fewer rows than this a thread are not worth waking one
  std::size_t background_from;          // prompts of so many tokens are indexed on a thread of their own
  bool learn;                           // correct scores by verdicts
};

// begin, propose, accept and end come from one thread, the loop's; publish from any; check and memory when no propose
// runs. Sizes, ids and ranges are checked by the caller unless a call says that it throws.
//
// Memory: each request's, each namespace's, and for every drafting thread the largest draft it made.
class Drafter {
 public:
  explicit Drafter(const DrafterOptions& options);

  // Throws std::invalid_argument when the id is in use.
  void begin(std::int64_t id, std::vector<Token> prompt, std::span<const std::int64_t> namespaces,
             std::vector<Token> prediction);
  // Row i gets at most min(budgets[i], width) nodes. Throws std::out_of_range for an unknown id.
  void propose(std::span<const std::int64_t> ids, std::span<const std::int32_t> budgets, const TreeArrays& out);
  // The tree that would be proposed if `ahead` stood behind the text; matches end in the text. Nothing is learned from
  // it, and what was proposed last stays. Throws std::out_of_range, and std::invalid_argument with the authors' rules.
  std::vector<Node> propose_behind(std::int64_t id, std::span<const Token> ahead, std::size_t budget);
  void accept(std::int64_t id, std::span<const Token> tokens);
  void end(std::int64_t id);

  void publish(std::int64_t space, Segments segments);
  // Returns when every prompt given so far is indexed.
  void settle() { background_.settle(); }

  // Prompt and output, from the last `n_prompt` prompt tokens on.
  std::vector<Token> text(std::int64_t id, std::size_t n_prompt);
  Learned& learned(std::int64_t space) { return store_.at(space).learned; }
  const Reliability& reliability() const { return reliability_; }

  std::size_t memory() const;
  std::vector<std::string> check() const;
  void plant_fault(std::int64_t id) { request(id).plant_fault(); }

 private:
  // What one thread drafts with.
  struct Desk {
    explicit Desk(const DrafterOptions& options) : mixture(options.mixture) {
      if (options.authors) authors.emplace(*options.authors);
    }
    Mixture mixture;
    std::optional<Authors> authors;
    Layout layout;
  };

  Request& request(std::int64_t id) const;
  void draft(Desk& desk, Request& request, std::size_t budget) const;
  static void write(const std::vector<Node>& nodes, std::size_t row, const TreeArrays& out);

  DrafterOptions options_;
  Store store_;
  std::unordered_map<std::int64_t, std::shared_ptr<Request>> requests_;
  Reliability reliability_;
  std::vector<std::unique_ptr<Desk>> desks_;
  std::vector<Request*> rows_;  // scratch of propose
  Crew crew_;
  Background background_;  // last: its thread ends first
};

}  // namespace sssd
