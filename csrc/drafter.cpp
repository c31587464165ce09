#include "drafter.h"

#include <algorithm>
#include <stdexcept>

namespace sssd {

Drafter::Drafter(const DrafterOptions& options) : options_(options), crew_(options.n_threads - 1) {
  for (std::size_t i = 0; i < options.n_threads; ++i) desks_.push_back(std::make_unique<Desk>(options));
}

Request& Drafter::request(std::int64_t id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) throw std::out_of_range("no request has the id " + std::to_string(id));
  return *found->second;
}

void Drafter::begin(std::int64_t id, std::vector<Token> prompt, std::span<const std::int64_t> namespaces,
                    std::vector<Token> prediction) {
  if (requests_.contains(id)) throw std::invalid_argument("request id " + std::to_string(id) + " is in use");
  std::vector<Namespace*> spaces;
  for (const std::int64_t space : namespaces) spaces.push_back(&store_.at(space));
  const bool in_background = prompt.size() >= options_.background_from;
  auto request = std::make_shared<Request>(std::move(prompt), std::move(prediction), std::move(spaces));
  requests_.emplace(id, request);
  if (in_background) {
    background_.post([request] { request->index_prompt(); });
  } else {
    request->index_prompt();
  }
}

void Drafter::propose(std::span<const std::int64_t> ids, std::span<const std::int32_t> budgets,
                      const TreeArrays& out) {
  rows_.clear();
  for (const std::int64_t id : ids) rows_.push_back(&request(id));
  const auto work = [&](std::size_t worker, std::size_t row) {
    const auto budget = static_cast<std::size_t>(std::max(budgets[row], 0));
    draft(*desks_[worker], *rows_[row], std::min(budget, out.width));
    write(rows_[row]->proposal(), row, out);
  };
  if (desks_.size() > 1 && rows_.size() >= 2 * options_.rows_per_thread) {
    crew_.run(rows_.size(), work);
  } else {
    for (std::size_t row = 0; row < rows_.size(); ++row) work(0, row);
  }
}

void Drafter::draft(Desk& desk, Request& request, std::size_t budget) const {
  std::vector<Node>& nodes = request.proposal();
  nodes.clear();
  request.set_guides({});
  if (budget == 0 || !request.ready()) return;
  const Sources sources = request.sources();
  const Learned* learned = options_.learn ? request.learned() : nullptr;
  if (desk.authors) {
    desk.authors->draft(sources, learned, budget, nodes);
  } else {
    desk.mixture.draft(sources, learned, budget, nodes);
    request.set_guides(desk.mixture.guides());
  }
  desk.layout.arrange(nodes);
  for (Node& node : nodes) node.score = learned != nullptr ? learned->paths.corrected(node.path) : node.path;
}

std::vector<Node> Drafter::propose_behind(std::int64_t id, std::span<const Token> ahead, std::size_t budget) {
  const Request& request = this->request(id);
  Desk& desk = *desks_[0];
  if (desk.authors) throw std::invalid_argument("the authors' rules draft behind committed text only");
  std::vector<Node> nodes;
  if (budget == 0 || !request.ready()) return nodes;
  std::vector<Token> scratch;
  const Learned* learned = options_.learn ? request.learned() : nullptr;
  const Sources sources = request.sources_behind(ahead, options_.mixture.gather.max_match, scratch);
  desk.mixture.draft(sources, learned, budget, nodes);
  desk.layout.arrange(nodes);
  for (Node& node : nodes) node.score = learned != nullptr ? learned->paths.corrected(node.path) : node.path;
  return nodes;
}

void Drafter::write(const std::vector<Node>& nodes, std::size_t row, const TreeArrays& out) {
  const std::size_t first = row * out.width;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    out.tokens[first + i] = nodes[i].token;
    out.parents[first + i] = nodes[i].parent;
    out.scores[first + i] = static_cast<float>(nodes[i].score);
    out.source[first + i] = static_cast<std::uint8_t>(nodes[i].source);
  }
  out.counts[row] = static_cast<std::int32_t>(nodes.size());
}

void Drafter::accept(std::int64_t id, std::span<const Token> tokens) {
  request(id).accept(tokens, options_.learn, reliability_);
}

void Drafter::end(std::int64_t id) {
  request(id);
  requests_.erase(id);
}

void Drafter::publish(std::int64_t space, Segments segments) {
  store_.at(space).publish(std::make_shared<const Segments>(std::move(segments)));
}

std::vector<Token> Drafter::text(std::int64_t id, std::size_t n_prompt) {
  const Request& of = request(id);
  if (!of.ready()) settle();
  return of.text(of.prompt_size() - std::min(n_prompt, of.prompt_size()));
}

std::size_t Drafter::memory() const {
  std::size_t bytes = sizeof(Drafter) + store_.memory();
  for (const auto& [id, request] : requests_) bytes += request->memory();
  return bytes;
}

std::vector<std::string> Drafter::check() const {
  std::vector<std::string> problems;
  store_.check(problems);
  for (const auto& [id, request] : requests_) {
    std::vector<std::string> own;
    request->check(own);
    for (const std::string& problem : own) problems.push_back("request " + std::to_string(id) + ": " + problem);
  }
  return problems;
}

}  // namespace sssd
