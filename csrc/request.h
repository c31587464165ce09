// One request: its text, its index, and the tree proposed last.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "confidence.h"
#include "context.h"
#include "mixture.h"
#include "sources.h"
#include "store.h"
#include "tree.h"

namespace sssd {

// Until `index_prompt` is done, perhaps on another thread, the request is not ready: it drafts nothing, and committed
// tokens wait. All other calls come from the loop's thread.
//
// Memory: the context index's and, with a prediction, a second index's; beside them the last tree.
// Cost: accept O(tokens) and O(nodes of the last tree).
class Request {
 public:
  Request(std::vector<Token> prompt, std::vector<Token> prediction, std::vector<Namespace*> namespaces);

  void index_prompt();
  bool ready() const { return ready_.load(std::memory_order_acquire); }

  // Asks for ready(). Namespaces are pinned until the value is dropped.
  Sources sources() const;
  // The same for the text with guesses `ahead` of its end; at most `longest` committed tokens count. Lives in `scratch`.
  Sources sources_behind(std::span<const Token> ahead, std::size_t longest, std::vector<Token>& scratch) const;
  // What the namespace has learned that the request belongs to, its first; null when it has none.
  Learned* learned() const { return namespaces_.empty() ? nullptr : &namespaces_.front()->learned; }

  // The tree handed out for the text as it is now; learned from at the next accept.
  std::vector<Node>& proposal() { return proposal_; }
  void set_guides(const Guides& guides) { guides_ = guides; }

  // Appends committed tokens. The proposal is judged by them and forgotten.
  void accept(std::span<const Token> tokens, bool learn, Reliability& reliability);

  std::size_t prompt_size() const { return prompt_size_; }
  // Prompt and output from `start` on. Asks for ready().
  std::vector<Token> text(std::size_t start) const;

  std::size_t memory() const;
  void check(std::vector<std::string>& problems) const;
  void plant_fault() { context_.plant_fault(); }

 private:
  void judge(std::span<const Token> tokens, Reliability& reliability);
  void follow(std::span<const Token> tokens);
  void append(std::span<const Token> tokens);

  std::vector<Token> prompt_;  // until it is indexed
  std::size_t prompt_size_;
  ContextIndex context_;
  std::optional<ContextIndex> prediction_;
  bool on_prediction_ = true;
  std::vector<Namespace*> namespaces_;
  std::vector<Node> proposal_;
  Guides guides_;         // of the proposal
  std::size_t cursor_ = 0;  // position in the context behind what was copied last
  std::vector<std::size_t> depth_;  // scratch of judge
  std::vector<bool> accepted_;      // scratch of judge

  std::mutex mutex_;            // guards pending_ while not ready
  std::vector<Token> pending_;  // committed before the prompt was indexed
  std::atomic<bool> ready_{false};
};

}  // namespace sssd
