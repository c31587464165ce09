#include "request.h"

#include <algorithm>
#include <utility>

namespace sssd {

Request::Request(std::vector<Token> prompt, std::vector<Token> prediction, std::vector<Namespace*> namespaces)
    : prompt_(std::move(prompt)), prompt_size_(prompt_.size()), namespaces_(std::move(namespaces)) {
  if (!prediction.empty()) {
    prediction_.emplace();
    prediction_->reserve(prediction.size());
    prediction_->append(prediction);
  }
}

void Request::index_prompt() {
  context_.reserve(prompt_.size() + prompt_.size() / 4 + 256);
  context_.append(prompt_);
  prompt_ = {};
  const std::lock_guard lock(mutex_);
  append(std::exchange(pending_, {}));
  ready_.store(true, std::memory_order_release);
}

Sources Request::sources() const {
  Sources sources{context_, context_.suffix(), prompt_size_, cursor_, prediction_ ? &*prediction_ : nullptr, on_prediction_, {}};
  for (const Namespace* space : namespaces_) sources.stores.push_back(space->segments());
  return sources;
}

Sources Request::sources_behind(std::span<const Token> ahead, std::size_t longest, std::vector<Token>& scratch) const {
  const std::size_t n = std::min(longest, context_.size());
  scratch.assign(1, kSeparator);
  scratch.insert(scratch.end(), context_.suffix().end - n, context_.suffix().end);
  scratch.insert(scratch.end(), ahead.begin(), ahead.end());
  scratch.push_back(kSeparator);
  Sources sources = this->sources();
  sources.suffix = {scratch.data() + scratch.size() - 1, scratch.size() - 2};
  sources.on_prediction = false;
  return sources;
}

void Request::append(std::span<const Token> tokens) {
  if (prediction_ && on_prediction_) {
    std::size_t written = context_.size() - prompt_size_;
    for (const Token token : tokens) {
      on_prediction_ = on_prediction_ && written < prediction_->size() && prediction_->tokens()[written] == token;
      ++written;
    }
  }
  context_.append(tokens);
}

void Request::accept(std::span<const Token> tokens, bool learn, Reliability& reliability) {
  if (!ready()) {
    const std::lock_guard lock(mutex_);
    if (!ready()) {
      pending_.insert(pending_.end(), tokens.begin(), tokens.end());
      return;
    }
  }
  if (learn) judge(tokens, reliability);
  proposal_.clear();
  follow(tokens);
  guides_ = {};
  append(tokens);
}

// Moves the cursor behind what the tokens have in common with the place where a copy was expected to go on.
void Request::follow(std::span<const Token> tokens) {
  if (guides_.onward_at == nullptr || tokens.empty() || tokens[0] != guides_.onward) return;
  const Token* at = guides_.onward_at;
  for (std::size_t i = 0; i < tokens.size() && *at == tokens[i] && *at >= 0; ++i) ++at;
  cursor_ = static_cast<std::size_t>(at - context_.tokens());
}

// A node is judged when the tokens tell whether its path came true: its depth is covered by them, or an ancestor is
// known to be wrong. Its chance was given under the condition that its parent is right, so only then is it learned.
void Request::judge(std::span<const Token> tokens, Reliability& reliability) {
  depth_.resize(proposal_.size());
  accepted_.resize(proposal_.size());
  Learned* learned = this->learned();
  if (learned != nullptr && !tokens.empty() && guides_.differ()) {
    learned->leaning.learn(tokens[0] == guides_.newest, tokens[0] == guides_.oldest, tokens[0] == guides_.onward);
  }
  for (std::size_t i = 0; i < proposal_.size(); ++i) {
    const Node& node = proposal_[i];
    const bool above = node.parent == kRoot || accepted_[node.parent];
    depth_[i] = node.parent == kRoot ? 0 : depth_[node.parent] + 1;
    const bool known = depth_[i] < tokens.size();
    accepted_[i] = above && known && tokens[depth_[i]] == node.token;
    if (above && !known) {
      accepted_[i] = true;  // keeps everything below unknown too
      continue;
    }
    reliability.add(node.score, accepted_[i]);
    if (learned == nullptr) continue;
    learned->paths.learn(node.path, accepted_[i]);
    if (above) {
      learned->curves[static_cast<std::size_t>(node.source)].learn(node.chance, accepted_[i]);
    }
  }
}

std::vector<Token> Request::text(std::size_t start) const {
  return {context_.tokens() + std::min(start, context_.size()), context_.tokens() + context_.size()};
}

std::size_t Request::memory() const {
  if (!ready()) return sizeof(Request) + prompt_size_ * sizeof(Token);  // the rest is being written elsewhere
  return sizeof(Request) + context_.memory() + (prediction_ ? prediction_->memory() : 0) +
         proposal_.capacity() * sizeof(Node);
}

void Request::check(std::vector<std::string>& problems) const {
  if (!ready()) return;
  context_.check(problems);
  if (prediction_) prediction_->check(problems);
  for (std::size_t i = 0; i < proposal_.size(); ++i) {
    const Node& node = proposal_[i];
    const double above = node.parent == kRoot ? 1.0 : proposal_[node.parent].score;
    if (node.parent >= static_cast<std::int32_t>(i) || !(node.score <= above)) {
      problems.push_back("proposal node " + std::to_string(i) + ": its parent comes later or is less likely");
    }
  }
}

}  // namespace sssd
